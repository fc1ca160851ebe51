"""PyTorch programs: FX code dumps, export archives and live graphs, all read into one `Graph`."""

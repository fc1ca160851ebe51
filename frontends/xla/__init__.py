"""Programs that XLA has partitioned: tracing, lowering and partitioning without devices."""

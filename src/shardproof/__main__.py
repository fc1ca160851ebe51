"""`python -m shardproof` is the command line."""

from __future__ import annotations

from shardproof.tools.command_line import main

main()

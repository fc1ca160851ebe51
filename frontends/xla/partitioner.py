"""The spawned process: `python -m shardproof.frontends.xla.partitioner FOLDER JSON`.

Compiles the StableHLO in `FOLDER/program` for as many CPU devices as the JSON says, with XLA's dump of the
module before and after SPMD partitioning going to FOLDER. Nothing is run, and no array is made. It needs
jaxlib only, and is a process of its own since XLA ends the process at an internal error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = "program"
PASS: Final = "spmd-partitioning"
"""The pass around which XLA dumps the module."""


def main(arguments: list[str]) -> None:
    """Raises what jaxlib raises; its last line is XLA's own message."""
    import numpy as np
    from jaxlib import xla_client

    client_module: Any = xla_client
    folder, settings = Path(arguments[0]), json.loads(arguments[1])
    ranks: int = settings["ranks"]
    options = client_module.CompileOptions()
    options.num_replicas, options.num_partitions = 1, ranks
    options.device_assignment = client_module.DeviceAssignment.create(np.arange(ranks).reshape(1, ranks))
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = 1, ranks
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = settings["shardy"]
    build.allow_spmd_sharding_propagation_to_output = settings["chosen"]
    options.env_option_overrides = [
        ("xla_dump_to", str(folder)),
        ("xla_dump_hlo_as_proto", True),
        ("xla_dump_hlo_as_text", False),
        ("xla_dump_hlo_pass_re", PASS),
        ("xla_backend_optimization_level", 0),
    ]
    client = client_module.make_cpu_client()
    data = (folder / PROGRAM).read_bytes()
    if hasattr(client, "compile_and_load"):
        client.compile_and_load(data, client.devices(), options)
    else:
        client.compile(data, options)


if __name__ == "__main__":
    main(sys.argv[1:])

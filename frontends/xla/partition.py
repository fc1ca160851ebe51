"""From StableHLO with shardings to what XLA's SPMD partitioner makes of it, by way of a spawned process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardproof.frontends.xla.partitioner import PASS, PROGRAM
from shardproof.ir.module import ModuleError

SECONDS: Final = 1800.0
"""Limit for a compilation when none is given."""
PAUSE: Final = 0.02
_FIRST: Final = b"\x0a"
"""How a file starts whose first field, of a stated length, is the module."""
_DEVICES: Final = "xla_force_host_platform_device_count"
_MODULE: Final = "shardproof.frontends.xla.partitioner"


def partitioned(
    program: bytes, ranks: int, *, shardy: bool, chosen: Sequence[bool], timeout: float | None = None
) -> bytes:
    """The serialised HLO of the program of one device, after SPMD partitioning and before fusion.

    `program` is StableHLO with the shardings of its inputs and outputs, as MLIR bytecode; `chosen` tells of
    which outputs XLA chooses the sharding. `timeout` is in seconds. The rest of the compilation is not
    waited for. Raises ModuleError with XLA's message when it refuses the program.
    """
    settings = json.dumps({"ranks": ranks, "shardy": shardy, "chosen": list(chosen)})
    end = time.monotonic() + (timeout or SECONDS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / PROGRAM).write_bytes(program)
        with (folder / "log").open("w+b") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, name, settings],
                env=_environment(ranks),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            try:
                while process.poll() is None:
                    data = _written(folder)
                    if data is not None:
                        return data
                    if time.monotonic() > end:
                        raise ModuleError(f"XLA needs more than {timeout or SECONDS:g} s for the program")
                    time.sleep(PAUSE)
            finally:
                process.kill()
                process.wait()
            data = _written(folder)
            if data is not None:
                return data
            log.seek(0)
            text = log.read().decode("utf-8", "replace")
        if process.returncode:
            told = _message(text) or f"its process ended with code {process.returncode}"
            raise ModuleError(f"XLA does not compile the program for {ranks} devices: {told}")
        raise ModuleError(
            f"XLA wrote no module after its pass {PASS}: this version of jaxlib names its passes differently"
        )


def _written(folder: Path) -> bytes | None:
    """The module after the pass, once all of it is there; it is the first field of the file."""
    found = sorted(folder.glob(f"*after_{PASS}*.hlo.pb"))
    if not found:
        return None
    if len(found) > 1:
        raise ModuleError(f"XLA partitioned {len(found)} modules, one is needed")
    data = found[0].read_bytes()
    at, size, shift = 1, 0, 0
    while at < len(data):
        size |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return data if data[:1] == _FIRST and len(data) - at >= size > 0 else None
    return None


def _environment(ranks: int) -> dict[str, str]:
    """This process's, for CPU devices of the number given, with the modules that can be imported here."""
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if _DEVICES not in f and "dump" not in f]
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "XLA_FLAGS": " ".join([*flags, f"--{_DEVICES}={ranks}"]),
    }


def _message(log: str) -> str:
    """XLA's message: the last line of a traceback, or of the log of a process that XLA ended."""
    lines = [line for line in log.splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4} ", line)]
    error = next((n for n in range(len(lines) - 1, -1, -1) if re.match(r"[\w.]*Error: ", lines[n])), None)
    told = fatal or (lines[error:] if error is not None else lines[-1:])
    return " ".join(" ".join(told).split())[:600]

"""What an installed wheel must do with the core dependencies only; `make wheel` runs it.

The interpreter is that of the environment with the wheel. Exits with the first thing that is wrong.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DUMPS = Path(__file__).resolve().parents[1] / "examples" / "neuron_llama" / "dumps"
COMMAND = Path(sys.executable).with_name("shardproof")
HELP_SECONDS = 0.3


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a folder where nothing of the checkout is found."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def check(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"check_wheel: {what}")


def verdict(implementation: str, status: int, start: str) -> None:
    found = run("verify", str(DUMPS / "tp1_layer1.hlo.pb.gz"), str(DUMPS / implementation))
    told = found.stdout + found.stderr
    check(found.returncode == status, f"{implementation} exits {found.returncode}: {told}")
    check(found.stdout.startswith(start), f"{implementation} prints {found.stdout}")


def main() -> None:
    origin = importlib.util.find_spec("shardproof")
    check(origin is not None and "site-packages" in str(origin.origin), f"{origin} is not the wheel's")
    for name in ("torch", "jax", "onnx", "z3", "pytest"):
        check(importlib.util.find_spec(name) is None, f"{name} is installed, which is no core dependency")
    verdict("tp4_layer1.hlo.pb.gz", 0, "verified")
    verdict("tp4_layer1.wrong_slice.hlo.pb.gz", 1, "refuted[R03]")
    verdict("tp4_layer1.interleaved_qkv.hlo.pb.gz", 2, "unknown")
    verdict("nothing.pb", 3, "")
    listed = run("lemma", "list")
    check(listed.returncode == 0 and "softmax_shift" in listed.stdout, f"lemma list: {listed.stdout[:99]}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        model.write_bytes(b"\x08\x08\x12\x04test")
        told = run("verify", str(model), str(model))
    check(told.returncode == 3 and "shardproof[onnx]" in told.stderr, f"an ONNX file gives {told.stderr}")
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        check(run("--help").returncode == 0, "--help fails")
        seconds.append(time.perf_counter() - start)
    check(min(seconds) <= HELP_SECONDS, f"--help takes {min(seconds):.2f} s")
    print(f"the wheel verifies, refutes and explains itself; --help takes {min(seconds):.2f} s")


if __name__ == "__main__":
    main()

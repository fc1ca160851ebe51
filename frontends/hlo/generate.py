"""Writes hlo_pb2.py from hlo.proto.

Run it with the protobuf compiler of the oldest supported runtime (protobuf 5.26, whose compiler is in
grpcio-tools 1.63); code from a newer compiler refuses to run on an older runtime:

    python -m venv /tmp/pb && /tmp/pb/bin/pip install "grpcio-tools==1.63.0" "setuptools<80"
    /tmp/pb/bin/python frontends/hlo/generate.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OLDEST_RUNTIME = "5.26"
GENERATOR = "grpcio-tools 1.63"


def main() -> int:
    """Compile hlo.proto beside itself, under its import name; returns the compiler's exit code."""
    root = Path(__file__).resolve().parents[2] / "src"
    source = "shardproof/frontends/hlo/hlo.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--python_out={root}", source]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Size report of the sources: `python -m shardproof.tools.sizes [ROOT]`; fails on a file over the limit."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

ROOMS: Final = ("ir", "frontends", "passes", "lemmas", "solver", "tools", "src/shardproof")
LOOK_TWICE: Final = 400
LIMIT: Final = 800


def source_files(root: Path) -> list[Path]:
    """Python files of the rooms that people write: generated protobuf modules are left out."""
    found = [path for room in ROOMS for path in sorted((root / room).rglob("*.py")) if (root / room).is_dir()]
    unique = {path.resolve(): path for path in found if not path.name.endswith("_pb2.py")}
    return sorted(unique)


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def size_report(root: Path, files: Iterable[Path]) -> tuple[list[str], bool]:
    """The report's lines, largest file first, and whether every file is within LIMIT."""
    sizes = sorted(((count_lines(path), path) for path in files), reverse=True)
    sizes = [(lines, path) for lines, path in sizes if lines]
    if not sizes:
        return ["no source files found"], False
    report = []
    for lines, path in sizes:
        mark = "  over the limit" if lines > LIMIT else "  look twice" if lines > LOOK_TWICE else ""
        report.append(f"{lines:6d}  {path.relative_to(root.resolve())}{mark}")
    counts = [lines for lines, _ in sizes]
    report.append(f"{sum(counts)} lines in {len(counts)} files, median {statistics.median(counts):g}")
    return report, max(counts) <= LIMIT


def main(arguments: Sequence[str]) -> int:
    root = Path(arguments[0]) if arguments else Path.cwd()
    lines, ok = size_report(root, source_files(root))
    print("\n".join(lines))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The size report counts each source once and fails on a file that is too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.tools.sizes import LIMIT, ROOMS, main, source_files


def tree(root: Path, lines: dict[str, int]) -> Path:
    for name, count in lines.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * count)
    return root


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tree(tmp_path, {"ir/a.py": 10, "ir/b_pb2.py": 5000, "tools/c.py": LIMIT, "docs/d.py": 9000})
    (root / "src/shardproof").mkdir(parents=True)
    (root / "src/shardproof/ir").symlink_to(root / "ir")
    assert main([str(root)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{LIMIT:6d}  tools/c.py  look twice",
        "    10  ir/a.py",
        f"{LIMIT + 10} lines in 2 files, median {(LIMIT + 10) / 2:g}",
    ]


def test_a_file_over_the_limit_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tree(tmp_path, {"ir/a.py": LIMIT + 1}))]) == 1
    assert "over the limit" in capsys.readouterr().out


def test_an_empty_tree_fails(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1


def test_the_project_itself() -> None:
    root = Path(__file__).resolve().parents[2]
    found = {path.relative_to(root).as_posix() for path in source_files(root)}
    assert {"ir/types.py", "tools/sizes.py", "src/shardproof/__init__.py"} <= found
    assert not any(name.startswith("src/shardproof/" + room) for room in ROOMS for name in found)
    assert main([str(root)]) == 0

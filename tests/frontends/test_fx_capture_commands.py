"""Captures on the command line and as arguments of `verify`, and beside programs of other kinds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as funcol  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import shardproof  # noqa: E402
from shardproof.frontends.fx.traced import Placed  # noqa: E402
from shardproof.ir.module import ModuleError  # noqa: E402
from shardproof.ir.types import Mesh  # noqa: E402
from shardproof.solver.captured import layout_of  # noqa: E402
from shardproof.tools.command_line import run  # noqa: E402

BATCH, HIDDEN, INNER = 4, 8, 16
Capture = pytest.CaptureFixture[str]


class Mlp(torch.nn.Module):
    def __init__(self, ranks: int, summed: bool = True) -> None:
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, INNER // ranks, bias=False)
        self.down = torch.nn.Linear(INNER // ranks, HIDDEN, bias=False)
        self.summed = summed and ranks > 1

    def forward(self, x: Any) -> Any:
        y = self.down(F.gelu(self.up(x)))
        return funcol.all_reduce(y, "sum", dist.group.WORLD) if self.summed else y


def inputs() -> tuple[Any, ...]:
    return (torch.zeros(BATCH, HIDDEN),)


def whole() -> Any:
    return Mlp(1), inputs()


def divided() -> Any:
    return Mlp(dist.get_world_size()), inputs()


def forgetful() -> Any:
    return Mlp(dist.get_world_size(), summed=False), inputs()


def routed(x: Any) -> Any:
    """Every token, less the sum of those before it: no group of tokens is like another."""
    return torch.tanh(x - torch.cumsum(x, 0))


def routed_alone() -> Any:
    return (lambda x: torch.cat([routed(part) for part in x.chunk(2)])), (torch.zeros(2 * BATCH, HIDDEN),)


def routed_apart() -> Any:
    return routed, inputs()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with saved captures."""
    place = tmp_path_factory.mktemp("captures")
    name = Path(__file__).stem
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        for function in ("whole", "divided", "forgetful", "routed_alone", "routed_apart"):
            alone = function in ("whole", "routed_alone")
            mesh = [] if alone else ["--mesh", "tp=2"]
            assert run(["capture", f"{name}:{function}", *mesh, "-o", str(place / function)]) == 0
    finally:
        sys.path.remove(str(Path(__file__).parent))
    return place


@pytest.fixture
def there(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Path:
    monkeypatch.chdir(folder)
    capsys.readouterr()
    return folder


def test_folders(there: Path, capsys: Capture, tmp_path: Path) -> None:
    assert run(["verify", "whole", "divided"]) == 0
    assert "divided refines whole, on an inferred layout" in capsys.readouterr().out
    assert run(["verify", "whole", "forgetful"]) == 1
    assert f"{Path(__file__).name}:" in capsys.readouterr().out
    assert run(["verify", "whole", "divided", "--strict"]) == 2
    layouts, proof = tmp_path / "layouts.toml", tmp_path / "proof.cert"
    command = ["verify", "whole", "divided", "--mesh", "tp=2"]
    assert run([*command, "--save-relation", str(layouts)]) == 0
    assert run([*command, "--relation", str(layouts), "--strict", "--certificate", str(proof)]) == 0
    assert run(["cert", "check", str(proof), "whole", "divided"]) == 0
    assert run(["cert", "check", str(proof), "whole", "forgetful"]) == 1
    capsys.readouterr()
    assert run(["inspect", "divided"]) == 0
    assert "all_reduce sum over [0, 1]" in capsys.readouterr().out


def test_files_of_all_ranks_in_any_order(there: Path) -> None:
    assert run(["verify", "whole/rank0.json", "divided/rank1.json", "divided/rank0.json"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["whole", "divided/rank0.json"], "of a run on 2 ranks, give the files of all"),
        (["whole", "divided/rank0.json", "divided/rank0.json"], "two files say that they are rank 0"),
        (["whole", "divided/rank0.json", "whole/rank0.json"], "is of a run over one rank"),
        (["whole", "divided", "divided"], "divided: is of a saved capture: give its folder alone"),
        (["whole", "."], "without rank0.json"),
        (["absent", "divided"], "absent: no such file"),
        (["whole", "divided", "--mesh", "tp=4"], "captured over tp=2, the mesh given is tp=4"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], message: str, there: Path, capsys: Capture
) -> None:
    assert run(["verify", *arguments]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_hostile_capture_is_refused(there: Path, capsys: Capture, tmp_path: Path) -> None:
    text = (there / "whole" / "rank0.json").read_text(encoding="utf-8")
    for old, new in (
        ('{"ref": "x"}', '{"eval": "__import__(\'os\')"}'),
        ('"nodes": [', '"nodes": [' + "[" * 50_000),
    ):
        (tmp_path / "rank0.json").write_text(text.replace(old, new), encoding="utf-8")
        assert run(["verify", "whole", str(tmp_path)]) == 3
        (line,) = capsys.readouterr().err.splitlines()
        assert "rank0.json: " in line and len(line) < 1000


def test_ranks_that_do_work_of_their_own_are_proved_side_by_side(
    there: Path, capsys: Capture, tmp_path: Path
) -> None:
    layouts, proof = tmp_path / "layouts.toml", tmp_path / "proof.cert"
    layouts.write_text('[inputs]\nx = "shard(0)"\n', encoding="utf-8")
    command = ["verify", "routed_alone", "routed_apart", "--relation", str(layouts)]
    assert run([*command, "--certificate", str(proof), "--strict"]) == 0
    assert "output: shards of dim 0 over tp" in capsys.readouterr().out
    assert run(["cert", "check", str(proof), "routed_alone", "routed_apart"]) == 0
    layouts.write_text('[inputs]\nx = "shard(0) | ranks(1, 0)"\n', encoding="utf-8")
    assert run(command) == 1


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Any], list[Path]]:
    """The programs as `ExportedProgram` objects, and files of them."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    place = tmp_path_factory.mktemp("archives")

    def export(make: Any) -> Any:
        with torch.no_grad():
            return torch.export.export(*make(), strict=False).run_decompositions({})

    reference = export(whole)
    torch.export.save(reference, place / "whole.pt2")
    ranks, paths = [], [place / "whole.pt2"]
    for rank in range(2):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            ranks.append(export(divided))
            groups = {dist.group.WORLD.group_name: [0, 1]}
        finally:
            dist.destroy_process_group()
        paths.append(place / f"rank{rank}.pt2")
        extra = {"dist.json": json.dumps({"rank": rank, "groups": groups})}
        torch.export.save(ranks[-1], paths[-1], extra_files=extra)
    return reference, ranks, paths


def test_kinds_may_be_mixed(there: Path, exported: tuple[Any, list[Any], list[Path]]) -> None:
    reference, ranks, (archive, *archives) = exported
    captured, others = shardproof.capture_torch(whole), shardproof.capture_torch(divided, mesh={"tp": 2})
    for one in (reference, archive, captured, "whole"):
        for other in (ranks, archives, others, "divided"):
            found = shardproof.verify(one, other)
            assert found.verdict is shardproof.Verdict.VERIFIED, (one, other, found)
            guessed = {"group_guess"} if other is ranks else set()
            assert {a.kind for a in found.assumptions} == {"inferred_relation"} | guessed
            assert set(found.inferred_relation or ()) == {"up.weight", "down.weight", "x"}


class Told(torch.nn.Module):
    """Rank 1 computes, or both do; the result is that of rank `root`."""

    def __init__(self, root: int = 1) -> None:
        super().__init__()
        self.inner, self.root = Mlp(1), root

    def forward(self, x: Any) -> Any:
        if not dist.is_initialized():
            return 3 * self.inner(x)
        y = 3 * self.inner(x) if dist.get_rank() == 1 else torch.zeros_like(x)
        return funcol.broadcast(y, self.root, dist.group.WORLD)


@pytest.mark.parametrize("root", [0, 1])
def test_archives_of_ranks_that_differ_stand_side_by_side(
    root: int, tmp_path: Path, capsys: Capture
) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def export(path: Path, extra: dict[str, str]) -> None:
        with torch.no_grad():
            program = torch.export.export(Told(root), inputs(), strict=False).run_decompositions({})
        torch.export.save(program, path, extra_files=extra)

    export(tmp_path / "alone.pt2", {})
    for rank in range(2):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            groups = {dist.group.WORLD.group_name: [0, 1]}
            export(tmp_path / f"{rank}.pt2", {"dist.json": json.dumps({"rank": rank, "groups": groups})})
            export(tmp_path / f"untold{rank}.pt2", {})
        finally:
            dist.destroy_process_group()
    names = [str(tmp_path / name) for name in ("alone.pt2", "0.pt2", "1.pt2")]
    proof = str(tmp_path / "proof.cert")
    assert run(["verify", *names, "--mesh", "tp=2", "--certificate", proof]) == (0 if root == 1 else 1)
    if root == 1:
        assert run(["cert", "check", proof, *names]) == 0
    capsys.readouterr()
    untold = [str(tmp_path / f"untold{rank}.pt2") for rank in range(2)]
    assert run(["verify", names[0], *untold]) == 2
    assert "whose members are not recorded" in capsys.readouterr().out


def test_inputs_of_other_names_pair_in_their_order() -> None:
    def prefixed() -> Any:
        inner = torch.nn.ModuleDict({"inner": Mlp(dist.get_world_size())})
        return (lambda x: inner["inner"](x)), inputs()

    found = shardproof.verify_torch(whole, prefixed, mesh={"tp": 2})
    assert found.verdict is shardproof.Verdict.VERIFIED, found
    layouts = found.inferred_relation or {}
    assert list(layouts) == ["inner.up.weight", "inner.down.weight", "x"]


@pytest.mark.parametrize(
    ("given", "message"),
    [(Mlp(1), "type Mlp is no program that is read: capture it first"), (3, "type int is no program")],
)
def test_other_objects_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ModuleError, match=message):
        shardproof.verify(given, given)


def test_a_capture_holds_all_ranks() -> None:
    found = shardproof.capture_torch(whole)
    with pytest.raises(ModuleError, match="give nothing beside it"):
        shardproof.verify(found, [found, found])


@pytest.mark.parametrize(
    ("dims", "ranks", "rank", "layout"),
    [
        ((("tp", 2),), (2, 3), 2, "shard(0, tp)"),
        ((("dp", 2),), (1, 3), 3, "shard(0, dp)"),
        ((("tp", 2),), (0, 1), 2, None),
        ((("tp", 2),), (3, 2), 2, None),
        ((("xx", 2),), (2, 3), 2, None),
        ((("a", 2), ("b", 2)), (0, 1, 2, 3), 0, "shard(0, dp)"),
        ((("tp", 2), ("dp", 2)), (0, 2, 1, 3), 0, "shard(0, tp)"),
    ],
)
def test_placements_over_axes_of_the_mesh(
    dims: Any, ranks: tuple[int, ...], rank: int, layout: str | None
) -> None:
    others = ("replicate",) * (len(dims) - 1)
    placed = Placed((4, 4), dims, ranks, ("shard(0)", *others))
    assert layout_of(placed, Mesh((("dp", 2), ("tp", 2))), rank) == layout

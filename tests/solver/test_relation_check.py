"""Shards that loaders made, right and with the usual mistakes, against relation files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.weight_files import safetensors

from shardproof.solver.relations.relation_check import Report, check
from shardproof.solver.relations.steps import RelationError
from shardproof.tools.relation_command import app

Arrays = dict[str, Any]
RANKS = 4
RELATION = """
mesh = { tp = 4 }
[inputs]
tokens = "shard(0)"
"layers.{l}.qkv" = { dim = 0, segments = [
    { steps = "'layers.{l}.q' | shard(0)" },
    { steps = "'layers.{l}.k' | shard(0)" },
    { steps = "'layers.{l}.v' | shard(0)" } ] }
"layers.{l}.o" = "shard(1)"
"layers.{l}.up" = "'layers.{l}.up' | permute(1, 0) | shard(1)"
"layers.{l}.norm" = "replicate"
head = "pad(0, 0, 2) | shard(0)"
"""


def whole(seed: int = 1, layers: int = 2) -> Arrays:
    draw = np.random.default_rng(seed)

    def weight(*shape: int) -> Any:
        return draw.standard_normal(shape).astype(np.float32)

    arrays: Arrays = {"head": weight(10, 8)}
    for n in range(layers):
        arrays |= {f"layers.{n}.{x}": weight(8, 8) for x in "qkvo"}
        arrays |= {f"layers.{n}.up": weight(12, 8), f"layers.{n}.norm": weight(8)}
    return arrays


def shards(arrays: Arrays, layers: int = 2) -> list[Arrays]:
    padded = np.concatenate([arrays["head"], np.zeros((2, 8), np.float32)])
    out = []
    for r in range(RANKS):
        own: Arrays = {"head": padded[3 * r : 3 * r + 3]}
        for n in range(layers):
            part = [arrays[f"layers.{n}.{x}"][2 * r : 2 * r + 2] for x in "qkv"]
            own[f"layers.{n}.qkv"] = np.concatenate(part)
            own[f"layers.{n}.o"] = arrays[f"layers.{n}.o"][:, 2 * r : 2 * r + 2]
            own[f"layers.{n}.up"] = arrays[f"layers.{n}.up"].T[:, 3 * r : 3 * r + 3]
            own[f"layers.{n}.norm"] = arrays[f"layers.{n}.norm"]
        out.append(own)
    return out


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., Report]:
    def run(arrays: Arrays, ranks: list[Arrays], relation: str = RELATION, mesh: str | None = None) -> Report:
        file = tmp_path / "relation.toml"
        file.write_text(relation)
        reference = safetensors(tmp_path / "model.safetensors", arrays)
        files = [safetensors(tmp_path / f"rank{r}.safetensors", own) for r, own in enumerate(ranks)]
        return check(file, [reference], files, mesh)

    return run


def test_right_shards_obey(checked: Callable[..., Report]) -> None:
    report = checked(whole(), shards(whole()))
    assert report.obeys and report.tensors == 9 and report.shards == 36
    assert report.absent == ("tokens",) and not report.unchecked and not report.unread and not report.casts


def swapped(ranks: list[Arrays]) -> None:
    q, k, v = np.split(ranks[2]["layers.1.qkv"], 3)
    ranks[2]["layers.1.qkv"] = np.concatenate([q, v, k])


def rotated(ranks: list[Arrays]) -> None:
    ranks[1]["layers.0.o"], ranks[2]["layers.0.o"] = ranks[2]["layers.0.o"], ranks[1]["layers.0.o"]


def stale(ranks: list[Arrays]) -> None:
    ranks[3]["layers.0.norm"] = ranks[3]["layers.0.norm"] + np.array([0, 0, 1, 0, 0, 1, 0, 0], np.float32)


def other_layer(ranks: list[Arrays]) -> None:
    ranks[0]["layers.1.up"] = ranks[0]["layers.0.up"]


def plain_cut(ranks: list[Arrays]) -> None:
    fused = np.concatenate([whole()[f"layers.0.{x}"] for x in "qkv"])
    ranks[1]["layers.0.qkv"] = fused[6:12]


def transposed(ranks: list[Arrays]) -> None:
    ranks[1]["layers.0.up"] = np.ascontiguousarray(ranks[1]["layers.0.up"].T)


def wrong_dim(ranks: list[Arrays]) -> None:
    ranks[1]["layers.0.o"] = whole()["layers.0.o"][2:4]


def unsharded(ranks: list[Arrays]) -> None:
    ranks[1]["layers.0.o"] = whole()["layers.0.o"]


def dealt(ranks: list[Arrays]) -> None:
    ranks[1]["layers.0.o"] = whole()["layers.0.o"][:, 1::4]


def doubled(ranks: list[Arrays]) -> None:
    ranks[1]["layers.0.o"] = 2 * ranks[1]["layers.0.o"]


def rounded(ranks: list[Arrays]) -> None:
    ranks[1]["layers.0.o"] = ranks[1]["layers.0.o"].astype(np.float16).astype(np.float32)


def empty(ranks: list[Arrays]) -> None:
    ranks[1]["layers.0.o"] = np.zeros((8, 2), np.float32)


def unpadded(ranks: list[Arrays]) -> None:
    ranks[0]["head"] = ranks[0]["head"][:2]


MISTAKES = {
    "swapped": (swapped, 2, "layers.1.qkv", "values", "segments 1 and 2 are swapped"),
    "rotated": (
        rotated,
        1,
        "layers.0.o",
        "values",
        "it is the shard of rank 2: the ranks are in another order",
    ),
    "stale": (stale, 3, "layers.0.norm", "values", None),
    "other_layer": (other_layer, 0, "layers.1.up", "values", "it is the shard of `layers.0.up`"),
    "plain_cut": (
        *(plain_cut, 1, "layers.0.qkv", "values"),
        "it is cut as one tensor, not each segment for itself",
    ),
    "transposed": (
        *(transposed, 1, "layers.0.up", "shape"),
        "it is transposed: its dims are those expected in the order (1, 0)",
    ),
    "wrong_dim": (wrong_dim, 1, "layers.0.o", "shape", "it is a shard of dim 0, not of dim 1"),
    "unsharded": (unsharded, 1, "layers.0.o", "shape", "it is not sharded"),
    "dealt": (
        *(dealt, 1, "layers.0.o", "values"),
        "it holds every 4th position of dim 1, not a contiguous part",
    ),
    "doubled": (doubled, 1, "layers.0.o", "values", "it is 2 times what is expected"),
    "rounded": (rounded, 1, "layers.0.o", "values", "it went through f16: its values are rounded"),
    "empty": (
        *(empty, 1, "layers.0.o", "values"),
        "it is all zeros: it was never loaded, or padding took its place",
    ),
    "unpadded": (unpadded, 0, "head", "shape", None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str, checked: Callable[..., Report]) -> None:
    make, rank, name, kind, cause = MISTAKES[mistake]
    ranks = shards(whole())
    make(ranks)
    report = checked(whole(), ranks)
    first = report.failures[0]
    assert (first.rank, first.name, first.kind, first.cause) == (rank, name, kind, cause)
    assert len(report.failures) == (2 if mistake == "rotated" else 1)


def test_the_first_element_that_differs_is_shown(checked: Callable[..., Report]) -> None:
    ranks = shards(whole())
    stale(ranks)
    (failure,) = checked(whole(), ranks).failures
    expected = whole()["layers.0.norm"]
    assert failure.element == (2,) and failure.differing == 2
    assert failure.values == (str(expected[2]), str(expected[2] + 1))
    assert failure.expected == "all of `layers.0.norm`, f32[8]" and failure.found == "f32[8]"


def test_segments_of_one_source(checked: Callable[..., Report]) -> None:
    fused = np.arange(24, dtype=np.float32).reshape(12, 2)
    q, k, v = fused[:8], fused[8:10], fused[10:]
    relation = """[inputs]
w = { dim = 0, segments = [{ size = 8, steps = "shard(0)" }, { size = 2, steps = "shard(0)" },
                           { size = 2, steps = "shard(0)" }] }"""
    right = [{"w": np.concatenate([np.split(x, 2)[r] for x in (q, k, v)])} for r in range(2)]
    assert checked({"w": fused}, right, relation).obeys
    plain = checked({"w": fused}, [{"w": x} for x in np.split(fused, 2)], relation)
    assert plain.failures[0].cause == "it is cut as one tensor, not each segment for itself"
    other = [{"w": np.concatenate([np.split(x, 2)[r] for x in (q, v, k)])} for r in range(2)]
    assert checked({"w": fused}, other, relation).failures[0].cause == "segments 1 and 2 are swapped"


def test_a_repetition_of_other_blocks(checked: Callable[..., Report]) -> None:
    heads = np.arange(8, dtype=np.float32).reshape(4, 2)
    relation = '[inputs]\nk = "repeat(0, 2, block=2) | shard(0)"'
    tiled = np.concatenate([heads, heads])
    each = np.repeat(heads, 2, axis=0)
    wrong = checked({"k": heads}, [{"k": x} for x in np.split(tiled, 2)], relation)
    assert wrong.failures[0].cause == "blocks of 4 are repeated, not of 2"
    wrong = checked({"k": heads}, [{"k": x} for x in np.split(each, 2)], relation)
    assert wrong.failures[0].cause == "blocks of 1 are repeated, not of 2"


def test_joined_in_another_order(checked: Callable[..., Report]) -> None:
    arrays = {x: np.full((2, 2), n, np.float32) for n, x in enumerate("abc")}
    relation = '[inputs]\nw = "concat(0, a, b, c) | shard(1)"'
    joined = np.concatenate([arrays["b"], arrays["a"], arrays["c"]])
    report = checked(arrays, [{"w": joined[:, :1]}, {"w": joined[:, 1:]}], relation)
    assert report.failures[0].cause == "its parts are joined in the order `b`, `a`, `c`"


def test_a_cast_is_named_and_its_rounding_checked(checked: Callable[..., Report], tmp_path: Path) -> None:
    ranks = shards(whole())
    for own in ranks:
        own["layers.0.o"] = own["layers.0.o"].astype(np.float16)
    report = checked(whole(), ranks)
    assert report.obeys and report.casts == {("f32", "f16"): ("layers.0.o",)}
    bits = ranks[1]["layers.0.o"].view(np.uint16)
    bits[0, 0] += 1
    (failure,) = checked(whole(), ranks).failures
    assert failure.kind == "values" and failure.element == (0, 0) and failure.rank == 1
    ranks[1]["layers.0.o"] = np.ones((8, 2), np.int32)
    (failure,) = checked(whole(), ranks).failures
    assert failure.kind == "type" and failure.found == "s32[8,2]"


def test_zero_and_nan_are_compared_by_their_bits(checked: Callable[..., Report]) -> None:
    values = np.array([0.0, np.nan], np.float32)
    relation = '[inputs]\nw = "replicate"'
    assert checked({"w": values}, [{"w": values}], relation).obeys
    other = np.array([-0.0, np.nan], np.float32)
    assert not checked({"w": values}, [{"w": other}], relation).obeys
    payload = values.view(np.uint32) + np.array([0, 1], np.uint32)
    assert not checked({"w": values}, [{"w": payload.view(np.float32)}], relation).obeys


def test_missing_and_further_tensors(checked: Callable[..., Report]) -> None:
    ranks = shards(whole())
    del ranks[2]["layers.1.o"]
    for own in ranks:
        del own["layers.0.norm"]
        own["rope"] = np.ones(2, np.float32)
    arrays = whole() | {"bias": np.ones(3, np.float32)}
    del arrays["head"]
    report = checked(arrays, ranks)
    found = {(f.rank, f.name, f.kind) for f in report.failures}
    assert found == {
        (2, "layers.1.o", "missing"),
        *((r, "layers.0.norm", "missing") for r in range(RANKS)),
        *((r, "head", "source") for r in range(RANKS)),
    }
    assert report.unchecked == {"rope": "no entry names it"}
    assert report.unread == ("bias",)


def test_layers_are_counted_though_the_last_is_missing(checked: Callable[..., Report]) -> None:
    ranks = shards(whole(layers=3), layers=3)
    for own in ranks:
        for name in [n for n in own if n.startswith("layers.2.")]:
            del own[name]
    missing = {f.name for f in checked(whole(layers=3), ranks).failures}
    assert missing == {f"layers.2.{x}" for x in ("qkv", "o", "up", "norm")}


def test_numbered_names_and_names_as_programs_spell_them(checked: Callable[..., Report]) -> None:
    arrays = {f"layers.{n}.w": np.full(4, n, np.float32) for n in range(3)}
    halves = [{f"p{2 + n}": a[2 * r : 2 * r + 2] for n, a in enumerate(arrays.values())} for r in range(2)]
    relation = '[inputs]\n"p{l+5-L}.7" = "p_layers_{l}_w | shard(0)"'
    assert checked(arrays, halves, relation).tensors == 3


def test_a_partial_sum_is_left_out(checked: Callable[..., Report]) -> None:
    relation = '[inputs]\na = "partial"\nb = "replicate"'
    one = np.ones(2, np.float32)
    report = checked({"a": one, "b": one}, [{"a": one, "b": one}] * 2, relation)
    assert report.obeys and "a" in report.unchecked and report.tensors == 1


def test_a_layout_that_does_not_fit(checked: Callable[..., Report]) -> None:
    ten = np.ones(10, np.float32)
    report = checked({"w": ten}, [{"w": ten}] * 4, '[inputs]\nw = "shard(0)"')
    assert {f.kind for f in report.failures} == {"layout"} and len(report.failures) == 4
    assert "does not divide" in report.failures[0].found


@pytest.mark.parametrize(
    ("relation", "mesh", "message"),
    [
        ("mesh = { tp = 2 }\n[inputs]\nw = 'replicate'", None, "4 rank files"),
        ("[inputs]\nw = 'replicate'", "tp=2", "4 rank files"),
        ("[inputs]\nx = 'other | replicate'", None, "nothing is checked"),
        ("[inputs]\nw = 'replicate'\n'w*' = 'replicate'", None, "is named by"),
        ("[inputs]\nw = 'shrad(0)'", None, "no step"),
        ("[inputs]\n'x{l}' = 'replicate'", None, "no number of layers"),
    ],
)
def test_bad_input(relation: str, mesh: str | None, message: str, checked: Callable[..., Report]) -> None:
    one = np.ones(4, np.float32)
    with pytest.raises(RelationError, match=message):
        checked({"w": one}, [{"w": one}] * 4, relation, mesh)


def test_a_mesh_of_two_axes(checked: Callable[..., Report]) -> None:
    w = np.arange(8, dtype=np.float32).reshape(4, 2)
    relation = "[inputs]\nw = 'shard(0, tp)'"
    ranks = [{"w": w[:2]}, {"w": w[2:]}] * 2
    assert checked({"w": w}, ranks, relation, "dp=2,tp=2").obeys
    assert not checked({"w": w}, ranks, relation, "tp=2,dp=2").obeys


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    import typer

    command: Any = typer.main.get_command(app)
    status = command.main(arguments, prog_name="shardproof relation", standalone_mode=False)
    out, err = capsys.readouterr()
    return int(status), out, err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    relation = tmp_path / "r.toml"
    relation.write_text(RELATION)
    np.savez(tmp_path / "model.npz", **whole())
    ranks = shards(whole())
    arguments = ["check", str(relation), "--reference", str(tmp_path / "model.npz")]
    for r, own in enumerate(ranks):
        arguments += ["--rank", str(safetensors(tmp_path / f"rank{r}.safetensors", own))]
    status, out, err = run(arguments, capsys)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "obeys: all 36 tensors of 4 ranks are as r.toml says (mesh tp=4)",
        "  absent       `tokens`: in no file",
    ]
    swapped(ranks)
    safetensors(tmp_path / "rank2.safetensors", ranks[2])
    status, out, _ = run(arguments, capsys)
    assert status == 1
    assert out.splitlines()[:2] == [
        "differs: 1 of the ranks' tensors are not as r.toml says (mesh tp=4)",
        "  first        rank 2, `layers.1.qkv` (rank2.safetensors)",
    ]
    assert "  cause        segments 1 and 2 are swapped" in out.splitlines()
    status, out, _ = run([*arguments, "--format", "json"], capsys)
    answer = json.loads(out)
    assert status == 1 and not answer["obeys"]
    assert answer["failures"][0]["tensor"] == "layers.1.qkv" and answer["failures"][0]["rank"] == 2
    broken = tmp_path / "rank3.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    status, out, err = run(arguments, capsys)
    assert status == 3 and out == "" and "rank3.safetensors: holds" in err and err.count("\n") == 1


def test_an_export_archive(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)).to(torch.bfloat16)
    example = (torch.ones(2, 4, dtype=torch.bfloat16),)
    torch.export.save(torch.export.export(layers, example), tmp_path / "model.pt2")
    relation = tmp_path / "r.toml"
    relation.write_text("""[inputs]
"p_0_weight" = "shard(0)"
"1.weight" = "p_1_weight | permute(1, 0) | shard(0)"
"*.bias" = "replicate"
""")
    state = {name: value.view(torch.uint16).numpy() for name, value in layers.state_dict().items()}
    files = []
    for r in range(2):
        own = dict(state)
        own["0.weight"] = np.split(state["0.weight"], 2)[r]
        own["1.weight"] = np.split(state["1.weight"].T, 2)[r]
        types = dict.fromkeys(own, "BF16")
        files.append(safetensors(tmp_path / f"rank{r}.safetensors", own, types))
    report = check(relation, [tmp_path / "model.pt2"], files)
    assert report.obeys and report.tensors == 4 and not report.casts and not report.unread
    safetensors(files[1], own | {"0.weight": np.split(state["0.weight"], 2)[0]}, types)
    (failure,) = check(relation, [tmp_path / "model.pt2"], files).failures
    assert failure.cause == "it is the shard of rank 0: the ranks are in another order"

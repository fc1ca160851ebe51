"""Reads and writes of ONNX models at positions, known or computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import MICROSOFT, model, node, save

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, ModuleError
from shardproof.solver.relations.relation_file import Declared
from shardproof.solver.verdict import Result, Verdict
from shardproof.solver.verify import verify

pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(7)


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def below(size: int, *shape: int, kind: Any = np.int64) -> Any:
    """Positions in a dim of a size, half of them negative."""
    return RNG.integers(-size, size, shape).astype(kind)


def distinct(size: int, *shape: int, dim: int) -> Any:
    """Positions that do not repeat along a dim, some of them negative."""
    own = np.argsort(RNG.random([size if d == dim else n for d, n in enumerate(shape)]), axis=dim)
    own = np.take(own, range(shape[dim]), axis=dim)
    return own - size * RNG.integers(0, 2, shape)


X, W = floats(4, 5, 6), floats(5, 6)

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gather": (node("Gather", "x i", "y", axis=1), {"x": X, "i": below(5, 2, 3)}),
    "gather last": (node("Gather", "x i", "y", axis=-1), {"x": X, "i": below(6, 3, kind=np.int32)}),
    "gather one": (node("Gather", "x i", "y"), {"x": X, "i": np.asarray(-2)}),
    "gather evenly": (node("Gather", "x i", "y", axis=1), {"x": X, "i": np.asarray([[4], [-3], [-5]])}),
    "elements": (node("GatherElements", "x i", "y", axis=2), {"x": X, "i": below(6, 4, 5, 3)}),
    "elements first": (node("GatherElements", "x i", "y", axis=0), {"x": X, "i": below(4, 7, 5, 6)}),
    "nd": (node("GatherND", "x i", "y"), {"x": X, "i": below(4, 3, 2)}),
    "nd whole": (node("GatherND", "x i", "y"), {"x": X, "i": below(4, 2, 3)}),
    "nd batched": (node("GatherND", "x i", "y", batch_dims=1), {"x": X, "i": below(5, 4, 3, 2)}),
    "nd batched twice": (node("GatherND", "x i", "y", batch_dims=2), {"x": X, "i": below(6, 4, 5, 1)}),
    "set": (
        node("ScatterElements", "x i u", "y", axis=1),
        {"x": X, "i": distinct(5, 4, 3, 2, dim=1), "u": floats(4, 3, 2)},
    ),
    **{
        f"{kind} elements": (
            node("ScatterElements", "x i u", "y", axis=-1, reduction=kind),
            {"x": X, "i": below(6, 4, 5, 3), "u": floats(4, 5, 3)},
        )
        for kind in ("add", "mul", "max", "min")
    },
    "set run": (
        node("ScatterElements", "x i u", "y", axis=-2),
        {"x": X, "i": np.indices((3, 2, 4))[1] - 4, "u": floats(3, 2, 4)},
    ),
    "set nd": (
        node("ScatterND", "x i u", "y"),
        {"x": X, "i": np.asarray([[0, 1], [-1, 2], [2, -1]]), "u": floats(3, 6)},
    ),
    **{
        f"{kind} nd": (
            node("ScatterND", "x i u", "y", reduction=kind),
            {"x": X, "i": below(4, 2, 3, 1), "u": floats(2, 3, 5, 6)},
        )
        for kind in ("add", "mul", "max", "min")
    },
    "set box": (
        node("ScatterND", "x i u", "y"),
        {"x": X, "i": np.stack(np.meshgrid([1, 2], [-2, -1], indexing="ij"), -1), "u": floats(2, 2, 6)},
    ),
    "cache": (
        node("TensorScatter", "x u i", "y", axis=1),
        {"x": X, "u": floats(4, 2, 6), "i": np.asarray([0, 3, 1, 2])},
    ),
    "cache of one": (
        node("TensorScatter", "x u i", "y", axis=2),
        {"x": X[:1], "u": floats(1, 5, 2), "i": np.asarray([4])},
    ),
    "cache from its start": (node("TensorScatter", "x u", "y", axis=1), {"x": X, "u": floats(4, 2, 6)}),
    "cache around": (
        node("TensorScatter", "x u i", "y", axis=-2, mode="circular"),
        {"x": X, "u": floats(4, 3, 6), "i": np.asarray([0, 4, 1, 3])},
    ),
    "reversed": (
        node("ReverseSequence", "x n", "y", batch_axis=0, time_axis=1),
        {"x": X, "n": np.asarray([1, 5, 3, 2])},
    ),
    "reversed by columns": (
        node("ReverseSequence", "x n", "y", batch_axis=1, time_axis=0),
        {"x": X, "n": np.asarray([1, 4, 3, 2, 4])},
    ),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, known: bool) -> None:
    made, given = CASES[name]
    stored = {n: given[n] for n in ("i", "n") if known and n in given}
    given = {n: a for n, a in given.items() if n not in stored}
    assert disagreement(program([made], given, "y", stored), given) is None


def test_positions_for_a_part_of_the_elements() -> None:
    """Which onnx's evaluator refuses, and its runtimes read."""
    from onnx import helper

    at = below(4, 7, 3, 2)
    infos = [helper.make_tensor_value_info("x", 1, X.shape), helper.make_tensor_value_info("i", 7, at.shape)]
    out = helper.make_tensor_value_info("y", 1, at.shape)
    graph = helper.make_graph([node("GatherElements", "x i", "y", axis=0)], "graph", infos, [out])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    found = run(imported(proto), {"x": X, "i": at})["y"][0]
    np.testing.assert_array_equal(found, X[at, np.arange(3)[:, None], np.arange(2)])


def opcodes(module: Module) -> set[str]:
    return {op.opcode for op in module.ops}


def test_known_positions_that_step_evenly_are_a_slice() -> None:
    for name in ("gather one", "gather evenly"):
        made, given = CASES[name]
        module = imported(program([made], {"x": X}, "y", {"i": given["i"]}))
        assert "slice" in opcodes(module) and not {"gather", "scatter"} & opcodes(module)
        assert not module.guesses
    made, given = CASES["set box"]
    module = imported(program([made], {"x": X, "u": given["u"]}, "y", {"i": given["i"]}))
    assert "dynamic_update_slice" in opcodes(module) and not module.guesses


def test_known_position_out_of_range_is_refused() -> None:
    made = node("Gather", "x i", "y", axis=1)
    proto = program([made], {"x": X}, "y", {"i": np.asarray([2])})
    from onnx import numpy_helper

    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.asarray([5]), "i"))
    with pytest.raises(ModuleError, match="5 of a dim of size 5"):
        imported(proto)


def test_positions_computed_from_data_are_listed() -> None:
    made, given = CASES["gather"]
    module = imported(program([made], given, "y"))
    assert [(g.kind, g.value) for g in module.guesses] == [("ids_in_range", "y")]
    assert "at least -5 and less than 5" in module.guesses[0].text
    found = verify(module, module)
    assert found.verdict is Verdict.VERIFIED
    assert module.guesses[0].text in {a.text for a in found.assumptions if a.kind == "ids_in_range"}


def test_positions_of_extremes_need_no_assumption() -> None:
    nodes = [
        node("TopK", "x k", "v i", axis=1),
        node("GatherElements", "x i", "a", axis=1),
        node("ArgMax", "x", "j", axis=1, keepdims=0),
        node("Gather", "w j", "b", axis=0),
    ]
    module = imported(program(nodes, {"x": floats(4, 6), "w": floats(6, 2)}, "a b", {"k": np.asarray([2])}))
    assert not module.guesses and "clamp" not in opcodes(module)


STORED = {"one": np.asarray(1), "turned": np.asarray([1, 0])}


def verdict(one: Sequence[Any], other: Sequence[Any], given: Mapping[str, Any]) -> Verdict:
    protos = [program(nodes, given, "y", STORED) for nodes in (one, other)]
    modules = [imported(p) for p in protos]
    assert verify(modules[0], modules[0]).verdict is Verdict.VERIFIED
    return verify(*modules).verdict


TWINS: dict[str, tuple[Sequence[Any], Sequence[Any], dict[str, Any]]] = {
    "axis": (
        [node("GatherElements", "x i", "y", axis=0)],
        [node("GatherElements", "x i", "y", axis=1)],
        {"x": floats(4, 4), "i": np.abs(below(4, 4, 4))},
    ),
    "next row": (
        [node("Gather", "x i", "y")],
        [node("Sub", "i one", "j"), node("Gather", "x j", "y")],
        {"x": floats(4, 4), "i": np.asarray([1, 2, 3])},
    ),
    "rows added, not set": (
        [node("ScatterElements", "x i u", "y", axis=1, reduction="add")],
        [node("ScatterElements", "x i u", "y", axis=1)],
        {"x": floats(4, 4), "i": np.asarray([[0]] * 4), "u": floats(4, 1)},
    ),
    "order of coordinates": (
        [node("GatherND", "x i", "y")],
        [node("Gather", "i turned", "j", axis=1), node("GatherND", "x j", "y")],
        {"x": floats(4, 4), "i": np.asarray([[0, 1], [2, 3]])},
    ),
    "around the end of a cache": (
        [node("TensorScatter", "x u i", "y", axis=1)],
        [node("TensorScatter", "x u i", "y", axis=1, mode="circular")],
        {"x": floats(2, 4, 2), "u": floats(2, 3, 2), "i": np.asarray([0, 1])},
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_wrong_program_is_not_verified(name: str) -> None:
    one, other, given = TWINS[name]
    assert verdict(one, other, given) is not Verdict.VERIFIED


@pytest.mark.parametrize(("start", "right"), [(1, True), (2, False)])
def test_run_of_positions_is_a_block(start: int, right: bool) -> None:
    given = {"x": floats(4, 6), "u": floats(4, 2)}
    stored = {
        "i": np.indices((4, 2))[1] + 1, "zero": np.asarray([0]), "low": np.asarray([start]),
        "high": np.asarray([start + 2]), "end": np.asarray([6]), "dim": np.asarray([1]),
    }  # fmt: skip
    pieces = [
        node("Slice", "x zero low dim", "a"),
        node("Slice", "x high end dim", "b"),
        node("Concat", "a u b", "y", axis=1),
    ]
    one = imported(program([node("ScatterElements", "x i u", "y", axis=1)], given, "y", stored))
    found = verify(imported(program(pieces, given, "y", stored)), one)
    assert found.verdict is (Verdict.VERIFIED if right else Verdict.REFUTED)


@pytest.mark.parametrize("batch", [1, 2])
def test_block_in_a_cache_of_jax(batch: int) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    from shardproof.jax_api import capture_jax

    given = {"x": floats(batch, 6, 2), "u": floats(batch, 3, 2), "i": np.zeros((batch,), np.int32)}
    nodes = [node("Cast", "i", "j", to=7), node("TensorScatter", "x u j", "y", axis=1)]
    module = imported(program(nodes, given, "y"))
    shapes = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in given.items()}

    def captured(shift: int) -> Module:
        zero = np.int32(0)

        def of_one(x: Any, u: Any, i: Any) -> Any:
            return jax.lax.dynamic_update_slice(x, u, (i + shift, zero))

        def of_all(x: Any, u: Any, i: Any) -> Any:
            return of_one(x[0], u[0], i[0])[None] if batch == 1 else jax.vmap(of_one)(x, u, i)

        return capture_jax(of_all, inputs=shapes)

    ranges = Declared(ranges={"i": (0, 4)})
    assert verify(captured(0), module, relation=ranges).verdict is Verdict.VERIFIED
    assert verify(captured(1), module, relation=ranges).verdict is not Verdict.VERIFIED


def test_positions_that_count_from_the_end() -> None:
    """The same rows, named from the end."""
    given = {"x": floats(4, 4), "i": np.asarray([1, 2, 3])}
    one = [node("Gather", "x i", "y")]
    other = [node("Sub", "i four", "j"), node("Gather", "x j", "y")]
    protos = [program(nodes, given, "y", {"four": np.asarray(4)}) for nodes in (one, other)]
    for proto in protos:
        assert disagreement(proto, given) is None
    assert verify(*map(imported, protos)).verdict is not Verdict.REFUTED


def test_embedding_of_other_frameworks() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Embedding(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, w: Any, i: Any) -> Any:
            return torch.nn.functional.embedding(i, w)

    given = {"w": floats(8, 4), "i": RNG.integers(0, 8, (2, 3))}
    graph = torch.export.export(Embedding(), tuple(map(torch.tensor, given.values())))
    right = imported(program([node("Gather", "w i", "y")], given, "y"))
    for pair in ((graph, right), (right, graph)):
        found = verify(*pair)
        assert found.verdict is Verdict.VERIFIED
        listed = [a.text for a in found.assumptions if a.kind == "ids_in_range"]
        assert any("at least -8 and less than 8, as ONNX asks" in text for text in listed)
        assert any("every element of i is at least 0 and less than 8" in text for text in listed)
    turned = [node("Transpose", "w", "t"), node("Gather", "t i", "z", axis=1), node("Neg", "z", "n")]
    wrong = imported(program([*turned, node("Transpose", "n", "y", perm=[1, 2, 0])], given, "y"))
    assert verify(graph, wrong).verdict is Verdict.REFUTED


def vocabulary(folder: Path, *, shift: int) -> Result:
    """An embedding whose rows are divided over two ranks; `shift` is how far one starts too late."""
    table = RNG.normal(size=(32, 8))
    whole = model([node("Gather", "w i", "y")], {"i": (4, 5)}, {"y": (4, 5, 8)}, {"w": table}, integers=["i"])
    ranks = []
    for rank in range(2):
        nodes = [
            node("Sub", "i start", "a"),
            node("GreaterOrEqual", "a zero", "above"),
            node("Less", "a size", "under"),
            node("And", "above under", "own"),
            node("Where", "own a zero", "at"),
            node("Gather", "w at", "rows"),
            node("Unsqueeze", "own last", "mask"),
            node("Where", "mask rows nothing", "part"),
            node("AllReduce", "part", "y", MICROSOFT),
        ]
        stored = {
            "w": table[16 * rank : 16 * rank + 16],
            "start": np.int64(16 * rank + shift),
            "zero": np.int64(0),
            "size": np.int64(16),
            "last": np.asarray([-1]),
            "nothing": np.float32(0),
        }
        ranks.append(model(nodes, {"i": (4, 5)}, {"y": (4, 5, 8)}, stored, integers=["i"]))
    files = [save(m, folder / f"rank{r}.onnx") for r, m in enumerate(ranks)]
    return verify(save(whole, folder / "whole.onnx"), files)


def test_rows_of_a_table_divided_over_ranks(tmp_path: Path) -> None:
    assert vocabulary(tmp_path, shift=0).verdict is Verdict.VERIFIED
    assert vocabulary(tmp_path, shift=1).verdict is Verdict.REFUTED

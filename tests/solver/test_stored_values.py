"""Stored tensors are related by what they hold; what holds anything else is a constant."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import MICROSOFT, model, node, save

from shardproof.frontends.weights import read
from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Result, Verdict
from shardproof.solver.verify import verify
from shardproof.tools.command_line import run

pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(8)
Q, K, V, OUT = (RNG.normal(size=(8, n)).astype(np.float32) for n in (8, 4, 4, 6))
Stored = Mapping[str, Any]


def reference(**stored: Any) -> Any:
    """Three products of one input side by side."""
    nodes = [*(node("MatMul", f"x {n}", f"{n}.x") for n in "qkv"), node("Concat", "q.x k.x v.x", "y", axis=1)]
    return model(nodes, {"x": (3, 8)}, {"y": (3, 16)}, {"q": Q, "k": K, "v": V, **stored})


def fused(weight: Any, cuts: str = "") -> Any:
    """One product by a weight."""
    return model([node("MatMul", "x w", "y")], {"x": (3, 8)}, {"y": (3, 16)}, {"w": weight})


def verdict(folder: Path, own: Any, other: Any, **options: Any) -> Result:
    return verify(save(own, folder / "own.onnx"), save(other, folder / "other.onnx"), **options)


def told(found: Result) -> str:
    return "\n".join(found.findings or ())


def test_fused_weight_is_the_tensors_side_by_side(tmp_path: Path) -> None:
    found = verdict(tmp_path, reference(), fused(np.concatenate([Q, K, V], 1)), strict=True)
    assert found.verdict is Verdict.VERIFIED
    assert "`w` is `q`, `k`, `v` along dim 1" in told(found)


@pytest.mark.parametrize("order", [(K, Q, V), (Q, V, K), (Q, K, K)])
def test_fused_weight_in_another_order_is_refuted(order: tuple[Any, ...], tmp_path: Path) -> None:
    found = verdict(tmp_path, reference(), fused(np.concatenate(order, 1)))
    assert found.verdict is Verdict.REFUTED


def test_fused_weight_of_anything_else_is_a_constant(tmp_path: Path) -> None:
    wrong = np.concatenate([Q, K, V], 1)
    wrong[2, 5] += 1
    found = verdict(tmp_path, reference(), fused(wrong))
    assert found.verdict is Verdict.REFUTED
    assert "constants, as the reference has no tensor of these contents: `w`" in told(found)


def transposed(weight: Any, *, turned: bool) -> Any:
    nodes = [node("Transpose", "w", "t", perm=[1, 0])] if turned else [node("Identity", "w", "t")]
    return model([*nodes, node("MatMul", "x t", "y")], {"x": (3, 8)}, {"y": (3, 8)}, {"w": weight})


@pytest.mark.parametrize(
    ("held", "turned", "expected"),
    [
        (Q, False, Verdict.VERIFIED),
        (Q.T, True, Verdict.VERIFIED),
        (Q.T, False, Verdict.REFUTED),
        (Q, True, Verdict.REFUTED),
    ],
)
def test_square_weight_is_what_its_elements_say(
    held: Any, turned: bool, expected: Verdict, tmp_path: Path
) -> None:
    """Names and shapes alone would relate all four in the same way."""
    own = model([node("MatMul", "x q", "y")], {"x": (3, 8)}, {"y": (3, 8)}, {"q": Q})
    assert verdict(tmp_path, own, transposed(np.ascontiguousarray(held), turned=turned)).verdict is expected


def two(first: str, second: str, stored: Stored) -> Any:
    nodes = [node("MatMul", f"x {first}", "h"), node("MatMul", f"h {second}", "y")]
    return model(nodes, {"x": (3, 8)}, {"y": (3, 8)}, stored)


A, B = (RNG.normal(size=(8, 8)).astype(np.float32) for _ in range(2))


def test_names_that_changed_places(tmp_path: Path) -> None:
    """What each name holds decides, not the name."""
    own = two("a", "b", {"a": A, "b": B})
    assert verdict(tmp_path, own, two("b", "a", {"a": B, "b": A})).verdict is Verdict.VERIFIED
    assert verdict(tmp_path, own, two("a", "b", {"a": B, "b": A})).verdict is Verdict.REFUTED


def test_merged_tensors(tmp_path: Path) -> None:
    """Two reference tensors that hold the same may be one; of tensors that differ none is dropped."""
    own = two("a", "b", {"a": A, "b": A})
    found = verdict(tmp_path, own, two("b", "b", {"b": A}))
    assert found.verdict is Verdict.VERIFIED
    assert "`b` is `a`" in told(found)
    wrong = verdict(tmp_path, two("a", "b", {"a": A, "b": B}), two("b", "b", {"b": B}))
    assert wrong.verdict is Verdict.REFUTED


@pytest.mark.parametrize(("perm", "expected"), [([1, 0], Verdict.VERIFIED), ([0, 1], Verdict.REFUTED)])
def test_reference_that_stores_a_tensor_and_its_transpose(
    perm: list[int], expected: Verdict, tmp_path: Path
) -> None:
    own = two("a", "turned", {"a": A, "turned": np.ascontiguousarray(A.T)})
    nodes = [
        node("MatMul", "x a", "h"),
        node("Transpose", "a", "t", perm=perm),
        node("MatMul", "h t", "y"),
    ]
    other = model(nodes, {"x": (3, 8)}, {"y": (3, 8)}, {"a": A})
    found = verdict(tmp_path, own, other)
    assert found.verdict is expected
    assert "`turned` is `a` | permute(1, 0)" in told(found)


def test_merged_tensors_of_other_shapes(tmp_path: Path) -> None:
    """Tensors of ones, in rows and in columns, side by side, and in the place of each other."""
    nodes = [
        node("Mul", "x row", "p"),
        node("Add", "p column", "q"),
        node("Sub", "q other", "r"),
        node("Transpose", "other", "t", perm=[1, 0]),
        node("Mul", "r t", "y"),
    ]
    ones = {"row": np.ones((1, 4)), "column": np.ones((4, 1)), "other": np.ones((4, 1))}
    own = model(nodes, {"x": (4, 4)}, {"y": (4, 4)}, ones)
    folded = [
        node("Mul", "x row", "p"),
        node("Add", "p row", "q"),
        node("Sub", "q row", "r"),
        node("Mul", "r row", "y"),
    ]
    other = model(folded, {"x": (4, 4)}, {"y": (4, 4)}, {"row": np.ones((1, 4))})
    assert verdict(tmp_path, own, other).verdict is Verdict.VERIFIED
    wide = model(
        [node("Split", "wide", "row flat", axis=1), *folded[:3], node("Mul", "r flat", "y")],
        {"x": (4, 4)},
        {"y": (4, 4)},
        {"wide": np.ones((1, 8))},
    )
    assert verdict(tmp_path, own, wide).verdict is Verdict.VERIFIED
    short = [*folded[:2], node("Mul", "q row", "y")]
    wrong = model(short, {"x": (4, 4)}, {"y": (4, 4)}, {"row": np.ones((1, 4))})
    assert verdict(tmp_path, own, wrong).verdict is Verdict.REFUTED


def chain(weights: Stored, turned: Sequence[str]) -> Any:
    """A product by one weight after the other, some of them transposed."""
    nodes, last = [], "x"
    for n in weights:
        if n in turned:
            nodes.append(node("Transpose", n, f"{n}.t", perm=[1, 0]))
        nodes.append(node("MatMul", f"{last} {n}.t" if n in turned else f"{last} {n}", f"y{n}"))
        last = f"y{n}"
    nodes.append(node("Identity", last, "y"))
    return model(nodes, {"x": (2, 3)}, {"y": (2, 3)}, weights)


@pytest.mark.parametrize("seed", range(60))
def test_a_verdict_is_true_of_what_the_files_hold(seed: int, tmp_path: Path) -> None:
    """Few different elements, so that tensors are alike by chance, under names that mean nothing."""
    rng = np.random.default_rng(seed)
    own = {n: rng.integers(0, 2, size=(3, 3)).astype(np.float32) for n in "abc"}
    names = rng.permutation(list("def"))
    other, turned, product = {}, [], np.eye(3)
    for at, name in enumerate(names):
        held = own["abc"[at]] if rng.random() < 0.8 else own[str(rng.choice(list("abc")))]
        if rng.random() < 0.5:
            turned.append(name)
            held = held.T if rng.random() < 0.8 else held
        other[str(name)] = np.ascontiguousarray(held)
        product = product @ (held.T if name in turned else held)
    equal = np.array_equal(product, own["a"] @ own["b"] @ own["c"])
    found = verdict(tmp_path, chain(own, ()), chain(other, turned))
    assert found.verdict is not (Verdict.REFUTED if equal else Verdict.VERIFIED)


def test_shared_name_is_free_for_all_weights_only_where_asked(tmp_path: Path) -> None:
    own = two("a", "b", {"a": A, "b": A})
    other = two("b", "b", {"b": A})
    assert verdict(tmp_path, own, other, initializers="inputs").verdict is not Verdict.VERIFIED


def cut(stored: Stored, table: str, *nodes: Any) -> Any:
    return model([*nodes, node("Mul", f"x {table}", "y")], {"x": (2, 3, 8)}, {"y": (2, 3, 8)}, stored)


def test_folded_moves_of_the_reference(tmp_path: Path) -> None:
    """A slice of a table, stretched, that an optimiser stores instead of the table."""
    table = RNG.normal(size=(5, 8)).astype(np.float32)
    at = {"low": np.array([1]), "high": np.array([4]), "axes": np.array([0])}
    own = cut(
        {"table": table, **at},
        "wide",
        node("Slice", "table low high axes", "rows"),
        node("Unsqueeze", "rows axes", "wide"),
    )
    right = cut({"wide": table[None, 1:4]}, "wide")
    found = verdict(tmp_path, own, right)
    assert found.verdict is Verdict.VERIFIED
    assert "the reference's value" in told(found)
    wrong = cut({"wide": np.ascontiguousarray(table[None, 0:3])}, "wide")
    assert verdict(tmp_path, own, wrong).verdict is Verdict.REFUTED


def test_folded_arithmetic_is_of_constants(tmp_path: Path) -> None:
    """Exact in floats here, so both programs compute the same of what the files hold."""
    whole = RNG.integers(-8, 8, size=(8, 8)).astype(np.float32)
    own = model(
        [node("Add", "a b", "w"), node("MatMul", "x w", "y")],
        {"x": (3, 8)},
        {"y": (3, 8)},
        {"a": whole, "b": whole + 1},
    )
    folded = model([node("MatMul", "x w", "y")], {"x": (3, 8)}, {"y": (3, 8)}, {"w": 2 * whole + 1})
    found = verdict(tmp_path, own, folded)
    assert found.verdict is not Verdict.REFUTED
    wrong = model([node("MatMul", "x w", "y")], {"x": (3, 8)}, {"y": (3, 8)}, {"w": 2 * whole})
    assert verdict(tmp_path, own, wrong).verdict is Verdict.REFUTED


def test_what_an_input_is_without_a_value_is_no_weight(tmp_path: Path) -> None:
    """An input that has a stored value, too, may be given any: what holds for that value does not hold."""
    ones = {"ones": np.ones((3, 8))}
    own = model([node("Mul", "x ones", "y")], {"x": (3, 8), "ones": (3, 8)}, {"y": (3, 8)}, ones)
    other = model([node("Identity", "x", "y")], {"x": (3, 8)}, {"y": (3, 8)})
    assert verdict(tmp_path, own, other).verdict is Verdict.REFUTED


def test_reference_tensors_that_nothing_is_made_of_are_constants(tmp_path: Path) -> None:
    """A mask that an optimiser replaces by what it does."""
    own = model([node("Mul", "x ones", "y")], {"x": (3, 8)}, {"y": (3, 8)}, {"ones": np.ones((3, 8))})
    other = model([node("Identity", "x", "y")], {"x": (3, 8)}, {"y": (3, 8)})
    found = verdict(tmp_path, own, other)
    assert found.verdict is Verdict.VERIFIED
    assert "only the reference has tensors of these contents: `ones`" in told(found)
    twos = model([node("Mul", "x ones", "y")], {"x": (3, 8)}, {"y": (3, 8)}, {"ones": np.full((3, 8), 2.0)})
    assert verdict(tmp_path, twos, other).verdict is Verdict.REFUTED


def test_declared_inputs_are_left_alone(tmp_path: Path) -> None:
    relation = tmp_path / "relation.toml"
    relation.write_text('[inputs]\nw = "q | concat(1, k, v)"\n')
    right = fused(np.concatenate([Q, K, V], 1))
    assert verdict(tmp_path, reference(), right, relation=relation).verdict is Verdict.VERIFIED
    found = verdict(tmp_path, reference(), fused(np.concatenate([K, Q, V], 1)), relation=relation)
    assert (found.verdict, found.code) == (Verdict.UNKNOWN, "U16")


def rank(up: Any, down: Any) -> Any:
    nodes = [
        node("MatMul", "x up", "h"),
        node("MatMul", "h down", "p"),
        node("AllReduce", "p", "y", MICROSOFT),
    ]
    return model(nodes, {"x": (3, 8)}, {"y": (3, 8)}, {"up": up, "down": down})


def test_ranks_that_hold_other_shards(tmp_path: Path) -> None:
    own = save(two("up", "down", {"up": A, "down": B}), tmp_path / "own.onnx")

    def found(*halves: tuple[Any, Any], **options: Any) -> Result:
        return verify(own, [save(rank(*h), tmp_path / f"{r}.onnx") for r, h in enumerate(halves)], **options)

    first, second = (A[:, :4], B[:4]), (A[:, 4:], B[4:])
    assert found(first, second).verdict is Verdict.VERIFIED
    swapped = found(second, first)
    assert (swapped.verdict, swapped.code) == (Verdict.UNKNOWN, "U16")
    assert "the ranks are in another order" in swapped.message
    assert found(first, (A[:, 4:], B[:4])).code == "U16"
    assert found(first, first, initializers="inputs").verdict is Verdict.VERIFIED


def test_weights_of_models_are_read_as_those_of_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(reference(), Path(tmp_path / "own.onnx"))
    found = read(Path(path))
    assert list(found) == ["q", "k", "v"] and str(found["k"]) == "f32[8,4]"
    assert np.array_equal(found["k"].codes().view(np.float32), K)
    relation = tmp_path / "relation.toml"
    relation.write_text('mesh = { tp = 2 }\n[inputs]\nq = "shard(1)"\nk = "shard(1)"\nv = "shard(1)"\n')
    for r in range(2):
        half = reference(q=Q[:, 4 * r : 4 * r + 4], k=K[:, 2 * r : 2 * r + 2], v=V[:, 2 * r : 2 * r + 2])
        half.graph.ClearField("output")
        half.graph.output.extend(reference().graph.output)
        save(half, tmp_path / f"rank{r}.onnx")
    command = ["relation", "check", str(relation), "--reference", path]
    for order, code in (((0, 1), 0), ((1, 0), 1)):
        ranks = [word for r in order for word in ("--rank", str(tmp_path / f"rank{r}.onnx"))]
        assert run([*command, *ranks]) == code
    capsys.readouterr()


@pytest.mark.parametrize(("changed", "expected"), [(0.0, Verdict.VERIFIED), (1.0, Verdict.REFUTED)])
def test_weights_rounded_to_another_type(changed: float, expected: Verdict, tmp_path: Path) -> None:
    """What a float16 converter stores is the reference's tensor; with one element changed it is not."""
    own = model([node("MatMul", "x q", "y")], {"x": (3, 8)}, {"y": (3, 8)}, {"q": Q})
    half = Q.astype(np.float16)
    half[1, 2] += changed
    nodes = [node("Cast", "q", "wide", to=1), node("MatMul", "x wide", "y")]
    found = verdict(tmp_path, own, model(nodes, {"x": (3, 8)}, {"y": (3, 8)}, {"q": half}))
    assert found.verdict is expected, found.message


def test_packed_models(tmp_path: Path) -> None:
    own, other = tmp_path / "own.onnx.gz", tmp_path / "other.onnx"
    own.write_bytes(gzip.compress(reference().SerializeToString()))
    found = verify(own, save(fused(np.concatenate([Q, K, V], 1)), other))
    assert found.verdict is Verdict.VERIFIED


def test_damaged_model_is_no_weight_file(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    path.write_bytes(reference().SerializeToString()[:-50])
    with pytest.raises(ModuleError, match=r"own\.onnx"):
        read(path)

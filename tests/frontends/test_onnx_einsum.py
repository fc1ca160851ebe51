"""Einsum and other products of ONNX: values against onnx's evaluator, and which programs are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import model, node

from shardproof.ir.interpret import run
from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(23)


def reals(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def einsum(equation: str, *arrays: Any) -> tuple[Any, dict[str, Any]]:
    inputs = {f"x{k}": a for k, a in enumerate(arrays)}
    return program([node("Einsum", " ".join(inputs), "y", equation=equation)], inputs, "y"), inputs


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij->ji", [(2, 3)]),
        ("ij", [(2, 3)]),
        ("ba", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iji->ij", [(2, 3, 2)]),
        ("iii->", [(2, 2, 2)]),
        ("i,i", [(3,), (3,)]),
        ("i,j->ji", [(2,), (3,)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 2)]),
        (" b h q d , b h k d -> b h q k ", [(2, 2, 3, 4), (2, 2, 3, 4)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
        ("ij,ij,ij->i", [(2, 3), (2, 3), (2, 3)]),
        ("ijk,il,ljm->km", [(2, 3, 4), (2, 3), (3, 3, 2)]),
        ("ij,kl->l", [(2, 3), (2, 4)]),
        ("...ij,...jk->...ik", [(2, 5, 3, 4), (5, 4, 2)]),
        ("...ij,jk", [(2, 3, 4), (4, 2)]),
        ("i...,i...->...", [(3, 2, 4), (3, 4)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("bij,bjk->bik", [(1, 3, 4), (2, 4, 2)]),
        ("...,...->...", [(2, 1), (1, 3)]),
        ("->", [()]),
    ],
    ids=str,
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    proto, inputs = einsum(equation, *(reals(*shape) for shape in shapes))
    assert disagreement(proto, inputs) is None


def test_einsum_of_integers() -> None:
    x, y = (RNG.integers(-5, 5, shape).astype(np.int32) for shape in ((2, 3), (3, 2)))
    proto, inputs = einsum("ij,jk->ik", x, y)
    assert disagreement(proto, inputs) is None


@pytest.mark.parametrize(
    ("equation", "text"),
    [
        ("ij,jk->ik", "for 1 operands"),
        ("ij->ii", "twice or a new one"),
        ("ij->ik", "twice or a new one"),
        ("ijk->i", "with 2 dims"),
        ("i->i", "with 2 dims"),
        ("i1->i", "letters"),
        ("...i...->i", "not valid ONNX"),
        ("i.j->i", "not valid ONNX"),
        ("...i->i", "leaves the dims of an ellipsis out"),
        ("ii->i", "2 and 3 elements"),
    ],
)
def test_equation_that_does_not_fit_is_refused(equation: str, text: str) -> None:
    """What onnx's checker lets pass; shape inference rejects most others."""
    proto = model([node("Einsum", "x", "y", equation=equation)], {"x": (2, 3)}, {"y": (None,)}, opset=22)
    with pytest.raises(ModuleError, match=text):
        imported(proto)


BATCHED = (reals(2, 3, 4), reals(2, 4, 4))


def both(op_type: str, **attributes: Any) -> Any:
    inputs = dict(zip(("x0", "x1"), BATCHED, strict=True))
    return program([node(op_type, "x0 x1", "y", **attributes)], inputs, "y")


def chain(first: str, second: str) -> Any:
    inputs = {"x0": reals(3, 3), "x1": reals(3, 3), "x2": reals(3, 3)}
    nodes = [node("MatMul", first, "h"), node("MatMul", second, "y")]
    return program(nodes, inputs, "y")


def square(*nodes: Any) -> Any:
    return program(list(nodes), {"x0": reals(3, 3)}, "y", {"i": np.stack([np.arange(3)] * 2, 1)})


def gemm(**attributes: Any) -> Any:
    inputs = {"a": reals(3, 3), "b": reals(3, 3), "c": reals(3)}
    return program([node("Gemm", "a b c", "y", **attributes)], inputs, "y")


def written_out(alpha: float, beta: float) -> Any:
    inputs = {"a": reals(3, 3), "b": reals(3, 3), "c": reals(3)}
    nodes = [
        node("Transpose", "a", "t", perm=[1, 0]),
        node("MatMul", "t b", "p"),
        node("Mul", "p alpha", "q"),
        node("Mul", "c beta", "d"),
        node("Add", "q d", "y"),
    ]
    return program(nodes, inputs, "y", {"alpha": np.float32(alpha), "beta": np.float32(beta)})


PAIRS: Mapping[str, tuple[Any, Any, Any]] = {
    "matrix": (
        both("MatMul"),
        both("Einsum", equation="bij,bjk->bik"),
        both("Einsum", equation="bij,bkj->bik"),
    ),
    "chain": (
        einsum("ij,jk,kl->il", reals(3, 3), reals(3, 3), reals(3, 3))[0],
        chain("x1 x2", "x0 h"),
        chain("x0 x1", "x2 h"),
    ),
    "diagonal": (
        square(node("Einsum", "x0", "y", equation="ii->i")),
        square(node("GatherND", "x0 i", "y")),
        square(node("Einsum", "x0", "y", equation="ij->i")),
    ),
    "gemm": (gemm(alpha=0.5, beta=2.0, transA=1), written_out(0.5, 2), written_out(2, 0.5)),
    "untransposed": (gemm(transA=1), written_out(1, 1), gemm(transB=1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_programs_are_verified_and_others_refuted(name: str) -> None:
    reference, equal, other = map(imported, PAIRS[name])
    assert verify(reference, equal).verdict is Verdict.VERIFIED
    assert verify(reference, other).verdict is Verdict.REFUTED


@pytest.mark.parametrize("shape", [(2, 2), (3, 4, 4), (2, 5, 5), (3, 1, 1)], ids=str)
def test_determinant(shape: tuple[int, ...]) -> None:
    proto = model([node("Det", "x", "y")], {"x": shape}, {"y": shape[:-2]}, opset=22)
    x = RNG.normal(size=shape)
    np.testing.assert_allclose(run(imported(proto), {"x": x})["y"][0], np.linalg.det(x))


def test_gemm_of_integers() -> None:
    x, y = (RNG.integers(-5, 5, (3, 3)).astype(np.int32) for _ in range(2))
    inputs = {"x": x, "y": y}
    assert disagreement(program([node("Gemm", "x y", "z", alpha=2.0)], inputs, "z"), inputs) is None
    halves = program([node("Gemm", "x y", "z", alpha=0.5)], inputs, "z")
    with pytest.raises(ModuleError, match=r"multiplies s32\[3,3\] by 0.5"):
        imported(halves)

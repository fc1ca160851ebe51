"""One ONNX model per rank: collectives of onnxruntime, and weights whose layout is inferred."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import MICROSOFT, model, node, save

from shardproof.frontends.onnx.lower import lower
from shardproof.ir.interpret import run as interpret
from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Result, Verdict
from shardproof.solver.verify import verify
from shardproof.tools.command_line import run

pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(5)
UP, DOWN = RNG.normal(size=(8, 32)), RNG.normal(size=(32, 8))


def collective(op_type: str, x: str, y: str, **attributes: Any) -> Any:
    return node(op_type, x, y, MICROSOFT, **attributes)


def mlp(up: Any, down: Any, tail: Sequence[Any]) -> Any:
    nodes = [node("MatMul", "x up", "h"), node("Relu", "h", "a"), node("MatMul", "a down", "p"), *tail]
    return model(nodes, {"x": (4, 8)}, {"y": (4, 8)}, {"up": up, "down": down})


WHOLE = mlp(UP, DOWN, [node("Identity", "p", "y")])


def by_halves(tail: Sequence[Any]) -> list[Any]:
    """The first weight cut by columns, the second by rows."""
    cuts = [slice(16 * r, 16 * r + 16) for r in range(2)]
    return [mlp(UP[:, c], DOWN[c], tail) for c in cuts]


def verdict(folder: Path, reference: Any, ranks: Sequence[Any], **options: Any) -> Result:
    own = save(reference, folder / "reference.onnx")
    files = [save(m, folder / f"rank{r}.onnx") for r, m in enumerate(ranks)]
    return verify(own, files, **options)


def test_sum_over_ranks(tmp_path: Path) -> None:
    found = verdict(tmp_path, WHOLE, by_halves([collective("AllReduce", "p", "y")]))
    assert found.verdict is Verdict.VERIFIED
    assert found.inferred_relation is not None
    assert {n: t for n, t in found.inferred_relation.items() if "shards" in t}.keys() == {"up", "down"}


def test_missing_sum_is_refuted(tmp_path: Path) -> None:
    found = verdict(tmp_path, WHOLE, by_halves([node("Identity", "p", "y")]))
    assert found.verdict is Verdict.REFUTED and "sum over" in found.message


def test_sum_of_whole_values_is_refuted(tmp_path: Path) -> None:
    found = verdict(tmp_path, WHOLE, [mlp(UP, DOWN, [collective("AllReduce", "p", "y")])] * 2)
    assert found.verdict is Verdict.REFUTED


def gathered(axis: int) -> list[Any]:
    """The product cut by columns of both weights, its columns gathered."""

    def one(r: int) -> Any:
        nodes = [
            node("MatMul", "x up", "h"),
            node("Relu", "h", "r"),
            collective("AllGather", "r", "a", axis=axis, group_size=2),
            node("MatMul", "a down", "q"),
            collective("AllGather", "q", "y", axis=1, group_size=2),
        ]
        cut = UP[:, 16 * r : 16 * r + 16], DOWN[:, 4 * r : 4 * r + 4]
        return model(nodes, {"x": (4, 8)}, {"y": (4, 8)}, dict(zip(("up", "down"), cut, strict=True)))

    return [one(0), one(1)]


def test_gather_along_an_axis(tmp_path: Path) -> None:
    assert verdict(tmp_path, WHOLE, gathered(1)).verdict is Verdict.VERIFIED


def test_gather_along_another_axis_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ModuleError, match="MatMul"):
        verdict(tmp_path, WHOLE, gathered(0))


@pytest.mark.parametrize(("axis", "expected"), [(0, Verdict.VERIFIED), (1, Verdict.REFUTED)])
def test_exchange_of_rows_and_columns(axis: int, expected: Verdict, tmp_path: Path) -> None:
    """A softmax down the columns needs whole columns; along the rows it would need whole rows."""
    reference = model([node("Softmax", "x", "y", axis=axis)], {"x": (6, 8)}, {"y": (6, 8)})
    head = [
        node("Reshape", "x s0", "x4"),
        node("Transpose", "x4", "x3", perm=[1, 0, 2]),
        collective("AllToAll", "x3", "z3", group_size=2),
        node("Reshape", "z3 s1", "z"),
        node("Softmax", "z", "w", axis=axis),
        node("Reshape", "w s2", "w3"),
        collective("AllToAll", "w3", "v3", group_size=2),
        node("Transpose", "v3", "v4", perm=[1, 0, 2]),
        node("Reshape", "v4 s3", "y"),
    ]
    stored = {
        "s0": np.array([3, 2, 4]),
        "s1": np.array([6, 4]),
        "s2": np.array([2, 3, 4]),
        "s3": np.array([3, 8]),
    }
    rank = model(head, {"x": (3, 8)}, {"y": (3, 8)}, stored)
    assert verdict(tmp_path, reference, [rank, rank]).verdict is expected


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 2), (12,)])
def test_exchange_cuts_the_elements_in_order(shape: tuple[int, ...]) -> None:
    """Also where the first dim does not divide: the kernel knows no dims."""
    rank = model([collective("AllToAll", "x", "y", group_size=2)], {"x": shape}, {"y": shape})
    module = lower(rank, ranks=2)
    own = [RNG.normal(size=shape).astype(np.float32) for _ in range(2)]
    found = interpret(module, {"x": own})
    for r in range(2):
        wanted = np.concatenate([x.reshape(2, -1)[r] for x in own]).reshape(shape)
        assert np.array_equal(found["y"][r], wanted)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (collective("AllGather", "x", "y", axis=0, group_size=4), "group_size of 4"),
        (collective("AllGather", "x", "y", axis=0), "group_size of 1"),
        (collective("AllGather", "x", "y", group_size=2), "write an axis"),
        (collective("AllGather", "x", "y", axis=-1, group_size=2), "write an axis"),
        (collective("AllGather", "x", "y", axis=2, group_size=2), "write an axis"),
        (collective("AllToAll", "x", "y", group_size=8), "group_size of 8"),
        (collective("AllToAll", "x", "y", group_size=2, axis=0), "attribute axis"),
        (collective("AllReduce", "x", "y", group=0), "attribute group"),
        (collective("AllReduce", "x x", "y z"), "exchanges 2 tensors"),
    ],
)
def test_what_is_not_known_is_refused(changed: Any, text: str) -> None:
    with pytest.raises(ModuleError, match=text):
        lower(model([changed], {"x": (4, 8)}, {"y": (None, None)}), ranks=2)


def test_a_rank_alone_does_not_tell_how_many_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = save(WHOLE, tmp_path / "reference.onnx")
    file = save(mlp(UP, DOWN, [collective("AllReduce", "p", "y")]), tmp_path / "rank0.onnx")
    assert run(["verify", own, file]) == 3
    assert "give the files of all ranks" in capsys.readouterr().err
    assert run(["verify", own, file, "--mesh", "tp=1"]) == 0
    assert run(["verify", own, file, "--mesh", "tp=2"]) == 1
    capsys.readouterr()
    assert run(["verify", own, file, file]) == 1

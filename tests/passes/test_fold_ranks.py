"""One program from the programs of all ranks (SOUNDNESS F1, F2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arrays import Graph, Tensor

from shardproof.ir.interpret import run
from shardproof.ir.module import Input, Module
from shardproof.ir.text import parse
from shardproof.ir.types import DType, Mesh
from shardproof.ir.verify import verify as verify_module
from shardproof.passes.fold_ranks import Divergent, RankError, fold_ranks, order_ranks
from shardproof.solver.verify import verify


def own(rank: int, ranks: int = 4, *, start: int | None = None, scale: float = 1.0) -> Module:
    """The program of one rank: its rows of x by a slice, scaled, gathered."""
    g = Graph(ranks)
    at = 2 * rank if start is None else start
    y = g.input("x", 8, 3)[at : at + 2] * scale
    g.output("y", y.all_gather(0))
    return replace(g.module(), rank=rank)


def whole() -> Module:
    g = Graph()
    g.output("y", g.input("x", 8, 3) * 1.0)
    return g.module()


def test_slice_starts_become_a_table() -> None:
    folded = fold_ranks([own(r) for r in range(4)])
    verify_module(folded)
    assert folded.rank is None
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    for y in run(folded, {"x": x})["y"]:
        np.testing.assert_array_equal(y, x)
    assert verify(whole(), [own(r) for r in range(4)]).verdict == "verified"


@pytest.mark.parametrize("starts", [(0, 2, 4, 4), (2, 0, 4, 6), (0, 2, 4, 5), (0, 0, 0, 0)])
def test_a_table_need_not_be_affine(starts: tuple[int, ...]) -> None:
    """Two ranks always look affine; each entry counts."""
    programs = [own(r, start=s) for r, s in enumerate(starts)]
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    wanted = np.concatenate([x[s : s + 2] for s in starts])
    np.testing.assert_array_equal(run(fold_ranks(programs), {"x": x})["y"][0], wanted)
    assert verify(whole(), programs).verdict == "refuted"


@pytest.mark.parametrize("rank", range(4))
def test_constants_become_tables(rank: int) -> None:
    programs = [own(r, scale=2.0 if r == rank else 1.0) for r in range(4)]
    assert verify(whole(), programs).verdict == "refuted"
    g = Graph()
    x = g.input("x", 8, 3).reshape(4, 2, 3)
    scale = np.ones(4, np.float32)
    scale[rank] = 2
    g.output("y", (x * g.const(scale).spread((4, 2, 3), (0,))).reshape(8, 3))
    assert verify(g.module(), programs).verdict == "verified"


def test_order_of_the_files() -> None:
    """Programs that say their rank may come in any order; others are ranks 0, 1, ... as given."""
    programs = [own(r) for r in range(4)]
    assert [m.rank for m in order_ranks(programs[::-1])] == [0, 1, 2, 3]
    assert verify(whole(), programs[::-1]).verdict == "verified"
    silent = [replace(m, rank=None) for m in programs]
    assert verify(whole(), silent).verdict == "verified"
    assert verify(whole(), silent[::-1]).verdict == "refuted"


def test_a_rank_twice_or_missing() -> None:
    programs = [own(r) for r in range(4)]
    with pytest.raises(RankError, match="two files say that they are rank 1: give each rank once"):
        fold_ranks([programs[0], programs[1], programs[1], programs[3]])
    with pytest.raises(RankError, match="no file is rank 2 of 3: give the files of all ranks"):
        fold_ranks([programs[0], programs[1], programs[3]])
    with pytest.raises(ValueError):
        verify(whole(), programs[:2])


def test_programs_of_another_number_of_ranks() -> None:
    silent = [replace(own(r), rank=None) for r in range(2)]
    with pytest.raises(RankError, match="2 files, but one of them runs on 4 ranks"):
        fold_ranks(silent)


def two(first: Module, second: Module) -> list[Module]:
    return [replace(first, rank=0), replace(second, rank=1)]


def body(kind: str) -> Module:
    """A program that differs from `plain` in one thing."""
    g = Graph(2)
    names = ("q", "p") if kind == "input order" else ("p", "q")
    p, q = (g.input(n, 3 if kind == "shape" and n == "q" else 2) for n in names)
    if kind == "shape":
        q = q[:2]
    if kind == "operand order":
        p, q = q, p
    y: Tensor = p - q
    if kind == "operator":
        y = p + q
    if kind == "operator count":
        y = y * 1.0
    groups = ((1, 0),) if kind == "group order" else ((0,), (1,)) if kind == "groups" else ((0, 1),)
    if kind == "group sizes":
        groups = ((0,), (1,))
    z = y.all_reduce("max" if kind == "monoid" else "sum", groups)
    w = z.reshape(2, 1).spread((2, 2), (0, 1)) if kind == "dims" else z.reshape(1, 2).spread((2, 2), (0, 1))
    outputs = [("z", z), ("w", w)]
    for name, t in reversed(outputs) if kind == "output order" else outputs:
        g.output(name, t)
    return g.module()


KINDS = [
    *("input order", "shape", "operand order", "operator", "operator count", "group order", "groups"),
    *("monoid", "dims", "output order"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_programs_that_diverge_are_unknown(kind: str) -> None:
    plain, other = body("plain"), body(kind)
    fold_ranks(two(plain, plain))
    with pytest.raises(Divergent):
        fold_ranks(two(plain, other))
    result = verify(plain, two(plain, other))
    assert (result.verdict, result.code) == ("unknown", "U02")


def test_state_that_ranks_overwrite_must_agree() -> None:
    def stateful(name: str) -> Module:
        g = Graph(2)
        a, _ = g.input("a", 2), g.input("b", 2)
        g.output("y", a * 2.0, updates=name)
        return g.module()

    with pytest.raises(Divergent):
        fold_ranks(two(stateful("a"), stateful("b")))


def test_numbers_of_inputs_must_agree() -> None:
    """Parameters listed in another order: the same position isn't the same parameter."""
    m = body("plain")
    swapped = replace(m, inputs=(Input(m.inputs[0].value, 1), Input(m.inputs[1].value, 0)))
    with pytest.raises(Divergent):
        fold_ranks(two(m, swapped))


def test_integers_keep_their_type() -> None:
    """A constant of another width is another program, one of another value is a table."""

    def shifted(by: int, dtype: DType) -> Module:
        g = Graph(2)
        g.output("y", g.input("x", 2, dtype=dtype) + by)
        return g.module()

    folded = fold_ranks(two(shifted(1, DType.S32), shifted(3, DType.S32)))
    found = run(folded, {"x": np.zeros(2, np.int32)})["y"]
    np.testing.assert_array_equal(found, [[1, 1], [3, 3]])
    with pytest.raises(Divergent):
        fold_ranks(two(shifted(1, DType.S32), shifted(1, DType.S64)))


def test_programs_of_single_ranks_get_an_axis() -> None:
    """Files that know nothing of other ranks."""
    programs = []
    for r in range(3):
        g = Graph()
        g.output("y", g.input("x", 6)[2 * r : 2 * r + 2])
        programs.append(g.module())
    assert fold_ranks(programs).mesh == Mesh((("rank", 3),))
    g = Graph()
    g.output("y", g.input("x", 6))
    assert verify(g.module(), programs).verdict == "verified"


def offset(rank: int, *, shared: bool, opcode: str = "add") -> Module:
    """x + 4 * rank, times 1, where rank 0's exporter may use its constants twice."""
    lines = [
        "%x = input(0) : s32[3]",
        f"%c = constant() {{value=s32[]({4 * rank})}} : s32[]",
        *([] if shared else [f"%d = constant() {{value=s32[]({4 * rank})}} : s32[]"]),
        "%a = broadcast_in_dim(%c) {dims=()} : s32[3]",
        f"%y = {opcode}(%x, %a) : s32[3]",
        f"%b = broadcast_in_dim(%{'c' if shared else 'd'}) {{dims=()}} : s32[3]",
        "%z = multiply(%y, %b) : s32[3]",
    ]
    return parse('module "m" mesh() {\n' + "\n".join(lines) + '\noutput "z" = %z\n}\n', source="m.spf")


def test_constants_that_one_rank_uses_twice() -> None:
    folded = fold_ranks([offset(0, shared=True), offset(1, shared=False), offset(2, shared=True)])
    verify_module(folded)
    x = np.arange(3, dtype=np.int32)
    for rank, z in enumerate(run(folded, {"x": x})["z"]):
        np.testing.assert_array_equal(z, (x + 4 * rank) * 4 * rank)


def test_other_operators_stay_divergent_however_constants_are_shared() -> None:
    with pytest.raises(Divergent, match="the ranks run 5 and 6 operators"):
        fold_ranks([offset(0, shared=True), offset(1, shared=False, opcode="subtract")])

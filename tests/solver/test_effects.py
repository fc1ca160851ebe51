"""Random draws, state, outputs and operators without a meaning (SOUNDNESS E1, E2, K3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from arrays import Graph, Tensor

from shardproof.ir.module import Module
from shardproof.ir.types import DType, TensorType
from shardproof.solver.verify import verify

F4 = TensorType(DType.F32, (4,))


def program(ranks: int, body: Callable[[Graph, Tensor], Sequence[tuple[str, Tensor]]]) -> Module:
    g = Graph(ranks)
    for name, t in body(g, g.input("x", 4)):
        g.output(name, t)
    return g.module()


def draw(g: Graph, distribution: str = "uniform") -> Tensor:
    return g.op("rng", g.const(0.0), g.const(1.0), type=F4, distribution=distribution)


def call(g: Graph, x: Tensor, target: str = "Mystery", config: str = "") -> Tensor:
    return g.op("custom_call", x, type=x.value.type, target=target, config=config)


# random draws


@pytest.mark.parametrize("ranks", [1, 2])
def test_draws_of_two_programs_are_the_same_by_a_listed_assumption_only(ranks: int) -> None:
    def dropped(distribution: str) -> Callable[[Graph, Tensor], Sequence[tuple[str, Tensor]]]:
        return lambda g, x: [("y", x * draw(g, distribution))]

    one, several = program(1, dropped("uniform")), program(ranks, dropped("uniform"))
    result = verify(one, several)
    assert result.verdict == "verified"
    assert [a.kind for a in result.assumptions].count("rng_aligned") == 1
    assert verify(one, several, strict=True).code == "U08"
    assert verify(one, program(ranks, dropped("normal"))).verdict == "unknown"


def test_a_draw_without_a_counterpart_refutes_nothing() -> None:
    def once(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        return [("y", x * draw(g))]

    def again(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        first, second = draw(g), draw(g)
        return [("y", x * (first + second))]

    assert verify(program(1, once), program(2, again)).verdict == "unknown"
    both = verify(program(1, again), program(2, again))
    assert both.verdict == "verified"
    assert [a.kind for a in both.assumptions].count("rng_aligned") == 2


def test_bits_are_functions_of_the_state() -> None:
    """A generator's bits are drawn from its key, but how is not known: never proved equal by themselves."""
    state, bits = TensorType(DType.U64, (2,)), TensorType(DType.U32, (4,))

    def generated(ranks: int) -> Module:
        g = Graph(ranks)
        key = g.input("key", 2, dtype=DType.U64)
        g.output("y", g.many("rng_bit_generator", key, types=(state, bits), algorithm="threefry")[1])
        return g.module()

    result = verify(generated(1), generated(2))
    assert result.verdict == "unknown" or any(a.kind == "opaque_function" for a in result.assumptions)


def test_draws_cancel_only_with_themselves() -> None:
    def once(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        r = draw(g)
        return [("y", x + (r - r))]

    def twice(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        return [("y", x + (draw(g) - draw(g)))]

    def plain(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        return [("y", x)]

    assert verify(program(1, plain), program(2, once)).verdict == "verified"
    assert verify(program(1, plain), program(2, twice)).verdict != "verified"


def test_a_draw_differs_by_rank() -> None:
    """Even the difference to what another rank drew isn't zero."""

    def shifted(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        r = draw(g)
        other = g.op("collective_permute", r, pairs=((0, 1), (1, 0)))
        return [("y", x + (r - other))]

    def plain(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        return [("y", x)]

    assert verify(program(1, plain), program(2, shifted)).verdict != "verified"


# operators without a meaning


def test_opaque_call_is_an_assumption() -> None:
    def called(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        return [("y", call(g, x))]

    result = verify(program(1, called), program(2, called))
    assert result.verdict == "verified"
    named = [a for a in result.assumptions if a.kind == "opaque_function"]
    assert len(named) == 1 and "`Mystery`" in named[0].text


@pytest.mark.parametrize(
    "other",
    [
        lambda g, x: call(g, x, target="Other"),
        lambda g, x: call(g, x, config="scale=2"),
        lambda g, x: call(g, x * 2.0),
        lambda g, x: call(g, x.reshape(2, 2)).reshape(4),
        lambda g, x: call(g, call(g, x)),
        lambda g, x: g.concat(0, call(g, x[:2]), call(g, x[2:])),
        lambda g, x: call(g, x) * 1.5,
    ],
)
def test_other_opaque_calls_are_not_verified(other: Callable[[Graph, Tensor], Tensor]) -> None:
    a = program(1, lambda g, x: [("y", call(g, x))])
    b = program(2, lambda g, x: [("y", other(g, x))])
    assert verify(a, b).verdict != "verified"


def test_opaque_call_on_shards_is_not_the_call_on_the_whole() -> None:
    g = Graph(2)
    g.output("y", call(g, g.input("x", 2)))
    assert verify(program(1, lambda g, x: [("y", call(g, x))]), g.module()).verdict != "verified"


def opaque(g: Graph, x: Tensor, *, by: bool) -> Tensor:
    """Unknown, but row by row where `by` says so."""
    free = (((0,), (0,)),) if by else ()
    return g.op("opaque", x, type=x.value.type, name="rowwise", free=free)


def test_opaque_operator_goes_slice_by_slice_where_declared() -> None:
    def rows(ranks: int, *, by: bool) -> Module:
        g = Graph(ranks)
        g.output("y", opaque(g, g.input("x", 4 // ranks, 3), by=by))
        return g.module()

    assert verify(rows(1, by=True), rows(2, by=True)).verdict == "verified"
    assert verify(rows(1, by=False), rows(2, by=False)).verdict != "verified"
    assert verify(rows(1, by=True), rows(2, by=False)).verdict != "verified"


# outputs


def doubled(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
    return [("y", x), ("z", x * 2.0)]


def test_a_missing_output_is_unknown() -> None:
    result = verify(program(1, doubled), program(2, lambda g, x: [("y", x)]))
    assert (result.verdict, result.code) == ("unknown", "U05")
    assert "`z`" in result.message


def test_extra_outputs_are_listed() -> None:
    result = verify(program(1, lambda g, x: [("y", x)]), program(2, doubled))
    assert result.verdict == "verified"
    assert result.unchecked_outputs == ("z",)


def test_names_that_contradict_positions_are_asked_for() -> None:
    def turned(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        return doubled(g, x)[::-1]

    result = verify(program(1, doubled), program(2, turned))
    assert (result.verdict, result.code) == ("unknown", "U07")
    assert "its name is that of another" in result.message


def test_outputs_pair_by_position() -> None:
    def other_names(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        return [("a", x), ("b", x * 2.0)]

    assert verify(program(1, doubled), program(2, other_names)).verdict == "verified"

    def swapped(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        return [("a", x * 2.0), ("b", x)]

    assert verify(program(1, doubled), program(2, swapped)).verdict == "refuted"


def test_declared_outputs_pair_as_declared(tmp_path: Path) -> None:
    def swapped(g: Graph, x: Tensor) -> Sequence[tuple[str, Tensor]]:
        return [("a", x * 2.0), ("b", x)]

    file = tmp_path / "relation.toml"
    file.write_text('[outputs]\na = "z | replicate"\nb = "o0 | replicate"\n', encoding="utf-8")
    result = verify(program(1, doubled), program(2, swapped), relation=file)
    assert result.verdict == "verified", result.message
    assert {o.name for o in result.outputs} == {"y", "z"}


def test_one_declared_output_leaves_the_others_to_be_paired(tmp_path: Path) -> None:
    file = tmp_path / "relation.toml"
    file.write_text('[outputs]\na = "y | replicate"\n', encoding="utf-8")
    result = verify(program(1, doubled), program(2, lambda g, x: [("a", x)]), relation=file)
    assert (result.verdict, result.code) == ("unknown", "U05")


# state


def cached(ranks: int, updates: tuple[str | None, str | None] = ("k", "v"), *, at: int = 0) -> Module:
    """Two caches of one type, each overwritten with an update at its front (or at `at`)."""
    g = Graph(ranks)
    k, v, u = g.input("k", 4), g.input("v", 4), g.input("u", 2)
    for name, cache, target, place in (("k2", k, updates[0], 0), ("v2", v, updates[1], at)):
        g.output(name, g.concat(0, cache[:place], u, cache[place + 2 :]), updates=target)
    return g.module()


def test_state_is_compared() -> None:
    assert verify(cached(1), cached(2)).verdict == "verified"
    assert verify(cached(1), cached(2, at=1)).verdict == "refuted"


def test_state_written_to_another_buffer_is_not_verified() -> None:
    """The returned values are right, the caches they land in are swapped."""
    result = verify(cached(1), cached(2, ("v", "k")))
    assert result.verdict == "unknown"
    assert "overwrites `v`" in result.message and "overwrites `k`" in result.message


def test_donated_buffers_are_no_state_of_the_other_program() -> None:
    assert verify(cached(1, (None, None)), cached(2)).verdict == "verified"

"""Inference: what it proposes, what it never proposes, and what a verdict on it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from arrays import Graph, Tensor

from shardproof.ir.module import Module
from shardproof.ir.types import DType
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import Relation
from shardproof.solver.verify import verify

CAPTURED = Path(__file__).resolve().parents[3] / "shared" / "real" / "hlo"


def layouts(reference: Module, implementation: Module) -> dict[str, str]:
    """The inferred layouts as text; a gap is its reason."""
    found = infer(reference, implementation, Relation({}, {}, {}))
    out = {name: str(spec) for name, spec in found.relation.inputs.items()}
    return out | {gap.name: gap.reason for gap in found.gaps}


def one_input(*shape: int, dtype: DType = DType.F32, axes: tuple[tuple[str, int], ...] = ()) -> Module:
    g = Graph(axes=axes)
    g.output("y", g.input("w", *shape, dtype=dtype))
    return g.module()


def gated(ranks: int, *, extra: Callable[[Tensor], Tensor] = lambda t: t, swap: bool = False) -> Module:
    """A fused gate and up projection, the halves multiplied."""
    g = Graph(ranks)
    h = extra(g.input("x", 3, 4) @ g.input("w", 4, 16 // ranks))
    n = 8 // ranks
    a, b = (h[:, n:], h[:, :n]) if swap else (h[:, :n], h[:, n:])
    g.output("y", a.apply("tanh") * b)
    return g.module()


def qkv(ranks: int, order: str = "qkv") -> Module:
    """A fused projection whose three parts are used differently."""
    g = Graph(ranks)
    h = g.input("x", 3, 4) @ g.input("w", 4, 24 // ranks)
    n = 8 // ranks
    q, k, v = (h[:, n * i : n * (i + 1)] for i in ("qkv".index(c) for c in order))
    g.output("y", q * k.apply("tanh") + v.apply("exponential"))
    return g.module()


def product_of(first: str, second: str, shapes: dict[str, tuple[int, ...]]) -> Module:
    """Two inputs in this order, `a` times `b`."""
    g = Graph()
    made = {name: g.input(name, *shapes[name]) for name in (first, second)}
    g.output("y", made["a"] @ made["b"])
    return g.module()


# what is proposed


def test_names_decide_where_numbers_do_not_fit() -> None:
    shapes = {"a": (4, 6), "b": (6, 5)}
    found = layouts(product_of("a", "b", shapes), product_of("b", "a", shapes))
    assert found == {"a": "replicate", "b": "replicate"}


def test_names_against_numbers_are_ambiguous_where_both_fit() -> None:
    shapes = {"a": (4, 4), "b": (4, 4)}
    found = layouts(product_of("a", "b", shapes), product_of("b", "a", shapes))
    assert all("two reference inputs" in found[name] for name in "ab")


def test_copies_and_shards() -> None:
    tp = (("tp", 2),)
    assert layouts(one_input(4, 6), one_input(4, 6, axes=tp))["w"] == "replicate"
    assert layouts(one_input(4, 6), one_input(4, 3, axes=tp))["w"] == "shard(1)"
    assert layouts(one_input(4, 6), one_input(2, 6, axes=tp))["w"] == "shard(0)"


def test_several_axes() -> None:
    grid = (("dp", 2), ("tp", 3))
    assert layouts(one_input(4, 6), one_input(2, 6, axes=grid))["w"] == "shard(0, dp)"
    assert layouts(one_input(4, 6), one_input(2, 2, axes=grid))["w"] == "shard(0, dp) | shard(1, tp)"
    assert layouts(one_input(4, 6), one_input(4, 1, axes=grid))["w"] == "shard(1, dp, tp)"


def test_axes_of_one_size_are_asked_for() -> None:
    """Which of dp and tp divides a dim can't be told from shapes."""
    square = (("dp", 2), ("tp", 2))
    result = verify(one_input(4, 6), one_input(2, 6, axes=square))
    assert (result.verdict, result.code) == ("unknown", "U07")
    assert "may be divided over dp or tp" in result.message
    assert any("--relation" in text for text in result.help)


def test_sizes_of_one_are_no_axes() -> None:
    mesh = (("dp", 1), ("tp", 2))
    result = verify(gated(1), gated(2), mesh=dict(mesh))
    assert result.verdict == "verified", result.message


@pytest.mark.parametrize("shape", [(4, 5), (3, 6), (4, 2), (4, 6, 1), (6, 4), (8, 6), (0, 6)])
def test_other_extents_are_unknown(shape: tuple[int, ...]) -> None:
    """Padding, cutting, joining and turning are never guessed; what is found is said."""
    result = verify(one_input(4, 6), one_input(*shape, axes=(("tp", 2),)))
    assert (result.verdict, result.code) == ("unknown", "U01"), result.message
    assert f"f32[{','.join(map(str, shape))}] of f32[4,6]" in result.message
    assert result.help


def test_segments_are_those_of_the_reference() -> None:
    assert layouts(qkv(1), qkv(2))["w"] == "[8 shard(1) | 8 shard(1) | 8 shard(1)] side by side on dim 1"
    result = verify(qkv(1), qkv(2))
    assert (result.verdict, result.code) == ("verified", "V02")
    assert result.inferred_relation is not None and "8 | 8 | 8" in result.inferred_relation["w"]
    assert {a.value for a in result.assumptions} == {"x", "w"}
    assert verify(qkv(1), qkv(2), strict=True).code == "U08"


@pytest.mark.parametrize("code", ["tanh", "exponential", "logistic", "negate"])
def test_segments_are_found_behind_elementwise_operators(code: str) -> None:
    result = verify(gated(1, extra=lambda t: t.apply(code)), gated(2, extra=lambda t: t.apply(code)))
    assert result.verdict == "verified", result.message


def test_integers_have_no_segments() -> None:
    def cut(ranks: int) -> Module:
        g = Graph(ranks)
        ids = g.input("ids", 8 // ranks, dtype=DType.S32)
        n = 4 // ranks
        g.output("y", ids[:n] * ids[n:])
        return g.module()

    assert layouts(cut(1), cut(2))["ids"] == "shard(0)"
    result = verify(cut(1), cut(2))
    assert result.verdict != "verified"


def test_kinds_must_agree() -> None:
    result = verify(one_input(4, dtype=DType.S32), one_input(4, axes=(("tp", 2),)))
    assert (result.verdict, result.code) == ("unknown", "U01")
    assert "element types are of different kinds" in result.message


def test_widths_may_differ_by_a_cast() -> None:
    """A reference in f64 and an implementation in bf16 are the same over the reals."""
    result = verify(one_input(4, dtype=DType.F64), one_input(4, dtype=DType.BF16, axes=(("tp", 2),)))
    assert result.verdict == "verified", result.message


# metadata


def with_sharding(shape: tuple[int, ...], sharding: tuple[int, ...] | None) -> Module:
    g = Graph(2)
    g.output("y", g.input("w", *shape, sharding=sharding))
    return g.module()


def test_metadata_that_agrees_is_evidence() -> None:
    found = infer(one_input(4, 6), with_sharding((4, 3), (1, 2)), Relation({}, {}, {}))
    assert found.relation.inferred["w"] == "sharding metadata"


@pytest.mark.parametrize(("shape", "sharding"), [((4, 3), (2, 1)), ((4, 6), (1, 2)), ((4, 3), (1, 1))])
def test_metadata_that_disagrees_is_unknown(shape: tuple[int, ...], sharding: tuple[int, ...]) -> None:
    result = verify(one_input(4, 6), with_sharding(shape, sharding))
    assert (result.verdict, result.code) == ("unknown", "U01")
    assert "its sharding says" in result.message


# what is never proposed


def test_partial_is_not_inferred() -> None:
    """Only addends of b on the ranks would make this right."""

    def biased(ranks: int) -> Module:
        g = Graph(ranks)
        y = g.input("x", 3, 4 // ranks) @ g.input("w", 4 // ranks, 5)
        y = y + g.input("b", 5).spread((3, 5), (1,))
        g.output("y", y.all_reduce() if ranks > 1 else y)
        return g.module()

    result = verify(biased(1), biased(2))
    assert result.verdict != "verified"


@pytest.mark.parametrize("order", ["qvk", "kqv", "vkq", "qqv", "kkv", "qkk"])
def test_other_segments_are_not_verified(order: str) -> None:
    """Swapped segments (a matter of the loader) are unknown, reused ones are wrong."""
    result = verify(qkv(1), qkv(2, order))
    assert result.verdict == ("refuted" if len(set(order)) < 3 else "unknown"), result.message


def test_swapped_key_and_value_name_the_layout_that_would_do() -> None:
    result = verify(qkv(1), qkv(2, "qvk"))
    assert (result.verdict, result.code) == ("unknown", "U06")
    assert "would hold if `w` were laid out as" in result.message


def test_overlapping_segment_is_refuted() -> None:
    """One segment starts where another does; no order of segments explains it."""

    def overlapping(ranks: int, at: int) -> Module:
        g = Graph(ranks)
        h = g.input("x", 3, 4) @ g.input("w", 4, 24 // ranks)
        n = 8 // ranks
        q, k, v = h[:, :n], h[:, at : at + n], h[:, 2 * n :]
        g.output("y", q * k.apply("tanh") + v.apply("exponential"))
        return g.module()

    for at in (0, 1, 2):
        assert verify(overlapping(1, 8), overlapping(2, at)).verdict == "refuted"
    assert verify(overlapping(1, 8), overlapping(2, 4)).verdict == "verified"


def test_rank_order_is_not_inferred() -> None:
    """A gather in another order would be right for shards in that order: not for us to choose."""

    def gathered(ranks: int, groups: tuple[tuple[int, ...], ...] = ()) -> Module:
        g = Graph(ranks)
        x = g.input("x", 4 // ranks, 3)
        g.output("y", x.all_gather(0, groups) if ranks > 1 else x)
        return g.module()

    assert verify(gathered(1), gathered(2, ((0, 1),))).verdict == "verified"
    result = verify(gathered(1), gathered(2, ((1, 0),)))
    assert (result.verdict, result.code) == ("unknown", "U06"), result.message


def test_transposed_weight_is_not_inferred() -> None:
    def product(ranks: int, *, turned: bool) -> Module:
        g = Graph(ranks)
        x, w = g.input("x", 3, 4), g.input("w", 4, 4)
        g.output("y", x @ (w.T if turned else w))
        return g.module()

    assert verify(product(1, turned=False), product(2, turned=True)).verdict != "verified"


# no right program is refuted


@pytest.mark.parametrize("code", [None, "tanh", "softmax", "cumsum"])
def test_implementation_cuts_keep_a_difference_from_refuting(code: str | None) -> None:
    """The reference cuts by a gather or behind an operator: the fused layout isn't seen, the doubt is."""

    def cut(ranks: int) -> Module:
        g = Graph(ranks)
        h = g.input("x", 3, 4) @ g.input("w", 4, 16 // ranks)
        if ranks == 1 and code is None:
            halves = [h.T.take(g.iota((8,), 0) + at).T for at in (0, 8)]
        else:
            halves = [h[:, : 8 // ranks], h[:, 8 // ranks :]]
        g.output("y", halves[0].apply("tanh") * halves[1])
        return g.module()

    assert verify(cut(1), cut(2)).verdict != "refuted"


def test_interleaved_heads_are_not_refuted() -> None:
    """Both programs read heads of q, k, v in turn: plain shards, as inferred."""

    def interleaved(ranks: int) -> Module:
        g = Graph(ranks)
        h = (g.input("x", 3, 4) @ g.input("w", 4, 24 // ranks)).reshape(3, 4 // ranks, 6)
        q, k, v = (h[:, :, 2 * n : 2 * n + 2] for n in range(3))
        g.output("y", (q * k.apply("tanh") + v).reshape(3, 8 // ranks))
        return g.module()

    result = verify(interleaved(1), interleaved(2))
    assert result.verdict == "verified", result.message


# pairing


def named(names: dict[str, tuple[int, ...]], ranks: int, pick: str) -> Module:
    g = Graph(ranks)
    made = {n: g.input(n, *shape) for n, shape in names.items()}
    g.output("y", made[pick])
    return g.module()


def test_names_that_contradict_numbers_are_asked_for() -> None:
    a = named({"p": (4,), "q": (4,)}, 1, "p")
    for pick in ("p", "q"):
        result = verify(a, named({"q": (4,), "p": (4,)}, 2, pick))
        assert (result.verdict, result.code) == ("unknown", "U07"), result.message


def test_names_pair_where_numbers_do_not() -> None:
    a, b = named({"unused": (4,), "q": (4,), "p": (4,)}, 1, "p"), named({"p": (4,), "q": (4,)}, 2, "p")
    assert verify(a, b).verdict == "verified"
    assert verify(a, named({"p": (4,), "q": (4,)}, 2, "q")).verdict != "verified"


def test_other_names_pair_by_number() -> None:
    a, b = named({"p": (4,), "q": (4,)}, 1, "p"), named({"a": (4,), "q": (4,)}, 2, "a")
    assert verify(a, b).verdict == "verified"


def test_counts_that_differ_are_unknown() -> None:
    a, b = named({"p": (4,)}, 1, "p"), named({"a": (4,), "b": (4,)}, 2, "a")
    result = verify(a, b)
    assert (result.verdict, result.code) == ("unknown", "U01")
    assert "1 inputs against 2 do not pair by number" in result.message


def test_reference_inputs_may_be_left_over() -> None:
    a, b = named({"p": (4,), "unused": (2,)}, 1, "p"), named({"p": (2,)}, 2, "p")
    assert verify(a, b).verdict == "verified"


# two distributed programs


def mlp(ranks: int, *, reduced: bool = True, wide: int = 8) -> Module:
    g = Graph(ranks)
    x, a, b = g.input("x", 3, 4), g.input("a", 4, wide // ranks), g.input("b", wide // ranks, 5)
    y = (x @ a).apply("tanh") @ b
    g.output("y", y.all_reduce() if ranks > 1 and reduced else y)
    return g.module()


@pytest.mark.parametrize(("own", "other"), [(2, 8), (8, 2), (4, 4), (2, 4)])
def test_distributed_reference(own: int, other: int) -> None:
    result = verify(mlp(own), mlp(other))
    assert result.verdict == "verified", result.message


@pytest.mark.parametrize(("own", "other"), [(2, 8), (4, 4)])
def test_missing_sum_against_a_distributed_reference(own: int, other: int) -> None:
    assert verify(mlp(own), mlp(other, reduced=False)).verdict == "refuted"


def test_reference_ranks_must_agree() -> None:
    """Its outputs are partial sums: there is no one tensor that another number of ranks could return."""
    result = verify(mlp(2, reduced=False), mlp(4))
    assert result.verdict != "verified"
    g = Graph(4)
    g.output("y", g.input("x", 3, 4))
    own = Graph(2)
    x = own.input("x", 3, 4)
    first = own.rank().is_("EQ", 0).spread((3, 4), ())
    own.output("y", own.where(first, x, 0.0))
    assert verify(own.module(), g.module()).verdict != "verified"


def test_ranks_of_a_distributed_reference_are_not_mixed() -> None:
    """On as many ranks each rank has its own tensor: none may return the neighbour's."""

    def shifted(by: int) -> Module:
        g = Graph(4)
        x = g.input("x", 3)
        pairs = tuple((r, (r + by) % 4) for r in range(4))
        g.output("y", g.op("collective_permute", x, pairs=pairs))
        return g.module()

    assert verify(shifted(1), shifted(1)).verdict == "verified"
    assert verify(shifted(1), shifted(3)).verdict != "verified"
    assert verify(shifted(0), shifted(1)).verdict != "verified"


def test_replicated_outputs_hold_on_every_rank() -> None:
    """Right on rank 0 only."""
    g = Graph(2)
    x = g.input("x", 4)
    first = g.rank().is_("EQ", 0).spread((4,), ())
    g.output("y", g.where(first, x, x * 2))
    whole = Graph()
    whole.output("y", whole.input("x", 4))
    assert verify(whole.module(), g.module()).verdict == "refuted"


def test_dims_of_one_size_hold_on_all_axes() -> None:
    """Equal over tp, different over dp."""
    g = Graph(axes=(("dp", 2), ("tp", 3)))
    x = g.input("x", 4)
    second = g.rank().is_("GE", 3).spread((4,), ())
    g.output("y", g.where(second, x * 2, x))
    whole = Graph()
    whole.output("y", whole.input("x", 4))
    assert verify(whole.module(), g.module()).verdict == "refuted"


def test_shards_in_another_order_are_wrong() -> None:
    g = Graph(2)
    x = g.input("x", 4)
    g.output("y", x.part(0, 2 - g.rank() * 2, 2))
    whole = Graph()
    whole.output("y", whole.input("x", 4))
    assert verify(whole.module(), g.module()).verdict == "refuted"
    right = Graph(2)
    right.output("y", right.input("x", 4).shard(0))
    assert verify(whole.module(), right.module()).verdict == "verified"


def test_constants_with_rank_tables() -> None:
    """A table read at the rank is what each rank has; a wrong entry on one rank is found."""

    def tabled(values: list[float]) -> Module:
        g = Graph(4)
        table = g.const(np.asarray(values, np.float32))
        g.output("y", g.input("x", 2) * table.part(0, g.rank(), 1).reshape())
        return g.module()

    whole = Graph()
    whole.output("y", whole.input("x", 2) * 3.0)
    assert verify(whole.module(), tabled([3, 3, 3, 3])).verdict == "verified"
    assert verify(whole.module(), tabled([3, 3, 3, 2])).verdict == "refuted"


def captured(name: str) -> Path:
    path = CAPTURED / f"{name}.hlo.pb.gz"
    if not path.exists():
        pytest.skip(f"no captured graph {path}")
    return path


@pytest.mark.parametrize("reference", ["tp1_layer1", "tp2_layer1", "tp4_layer1"])
def test_captured_broken_program_is_not_verified(reference: str) -> None:
    """Its key reads columns of the query: a layout that lets segments overlap would prove it."""
    result = verify(captured(reference), captured("tp2_layer1.broken"), outputs="any")
    assert result.verdict != "verified"


def test_captured_programs_on_other_numbers_of_ranks() -> None:
    for own, other in (
        ("tp2_layer1", "tp8_layer1"),
        ("tp4_layer1", "tp4_layer1"),
        ("tp8_layer1", "tp2_layer1"),
    ):
        result = verify(captured(own), captured(other))
        assert (result.verdict, result.code) == ("verified", "V02"), (own, other, result.message)


# outputs that are the new value or the gradient of an input


def scaled_halves(ranks: int, name: str) -> Module:
    """A weight of two parts that are used apart, and twice the weight."""
    g = Graph(ranks)
    w = g.input("w", 8 // ranks, 3)
    n = 4 // ranks
    y = w[:n] * w[n:].apply("tanh")
    g.output("y", y)
    g.output(name, w + w)
    return g.module()


@pytest.mark.parametrize("name", ["grad.w", "output.grad.w"])
def test_the_gradient_of_a_fused_weight_is_fused(name: str) -> None:
    result = verify(scaled_halves(1, name), scaled_halves(2, name))
    assert result.verdict == "verified", result.message
    assert result.outputs[1].placement == "[4 | 4] each sharded over tp on dim 0"


@pytest.mark.parametrize("name", ["other", "grad.ww", "gradw"])
def test_other_results_of_that_shape_are_not(name: str) -> None:
    assert verify(scaled_halves(1, name), scaled_halves(2, name)).verdict == "unknown"


def test_a_gradient_in_other_places_than_its_weight_is_not_verified() -> None:
    def swapped(ranks: int) -> Module:
        g = Graph(ranks)
        w = g.input("w", 8 // ranks, 3)
        n = 4 // ranks
        g.output("y", w[:n] * w[n:].apply("tanh"))
        both = w + w
        g.output("grad.w", both if ranks == 1 else g.concat(0, both[n:], both[:n]))
        return g.module()

    assert verify(swapped(1), swapped(2)).verdict != "verified"


def test_a_missing_sum_is_refuted_whatever_the_layout_of_a_fused_weight() -> None:
    def summed(ranks: int, skip: bool = False) -> Module:
        g = Graph(ranks)
        h = g.input("x", 3, 4) @ g.input("w", 4, 16 // ranks)
        n = 8 // ranks
        for k, column in enumerate(("a", "b")):
            y = (h[:, :n] * h[:, n:].apply("tanh")) @ g.input(column, n, 2 + k)
            g.output(f"y{k}", y if skip or ranks == 1 else y.all_reduce())
        return g.module()

    assert verify(summed(1), summed(2)).verdict == "verified"
    result = verify(summed(1), summed(2, skip=True))
    assert (result.verdict, result.code) == ("refuted", "R02")

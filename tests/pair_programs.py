"""Small reference and implementation programs, each about one rule that a proof must not break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from arrays import Graph, Tensor

from shardproof.ir.module import Module
from shardproof.ir.types import DType

Body = Callable[[Graph], Tensor]
PERMUTED = (2, 0, 3, 1)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs, the relation file between them, and what is true of them.

    `expect` is equal, not_equal, or assume (equal under a listed assumption of kind `under`); `answer` is the
    verdict that is given today. `witness` are the programs with values for which the assumption is false.
    """

    build: Callable[[], tuple[Module, Module]]
    relation: str
    expect: str
    answer: str
    under: str = ""
    witness: Callable[[], tuple[Module, Module]] | None = None


PAIRS: dict[str, Pair] = {}


def pair(
    name: str,
    expect: str,
    answer: str,
    relation: str = "",
    *,
    under: str = "",
    witness: Callable[[], tuple[Module, Module]] | None = None,
) -> Callable[[Callable[[], tuple[Module, Module]]], Callable[[], tuple[Module, Module]]]:
    """Enter a pair into the table."""

    def enter(build: Callable[[], tuple[Module, Module]]) -> Callable[[], tuple[Module, Module]]:
        text = relation or '[inputs]\n"*" = "replicate"\n[outputs]\n"*" = "replicate"\n'
        PAIRS[name] = Pair(build, text, expect, answer, under, witness)
        return build

    return enter


def two(reference: Body, implementation: Body, ranks: int = 2) -> tuple[Module, Module]:
    """Modules of one output `y` each."""
    modules = []
    for body, count in ((reference, 1), (implementation, ranks)):
        g = Graph(count)
        g.output("y", body(g))
        modules.append(g.module())
    return modules[0], modules[1]


def layouts(y: str = "replicate", **inputs: str) -> str:
    """A relation file over two or four ranks."""
    lines = [f'"{name}" = "{layout}"' for name, layout in inputs.items()]
    return "\n".join(["[inputs]", *lines, "[outputs]", f'y = "{y}"']) + "\n"


MLP = layouts(X="replicate", A="shard(1)", B="shard(0)")


def mlp(g: Graph) -> Tensor:
    d = 8 // g.mesh.size
    return (g.input("X", 3, 4) @ g.input("A", 4, d)).apply("tanh") @ g.input("B", d, 5)


@pair("col_row_parallel", "equal", "verified", MLP)
def col_row_parallel() -> tuple[Module, Module]:
    return two(mlp, lambda g: mlp(g).all_reduce())


@pair("missing_all_reduce", "not_equal", "refuted", MLP)
def missing_all_reduce() -> tuple[Module, Module]:
    return two(mlp, mlp)


@pair("double_all_reduce", "not_equal", "refuted")
def double_all_reduce() -> tuple[Module, Module]:
    return two(lambda g: g.input("X", 3, 4), lambda g: g.input("X", 3, 4).all_reduce())


@pair("bias_before_all_reduce", "not_equal", "refuted", layouts(X="shard(1)", W="shard(0)", b="replicate"))
def bias_before_all_reduce() -> tuple[Module, Module]:
    def biased(g: Graph) -> Tensor:
        d = 4 // g.mesh.size
        y = g.input("X", 3, d) @ g.input("W", d, 5)
        return y + g.input("b", 5).spread((3, 5), (1,))

    return two(biased, lambda g: biased(g).all_reduce())


@pair("same_class_other_access", "not_equal", "refuted")
def same_class_other_access() -> tuple[Module, Module]:
    return two(
        lambda g: g.input("X", 4, 4).apply("exponential"), lambda g: g.input("X", 4, 4).apply("exponential").T
    )


@pair("take_digit_order", "not_equal", "refuted")
def take_digit_order() -> tuple[Module, Module]:
    def picked(g: Graph, x: Tensor) -> Tensor:
        return x.reshape(6).take(g.const([0, 5, 2, 1], DType.S32))

    return two(lambda g: picked(g, g.input("X", 2, 3)), lambda g: picked(g, g.input("X", 2, 3).T))


@pair("opaque_dim_order", "not_equal", "refuted")
def opaque_dim_order() -> tuple[Module, Module]:
    return two(lambda g: g.input("X", 3, 3).sort(1), lambda g: g.input("X", 3, 3).T.sort(1))


@pair("cumsum_merge", "not_equal", "refuted")
def cumsum_merge() -> tuple[Module, Module]:
    return two(
        lambda g: g.input("X", 2, 3).cumsum(1).reshape(6), lambda g: g.input("X", 2, 3).reshape(6).cumsum(0)
    )


@pair("empty_sum", "not_equal", "refuted")
def empty_sum() -> tuple[Module, Module]:
    return two(lambda g: g.input("X", 6)[3:3].sum(), lambda g: g.input("X", 6)[3:4].sum())


@pair("array_literals", "not_equal", "refuted", layouts())
def array_literals() -> tuple[Module, Module]:
    return two(lambda g: g.const([1.0, 2.0]), lambda g: g.const([3.0, 4.0]))


@pair("slice_step", "not_equal", "refuted")
def slice_step() -> tuple[Module, Module]:
    return two(lambda g: g.input("X", 6)[0:6:2], lambda g: g.input("X", 6)[0:3])


@pair("overlapping_windows", "not_equal", "refuted")
def overlapping_windows() -> tuple[Module, Module]:
    def windows(g: Graph) -> Tensor:
        x = g.input("X", 7)
        return g.concat(0, *(x[2 * i : 2 * i + 3] for i in range(3))).reshape(3, 3).sum()

    return two(lambda g: g.input("X", 7).sum(), windows)


@pair("factor_position_read_twice", "not_equal", "refuted")
def factor_position_read_twice() -> tuple[Module, Module]:
    def ids(g: Graph) -> Tensor:
        return g.const(PERMUTED, DType.S32)

    return two(
        lambda g: (g.input("X", 4).take(ids(g)) * g.input("s", 4)).apply("tanh"),
        lambda g: (g.input("X", 4) * g.input("s", 4)).apply("tanh").take(ids(g)),
    )


@pair("factor_bound_position", "not_equal", "refuted")
def factor_bound_position() -> tuple[Module, Module]:
    def diagonal(g: Graph) -> Tensor:
        at = g.const(PERMUTED, DType.S32) * 4 + g.iota((4,), 0)
        return g.input("X", 4, 4).reshape(16).take(at).sum()

    return two(diagonal, lambda g: g.input("X", 4, 4).sum(1).take(g.const(PERMUTED[:1], DType.S32)).reshape())


@pair("capture", "not_equal", "refuted")
def capture() -> tuple[Module, Module]:
    def trace(g: Graph) -> Tensor:
        same = g.iota((3, 3), 0).is_("EQ", g.iota((3, 3), 1))
        return g.where(same, g.input("X", 3, 3), 0.0).sum() * g.input("Z", 3)

    return two(lambda g: g.input("X", 3, 3).sum(1) * g.input("Z", 3), trace)


@pair("subrange_union", "not_equal", "refuted", layouts())
def subrange_union() -> tuple[Module, Module]:
    def squares(g: Graph) -> Tensor:
        i = g.iota((6,), 0, DType.F32)
        return g.concat(0, (i * i)[:2], i * i)

    def plain(g: Graph) -> Tensor:
        i = g.iota((6,), 0, DType.F32)
        return g.concat(0, i[:2], i)

    return two(squares, plain)


@pair("int_halve_double", "not_equal", "refuted")
def int_halve_double() -> tuple[Module, Module]:
    return two(lambda g: g.input("x", 3, dtype=DType.S32), lambda g: g.input("x", 3, dtype=DType.S32) / 2 * 2)


@pair("float_to_int_cast", "not_equal", "refuted")
def float_to_int_cast() -> tuple[Module, Module]:
    return two(lambda g: g.input("x", 5), lambda g: g.input("x", 5).astype(DType.S64).astype(DType.F32))


@pair("bool_add", "not_equal", "refuted")
def bool_add() -> tuple[Module, Module]:
    def inputs(g: Graph) -> tuple[Tensor, Tensor]:
        return g.input("a", 2, dtype=DType.BOOL), g.input("b", 2, dtype=DType.BOOL)

    def counted(g: Graph) -> Tensor:
        a, b = inputs(g)
        return a.astype(DType.F32) + b.astype(DType.F32)

    def either(g: Graph) -> Tensor:
        a, b = inputs(g)
        return (a + b).astype(DType.F32)

    return two(counted, either)


@pair("max_negative", "not_equal", "refuted")
def max_negative() -> tuple[Module, Module]:
    return two(lambda g: (-g.input("x", 5)).max(), lambda g: -g.input("x", 5).max())


def masked_attention(mask: Callable[[Graph], Tensor], *, safe: bool) -> Body:
    """Softmax over masked scores, times values; the safe one gives 0 where all of a row is masked."""

    def body(g: Graph) -> Tensor:
        scores = g.where(mask(g), g.input("s", 2, 3), -np.inf)
        top = scores.max(1)
        if safe:
            top = g.where(top.is_("EQ", -np.inf), 0.0, top)
        e = (scores - top.spread((2, 3), (0,))).apply("exponential")
        total = e.sum(1)
        if safe:
            total = g.where(total.is_("EQ", 0.0), 1.0, total)
        return (e / total.spread((2, 3), (0,))) @ g.input("v", 3, 4)

    return body


def _dead_rows_witness() -> tuple[Module, Module]:
    def mask(g: Graph) -> Tensor:
        return g.const([[True, False, True], [False, False, False]], DType.BOOL)

    return two(masked_attention(mask, safe=False), masked_attention(mask, safe=True))


@pair("dead_rows", "assume", "verified", under="row_not_fully_masked", witness=_dead_rows_witness)
def dead_rows() -> tuple[Module, Module]:
    def mask(g: Graph) -> Tensor:
        return g.input("m", 2, 3, dtype=DType.BOOL)

    return two(masked_attention(mask, safe=False), masked_attention(mask, safe=True))


@pair("mask_times_inf", "not_equal", "refuted")
def mask_times_inf() -> tuple[Module, Module]:
    return two(
        lambda g: g.where(g.const([1.0, 0.0, 1.0]).is_("GT", 0.0), g.input("x", 3), -np.inf),
        lambda g: g.input("x", 3) + (1.0 - g.const([1.0, 0.0, 1.0])) * -np.inf,
    )


def scaled(scale: Callable[[Graph], Tensor]) -> Body:
    """x / s * s."""

    def body(g: Graph) -> Tensor:
        s = scale(g)
        return g.input("x", 3) / s * s

    return body


def _x_beside(scale: Callable[[Graph], Tensor]) -> Body:
    def body(g: Graph) -> Tensor:
        scale(g)
        return g.input("x", 3)

    return body


def _scale_witness() -> tuple[Module, Module]:
    def scale(g: Graph) -> Tensor:
        return g.const([0.0, 2.0, 3.0])

    return two(_x_beside(scale), scaled(scale))


@pair("scale_unscale", "assume", "verified", under="nonzero_divisor", witness=_scale_witness)
def scale_unscale() -> tuple[Module, Module]:
    def scale(g: Graph) -> Tensor:
        return g.input("s", 3)

    return two(_x_beside(scale), scaled(scale))


def _rows(ids: Callable[[Graph], Tensor], *, one_hot: bool) -> Body:
    def body(g: Graph) -> Tensor:
        w, at = g.input("W", 6, 2), ids(g)
        if not one_hot:
            return w.take(at)
        hit = at.spread((3, 6), (0,)).is_("EQ", g.iota((3, 6), 1))
        return hit.astype(DType.F32) @ w

    return body


def _out_of_range_witness() -> tuple[Module, Module]:
    def ids(g: Graph) -> Tensor:
        return g.const([0, 7, 3], DType.S32)

    return two(_rows(ids, one_hot=False), _rows(ids, one_hot=True))


@pair("gather_out_of_range", "assume", "verified", under="ids_in_range", witness=_out_of_range_witness)
def gather_out_of_range() -> tuple[Module, Module]:
    def ids(g: Graph) -> Tensor:
        return g.input("ids", 3, dtype=DType.S32)

    return two(_rows(ids, one_hot=False), _rows(ids, one_hot=True))


@pair("scatter_set_duplicates", "not_equal", "unknown")
def scatter_set_duplicates() -> tuple[Module, Module]:
    def into(g: Graph, kind: str) -> Tensor:
        return g.zeros(4).scatter(g.const([1, 1, 2], DType.S32), g.input("u", 3), kind)

    return two(lambda g: into(g, "sum"), lambda g: into(g, "set"))


@pair("argmax_ties", "not_equal", "refuted", layouts())
def argmax_ties() -> tuple[Module, Module]:
    def first(g: Graph, x: Tensor) -> list[Tensor]:
        types = (x.sum(0).value.type, g.const(0, DType.S32).value.type)
        return g.many("argreduce", x, types=types, dim=0, kind="max")

    def last_of_halves(g: Graph) -> Tensor:
        x = g.const([3.0, 1.0, 3.0, 2.0])
        (a, i), (b, j) = first(g, x[:2]), first(g, x[2:])
        return g.op("select", a.is_("GT", b), i, j + 2)

    return two(lambda g: first(g, g.const([3.0, 1.0, 3.0, 2.0]))[1], last_of_halves)


@pair("mean_of_means_uneven", "not_equal", "refuted")
def mean_of_means_uneven() -> tuple[Module, Module]:
    def uneven(g: Graph) -> Tensor:
        x = g.input("x", 5)
        return (x[:3].sum() / 3 + x[3:].sum() / 2) / 2

    return two(lambda g: g.input("x", 5).sum() / 5, uneven)


def summed_shards() -> tuple[Module, Module]:
    """A sum over 5 elements, and over the 3 of each of two ranks."""

    def whole(g: Graph) -> Tensor:
        g.input("garbage", 1)
        return g.input("x", 5).sum()

    return two(whole, lambda g: g.input("x", 3).sum().all_reduce())


@pair("padding_garbage", "not_equal", "refuted", layouts(x="x | concat(0, garbage) | shard(0)"))
def padding_garbage() -> tuple[Module, Module]:
    return summed_shards()


@pair("group_order", "not_equal", "refuted", layouts(x="shard(0)"))
def group_order() -> tuple[Module, Module]:
    return two(lambda g: g.input("x", 4), lambda g: g.input("x", 2).all_gather(0, ((1, 0),)))


@pair(
    "kv_replicated_div", "equal", "verified", layouts("shard(0)", K="repeat(0, 2) | shard(0)", Q="shard(0)")
)
def kv_replicated_div() -> tuple[Module, Module]:
    def grouped(g: Graph) -> Tensor:
        return g.input("K", 2, 3).spread((2, 2, 3), (0, 2)).reshape(4, 3) * g.input("Q", 4, 3)

    return two(grouped, lambda g: g.input("K", 1, 3) * g.input("Q", 1, 3), 4)


@pair(
    "vocab_parallel", "equal", "verified", layouts(W="shard(0)", ids="replicate") + "[ranges]\nids = [0, 6]\n"
)
def vocab_parallel() -> tuple[Module, Module]:
    def own_rows(g: Graph) -> Tensor:
        w, ids, low = g.input("W", 3, 2), g.input("ids", 4, dtype=DType.S32), g.rank() * 3
        missing = ids.is_("LT", low) | ids.is_("GE", low + 3)
        at = g.op("clamp", g.const(0, DType.S32), ids - low, g.const(2, DType.S32))
        return g.where(missing.spread((4, 2), (0,)), 0.0, w.take(at)).all_reduce()

    return two(lambda g: g.input("W", 6, 2).take(g.input("ids", 4, dtype=DType.S32)), own_rows)


@pair("slice_backward_concat", "equal", "verified")
def slice_backward_concat() -> tuple[Module, Module]:
    def padded(g: Graph) -> Tensor:
        return g.concat(0, g.input("a", 2), g.zeros(2)) + g.concat(0, g.zeros(2), g.input("b", 2))

    return two(lambda g: g.concat(0, g.input("a", 2), g.input("b", 2)), padded)


@pair("causal_mask_offset", "equal", "verified", layouts("shard(0)", q="shard(0)"))
def causal_mask_offset() -> tuple[Module, Module]:
    def causal(g: Graph) -> Tensor:
        rows = 4 // g.mesh.size
        row = g.iota((rows, 4), 0)
        if rows < 4:
            row = row + g.rank() * rows
        return g.where(row.is_("GE", g.iota((rows, 4), 1)), g.input("q", rows, 4), -9.0)

    return two(causal, causal)


@pair("eps_tolerance", "not_equal", "refuted")
def eps_tolerance() -> tuple[Module, Module]:
    def normed(eps: float) -> Body:
        def body(g: Graph) -> Tensor:
            x = g.input("x", 5)
            return x / ((x * x).sum() / 5 + eps).apply("sqrt")

        return body

    return two(normed(1e-5), normed(1e-6))


def attention(order: str) -> Body:
    """Attention over a fused projection whose columns are q, k, v; `order` says which one serves as which."""

    def body(g: Graph) -> Tensor:
        x, w = g.input("X", 3, 4), g.input("W", 4, 6)
        q, k, v = (x @ w[:, 2 * n : 2 * n + 2] for n in ("qkv".index(c) for c in order))
        return (q @ k.T).softmax() @ v

    return body


@pair("kv_swapped_in_qkv", "not_equal", "refuted")
def kv_swapped_in_qkv() -> tuple[Module, Module]:
    return two(attention("qkv"), attention("qvk"))


@pair("k_reads_q_columns", "not_equal", "refuted")
def k_reads_q_columns() -> tuple[Module, Module]:
    return two(attention("qkv"), attention("qqv"))


def draw(g: Graph, n: int) -> Tensor:
    """`n` uniform random numbers."""
    return g.op("rng", g.const(0.0), g.const(1.0), type=g.zeros(n).value.type, distribution="uniform")


@pair("independent_dropout", "not_equal", "refuted")
def independent_dropout() -> tuple[Module, Module]:
    def twice(g: Graph) -> Tensor:
        x = g.input("x", 8)
        return x * draw(g, 8) + x * draw(g, 8)

    def once(g: Graph) -> Tensor:
        x, mask = g.input("x", 8), draw(g, 8)
        return x * mask + x * mask

    return two(twice, once)


@pair("scan_init_used_in_body", "not_equal", "refuted")
def scan_init_used_in_body() -> tuple[Module, Module]:
    def scanned(step: Callable[[Tensor], Tensor]) -> Body:
        def body(g: Graph) -> Tensor:
            x, h = g.input("x", 3), g.const(0.0)
            for i in range(3):
                h = step(h) + x[i : i + 1].reshape()
            return h

        return body

    return two(scanned(lambda h: h * 2), scanned(lambda h: h + h * h))


@pair("mutated_buffer", "not_equal", "refuted")
def mutated_buffer() -> tuple[Module, Module]:
    def cached(ranks: int, *, front: bool) -> Module:
        g = Graph(ranks)
        c, u = g.input("c", 4), g.input("u", 2)
        g.output("y", u.sum())
        g.output("cache", g.concat(0, u, c[2:]) if front else g.concat(0, c[:2], u), updates="c")
        return g.module()

    return cached(1, front=True), cached(2, front=False)

"""Masks as factors, simplified under one another: right programs meet, wrong ones never do."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from evaluated import check_graph, equal_views, normalised
from random_graphs import Graph

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType

F, I, B = DType.F64, DType.S32, DType.BOOL
ROWS, COLUMNS = 4, 6


class Masks:
    """A random program of masks, and of reads at positions that masks decide."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = Random(seed)
        ranks = draw.choice((1, 2, 3))
        mesh = Mesh((("tp", ranks),)) if ranks > 1 else Mesh()
        self.g = g = Graph(draw, mesh, special=seed % 3 == 0)
        self.wide = (ROWS, COLUMNS)
        self.positions = [g.input(I, (ROWS,)), g.input(I, (ROWS,))]
        self.truths = [g.input(B, self.wide)]
        self.reals = [g.input(F, self.wide), g.input(F, self.wide)]
        if g.special:
            infinite = self.number(-np.inf, F, self.wide)
            self.keep(self.reals, g.add("select", (self.truths[0], self.reals[0], infinite)))
        rank = g.add("rank_id", (), TensorType(I, ()))
        assert rank is not None
        self.offset = self.spread(self.made("multiply", rank, self.number(COLUMNS // ranks, I, ())), (ROWS,))
        self.positions.append(self.made("iota", dim=0))
        self.columns = self.made("iota", to=TensorType(I, self.wide), dim=1)
        for _ in range(14):
            self.grow()

    def made(self, opcode: str, *x: Value, to: TensorType | None = None, **attrs: object) -> Value:
        declared = (to,) if to is not None else (TensorType(I, (ROWS,)),) if opcode == "iota" else ()
        found = self.g.add(opcode, x, *declared, **attrs)
        assert found is not None, opcode
        return found

    def keep(self, pool: list[Value], found: Value | None) -> None:
        if found is not None:
            pool.append(found)

    def number(self, value: float, dtype: DType, shape: tuple[int, ...]) -> Value:
        a = np.full((), value).astype(dtype.storage)
        return self.spread(self.made("constant", to=TensorType(dtype, ()), value=a), shape)

    def spread(self, x: Value, shape: tuple[int, ...]) -> Value:
        if x.type.shape == shape:
            return x
        dims = (0,) if x.type.shape else ()
        return self.made("broadcast_in_dim", x, to=TensorType(x.type.dtype, shape), dims=dims)

    def grow(self) -> None:
        draw, g = self.draw, self.g
        kind = draw.randrange(9)
        e = draw.choice(self.positions)
        if kind == 0:
            by = draw.choice((self.offset, self.number(draw.randrange(1, 4), I, (ROWS,))))
            self.keep(self.positions, g.add(draw.choice(("add", "subtract")), (e, by)))
        elif kind == 1:
            edge = self.number(draw.randrange(5), I, (ROWS,))
            p = g.add("compare", (e, edge), direction=self.direction(), total=False)
            if p is not None:
                self.keep(self.positions, g.add("select", (p, e, draw.choice(self.positions))))
                self.truths.append(self.spread(p, self.wide))
        elif kind == 2:
            other = draw.choice((self.columns, self.spread(draw.choice(self.positions), self.wide)))
            way = draw.choice(("EQ", "EQ", self.direction()))
            pair = self.spread(e, self.wide), other
            self.keep(self.truths, g.add("compare", pair, direction=way, total=False))
        elif kind == 3:
            op = draw.choice(("and", "and", "or", "not"))
            x = [draw.choice(self.truths) for _ in range(1 if op == "not" else 2)]
            self.keep(self.truths, g.add(op, tuple(x)))
        elif kind == 4:
            self.keep(self.reals, g.add("convert", (draw.choice(self.truths),), TensorType(F, self.wide)))
        elif kind in (5, 6):
            a, b = draw.choice(self.reals), draw.choice(self.reals)
            if draw.random() < 0.5:
                shared = g.add("add", (a, b))
                a = shared if shared is not None else a
            if draw.random() < 0.3:
                b = self.number(draw.choice((0.0, 1.0)), F, self.wide)
            self.keep(self.reals, g.add("select", (draw.choice(self.truths), a, b)))
        elif kind == 7:
            op = draw.choice(("add", "multiply", "multiply", "subtract"))
            self.keep(self.reals, g.add(op, (draw.choice(self.reals), draw.choice(self.reals))))
        else:
            self.read(e)

    def read(self, e: Value) -> None:
        """Columns at computed positions, summed rows back in all columns."""
        x, g = self.draw.choice(self.reals), self.g
        if self.draw.random() < 0.5:
            zero, last = self.number(0, I, (ROWS,)), self.number(COLUMNS - 1, I, (ROWS,))
            at = self.made("reshape", self.made("clamp", zero, e, last), to=TensorType(I, (ROWS, 1)))
            found = g.add(
                "gather", (x, at), offset_dims=(), collapsed_slice_dims=(1,), start_index_map=(1,),
                index_vector_dim=1, slice_sizes=(1, 1), operand_batching_dims=(0,),
                start_indices_batching_dims=(0,),
            )  # fmt: skip
        else:
            found = g.add("reduce", (x, self.made("constant", to=TensorType(F, ()), value=np.array(0.0))),
                          dims=(1,), kind="sum")  # fmt: skip
        if found is not None:
            self.reals.append(self.spread(found, self.wide))

    def direction(self) -> str:
        return self.draw.choice(("LT", "LE", "GT", "GE", "NE"))


def check_seeds(seeds: range) -> int:
    return sum(check_graph(Masks(seed).g, algebra=True, folding=bool(seed % 2)) for seed in seeds)


def test_masks_change_no_value() -> None:
    assert check_seeds(range(150)) > 100


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 9000, 1000))
def test_masks_change_no_value_in_many_programs(start: int) -> None:
    check_seeds(range(start, start + 1000))


class Vocabulary:
    """What the own columns of a look-up gradient are on two ranks, against those of the whole one."""

    def __init__(
        self,
        *,
        start: int = 0,
        limit: int = COLUMNS // 2,
        masked: bool = True,
        by: float = -1.0,
        special: bool = False,
    ) -> None:
        self.m = m = Masks(0)
        m.g = self.g = g = Graph(Random(1), Mesh((("tp", 2),)), special=special)
        ids, x = g.input(I, (ROWS,)), g.input(F, m.wide)
        if special:
            x = m.made("select", g.input(B, m.wide), x, m.number(np.inf, F, m.wide))
        half = COLUMNS // 2
        rank = m.made("rank_id", to=TensorType(I, ()))
        offset = m.made("multiply", rank, m.number(half, I, ()))
        origin = m.made("constant", to=TensorType(I, ()), value=np.array(0, np.int32))
        own = m.made("dynamic_slice", x, origin, offset, sizes=(ROWS, half))
        self.whole = m.made("dynamic_slice", self.less(x, ids, None, by), origin, offset, sizes=(ROWS, half))
        there = m.made("subtract", ids, m.spread(offset, (ROWS,)))
        low = m.made("compare", there, m.number(start, I, (ROWS,)), direction="GE", total=False)
        high = m.made("compare", there, m.number(limit, I, (ROWS,)), direction="LT", total=False)
        inside = m.made("and", low, high)
        at = m.made("select", inside, there, m.number(0, I, (ROWS,)))
        self.sharded = self.less(own, at, inside if masked else None, by)

    def less(self, x: Value, at: Value, inside: Value | None, by: float) -> Value:
        """`x` with `by` added to the element of each row at a position, where it is inside."""
        m, shape = self.m, x.type.shape
        columns = m.made("iota", to=TensorType(I, shape), dim=1)
        hit = m.made("compare", columns, m.spread(at, shape), direction="EQ", total=False)
        step = m.number(by, F, shape)
        if inside is not None:
            held = m.made("convert", inside, to=TensorType(F, (ROWS,)))
            step = m.made("multiply", step, m.spread(held, shape))
        return m.made("select", hit, m.made("add", x, step), x)

    def met(self) -> bool:
        check_graph(self.g, algebra=True)
        store, state = normalised(self.g, algebra=True)
        return equal_views(store, state.views[self.whole.name], state.views[self.sharded.name])


def test_a_look_up_gradient_in_shards_is_the_whole_one() -> None:
    assert Vocabulary().met() and Vocabulary(by=0.5).met()
    assert Vocabulary(limit=4).met() and Vocabulary(start=-1).met(), "no column is there"


@pytest.mark.parametrize(
    "wrong", [{"start": 1}, {"limit": 2}, {"masked": False}], ids=["start", "limit", "unmasked"]
)
def test_a_wrong_range_or_a_missing_mask_is_another_gradient(wrong: dict[str, int]) -> None:
    assert not Vocabulary(**wrong).met()  # type: ignore[arg-type]


def test_with_infinite_values_the_plain_meaning_is_kept() -> None:
    Vocabulary(special=True).met()


def test_an_inner_sum_takes_the_indices_that_nothing_else_reads() -> None:
    """`sum[i, j](y[i] * sum[k](x[i, j, k]))` sums over j inside; over i it must not."""
    m = Masks(0)
    m.g = g = Graph(Random(3), Mesh())
    x, y, z = g.input(F, (2, 3, 4)), g.input(F, (2,)), g.input(F, (2, 3))
    zero = m.made("constant", to=TensorType(F, ()), value=np.array(0.0))

    def summed(v: Value, *dims: int) -> Value:
        return m.made("reduce", v, zero, dims=dims, kind="sum")

    inner = m.made("multiply", m.spread(y, (2, 3)), summed(x, 2))
    outside = summed(inner, 0, 1)
    inside = summed(m.made("multiply", y, summed(x, 1, 2)), 0)
    apart = m.made("multiply", summed(y, 0), summed(x, 0, 1, 2))
    both = summed(m.made("multiply", z, inner), 0, 1)
    check_graph(g)
    store, state = normalised(g)

    def met(a: Value, b: Value) -> bool:
        return equal_views(store, state.views[a.name], state.views[b.name])

    assert met(outside, inside)
    assert not met(outside, apart) and not met(both, outside)

"""Forms that gradients of divided programs need: equals meet without algebra, what differs does not."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from evaluated import check_graph, equal
from random_graphs import Graph

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType

F, I, B = DType.F64, DType.S32, DType.BOOL


class Program(Graph):
    """A program of one rank, made by hand."""

    def __init__(self, *, special: bool = False) -> None:
        super().__init__(Random(3), Mesh(), special=special)

    def __call__(self, opcode: str, *operands: Value, to: TensorType | None = None, **attrs: object) -> Value:
        made = self.add(opcode, operands, *(() if to is None else (to,)), **attrs)
        assert made is not None, opcode
        return made

    def number(self, value: float, shape: tuple[int, ...] = (), dtype: DType = F) -> Value:
        one = self("constant", to=TensorType(dtype, ()), value=np.full((), value).astype(dtype.storage))
        return self.spread(one, shape)

    def spread(self, x: Value, shape: tuple[int, ...], *dims: int) -> Value:
        if x.type.shape == shape:
            return x
        return self("broadcast_in_dim", x, to=TensorType(x.type.dtype, shape), dims=dims)

    def total(self, x: Value, *dims: int) -> Value:
        return self("reduce", x, self.number(0.0), dims=dims, kind="sum")

    def compare(self, a: Value, b: Value, direction: str) -> Value:
        return self("compare", a, b, direction=direction, total=False)

    def dot(self, a: Value, b: Value) -> Value:
        axes = {"lhs_contracting": (1,), "rhs_contracting": (0,), "lhs_batch": (), "rhs_batch": ()}
        to = TensorType(F, (a.type.shape[0], b.type.shape[1]))
        return self("dot_general", a, b, to=to, **axes)

    def meet(self, a: Value, b: Value) -> bool:
        check_graph(self)
        return equal(self, a, b)


@pytest.mark.parametrize("other", [False, True])
def test_choices_with_one_second_case_are_one(other: bool) -> None:
    p = Program(special=True)
    first, second = p.input(B, (4,)), p.input(B, (4,))
    x, y, z = p.input(F, (4,)), p.input(F, (4,)), p.input(F, (4,))
    nested = p("select", first, p("select", second, x, y), z if other else y)
    assert p.meet(nested, p("select", p("and", first, second), x, y)) != other


@pytest.mark.parametrize("guarded", [True, False])
def test_a_masked_one_hot_needs_no_limits(guarded: bool) -> None:
    p = Program()
    rows = (3, 5)
    ids = p.input(I, (3,))
    own = p("subtract", ids, p.number(5, (3,), I))
    low, high = p.number(0, (3,), I), p.number(4, (3,), I)
    place = p.spread(p("clamp", low, own, high), rows, 0)
    columns = p("iota", to=TensorType(I, rows), dim=1)
    hit = p("convert", p.compare(columns, place, "EQ"), to=TensorType(F, rows))
    if guarded:
        inside = p("and", p.compare(own, low, "GE"), p.compare(own, high, "LE"))
        hit = p("select", p.spread(inside, rows, 0), hit, p.number(0.0, rows))
    plain = p.compare(columns, p.spread(own, rows, 0), "EQ")
    assert p.meet(hit, p("convert", plain, to=TensorType(F, rows))) == guarded


def test_an_excluded_place_is_never_hit() -> None:
    p = Program()
    ids, columns = p.input(I, (3, 5)), p("iota", to=TensorType(I, (3, 5)), dim=1)
    equal_ = p.compare(columns, ids, "EQ")
    beyond = p.compare(ids, p.number(5, (3, 5), I), "GE")
    both = p("convert", p("and", equal_, beyond), to=TensorType(F, (3, 5)))
    assert p.meet(both, p.number(0.0, (3, 5)))


@pytest.mark.parametrize("special", [False, True])
def test_a_sum_of_sums_of_parts_is_the_sum_of_sums(special: bool) -> None:
    p = Program()
    x, y = p.input(F, (2, 3, 4)), p.input(F, (2, 3, 4))
    if special:
        p.special = True
        x = p("select", p.input(B, (2, 3, 4)), x, p.number(-np.inf, (2, 3, 4)))
    parts = p("add", p.total(x, 2), p.total(y, 2))
    whole = p("add", p.total(x, 0, 2), p.total(y, 0, 2))
    assert p.meet(p.total(parts, 0), whole) or special
    assert not p.meet(p.total(parts, 0), p.total(p("add", x, y), 0, 1))


def test_a_sum_goes_into_the_factor_that_alone_reads_its_index() -> None:
    p = Program()
    x, cosine = p.input(F, (5, 3)), p.input(F, (5,))
    a, b = p.input(F, (2, 5, 4)), p.input(F, (2, 5, 4))
    turn = p.spread(cosine, (2, 5), 1)
    parts = p("add", p("multiply", turn, p.total(a, 2)), p("multiply", turn, p.total(b, 2)))
    own = p.total(p.dot(parts, x), 0)
    whole = p("add", p("multiply", cosine, p.total(a, 0, 2)), p("multiply", cosine, p.total(b, 0, 2)))
    together = p("reshape", p.dot(p("reshape", whole, to=TensorType(F, (1, 5))), x), to=TensorType(F, (3,)))
    assert p.meet(own, together)
    once = p("reshape", p.dot(p("slice", parts, starts=(0, 0), limits=(1, 5), strides=(1, 1)), x),
             to=TensorType(F, (3,)))  # fmt: skip
    assert not p.meet(own, once)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_product_over_concatenations_is_a_sum_of_products(swapped: bool) -> None:
    p = Program()
    a, b = p.input(F, (3, 2)), p.input(F, (3, 4))
    c, d = p.input(F, (2, 5)), p.input(F, (4, 5))
    if swapped:
        b, d = p.input(F, (3, 2)), p.input(F, (2, 5))
    whole = p.dot(p("concatenate", a, b, dim=1), p("concatenate", *((d, c) if swapped else (c, d)), dim=0))
    assert p.meet(whole, p("add", p.dot(a, c), p.dot(b, d))) != swapped

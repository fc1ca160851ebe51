"""Instances of lemmas: what is admitted, what is rejected and why (soundness L1 to L9, S1, S4)."""

from __future__ import annotations

from typing import Any

import pytest
from lemma_text import lemma, searching, tensor

from shardproof.lemmas.terms import Lemma
from shardproof.passes.access import constant, index
from shardproof.passes.arithmetic import add, exponential, multiply, scaled
from shardproof.passes.classes import NEGATIVE_INFINITY, POSITIVE, Store, Term
from shardproof.passes.normalise import new_store
from shardproof.passes.reduction import total
from shardproof.passes.remake import renewed
from shardproof.solver.certificates.install import Instance, install
from shardproof.solver.certificates.instance import Binding, NoInstance, admit, left, right
from shardproof.solver.certificates.portable import Malformed, read_term, written
from shardproof.solver.certificates.stepping import stepped


def store() -> Store:
    return new_store(folding=True, algebra=True)


def rejected(s: Store, statement: str, binding: Binding, why: str) -> None:
    with pytest.raises(NoInstance, match=why):
        it = lemma(statement)
        admit(s, it, binding)
        left(s, it, binding)


ONE_HOT = "sum[j](where(i == j, x, 0)) => take[j](x, i) when |i| <= |j|"


def test_l1_index_variables_are_distinct() -> None:
    s = store()
    i = s.fresh(4)
    x = tensor(s, "x", i)
    rejected(s, ONE_HOT, Binding({"x": x}, {"i": (i,), "j": (i,)}), "share an index")


def test_l2_a_variable_reads_no_index_that_is_excluded() -> None:
    s = store()
    k = s.fresh(4)
    c, x = tensor(s, "c", k), tensor(s, "x", k)
    it = "sum[k](c*x) => c*sum[k](x) when k not in c"
    rejected(s, it, Binding({"c": c, "x": x}, {"k": (k,)}), "needs `k not in c`, but c varies over k")


def test_l2_what_is_not_excluded_is_read_inside_and_outside() -> None:
    s = store()
    k = s.fresh(4)
    it, x = lemma("exp(x)/sum[k](exp(x)) => 1/sum[k](exp(x))*exp(x)"), tensor(s, "x", k)
    binding = Binding({"x": x}, {"k": (k,)})
    own = exponential(s, x)
    b = s.fresh(4)
    inner = exponential(s, Term(1, x.cls, (index(b),)))
    from shardproof.passes.arithmetic import divide

    assert left(s, it, binding) == divide(s, own, total(s, {b}, inner))


def test_l7_ranges_of_positions_are_derived() -> None:
    s = store()
    i, j = s.fresh(5), s.fresh(3)
    x = tensor(s, "x", i, j)
    rejected(s, ONE_HOT, Binding({"x": x}, {"i": (i,), "j": (j,)}), "needs `.i. <= .j.`")


def test_l7_a_take_is_in_range() -> None:
    s = store()
    v = s.fresh(3)
    ids = Term(1, s.leaf("input", ("ids",), "int", (), low=0, high=3), ())
    x = tensor(s, "x", v)
    it = "take[v](x + 0*x, ids) => take[v](x, ids) when 0 <= ids < |v|"
    rejected(s, it, Binding({"x": x, "ids": ids}, {"v": (v,)}), "needs `ids < .v.`")


def test_l8_kinds() -> None:
    s = store()
    x = tensor(s, "x")
    n = Term(1, s.leaf("input", ("n",), "int", (), low=0, high=9), ())
    it = "x/y*y => x when y != 0"
    rejected(s, it, Binding({"x": x, "y": n}, {}), "`y` is real, not int")


@pytest.mark.parametrize(
    ("statement", "facts", "why"),
    [
        ("log(x*x) => log(x) + log(x) when x > 0", {}, "needs `x > 0`"),
        ("sqrt(x)*sqrt(x) => x when x >= 0", {}, "needs `x >= 0`"),
        ("x - x => 0*x when x finite", {"special": NEGATIVE_INFINITY}, "needs `x` to be finite"),
        ("x/x => 1 + 0*x when x != 0", {}, "needs `x != 0`"),
    ],
)
def test_values_meet_their_conditions(statement: str, facts: dict[str, Any], why: str) -> None:
    s = store()
    rejected(s, statement, Binding({"x": tensor(s, "x", **facts)}, {}), why)
    positive = Binding({"x": tensor(s, "y", sign=POSITIVE)}, {})
    admit(s, lemma(statement), positive)


def test_distinct_positions_are_seen() -> None:
    it = lemma("take[v](sum[k](where(ids == v, u, 0)), ids) => u when ids distinct[k], v not in ids, "
               "v not in u, 0 <= ids < |v|")
    s = store()
    k, v = s.fresh(3), s.fresh(8)
    u = tensor(s, "u", k)
    for e, holds in ((s.add(index(k), constant(2)), True), (constant(2), False)):
        binding = Binding({"ids": s.integer(e), "u": u}, {"k": (k,), "v": (v,)})
        if holds:
            admit(s, it, binding)
        else:
            with pytest.raises(NoInstance, match="distinct"):
                admit(s, it, binding)


def test_s4_sides_capture_nothing() -> None:
    """A mean over an inner index of a value that reads the outer one of the same name."""
    s = store()
    i, k = s.fresh(3), s.fresh(3)
    it = lemma("sum[k](x)/|k| => sum[k](x/|k|)")
    x = tensor(s, "x", i, k)
    assert left(s, it, Binding({"x": x}, {"k": (k,)})) == right(s, it, Binding({"x": x}, {"k": (k,)}))
    at_i = s.substitute_term(left(s, it, Binding({"x": x}, {"k": (k,)})), {i: index(k)})
    assert s.term_indices(at_i) == {k}


EXP = lemma("exp(x + y) => exp(x)*exp(y)")


def instance(s: Store, cls: int, x: Term, y: Term, indices: tuple[int, ...], **more: Any) -> Instance:
    number = {i: n for n, i in enumerate(indices)}
    variables = {"x": ("", (written(s, x, number),)), "y": ("", (written(s, y, number),))}
    return Instance(cls, "it", (), {}, variables, **more)


def example() -> tuple[Store, Term, Term, Term, tuple[int, int]]:
    s = store()
    i, j = s.fresh(2), s.fresh(3)
    x, y = tensor(s, "x", i), tensor(s, "y", j)
    return s, x, y, exponential(s, add(s, [x, y])), (i, j)


def test_an_instance_is_its_own_class_only() -> None:
    s, x, y, e, order = example()
    done = install(s, EXP, instance(s, e.cls, x, y, order), [], plain=True)
    assert s.substitute_term(done.term, dict(zip(done.slots, map(index, order), strict=True))) == multiply(
        s, [exponential(s, x), exponential(s, y)]
    )
    with pytest.raises(NoInstance, match="another class"):
        install(s, EXP, instance(s, e.cls, x, scaled(y, 2), order), [], plain=True)
    with pytest.raises(NoInstance, match="another class"):
        install(s, EXP, instance(s, e.cls, x, y, order, lead="2"), [], plain=True)
    rest = (written(s, x, {order[0]: 0}),)
    with pytest.raises((NoInstance, Malformed)):
        install(s, EXP, instance(s, e.cls, x, y, order, rest=rest), [], plain=True)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        ["1", 10_000, []],
        ["1", -1, []],
        ["1/0", 0, []],
        ["x", 0, []],
        [1, 0, []],
        ["1", 7, []],
        ["1", 7, [[0, [[9, 1]]]]],
        ["1", 7, [[1, [[0, 1]]]]],
        ["1", 7, [[0, [[0, 2]]]]],
        ["1", 7, [[0, [[["digit", [0, [[0, 1]]], 0, 2], 1]]]]],
        ["1", 7, [[0, [[["element", 7, [[0, [[0, 1]]]]], 1]]]]],
        ["2", 5, []],
        ["1", True, []],
    ],
)
def test_terms_are_read_strictly(data: Any) -> None:
    s = store()
    i = s.fresh(2)
    assert tensor(s, "x", i).cls == 7
    with pytest.raises(Malformed):
        read_term(s, data, (i,))


def test_terms_are_read_as_written() -> None:
    s = store()
    i, j = s.fresh(4), s.fresh(6)
    ids = s.leaf("input", ("ids",), "int", (6,), low=0, high=3)
    w = s.leaf("input", ("w",), "real", (4, 6))
    for e in (index(i), s.element(ids, (index(j),)), s.digit(s.add(index(j), index(i)), 1, 4), constant(2)):
        t = Term(3, w, (e, index(j)))
        assert read_term(s, written(s, t, {i: 0, j: 1}), (i, j)) == t


def test_s1_only_whole_classes_are_merged() -> None:
    """i*i and i agree on the first two positions, which says nothing of the others."""
    it: Lemma = lemma("x*x => x when x finite")
    s = store()
    i = s.fresh(2)
    wide = Term(1, s.leaf("input", ("x",), "real", (6,)), (index(i),))
    square = multiply(s, [wide, wide])
    with pytest.raises(NoInstance, match="whole"):
        stepped(s, it, Instance(-1, "it", (2,), {}, {"x": ("", (written(s, wide, {i: 0}),))}), square)
    assert renewed(s, square) == square


def test_steps_reach_what_is_made_of_a_class() -> None:
    s, x, y, e, order = example()
    found = multiply(s, [exponential(s, x), exponential(s, y)])
    one, other = add(s, [e, s.real(1)]), add(s, [found, s.real(1)])
    assert one != other
    step = Instance(-1, "it", (2, 3), {}, instance(s, -1, x, y, order).variables)
    assert stepped(s, EXP, step, one) == other
    assert stepped(s, EXP, step, other) == other


def test_failed_attempts_leave_nothing_behind() -> None:
    text = "a: exp(x + y) => exp(x)*exp(y)\nb: tanh(x)*tanh(y) => tanh(x) when x > 0"
    search = searching(text)
    s = search.store
    i = s.fresh(2)
    x, y = tensor(s, "x", i), tensor(s, "y", i)
    from shardproof.passes.arithmetic import pointwise

    factors = [pointwise(s, "tanh", (), "real", [t]) for t in (x, y)]
    before = s.mark()
    multiply(s, factors)
    assert not search.instances
    assert s.mark()[1] == before[1] + 1

"""Terms of a store as terms of the lemma language, and back."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from evaluated import normalised
from lemma_sides import sides as lemma_sides
from random_operators import random_graph

from shardproof.lemmas.terms import Apply, Reduce, walk
from shardproof.lemmas.terms import Term as Written
from shardproof.passes.access import index
from shardproof.passes.arithmetic import add, exponential, multiply
from shardproof.passes.classes import Store, Term
from shardproof.passes.evaluate import EvaluationError
from shardproof.passes.normalise import new_store, same
from shardproof.passes.reduction import reduce
from shardproof.passes.remake import renewed
from shardproof.passes.sampling import TooLarge, difference
from shardproof.solver.search.region import Region, build, region


def tensor(store: Store, name: str, *indices: int) -> Term:
    cls = store.leaf("input", (name,), "real", tuple(store.sizes[i] for i in indices))
    return store.whole(cls, indices)


def both(r: Region) -> tuple[Written, Written]:
    return r.left, r.right


def sides(store: Store, r: Region) -> tuple[Term, Term]:
    scope = {k: (i,) for k, i in r.indices.items()}
    return build(store, r.left, r.atoms, scope), build(store, r.right, r.atoms, scope)


def pairs(seed: int, graphs: int) -> Iterator[tuple[Store, Term, Term]]:
    draw = Random(seed)
    for _ in range(graphs):
        g = random_graph(draw)
        store, state = normalised(g, folding=True, algebra=True)
        terms = [v.term for v in state.views.values() if 0 not in v.shape]
        terms = [t for t in terms if store.kind(t) in ("real", "bool", "int")]
        for n, t in enumerate(terms):
            yield store, t, terms[(n * 7 + 3) % len(terms)]


def rebuilt(store: Store, a: Term, b: Term, beyond: int) -> bool:
    r = region(store, a, b, beyond=beyond)
    back = sides(store, r)
    return all(same(store, x, renewed(store, y)) for x, y in zip(back, (a, b), strict=True))


def test_what_is_rebuilt_is_the_same_term() -> None:
    """A class may have a simpler form when it is made again; these are few."""
    outcomes = [rebuilt(s, a, b, n % 4) for n, (s, a, b) in enumerate(pairs(5, 12))]
    assert len(outcomes) > 150
    assert sum(outcomes) >= 0.97 * len(outcomes)


def test_what_is_rebuilt_has_the_same_values() -> None:
    for n, (store, a, b) in enumerate(pairs(6, 8)):
        r = region(store, a, b, beyond=n % 4)
        for x, y in zip(sides(store, r), (a, b), strict=True):
            try:
                assert difference(store, x, y, ()) is None
            except (TooLarge, EvaluationError):
                continue


def test_shared_classes_are_atoms_until_the_region_grows() -> None:
    store, a, b = lemma_sides("exp(log(x + y)*z) + w => tanh(log(x + y)*z)*w")
    assert {type(t).__name__ for t in walk(region(store, a, b).left)} == {"Apply", "Variable"}
    near, far = region(store, a, b), region(store, a, b, beyond=9)
    assert len(near.atoms) == 2
    assert len(far.atoms) == 4
    assert sides(store, near) == sides(store, far) == (a, b)


def test_a_limit_leaves_the_rest_as_atoms() -> None:
    store, a, b = lemma_sides("exp(exp(exp(exp(exp(x))))) => tanh(x)")
    small = region(store, a, b, limit=3)
    assert sum(isinstance(t, Apply) for t in walk(small.left)) == 3
    assert sides(store, small) == (a, b)


def test_binders_that_read_alike_share_a_name() -> None:
    store, a, b = lemma_sides("sum[k](x*y)*w => w + sum[k](exp(x))")
    names = {t.indices for side in both(region(store, a, b)) for t in walk(side) if isinstance(t, Reduce)}
    assert len(names) == 1


def test_a_bound_name_is_never_one_in_scope() -> None:
    """S4: a row sum within a sum over rows of the same matrix, of equal extents."""
    store = new_store(folding=True, algebra=True)
    i, j, k = (store.fresh(5) for _ in range(3))
    row = exponential(store, reduce(store, "sum", {k}, tensor(store, "x", j, k)))
    a = reduce(store, "sum", {j}, multiply(store, [row, tensor(store, "x", i, j)]))
    r = region(store, a, tensor(store, "y", i), beyond=9)
    outer, inner = (t for t in walk(r.left) if isinstance(t, Reduce))
    assert set(outer.indices).isdisjoint(inner.indices)
    assert sides(store, r)[0] == a


def test_a_class_read_at_an_index_in_scope_captures_nothing() -> None:
    """S4: `sum[k](x[i, k])` read at the index that a sum around it binds."""
    store = new_store(folding=True, algebra=True)
    i, j, k, m = (store.fresh(5) for _ in range(4))
    first = reduce(store, "sum", {k}, exponential(store, tensor(store, "x", i, k)))
    here = store.substitute_term(first, {i: index(j)})
    trace = reduce(store, "sum", {m}, exponential(store, tensor(store, "x", m, m)))
    a = reduce(store, "sum", {j}, add(store, [exponential(store, here), tensor(store, "z", j)]))
    for beyond in (0, 3, 9):
        r = region(store, a, trace, beyond=beyond)
        assert sides(store, r) == (a, trace)

"""The two sides of a lemma as terms of a store, over free inputs."""

from __future__ import annotations

from collections.abc import Mapping

from shardproof.lemmas.parse import parse
from shardproof.lemmas.terms import Lemma, Relation, Variable
from shardproof.lemmas.typing import check
from shardproof.passes.classes import NONNEGATIVE, POSITIVE, Store, Term
from shardproof.passes.normalise import new_store
from shardproof.solver.certificates.instance import Binding, left, right

SIGNS = {"GT": POSITIVE, "GE": NONNEGATIVE}


def lemma(text: str, name: str = "own") -> Lemma:
    """`lemma NAME` of a text without name and doc string."""
    statement = check(parse(f'lemma {name} "It is said." {text}', "own.lemma")[0])
    assert isinstance(statement, Lemma)
    return statement


def sides(text: str, sizes: Mapping[str, int] | None = None) -> tuple[Store, Term, Term]:
    """A store and both sides; `x > 0` and `x >= 0` are facts of the inputs. Extents are all different."""
    own = lemma(text)
    store = new_store(folding=True, algebra=True)
    digits = {k: store.fresh((sizes or {}).get(k, 4 + 2 * n)) for n, k in enumerate(own.indices)}
    signs = {
        c.left.name: SIGNS.get(c.direction, 0)
        for c in own.conditions
        if isinstance(c, Relation) and isinstance(c.left, Variable)
    }
    variables = {}
    for name, kind in own.variables:
        read = [digits[k] for k in own.reads(name)]
        extents = tuple(store.sizes[i] for i in read)
        cls = store.leaf("input", (name,), kind, extents, sign=signs.get(name, 0))
        variables[name] = store.whole(cls, read)
    binding = Binding(variables, {k: (i,) for k, i in digits.items()})
    return store, left(store, own, binding), right(store, own, binding)

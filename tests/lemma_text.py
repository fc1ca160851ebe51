"""Lemmas and stores for tests, written out."""

from __future__ import annotations

from shardproof.lemmas.parse import parse
from shardproof.lemmas.terms import Lemma
from shardproof.lemmas.typing import check
from shardproof.passes.access import index
from shardproof.passes.classes import Store, Term
from shardproof.passes.normalise import new_store
from shardproof.solver.search.pattern import compiled
from shardproof.solver.search.rewriting import Rules, Search


def lemmas(text: str) -> list[Lemma]:
    """The lemmas of a text whose statements need no doc string: `name: left => right when ...`."""
    found = []
    for line in text.strip().splitlines():
        name, _, statement = line.strip().partition(": ")
        (parsed,) = parse(f'lemma {name} "A lemma." {statement}', "test.lemma")
        checked = check(parsed)
        assert isinstance(checked, Lemma)
        found.append(checked)
    return found


def lemma(statement: str) -> Lemma:
    """One lemma, called `it`."""
    (found,) = lemmas(f"it: {statement}")
    return found


def rules(text: str) -> Rules:
    """The patterns of a text of lemmas; each must have one."""
    patterns = [compiled(x) for x in lemmas(text)]
    kept = [p for p in patterns if not isinstance(p, str)]
    assert len(kept) == len(patterns), patterns
    return Rules(kept)


def searching(text: str) -> Search:
    """A fresh store that these lemmas rewrite."""
    store = new_store(folding=True, algebra=True)
    search = Search(store, rules(text))
    search.begin()
    return search


def tensor(store: Store, name: str, *indices: int, **facts: object) -> Term:
    """A free real function read at these indices."""
    extents = tuple(store.sizes[i] for i in indices)
    return Term(1, store.leaf("input", (name,), "real", extents, **facts), tuple(map(index, indices)))

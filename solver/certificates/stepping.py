"""Instances that name no class, used one after the other to make one term into another.

They come after the sweep, from the search for an equality of two terms. Search and certificate checker
follow them alike; what they rest on is `install.oriented` and the normal form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from shardproof.lemmas.terms import Lemma
from shardproof.lemmas.variants import resolve
from shardproof.passes.classes import Rewritten, Store, Term
from shardproof.passes.normalise import same
from shardproof.passes.remake import renewed
from shardproof.solver.certificates.install import Instance, oriented
from shardproof.solver.certificates.instance import NoInstance
from shardproof.solver.certificates.portable import Malformed

Seen = Callable[[Instance, int, Rewritten], None]
"""Called with each instance, the class that it rewrites, and what to."""


@contextmanager
def plain(store: Store) -> Iterator[None]:
    """While it lasts, terms are in normal form alone: no lemma rewrites a class."""
    rewrite, rewritten = store.rewrite, store.rewritten
    store.rewrite, store.rewritten = None, {}
    try:
        yield
    finally:
        store.rewrite, store.rewritten = rewrite, rewritten


@contextmanager
def undone(store: Store) -> Iterator[None]:
    """Whatever is made while it lasts is forgotten."""
    mark = store.mark()
    try:
        yield
    finally:
        store.undo(mark)


def stepped(store: Store, lemma: Lemma, instance: Instance, t: Term, seen: Seen | None = None) -> Term:
    """The term with the left side of an instance that names no class replaced by the right side everywhere.

    Raises NoInstance or Malformed when the instance does not hold, or when its left side is not a class
    read at whole indices of which the right side reads no more (soundness S1).
    """
    found = oriented(store, lemma, instance)
    if found is None:
        return t
    if seen is not None:
        seen(instance, *found)
    rewrite, rewritten = store.rewrite, store.rewritten
    store.rewrite, store.rewritten = _nothing, dict([found])
    try:
        return renewed(store, t)
    finally:
        store.rewrite, store.rewritten = rewrite, rewritten


def _nothing(_: int) -> None:
    return None


def proved(
    store: Store,
    lemmas: Mapping[str, Lemma],
    instances: Sequence[Instance],
    a: Term,
    b: Term,
    seen: Seen | None = None,
) -> bool:
    """Whether one of two terms becomes the other by the instances, used one after the other on all of it.

    Raises NoInstance or Malformed when one does not hold from either side.
    """
    with plain(store):
        try:
            with undone(store):
                met = _become(store, lemmas, instances, a, b, None)
        except NoInstance:
            met = False
        start, end = (a, b) if met else (b, a)
        return _become(store, lemmas, instances, start, end, seen)


def _become(
    store: Store,
    lemmas: Mapping[str, Lemma],
    instances: Sequence[Instance],
    a: Term,
    b: Term,
    seen: Seen | None,
) -> bool:
    for instance in instances:
        lemma = resolve(lemmas, instance.lemma)
        if lemma is None:
            raise Malformed(f"there is no lemma `{instance.lemma}`")
        a = stepped(store, lemma, instance, a, seen)
    return same(store, a, b)

"""How often a proof's lemmas fired, and how often the compared outputs needed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from shardproof.lemmas.sources import shipped
from shardproof.lemmas.terms import Lemma
from shardproof.passes.access import Element
from shardproof.passes.classes import Store
from shardproof.solver.certificates.certify import lemmas_of
from shardproof.solver.certificates.install import JOINED, Instance
from shardproof.solver.prove import Proof
from shardproof.solver.search.statuses import known_status, refuted_among
from shardproof.solver.verdict import LemmaUse

FLAT: Final = frozenset(JOINED)
"""Operators that take in the operands of one of their own kind."""


def used(proof: Proof) -> tuple[LemmaUse, ...]:
    """The lemmas of a proof by name; a status that is not known counts as tested."""
    fired = Counter(_base(i.lemma) for i in proof.instances)
    needed = Counter(_base(i.lemma) for i in needed_instances(proof))
    statuses = {_base(lemma.name): _status(lemma) for lemma in lemmas_of(proof)}
    return tuple(LemmaUse(n, statuses[n], fired[n], needed[n]) for n in sorted(fired))


def _base(name: str) -> str:
    """The lemma of which a lemma follows by form alone: `NAME.reverse` and the like."""
    return name.partition(".")[0]


def _status(lemma: Lemma) -> str:
    known = known_status(lemma)
    return "assumed" if lemma.assumed else "tested" if known is None else known.status


def false_lemma(proof: Proof) -> str | None:
    """Which lemma of a proof, beyond the library, is no theorem, and what shows it; None if none is."""
    own = {str(path) for path in shipped()} if proof.instances else set()
    added = [x for x in lemmas_of(proof) if x.span is None or x.span.file not in own]
    found = refuted_among(added)
    if found is None:
        return None
    lemma, status = found
    place = "" if lemma.span is None else f" ({lemma.span.file}:{lemma.span.line})"
    return f"the lemma {lemma.name}{place}, which the proof uses, is {status.status}: {status.detail}"


def needed_instances(proof: Proof) -> list[Instance]:
    """The instances whose right side is part of what was compared, directly or through other instances.

    An estimate for people: it may keep an instance too many, and one whose right side cancelled is not seen.
    """
    store = proof.store
    compared = (proof.expected.views[o.value.name] for o in proof.composed.expected.outputs)
    own = (proof.implementation.views[o.value.name] for o in proof.composed.implementation.outputs)
    reached: set[int] = set()
    for view in (*compared, *own):
        _reach(store, [view.term.cls, *_read_by(store, view.term.access)], reached)
    needed: set[int] = set()
    waiting = dict(enumerate(proof.instances))
    grown = True
    while grown:
        grown = False
        for n, instance in list(waiting.items()):
            if instance.cls != -1 and reached.isdisjoint(_parts(store, instance)):
                continue
            del waiting[n]
            needed.add(n)
            if instance.cls != -1:
                _reach(store, [instance.cls], reached)
            grown = True
    return [i for n, i in enumerate(proof.instances) if n in needed]


def _parts(store: Store, instance: Instance) -> set[int]:
    """The classes by which a rewritten class may be seen in others."""
    found = store.rewritten.get(instance.cls)
    if found is None:
        return set()
    c = store.classes[found.term.cls]
    inner = {t.cls for t in c.operands} if c.op in FLAT else set()
    return {found.term.cls, *inner}


def _reach(store: Store, start: list[int], reached: set[int]) -> None:
    stack = start
    while stack:
        cls = stack.pop()
        if cls in reached:
            continue
        reached.add(cls)
        for t in store.classes[cls].operands:
            stack.append(t.cls)
            stack += _read_by(store, t.access)


def _read_by(store: Store, access: Iterable[tuple[int, tuple[tuple[int, int], ...]]]) -> list[int]:
    """Integer classes whose values are positions that are read."""
    found = []
    for _, steps in access:
        for u, _ in steps:
            atom = store.atom(u) if u < 0 else None
            if isinstance(atom, Element):
                found.append(atom.cls)
    return found

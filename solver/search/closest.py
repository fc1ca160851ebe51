"""Why a lemma did not fire: the class that comes closest to its left side, and what fails there.

This only explains. It matches more loosely than `solver.pattern`: every metavariable takes any value of its
kind, and what a strict match would refuse is put into words.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardproof.lemmas.terms import Lemma
from shardproof.passes.classes import Store, Term
from shardproof.passes.pieces import read
from shardproof.passes.views import Unsupported, View
from shardproof.solver.certificates.install import JOINED, install
from shardproof.solver.certificates.instance import NoInstance
from shardproof.solver.certificates.portable import Malformed
from shardproof.solver.prove import Proof
from shardproof.solver.search.pattern import Hole, Node, Pattern, Shape, Whole, compiled
from shardproof.solver.search.rewriting import Rules, Search
from shardproof.solver.search.theory import Theory, level_of

BUDGET: Final = 0.08
"""Seconds that looking for the closest lemma of a blocked value may take."""
NEAR: Final = 3
"""How many operators deep a blocked value is looked into."""
MANY: Final = 60
LEAST: Final = 0.7
"""The part of a left side that must match before a lemma is worth naming."""
NOTHING_NEW: Final = "both sides are one class"
NAMED: Final = frozenset({"function"})
"""Operators whose first attribute tells them apart."""
IN_WORDS: Final = {
    "early": "it rewrites classes from left to right, from the first attempt with lemmas on",
    "late": "it is late: it rewrites classes from left to right, from the second attempt with lemmas on",
    "both": "it goes both ways: it rewrites classes from left to right late, and saturation uses it",
    "assumed": "it is an assumption: it rewrites classes in the last attempt only",
}


@dataclass(frozen=True, slots=True)
class Closest:
    """How far a lemma's left side matches a class: parts that match, of how many, and what fails."""

    lemma: str
    cls: int
    matched: int
    total: int
    reason: str
    condition: bool = False

    @property
    def rank(self) -> tuple[bool, float, int]:
        """A failed condition is closer than any other miss."""
        return self.condition, self.matched / self.total, self.matched


def where_used(theory: Theory, lemma: Lemma) -> str:
    """Where a run uses a lemma, or why its rewriting does not, in words."""
    level = level_of(lemma)
    theory.rules(level)
    idle = theory.idle.get(lemma.name)
    if idle is not None:
        return f"it rewrites nothing: {idle}"
    return IN_WORDS[level]


def rules_of(theory: Theory, lemma: Lemma) -> Rules | None:
    """The rules with which a lemma is tried: those of its level, or the lemma alone when others have it.

    None when it has no pattern, because both sides have one normal form or for another reason.
    """
    rules = theory.rules(level_of(lemma))
    if rules is not None and lemma.name in rules.lemmas:
        return rules
    alone = compiled(lemma)
    return None if isinstance(alone, str) else Rules([alone])


def closest_lemma(proof: Proof, views: Iterable[View]) -> Closest | None:
    """The lemma of the proof's attempt that comes closest in one of these values; None when none is near."""
    if proof.search is None:
        return None
    end = time.perf_counter() + BUDGET
    classes = _near(proof.store, [view.term.cls for view in views])
    heads = {proof.store.classes[cls].op for cls in classes}
    best: Closest | None = None
    for pattern in proof.search.rules.patterns:
        if pattern.head not in heads:
            continue
        if time.perf_counter() > end:
            break
        found = closest(proof, pattern, classes)
        if found is None or found.matched <= 1 or found.reason == NOTHING_NEW:
            continue
        if best is None or found.rank > best.rank:
            best = found
    return best if best is not None and best.matched >= LEAST * best.total else None


def closest(proof: Proof, pattern: Pattern, classes: Iterable[int]) -> Closest | None:
    """The class among these at which a lemma comes closest; None when none has its outermost operator."""
    store = proof.store
    best: Closest | None = None
    for cls in classes:
        c = store.classes[cls]
        if c.op != pattern.head or not c.operands or any(n is None for n in c.extents):
            continue
        found = _at(proof, pattern, cls)
        if best is None or found.rank > best.rank:
            best = found
    return best


def _near(store: Store, level: list[int]) -> list[int]:
    """These classes and those a few operators deep in them, nearest first."""
    found = dict.fromkeys(level)
    for _ in range(NEAR):
        level = [x.cls for cls in level for x in store.classes[cls].operands if x.cls not in found]
        found.update(dict.fromkeys(level))
        if len(found) > MANY:
            break
    return list(found)


def _at(proof: Proof, pattern: Pattern, cls: int) -> Closest:
    store = proof.store
    mark, rewrite = store.mark(), store.rewrite
    store.rewrite = None
    try:
        likeness = _Likeness(store, pattern)
        slots = [store.fresh(n or 0) for n in store.classes[cls].extents]
        matched = likeness.count(pattern.root, store.whole(cls, slots))
    except (Unsupported, NoInstance):
        return Closest(pattern.lemma.name, cls, 1, _size(pattern.root), "it is of another form here")
    finally:
        store.rewrite = rewrite
        store.undo(mark)
    total = _size(pattern.root)
    failed = _failed(proof, pattern, cls) if matched == total else None
    if failed is not None:
        return Closest(
            pattern.lemma.name, cls, matched, total, failed, not failed.startswith("the left side")
        )
    if likeness.scopes and matched == total:
        return Closest(pattern.lemma.name, cls, matched, total, likeness.scopes[0], True)
    reason = (*likeness.misses, *likeness.scopes, "its parts do not fit together")[0]
    return Closest(pattern.lemma.name, cls, matched, total, reason)


def _failed(proof: Proof, pattern: Pattern, cls: int) -> str | None:
    """Why no proposal for a class can be installed; None when there is no proposal."""
    store, own = proof.store, proof.instances
    count = len(own)
    reasons: dict[str, None] = {}
    for instance in Search(store, Rules([pattern])).proposals(pattern, cls):
        mark = store.mark()
        try:
            install(store, pattern.lemma, instance, [], plain=pattern.plain)
        except NoInstance as e:
            reasons[str(e)] = None
        except (Malformed, Unsupported):
            continue
        finally:
            store.undo(mark)
            del own[count:]
    return min(
        reasons, key=lambda r: (not r.startswith("needs"), r.startswith("the left side")), default=None
    )


def _size(p: Node) -> int:
    return 1 + (sum(map(_size, p.operands)) if isinstance(p, Shape) else 0)


@dataclass(slots=True)
class _Likeness:
    """Counts the parts of a pattern that a term has; what a strict match would refuse is kept in words."""

    store: Store
    pattern: Pattern
    at: dict[int, frozenset[int]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    scopes: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = {i: k for k, i in self.pattern.outer.items()}
        stack: list[Node] = [self.pattern.root]
        while stack:
            p = stack.pop()
            if isinstance(p, Shape):
                stack += p.operands
            elif isinstance(p, Hole):
                self.names.update(zip(p.indices, self.pattern.lemma.reads(p.name), strict=False))

    def count(self, p: Node, t: Term) -> int:
        """How many parts of the pattern this term has."""
        store = self.store
        c = store.classes[t.cls]
        if isinstance(p, Hole):
            return self._hole(p, t)
        if isinstance(p, Whole):
            fits = store.kind(t) == "int" if p.op == "position" else c.op == p.op
            return int(fits)
        if c.op != p.op or (c.op in NAMED and c.attrs[:1] != p.attrs[:1]):
            have, there = called(p.op, p.attrs), called(c.op, c.attrs)
            self.misses.append(f"the lemma has {have} where there is {there}")
            return 0
        if not c.operands:
            return 1
        operands, bound = store.expand(t)
        operands = [read(store, x) for x in operands]
        if len(p.bound) == 1:
            self.at[p.bound[0]] = frozenset(bound)
        else:
            self.at.update((i, frozenset((j,))) for i, j in zip(p.bound, bound, strict=False))
        if p.op in JOINED:
            return 1 + self._joined(p, operands)
        return 1 + sum(self.count(q, x) for q, x in zip(p.operands, operands, strict=False))

    def _joined(self, p: Shape, operands: Sequence[Term]) -> int:
        """Each operand of the pattern takes the operand that is most like it."""
        rest, total = list(operands), 0
        for q in sorted(p.operands, key=_size, reverse=True):
            if not rest:
                self.misses.append(f"{called(p.op, p.attrs)} has fewer operands than the lemma's")
                return total
            counts = [self._alone(q, x) for x in rest]
            n = counts.index(max(counts))
            total += self.count(q, rest.pop(n))
        return total

    def _alone(self, q: Node, t: Term) -> int:
        """The count without keeping what it says; a value that a variable has already comes first."""
        kept = dict(self.at), dict(self.held), list(self.scopes), list(self.misses)
        found = 2 * self.count(q, t) + (isinstance(q, Hole) and kept[1].get(q.name) == t.cls)
        self.at, self.held, self.scopes, self.misses = kept
        return found

    def _hole(self, p: Hole, t: Term) -> int:
        store = self.store
        kind = dict(self.pattern.lemma.variables)[p.name]
        if store.kind(t) != kind:
            self.misses.append(f"`{p.name}` is {kind}, not {store.kind(t)}")
            return 0
        if self.held.setdefault(p.name, t.cls) != t.cls:
            self.misses.append(f"`{p.name}` would be two different values")
            return 0
        read_ = store.term_indices(t)
        for i, own in self.at.items():
            if i not in p.indices and not read_.isdisjoint(own) and i in self.names:
                k = self.names[i]
                self.scopes.append(f"needs `{k} not in {p.name}`, but {p.name} varies over {k}")
        return 1


def called(op: str, attrs: tuple[Any, ...]) -> str:
    """An operator of a store in words."""
    if op in ("one", "input"):
        return "an input" if op == "input" else "a constant"
    return f"`{attrs[0]}`" if op in NAMED and attrs else f"`{op}`"

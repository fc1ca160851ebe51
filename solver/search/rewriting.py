"""The search for instances: classes rewritten by the matches of lemmas.

A match is only proposed; `install` decides. Whatever a failed attempt made is forgotten, so the numbers of
classes depend on the instances that were installed and on nothing else, and a certificate can name classes by
number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from shardproof.lemmas.terms import Lemma
from shardproof.passes.classes import Rewritten, Store
from shardproof.passes.pieces import read
from shardproof.passes.views import Unsupported
from shardproof.solver.certificates.install import Instance, install
from shardproof.solver.certificates.instance import NoInstance
from shardproof.solver.certificates.portable import Data, Malformed, written
from shardproof.solver.search.matching import Found, Matcher
from shardproof.solver.search.pattern import Pattern

NESTED: Final = 12
"""How many rewritings may be under way at once; more suggests that a lemma feeds itself."""
MOST: Final = 50_000
"""Most instances of one proof."""
WIDEST: Final = 6
"""Most operands of a sum or product that late lemmas, which multiply out, make still wider."""
PROPOSALS: Final = 24
"""Most proposals of one lemma for one class."""


class Rules:
    """Lemmas as patterns by the operator at their head; late ones only on demand."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.patterns = tuple(patterns)
        self.by_head: dict[str, list[Pattern]] = {}
        for p in patterns:
            self.by_head.setdefault(p.head, []).append(p)
        self.lemmas = {p.lemma.name: p for p in patterns}


@dataclass(slots=True)
class Search:
    """The rewriting of a store by the matches of lemmas; `instances` are those installed, in order."""

    store: Store
    rules: Rules
    instances: list[Instance] = field(default_factory=list)
    under: list[str] = field(default_factory=list)
    depth: int = 0

    def begin(self) -> None:
        """Rewrite every class of the store from now on."""
        self.store.rewrite = self.rewrite

    def rewrite(self, cls: int) -> Rewritten | None:
        """What a class is rewritten to, if some lemma applies."""
        store = self.store
        c = store.classes[cls]
        patterns = self.rules.by_head.get(c.op)
        if not patterns or self.depth >= NESTED or len(self.instances) >= MOST:
            return None
        if not c.operands or any(n is None for n in c.extents):
            return None
        store.check()
        wide = max(len(x.operands) for x in (c, *(store.classes[t.cls] for t in c.operands))) > WIDEST
        for pattern in patterns:
            if pattern.lemma.name in self.under or (wide and "late" in pattern.lemma.triggers):
                continue
            for instance in self.proposals(pattern, cls):
                done = self._installed(pattern, instance)
                if done is not None:
                    return done
        return None

    def proposals(self, pattern: Pattern, cls: int) -> Iterator[Instance]:
        """Instances that may hold; nothing that the matching made is kept."""
        store = self.store
        heads = {store.classes[t.cls].op for t in store.classes[cls].operands}
        if any(getattr(p, "op", None) not in (None, *heads) for p in pattern.root.operands):
            return
        mark = store.mark()
        rewrite, store.rewrite = store.rewrite, None
        found: list[Instance] = []
        try:
            slots = tuple(store.fresh(n or 0) for n in store.classes[cls].extents)
            operands, bound = store.expand(store.whole(cls, slots))
            operands = [read(store, t) for t in operands]
            for match in Matcher(pattern, store).at(operands, bound, store.classes[cls].attrs):
                instance = _portable(store, pattern, cls, slots, match, tuple(self.under))
                if instance is not None and instance not in found:
                    found.append(instance)
                if len(found) >= PROPOSALS:
                    break
        finally:
            store.rewrite = rewrite
            store.undo(mark)
        yield from found

    def _installed(self, pattern: Pattern, instance: Instance) -> Rewritten | None:
        store = self.store
        mark = store.mark()
        count = len(self.instances)
        self.instances.append(instance)
        self.depth += 1
        try:
            done = install(store, pattern.lemma, instance, self.under, plain=pattern.plain)
        except (NoInstance, Malformed, Unsupported):
            del self.instances[count:]
            store.undo(mark)
            return None
        finally:
            self.depth -= 1
        return done


def _portable(
    store: Store, pattern: Pattern, cls: int, slots: tuple[int, ...], match: Found, under: tuple[str, ...]
) -> Instance | None:
    """The match as plain data, or None when it reads what an instance may not."""
    lemma, state = pattern.lemma, match.state
    number = {i: n for n, i in enumerate(slots)}
    fresh: list[int] = []
    indices: dict[str, tuple[int, ...]] = {}
    for k in lemma.indices:
        own = state.at.get(pattern.outer[k])
        if own is None or any(i not in slots for i in own):
            bound = own if own is not None else _bound_digits(lemma, state.at, state.holes, k)
            indices[k] = tuple(len(slots) + len(fresh) + n for n in range(len(bound)))
            fresh += [store.sizes[i] for i in bound]
        else:
            indices[k] = tuple(number[i] for i in own)
    variables: dict[str, tuple[str, tuple[Data, ...]]] = {}
    for name, _ in lemma.variables:
        held = state.holes.get(name)
        if held is None:
            return None
        at, (op, parts) = held
        own_number = dict(number)
        for k, i in zip(lemma.reads(name), at, strict=True):
            digits = state.at.get(i, ())
            if digits and len(digits) != len(indices[k]):
                return None
            own_number.update(zip(digits, indices[k], strict=False))
        if any(i not in own_number for t in parts for i in store.term_indices(t)):
            return None
        variables[name] = (op, tuple(written(store, t, own_number) for t in parts))
    rest = tuple(written(store, t, number) for t in match.rest)
    return Instance(
        cls, lemma.name, tuple(fresh), indices, variables, str(Fraction(match.lead)), rest, under
    )


def _bound_digits(
    lemma: Lemma, at: Mapping[int, tuple[int, ...]], holes: Mapping[str, Any], k: str
) -> tuple[int, ...]:
    for name, (indices, _) in holes.items():
        for j, i in zip(lemma.reads(name), indices, strict=True):
            if j == k and i in at:
                return at[i]
    return ()

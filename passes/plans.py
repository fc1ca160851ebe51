"""What the canonical form of an application needs to know beside its classes, and the forms found so far.

Merging, factoring and numbering of indices depend on the accesses of the operands up to names of indices, on
the extents of their classes, and on what is bound: not on the operator, the classes or coefficients.
So they are worked out once for each such `Pattern` in a store: deep models repeat their layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shardproof.passes.access import Digit, Expr, index

if TYPE_CHECKING:
    from shardproof.passes.classes import Store, Term

Groups = tuple[tuple[int, ...], ...]
"""Ordered binders: per bound dim the row-major list of its indices."""
Access = tuple[Expr, ...]


class Pattern(NamedTuple):
    """An application up to names: equal keys have equal plans.

    `names` are its indices in order, `kinds` says which of the distinct accesses each operand has.
    """

    key: tuple[Any, ...]
    names: list[int]
    kinds: list[int]


class Plan(NamedTuple):
    """The canonical form of a pattern.

    `placed` are the distinct accesses over placeholder indices; `extents` and `sizes` those of the free and
    the bound ones, `lengths` of ordered binders; `free` and `bound` the placeholders themselves. `read` is
    where the class is read, over the indices `names`.
    """

    placed: tuple[Access, ...]
    extents: tuple[int, ...]
    sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    free: tuple[int, ...]
    bound: tuple[int, ...]
    read: Access
    names: Sequence[int]


class _Renaming:
    """Indices numbered by first occurrence."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.local: dict[int, int] = {}
        self._atoms: dict[int, tuple[Any, ...]] = {}

    def expression(self, e: Expr) -> tuple[Any, ...]:
        terms, local = e[1], self.local
        if len(terms) == 1 and terms[0][0] > 0:
            t, stride = terms[0]
            n = local.get(t)
            if n is None:
                n = local[t] = len(local)
            return (e[0], (n, stride))
        own: list[tuple[Any, int]] = []
        for t, stride in terms:
            if t > 0:
                n = local.get(t)
                if n is None:
                    n = local[t] = len(local)
                own.append((n, stride))
            else:
                own.append((self._atom(t), stride))
        return (e[0], *own)

    def _atom(self, t: int) -> tuple[Any, ...]:
        found = self._atoms.get(t)
        if found is None:
            atom = self.store.atom(t)
            if isinstance(atom, Digit):
                found = (self.expression(atom.expr), atom.div, atom.mod)
            else:
                found = (atom.cls, *map(self.expression, atom.access))
            self._atoms[t] = found
        return found


def renamed(store: Store, access: Access) -> tuple[tuple[Any, ...], list[int]]:
    """An access up to names of indices, and these in order."""
    renaming = _Renaming(store)
    found = tuple([renaming.expression(e) for e in access])
    return found, list(renaming.local)


def pattern(
    store: Store, operands: Sequence[Term], bound: Sequence[int], groups: Groups, out: Sequence[int]
) -> Pattern | None:
    """The pattern of an application whose operand order is settled; None where its form depends on more: on
    concatenations or on symmetries of classes."""
    classes, sizes = store.classes, store.sizes
    renaming = _Renaming(store)
    seen: dict[tuple[Access, tuple[int | None, ...]], int] = {}
    kinds: list[int] = []
    parts: list[tuple[Any, ...]] = []
    for t in operands:
        c = classes[t.cls]
        if c.symmetries or c.op == "concat":
            return None
        kind = seen.get((t.access, c.extents))
        if kind is None:
            kind = seen[t.access, c.extents] = len(parts)
            parts.append((c.extents, *map(renaming.expression, t.access)))
        kinds.append(kind)
    local = renaming.local
    unread = tuple(sorted([sizes[i] for i in bound if i not in local]))
    summed = tuple(sorted([local[i] for i in bound if i in local]))
    lists: tuple[Any, ...] = ()
    if groups or out:
        lists = tuple([tuple([local.setdefault(i, len(local)) for i in g]) for g in (*groups, tuple(out))])
    names = list(local)
    return Pattern((tuple(parts), tuple([sizes[i] for i in names]), summed, unread, lists), names, kinds)


def instance(store: Store, plan: Plan, names: Sequence[int]) -> Access:
    """Where the class of a plan is read in an application whose pattern has these names."""
    own = dict(zip(plan.names, names, strict=True))
    by: dict[int, Expr] = {}
    found: list[Expr] = []
    for e in plan.read:
        offset, terms = e
        if len(terms) == 1 and terms[0][0] > 0:
            found.append((offset, ((own[terms[0][0]], terms[0][1]),)))
            continue
        by = by or {old: index(new) for old, new in own.items()}
        found.append(store.substitute(e, by))
    return tuple(found)

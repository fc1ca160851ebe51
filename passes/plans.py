"""What the canonical form of an application needs to know beside its classes, and the forms found so far.

Merging, factoring and numbering of indices depend on the accesses of the operands up to names of indices, on
the extents of their classes, and on what is bound: not on the operator, the classes or coefficients.
So they are worked out once for each such `Pattern` in a store: deep models repeat their layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shardproof.passes.access import Expr

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
    where the class is read, as expressions whose indices are positions in `Pattern.names`.
    """

    placed: tuple[Access, ...]
    extents: tuple[int, ...]
    sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    free: tuple[int, ...]
    bound: tuple[int, ...]
    read: Access


def pattern(
    store: Store, operands: Sequence[Term], bound: Sequence[int], groups: Groups, out: Sequence[int]
) -> Pattern | None:
    """The pattern of an application whose operand order is settled; None where its form depends on more: on
    positions that are computed, on concatenations or on symmetries of classes."""
    classes, sizes = store.classes, store.sizes
    local: dict[int, int] = {}
    seen: dict[tuple[Access, tuple[int | None, ...]], int] = {}
    kinds: list[int] = []
    parts: list[tuple[Access, tuple[int | None, ...]]] = []
    for t in operands:
        c = classes[t.cls]
        if c.symmetries or c.op == "concat":
            return None
        kind = seen.get((t.access, c.extents))
        if kind is None:
            renamed = []
            for offset, terms in t.access:
                own = []
                for i, stride in terms:
                    if i < 0:
                        return None
                    n = local.get(i)
                    if n is None:
                        n = local[i] = len(local)
                    own.append((n, stride))
                renamed.append((offset, tuple(own)))
            kind = seen[t.access, c.extents] = len(parts)
            parts.append((tuple(renamed), c.extents))
        kinds.append(kind)
    unread = tuple(sorted([sizes[i] for i in bound if i not in local]))
    summed = tuple(sorted([local[i] for i in bound if i in local]))
    lists: tuple[Any, ...] = ()
    if groups or out:
        lists = tuple([tuple([local.setdefault(i, len(local)) for i in g]) for g in (*groups, tuple(out))])
    names = list(local)
    return Pattern((tuple(parts), tuple([sizes[i] for i in names]), summed, unread, lists), names, kinds)


def instance(plan: Plan, names: Sequence[int]) -> Access:
    """Where the class of a plan is read in an application whose pattern has these names."""
    return tuple(
        [
            (offset, tuple(sorted([(names[n], stride) for n, stride in terms])))
            for offset, terms in plan.read
        ]
    )


def general(access: Access, names: Sequence[int]) -> Access | None:
    """An access over indices as one over their positions in `names`; None where it reads anything else."""
    at = {i: n for n, i in enumerate(names)}
    found = []
    for offset, terms in access:
        if any(i not in at for i, _ in terms):
            return None
        found.append((offset, tuple([(at[i], stride) for i, stride in terms])))
    return tuple(found)

"""Where a tensor may be found in another: the inverse of an access, copies, shards over axes of the mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import prod

from shardproof.passes.access import Expr, scale
from shardproof.passes.classes import Store, Term
from shardproof.passes.views import View


def layouts(
    store: Store,
    axes: Sequence[int],
    whole: tuple[int, ...],
    own: tuple[int, ...],
    dims: Sequence[tuple[int, ...]],
) -> Iterator[tuple[Expr, ...]]:
    """The positions in a tensor of shape `whole` of a copy, or of contiguous shards over rank indices `axes`.

    The part has shape `own`, its dims the indices `dims`.
    """
    parts = [n // m if m and n % m == 0 else 0 for n, m in zip(whole, own, strict=True)]
    if 0 in parts:
        return
    divided = [d for d, n in enumerate(parts) if n > 1]
    for chosen in _assignments([parts[d] for d in divided], [(i, store.sizes[i]) for i in axes]):
        at = [store.flatten(d) for d in dims]
        for d, indices in zip(divided, chosen, strict=True):
            at[d] = store.add(scale(store.flatten(indices), own[d]), at[d])
        yield tuple(at)


def inverse(store: Store, whole: View, part: Term) -> tuple[Expr, ...] | None:
    """The position in each dim of `whole` where it is `part`, if its dims fill whole slots of its class."""
    if whole.term.cls != part.cls or whole.term.coef != part.coef:
        return None
    own = {i for d in whole.dims for i in d}
    found: dict[int, Expr] = {}
    extents = store.classes[whole.term.cls].extents
    for extent, mine, other in zip(extents, whole.term.access, part.access, strict=True):
        if own.isdisjoint(store.indices(mine)):
            if mine != other:
                return None
            continue
        offset, terms = mine
        stride = 1
        for i, s in sorted(terms, key=lambda t: t[1]):
            if i not in own or i in found or s != stride:
                return None
            found[i] = store.digit(other, stride, store.sizes[i])
            stride *= store.sizes[i]
        if offset or stride != extent:
            return None
    if found.keys() != own:
        return None
    at = []
    for d in whole.dims:
        at.append(store.substitute(store.flatten(d), found))
    return tuple(at)


def _assignments(
    parts: Sequence[int], axes: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Ways to give each divided dim its axes, outermost first: distinct ones whose sizes multiply up."""
    if not parts:
        yield ()
        return
    for count in range(1, len(axes) + 1):
        for chosen in permutations(axes, count):
            if prod(n for _, n in chosen) == parts[0]:
                left = [a for a in axes if a not in chosen]
                for rest in _assignments(parts[1:], left):
                    yield (tuple(i for i, _ in chosen), *rest)

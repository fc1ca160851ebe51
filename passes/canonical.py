"""The canonical form of one operator application: split, merge, factor, order, number, intern.

`node` takes operands over outer indices and gives back the class of the application together with
the access at which it is read. Each step is an identity of functions (soundness rules K1 to K6 and
N1, N2, N7):

- *split*: an index whose digits are read is replaced by its digits;
- *merge*: `hi` and `lo` that occur only as `hi*|lo| + lo` become one index;
- *factor*: a shared access of free indices becomes one whole index of the class, the access stays
  outside;
- *order*: operands of commutative operators are ordered by structure; among tied orders the one
  with the smallest key wins, and equal smallest keys are a symmetry of the class;
- *number*: indices are numbered by first occurrence, ordered binders by dim order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardproof.ir.types import Kind
from shardproof.passes.application import Application, by_class, related
from shardproof.passes.classes import Class, Store, Term
from shardproof.passes.facts import derive
from shardproof.passes.pieces import Rebuild, distribute, find_cut
from shardproof.passes.plans import Groups as Groups
from shardproof.passes.plans import Plan, instance, pattern


def node(
    store: Store,
    op: str,
    attrs: tuple[Any, ...],
    kind: Kind,
    operands: Sequence[Term],
    bound: Sequence[int] = (),
    *,
    groups: Groups = (),
    out: Sequence[int] = (),
    commutative: bool = False,
    scaled: bool = False,
    alternatives: Sequence[Sequence[Term]] = (),
    rebuild: Rebuild | None = None,
) -> Term:
    """The canonical term of `op(operands)`.

    `bound` is the index set of a reduction over a commutative monoid; `groups` are the ordered lists
    that any other binder binds and `out` its output positions (whole fresh indices). `scaled` takes the
    first operand's coefficient outside (n-ary sums). `alternatives` are further operand lists that are
    equal as functions; the smallest key wins. `rebuild` makes the same application from operands cut
    at one segment of an index, and marks operators through which concatenation moves outward (N5).
    """
    if alternatives:
        return min(
            (
                node(store, op, attrs, kind, o, bound, commutative=commutative, rebuild=rebuild)
                for o in (operands, *alternatives)
            ),
            key=lambda t: t.cls,
        )
    store.check()
    if commutative:
        operands = sorted(operands, key=by_class)
    one_order = not commutative or len({t.cls for t in operands}) == len(operands)
    shape = pattern(store, operands, bound, groups, out) if one_order else None
    plan = store.plans.get(shape.key) if shape is not None else None
    if shape is not None and plan is not None:
        lead, placed = related(operands, [plan.placed[n] for n in shape.kinds], scaled)
        access = instance(store, plan, shape.names)
        return store.settled(Term(lead, _interned(store, op, attrs, kind, placed, plan, len(out)), access))
    work = Application(store, operands, bound, groups, out)
    work.regroup()
    if rebuild is not None:
        cut = find_cut(store, work.operands)
        if cut is not None:
            spread = distribute(store, work.operands, work.bound, cut, rebuild)
            return store.builders["settle"](store, store.substitute_term(spread, work.outer))
    work.factor()
    best = None
    ties: list[list[int]] = []
    orders = work.orders(work.operands) if commutative else iter([work.operands])
    if any(store.classes[t.cls].symmetries for t in work.operands):
        orders = (variant for order in orders for variant in work.variants(order))
    for order in orders:
        key, lead, free, inner = work.numbered(order, scaled)
        if best is None:
            best = (key, lead, free, inner)
            ties = [free]
            continue
        if key == best[0] and lead == best[1]:
            ties.append(free)
        elif lead > best[1] if key == best[0] else _sortable(key) < _sortable(best[0]):
            best = (key, lead, free, inner)
            ties = [free]
    assert best is not None
    key, lead, free, inner = best
    access = tuple([work.see(i) for i in free])
    extents, sizes, lengths, placed = key
    kinds = dict(zip(shape.kinds, placed, strict=True)) if shape is not None else {}
    plan = Plan(
        tuple([t.access for t in kinds.values()]),
        extents,
        sizes,
        lengths,
        tuple([store.place("free", n, store.sizes[i]) for n, i in enumerate(free)]),
        tuple([store.place("bound", n, store.sizes[i]) for n, i in enumerate(inner)]),
        access,
        shape.names if shape is not None else (),
    )
    if shape is not None:
        store.plans[shape.key] = plan
    cls = _interned(store, op, attrs, kind, placed, plan, len(out), ties)
    return store.settled(Term(lead, cls, access))


def _interned(
    store: Store,
    op: str,
    attrs: tuple[Any, ...],
    kind: Kind,
    operands: tuple[Term, ...],
    plan: Plan,
    out: int,
    ties: Sequence[list[int]] = (),
) -> int:
    """The class of an application with placed operands; tied orders of free indices are its symmetries."""

    def make() -> Class:
        lengths, extents = plan.lengths, plan.extents
        c = Class(op, attrs, kind, extents, plan.free, plan.bound, out, operands, lengths)
        derive(store, c)
        for other in ties[1:]:
            at = {i: n for n, i in enumerate(other)}
            if set(at) == set(ties[0]) and len(at) > 1:
                c.symmetries.add(tuple([at[i] for i in ties[0]]))
        return c

    return store.intern((op, attrs, kind, plan.extents, plan.sizes, plan.lengths, operands), make)


def _sortable(x: Any) -> str:
    return repr(x)

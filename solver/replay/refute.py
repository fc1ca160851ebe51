"""Refutation by replay: a difference on the imported programs, and when it is enough (soundness R2, V1)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import prod

from shardproof.ir.module import Module, Op
from shardproof.solver.prove import Clock, prove
from shardproof.solver.relations.infer import Cuts, Inferred
from shardproof.solver.relations.relation import Composed, Segments, Spec, compose
from shardproof.solver.relations.steps import Layout, RelationError, Step
from shardproof.solver.replay.computable import computable
from shardproof.solver.replay.loudness import compare_loud
from shardproof.solver.replay.outcome import Difference
from shardproof.solver.replay.replay import Replay, compare, confirm, too_large
from shardproof.solver.replay.roundings import beyond_rounding
from shardproof.solver.replay.shrink import shrink
from shardproof.solver.replay.structured import compare_folded

TRIALS = 12
CONFIRMATIONS = 4
BUDGET = 3 << 30
PATIENCE = 20.0
"""Seconds that other layouts are looked for; a search that is not finished refutes nothing."""
NEAREST = 3
CHOICES = 64
MOST_FUSED = 3
MANY = 64
FOLDED_TRIALS = 24
SEARCH = 5.0
"""Seconds after which no further draw of inputs with few distinct slices is tried."""
DIRECT = 16 << 20
"""Bytes up to which programs are replayed at their own shapes right away."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What replay showed: a difference at the original shapes, else how many draws agreed, else why not."""

    difference: Difference | None = None
    tested: int | None = None
    reason: str | None = None


def replay(composed: Composed, clock: Clock, *, seed: int = 7) -> Replayed:
    """Look for a difference at the original shapes that is more than the rounding of constants.

    Large programs run on inputs with few distinct slices; where these show nothing, shrunk programs give a
    hint which element to look at.
    """
    found = _replayed(composed, clock, seed)
    if found.difference is None:
        return found
    if beyond_rounding(composed, found.difference, lambda other: _replayed(other, clock, seed).difference):
        return found
    return Replayed(reason="they differ by no more than the rounding of their constants may cause")


def _replayed(composed: Composed, clock: Clock, seed: int) -> Replayed:
    modules = composed.reference, composed.implementation, composed.expected
    small = "small enough as it is" if too_large(modules, DIRECT) is None else None
    whole = _on_whole(composed, small, seed) if small is not None else None
    if whole is not None and whole.difference is not None:
        return whole
    clock.check()
    folded = computable(*modules)
    outcome = compare_folded(
        *folded,
        seed=seed,
        ranges=composed.ranges,
        trials=FOLDED_TRIALS,
        budget=BUDGET // 2,
        check=clock.check,
        patience=SEARCH,
    )
    loud = compare_loud(
        *folded, seed=seed, ranges=composed.ranges, trials=TRIALS, budget=BUDGET // 2, check=clock.check
    )
    for seen in (outcome, loud):
        if isinstance(seen, Replay) and seen.differences:
            return Replayed(difference=_cheapest(modules[1], seen.differences)[0])
    found = whole or _by_shrinking(composed, clock, seed)
    if found.difference is None and not found.tested and isinstance(outcome, Replay) and outcome.tested:
        return Replayed(tested=outcome.tested)
    return found


def _on_whole(composed: Composed, small: str, seed: int) -> Replayed:
    modules = composed.reference, composed.implementation, composed.expected
    outcome = compare(*modules, seed=seed, ranges=composed.ranges, trials=TRIALS, budget=BUDGET)
    if isinstance(outcome, str):
        return Replayed(reason=f"{small}; {outcome}")
    if outcome.differences:
        return Replayed(difference=_cheapest(modules[1], outcome.differences)[0])
    return Replayed(tested=outcome.tested)


def _by_shrinking(composed: Composed, clock: Clock, seed: int) -> Replayed:
    """Look for a difference on shrunk programs, confirm it at the original shapes."""
    modules = composed.reference, composed.implementation, composed.expected
    small = shrink(*modules)
    if isinstance(small, str):
        return _on_whole(composed, small, seed)
    clock.check()
    shrunk = small.reference, small.implementation, small.expected
    outcome = compare(*shrunk, seed=seed, ranges=composed.ranges, trials=TRIALS, budget=BUDGET)
    if isinstance(outcome, str):
        return Replayed(reason=outcome)
    if not outcome.differences:
        return Replayed(tested=outcome.tested)
    reason = None
    for hint in _cheapest(modules[1], outcome.differences)[:CONFIRMATIONS]:
        clock.check()
        for delta in range(2):
            found = confirm(
                *modules,
                output=hint.output,
                rank=hint.rank,
                index=small.original(hint.output, hint.index),
                seed=hint.seed + delta,
                ranges=composed.ranges,
                budget=BUDGET,
                check=clock.check,
                hinted=True,
            )
            if isinstance(found, Difference):
                return Replayed(difference=found)
            if isinstance(found, str):
                reason = found
                break
    why = reason or "the shrunk programs differ, the elements looked at in the original ones do not"
    return Replayed(reason=why)


def _cheapest(module: Module, differences: Sequence[Difference]) -> list[Difference]:
    """Differences of outputs that are made early first: fewer operators lead to them."""
    position = {v.name: n for n, op in enumerate(module.ops) for v in op.results}
    made = {o.name: position.get(o.value.name, 0) for o in module.outputs}
    return sorted(differences, key=lambda d: made.get(d.output, 0))


def misread(implementation: Module, reference: Module, inferred: Inferred) -> str | None:
    """An input of which the implementation never reads elements that the reference reads.

    Looks at the places where both programs cut a fused input.
    """
    cuts, own = Cuts(implementation), Cuts(reference)
    for name, spec in inferred.relation.inputs.items():
        if not isinstance(spec, Segments) or name not in inferred.relation.inferred:
            continue
        edges, extent = cuts.edges(name, spec.dim)
        source = inferred.relation.sources[name]
        if not edges or not own.of(source, spec.dim):
            continue
        at = 0
        for a, b in [*sorted(edges), (extent, extent)]:
            if a > at:
                return f"elements {at}:{a} of dim {spec.dim} of `{name}` are never read"
            at = max(at, b)
    return None


def other_layout(
    reference: Module,
    implementation: Module,
    inferred: Inferred,
    clock: Clock,
    rearranged: str | None = None,
) -> tuple[str, str] | None:
    """Why a difference may be the layout's: (code, text), or None when no other layout explains it.

    That is an input and another layout of it under which every output would be proved, or a search that
    could not be finished.

    Tried are layouts that use every element once: the other candidates of inference, segments in
    another order, shards in the rank orders that the program's own groups have. `rearranged` names a
    value that holds the right elements in the wrong places: then other orders of the ranks are tried
    for the inputs that it depends on.
    """
    end = time.monotonic() + PATIENCE
    for changes in _variants(implementation, inferred, rearranged):
        clock.check()
        if time.monotonic() > end:
            return "U10", f"the outputs differ, but not all other layouts could be tried in {PATIENCE:g} s"
        relation = inferred.with_layouts(changes)
        try:
            proof = prove(compose(reference, implementation, relation), clock)
        except RelationError:
            continue
        if proof.complete:
            names = ", ".join(sorted(changes)[:3]) + (", ..." if len(changes) > 3 else "")
            layout = next(iter(changes.values()))
            return "U06", f"not proved as inferred; it would hold if `{names}` were laid out as {layout}"
    return None


def differs_anyway(reference: Module, implementation: Module, inferred: Inferred, clock: Clock) -> bool:
    """Whether programs that differ under the preferred layouts do so under all that the evidence allows.

    Inputs with the same candidates choose alike. False also where the choices are many, take long or can't be
    compared.
    """
    kinds: dict[str, dict[str, list[Spec]]] = {}
    for name, others in inferred.alternatives.items():
        preferred = inferred.relation.inputs[name]
        options = [preferred, *others, *(o for s in (preferred, *others) for o in _reorders(s))]
        kinds.setdefault(repr(options), {})[name] = options
    counts = [len(next(iter(kind.values()))) for kind in kinds.values()]
    if prod(counts) > CHOICES:
        return False
    end = time.monotonic() + PATIENCE
    for choice in list(product(*map(range, counts)))[1:]:
        clock.check()
        if time.monotonic() > end:
            return False
        changes = {n: o[at] for at, kind in zip(choice, kinds.values(), strict=True) for n, o in kind.items()}
        try:
            found = replay(compose(reference, implementation, inferred.with_layouts(changes)), clock)
        except RelationError:
            return False
        if found.difference is None:
            return False
    return True


def _reorders(spec: Spec) -> list[Spec]:
    """The segments in every other order; none for many of them, which are no fused weights."""
    if not isinstance(spec, Segments) or len(spec.parts) > MOST_FUSED:
        return []
    if any(size is None for size, _ in spec.parts):
        return []
    return [Segments(spec.dim, parts) for parts in list(permutations(_pieces(spec)))[1:]]


def _variants(
    implementation: Module, inferred: Inferred, rearranged: str | None
) -> list[dict[str, Spec]]:
    relation = inferred.relation
    out: list[dict[str, Spec]] = []
    own = {n: s for n, s in relation.inputs.items() if n in relation.inferred}
    if inferred.alternatives:
        out.append({n: options[0] for n, options in inferred.alternatives.items()})
    for order in (1, -1):
        swapped: dict[str, Spec] = {}
        for n, s in own.items():
            if isinstance(s, Segments) and len(s.parts) > 2:
                swapped[n] = _reordered(s, order)
        if swapped:
            out.append(swapped)
    for ranks in rank_orders(implementation.ops):
        permuted = {n: p for n, s in own.items() if (p := _permuted(s, ranks)) is not None}
        out += [{n: p} for n, p in permuted.items()] + ([permuted] if len(permuted) > 1 else [])
    if rearranged is not None:
        near = _ancestors(implementation, rearranged)
        for ranks in _orders(implementation.mesh.size):
            permuted = {n: p for n in near if n in own and (p := _permuted(own[n], ranks)) is not None}
            out += [{n: p} for n, p in list(permuted.items())[:NEAREST]]
            out += [permuted] if len(permuted) > 1 else []
    return out


def _ancestors(module: Module, name: str) -> list[str]:
    """The inputs that a value depends on, those read last first."""
    producer = {v.name: op for op in module.ops for v in op.results}
    stack, seen, found = [name], {name}, []
    inputs = {i.name for i in module.inputs}
    while stack:
        value = stack.pop(0)
        if value in inputs:
            found.append(value)
        for x in producer[value].operands if value in producer else ():
            if x.name not in seen:
                seen.add(x.name)
                stack.append(x.name)
    return found


def _orders(ranks: int) -> list[tuple[int, ...]]:
    """Orders of the ranks: all of few, else reversed, rotated, and with two neighbours swapped."""
    first = tuple(range(ranks))
    if ranks <= 4:
        return [p for p in permutations(first) if p != first]
    rotated = [first[k:] + first[:k] for k in range(1, ranks)]
    swapped = [(*first[:k], k + 1, k, *first[k + 2 :]) for k in range(ranks - 1)]
    return [first[::-1], *rotated, *swapped] if ranks <= MANY else []


def _reordered(s: Segments, order: int) -> Segments:
    """The last two segments (or the first two) swapped within the local tensor."""
    pieces = list(_pieces(s))
    i, j = (-2, -1) if order > 0 else (0, 1)
    pieces[i], pieces[j] = pieces[j], pieces[i]
    return Segments(s.dim, tuple(pieces))


def _pieces(s: Segments) -> Iterator[tuple[None, Layout]]:
    """The segments, each cut out of the whole by itself."""
    at = 0
    for size, layout in s.parts:
        assert size is not None
        cut = Step("slice", (s.dim, at, at + size))
        yield None, Layout(None, (cut, *layout.steps))
        at += size


def rank_orders(ops: Sequence[Op]) -> list[tuple[int, ...]]:
    """The orders of ranks, other than ascending, that groups and permutes of a program have."""
    orders: dict[tuple[int, ...], None] = {}
    for op in ops:
        for g in op.attrs.get("groups", ()):
            low = sorted(g)
            if list(g) != low:
                order = tuple(low.index(r) for r in g)
                inverse = tuple(order.index(k) for k in range(len(order)))
                orders[order] = orders[inverse] = None
        pairs = op.attrs.get("pairs", ())
        if pairs:
            table = dict(pairs)
            if sorted(table) == sorted(table.values()) == list(range(len(table))):
                order = tuple(table[k] for k in range(len(table)))
                inverse = tuple(order.index(k) for k in range(len(order)))
                orders[order] = orders[inverse] = None
    return list(orders)[:8]


def _permuted(spec: Spec, ranks: tuple[int, ...]) -> Spec | None:
    if isinstance(spec, Segments) or not spec.steps:
        return None
    last = spec.steps[-1]
    if not isinstance(last, Step) or last.name != "shard":
        return None
    return Layout(spec.source, (*spec.steps, Step("ranks", ranks)))

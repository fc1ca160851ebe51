"""Which reference value each implementation value should be, and whether it is.

The alignment only guides where to look and what to say: no verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import Final

from shardproof.ir.module import Module, Op, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Mesh
from shardproof.passes.access import Expr
from shardproof.passes.algebra import Views
from shardproof.passes.arithmetic import scaled
from shardproof.passes.classes import Coefficient, Store, Term
from shardproof.passes.normalise import Normalised, continue_from, same
from shardproof.passes.views import Unsupported, View, align, split_into
from shardproof.solver.prove import Proof, equal, stacked
from shardproof.solver.relations.arranged import Arrangements, same_elements
from shardproof.solver.relations.layout import Cutter
from shardproof.solver.relations.placement import Ambiguous, Unfit, natural, runs
from shardproof.solver.relations.relation import REPLICATE, Relation, Segments, Spec, cut, rank_groups
from shardproof.solver.relations.steps import Layout, RelationError, Step

LAYOUT: Final = frozenset({"reshape", "transpose", "broadcast_in_dim", "convert"})
"""Operators that one program may have and the other not."""
ANYWHERE: Final = 4
STARTS: Final = 64


class Status(StrEnum):
    """How an implementation value stands to its counterpart."""

    SAME = "same"
    PARTIAL = "partial"
    WRONG = "wrong"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Match:
    """The counterpart of a value, its placement, the view it should have, the axes it is partial over, and
    what of the ranks' values is missing."""

    status: Status
    reference: str | None = None
    spec: Spec | None = None
    view: View | None = None
    axes: tuple[str, ...] = ()
    whole: str = "sum"


@dataclass(slots=True)
class Alignment:
    """Matches of all implementation values by name."""

    proof: Proof
    relation: Relation
    reference: Module
    implementation: Module
    matches: dict[str, Match] = field(default_factory=dict)
    users: dict[str, list[Op]] = field(init=False, default_factory=dict)
    types: dict[str, Value] = field(init=False, default_factory=dict)
    by_class: dict[int, list[str]] = field(init=False, default_factory=dict)
    taken: set[str] = field(init=False, default_factory=set)
    siblings: dict[tuple[str, tuple[str, ...]], list[Op]] = field(init=False, default_factory=dict)
    constant: set[str] = field(init=False, default_factory=set)
    segments: list[Segments] = field(init=False, default_factory=list)
    arranged: Arrangements = field(init=False)

    def __post_init__(self) -> None:
        for op in self.reference.ops:
            for v in op.operands:
                self.users.setdefault(v.name, []).append(op)
        self.types = {v.name: v for op in self.reference.ops for v in op.results}
        self.types.update((i.name, i.value) for i in self.reference.inputs)
        self.arranged = Arrangements(self.proof.store)
        for name in self.types:
            self.arranged.add(name, self.proof.reference.views[name])
            self.by_class.setdefault(self.proof.reference.views[name].term.cls, []).append(name)
        for op in self.implementation.ops:
            self.siblings.setdefault((op.opcode, tuple(x.name for x in op.operands)), []).append(op)
        for module in (self.reference, self.implementation):
            for op in module.ops:
                if all(x.name in self.constant for x in op.operands):
                    self.constant.update(v.name for v in op.results)
        self.segments = [s for s in self.relation.inputs.values() if isinstance(s, Segments)]

    @property
    def algebra(self) -> Views:
        return self.proof.implementation.algebra

    @property
    def mesh(self) -> Mesh:
        return self.implementation.mesh

    def run(self) -> None:
        """Match every value, in program order."""
        self.begin()
        for op in self.implementation.ops:
            self.step(op)

    def begin(self) -> None:
        """Match the inputs, which are right by the relation."""
        for i in self.implementation.inputs:
            source = self.relation.sources.get(i.name)
            view = self.proof.implementation.views[i.name]
            self.matches[i.name] = Match(Status.SAME, source, self.relation.inputs.get(i.name), view)

    def step(self, op: Op) -> None:
        """Match the results of an operator whose operands are matched."""
        for n, value in enumerate(op.results):
            self.matches[value.name] = self._match(op, n, value)

    def _match(self, op: Op, number: int, value: Value) -> Match:
        found = [self._judge(guess, value) for guess in self._structural(op, number)]
        first = max(found, key=lambda m: self._likeness(m, value), default=Match(Status.ALONE))
        first = self._rearranged(first, value)
        if first.status is Status.SAME:
            self.taken.add(first.reference or "")
            return first
        if all(self.matches[x.name].status is not Status.WRONG for x in op.operands):
            view = self.proof.implementation.views[value.name]
            for name in self.by_class.get(view.term.cls, ())[:ANYWHERE]:
                other = self._judge(name, value)
                if other.status is Status.SAME and not self._belongs(name, op, value):
                    return other
            other = self._elsewhere(op, value)
            right = other.status in (Status.SAME, Status.PARTIAL)
            if right or (other.view is not None and first.view is None):
                return other
        elif self.proof.instances:
            other = self._elsewhere(op, value)
            if other.status is Status.SAME:
                return other
        if first.reference is not None and first.status is not Status.ALONE:
            self.taken.add(first.reference)
        return first

    def _elsewhere(self, op: Op, value: Value) -> Match:
        """The match of a value whose elements the reference has in other places, under whatever name; of a
        slice that misses such elements, the slice that does not."""
        if self.reference.mesh.size > 1:
            return Match(Status.ALONE)
        siblings = self.siblings[op.opcode, tuple(x.name for x in op.operands)]
        own = {self.matches[v.name].reference for o in siblings for v in o.results if v.name in self.matches}
        view = self.proof.implementation.views[value.name]
        if value.name in self.constant or not view.term.access:
            return Match(Status.ALONE)
        holders = self.arranged.holders(view)
        if holders and own.isdisjoint(holders):
            return Match(Status.SAME, holders[0] if len(holders) == 1 else None, None, view)
        if view.dtype.kind == "real":
            for axes, _ in runs(self.mesh):
                try:
                    whole = self.algebra.all_reduce(view, "sum", rank_groups(self.mesh, axes))
                except Unsupported:
                    continue
                holders = self.arranged.holders(whole)
                if len(holders) == 1:
                    return Match(Status.PARTIAL, holders[0], None, whole, axes)
        if op.opcode == "slice":
            name = op.operands[0].name
            state = Normalised(self.algebra, {name: self.proof.implementation.views[name]})
            for moved in shifted(op):
                continue_from(state, [moved], {})
                holders = self.arranged.holders(state.views[value.name])
                if len(holders) == 1 and own.isdisjoint(holders):
                    return Match(Status.WRONG, holders[0], None, state.views[value.name])
        return Match(Status.ALONE)

    def _rearranged(self, match: Match, value: Value) -> Match:
        """The match of a value that holds all elements of its counterpart as no placement has them."""
        if match.status is not Status.WRONG or match.reference is None:
            return match
        found = self.proof.implementation.views[value.name]
        whole = self.proof.reference.views[match.reference]
        if self.reference.mesh.size > 1 or not same_elements(self.proof.store, whole.term, found.term):
            return match
        return Match(Status.SAME, match.reference, None, found)

    def _likeness(self, match: Match, value: Value) -> int:
        """Equal, partial, a multiple, another function, nothing: higher is better."""
        if match.status is Status.WRONG and match.view is not None:
            multiple = ratio(self.proof.store, match.view, self.proof.implementation.views[value.name])
            return 2 if multiple is not None else 1
        return {Status.SAME: 4, Status.PARTIAL: 3}.get(match.status, 0)

    def _belongs(self, name: str, op: Op, value: Value) -> bool:
        """Whether a reference value is already the counterpart of a sibling of `value`."""
        return any(
            self._judge(name, v).status is Status.SAME
            for other in self.siblings.get((op.opcode, tuple(x.name for x in op.operands)), ())
            for v in other.results
            if v is not value
        )

    def _structural(self, op: Op, number: int) -> Iterator[str]:
        """Reference values in the same place, by the operands' counterparts; likely ones first."""
        ids = [self.matches[x.name].reference for x in op.operands]
        if "collective" in TABLE[op.opcode].traits:
            yield from (i for i in ids[:1] if i is not None)
            return
        known = [i for i in ids if i is not None]
        if not known:
            return
        loose: str | None = None
        for other in self._reach(known[0], op.opcode):
            name = other.results[min(number, len(other.results) - 1)].name
            if name in self.taken:
                continue
            if len(other.operands) != len(op.operands):
                continue
            if all(map(self._alike, op.operands, ids, other.operands)):
                yield name
                return
            loose = loose or name
        if loose is not None:
            yield loose
        yield from dict.fromkeys(known)

    def _alike(self, own: Value, origin: str | None, other: Value) -> bool:
        """Whether an operand may correspond to one of the reference, as far as is known."""
        if origin is None:
            return (own.name in self.constant) == (other.name in self.constant)
        return origin == other.name or self._through(other.name, origin)

    def _reach(self, name: str, opcode: str) -> Iterator[Op]:
        """Reference operators of this kind that read a value, layout operators between them passed over."""
        level, seen = [name], {name}
        for _ in range(ANYWHERE):
            after: list[str] = []
            for value in level:
                for op in self.users.get(value, ()):
                    if op.opcode == opcode:
                        yield op
                    if op.opcode in LAYOUT and op.result.name not in seen:
                        seen.add(op.result.name)
                        after.append(op.result.name)
            level = after

    def _through(self, name: str, origin: str) -> bool:
        """Whether a reference value comes from another by layout operators only."""
        level = [origin]
        for _ in range(ANYWHERE):
            level = [op.result.name for v in level for op in self.users.get(v, ()) if op.opcode in LAYOUT]
            if name in level:
                return True
        return False

    # judging one pair

    def _judge(self, name: str, value: Value) -> Match:
        whole = self.types.get(name)
        found = self.proof.implementation.views.get(value.name)
        if found is None or whole is None or whole.type.dtype.kind != value.type.dtype.kind:
            return Match(Status.ALONE)
        last = Match(Status.ALONE, name)
        for spec in self._specs(whole.type.shape, value.type.shape):
            wanted = self.place(name, spec)
            if wanted is None or wanted.shape != found.shape:
                continue
            if equal(self.proof.store, wanted, found):
                return Match(Status.SAME, name, spec, wanted)
            partial = self._partial(name, spec, wanted, found)
            if partial is not None:
                return partial
            if last.status is Status.ALONE:
                last = Match(Status.WRONG, name, spec, wanted)
        return last

    def _specs(self, whole: tuple[int, ...], own: tuple[int, ...]) -> Iterator[Spec]:
        """Segments that an input of these extents has, then the natural placement."""
        if self.reference.mesh.size > 1:
            yield from self._between_meshes(whole, own)
            return
        divided = [d for d, (n, m) in enumerate(zip(whole, own, strict=False)) if n != m]
        if len(divided) == 1 and len(whole) == len(own):
            d = divided[0]
            for s in self.segments:
                sizes = [size for size, _ in s.parts]
                if None not in sizes and sum(x or 0 for x in sizes) == whole[d]:
                    parts = tuple((size, _moved(layout, s.dim, d)) for size, layout in s.parts)
                    if all(layout is not None for _, layout in parts):
                        known = ((size, layout) for size, layout in parts if layout is not None)
                        yield Segments(d, tuple(known))
        try:
            yield natural(whole, own, self.mesh)
        except (Unfit, Ambiguous):
            return

    def _between_meshes(self, whole: tuple[int, ...], own: tuple[int, ...]) -> Iterator[Spec]:
        """Placements of a distributed reference's value: rank by rank or whole, or shards of one dim."""
        if whole == own:
            yield REPLICATE
            return
        divided = [d for d, (n, m) in enumerate(zip(whole, own, strict=False)) if n != m]
        if len(divided) == 1 and len(whole) == len(own):
            d = divided[0]
            if whole[d] * self.reference.mesh.size == own[d] * self.mesh.size:
                yield Layout(None, (Step("shard", (d,)),))

    def _across(self, name: str, spec: Spec) -> View | None:
        """The view of a distributed reference's value on the implementation's ranks."""
        store, own = self.proof.store, self.proof.reference
        view, ranks = own.views[name], own.algebra.ranks
        if spec == REPLICATE:
            if self.reference.mesh.size != self.mesh.size:
                axes = {i for _, i in ranks.axes}
                return view if axes.isdisjoint(store.term_indices(view.term)) else None
            by: dict[int, Expr] = {}
            split_into(store, [i for _, i in ranks.axes], self.algebra.ranks.flat, by)
            return View(store.substitute_term(view.term, by), view.dims, view.shape, view.dtype)
        assert isinstance(spec, Layout) and isinstance(spec.steps[0], Step)
        dim = spec.steps[0].args[0]
        whole = stacked(store, view, ranks)
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(whole.shape))]
        joined = self.algebra.transpose(whole, order)
        shape = (*view.shape[:dim], view.shape[dim] * self.reference.mesh.size, *view.shape[dim + 1 :])
        everyone = (tuple(range(self.mesh.size)),)
        return self.algebra.own_shard(self.algebra.reshape(joined, shape), dim, everyone)

    def place(self, name: str, spec: Spec) -> View | None:
        """The view of a reference value laid out over the implementation's ranks."""
        if self.reference.mesh.size > 1:
            return self._across(name, spec)
        cutter = Cutter(self.mesh, "placed.")
        try:
            v = cut(cutter, spec, self.types[name], lambda n: self.types[n])
        except (RelationError, KeyError):
            return None
        state = Normalised(self.algebra, {name: self.proof.reference.views[name]})
        continue_from(state, cutter.ops, {})
        return state.views[v.name]

    def _partial_extremum(self, name: str, spec: Spec, wanted: View, found: View) -> Match | None:
        """The match of maxima or minima over the elements of one rank."""
        kind, missing = ("max", "maximum") if found.term.coef > 0 else ("min", "minimum")
        for axes, _ in runs(self.mesh):
            try:
                whole = self.algebra.all_reduce(found, kind, rank_groups(self.mesh, axes))
            except Unsupported:
                continue
            if equal(self.proof.store, wanted, whole):
                return Match(Status.PARTIAL, name, spec, wanted, axes, missing)
        return None

    def _partial(self, name: str, spec: Spec, wanted: View, found: View) -> Match | None:
        """The match of partial sums, or of a multiple of them."""
        if found.dtype.kind != "real":
            return None
        store = self.proof.store
        if store.classes[found.term.cls].op == "max":
            return self._partial_extremum(name, spec, wanted, found)
        for axes, _ in runs(self.mesh):
            try:
                total = self.algebra.all_reduce(found, "sum", rank_groups(self.mesh, axes))
            except Unsupported:
                continue
            times = ratio(store, wanted, total)
            if times == 1:
                return Match(Status.PARTIAL, name, spec, wanted, axes)
            count = prod(dict(self.mesh.axes)[a] for a in axes)
            if times is not None and total.term.coef != found.term.coef * count:
                right = View(scaled(found.term, times, inverse=True), found.dims, found.shape, found.dtype)
                return Match(Status.WRONG, name, spec, right, axes)
        return None


def shifted(op: Op) -> Iterator[Op]:
    """A slice of one dim with other starts, whole lengths apart."""
    a, shape = op.attrs, op.operands[0].type.shape
    cut = [d for d, n in enumerate(op.result.type.shape) if n != shape[d]]
    if len(cut) != 1 or a["strides"][cut[0]] != 1:
        return
    d, n = cut[0], op.result.type.shape[cut[0]]
    for start in range(0, min(shape[d], n * STARTS) - n + 1, n):
        starts = (*a["starts"][:d], start, *a["starts"][d + 1 :])
        limits = (*a["limits"][:d], start + n, *a["limits"][d + 1 :])
        yield Op("slice", op.operands, op.results, {**a, "starts": starts, "limits": limits})


def ratio(store: Store, wanted: View, found: View) -> Coefficient | None:
    """The constant that makes `found` of `wanted`, if there is one."""
    _, (s, t) = align(store, (wanted, found), [range(len(wanted.shape))] * 2)
    if s.coef == 0 or t.coef == 0 or store.kind(s) != "real":
        return None
    if not same(store, Term(1, s.cls, s.access), Term(1, t.cls, t.access)):
        return None
    return Fraction(t.coef) / Fraction(s.coef)


def _moved(layout: Layout, dim: int, to: int) -> Layout | None:
    """A layout whose steps act on one dim, on another dim instead."""
    steps = []
    for s in layout.steps:
        if not isinstance(s, Step) or not s.args or s.args[0] != dim:
            return None
        steps.append(Step(s.name, (to, *s.args[1:]), s.named))
    return Layout(None, tuple(steps))


def cone(module: Module, outputs: Sequence[str], matches: Mapping[str, Match]) -> set[str]:
    """Values that lead to these outputs through values that are not as they should be."""
    producer = {v.name: op for op in module.ops for v in op.results}
    start = [o.value.name for o in module.outputs if o.name in outputs]
    seen = set(start)
    stack = [x for name in start if name in producer for x in producer[name].operands]
    while stack:
        name = stack.pop().name
        match = matches.get(name)
        if name in seen or match is None or match.status in (Status.SAME, Status.PARTIAL):
            continue
        seen.add(name)
        if name in producer:
            stack += producer[name].operands
    return seen

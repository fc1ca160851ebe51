"""Loops by induction (soundness S5): a value of every round is a function of the round's number.

The number is an index like any other. What a round computes from the rows of stacked tensors then is one
view for all rounds, and a stacked result is that view with the number as its first dim. A carried
value that a round adds to and nothing else reads is a sum over the number, one that counts is affine in
it. Of any other nothing is known but that it is a function of the number: a class of its own.

Where an earlier loop of as many rounds carries values that these may be views of, that is tried: its carried
values stand for the ones here, through the access that relates the initial ones (or, where these
tell nothing, as copies or shards). If each round then keeps that relation, for every rank, it holds at every
round; what a relation needs that is not kept is dropped, and the round is normalised again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Final

from shardproof.ir.module import Module, Op, Value
from shardproof.ir.types import TensorType
from shardproof.passes.access import Expr, constant, index
from shardproof.passes.classes import Store
from shardproof.passes.concatenate import same
from shardproof.passes.loop_layouts import inverse, layouts
from shardproof.passes.loop_writes import Write, rows_of, write_of
from shardproof.passes.views import View, fresh, place

if TYPE_CHECKING:
    from shardproof.passes.normalise import Normalised

SWEEPS: Final = 12
"""Most times that the body of one loop is normalised."""
_FOLDS: Final[Mapping[str, str]] = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "and": "and",
    "or": "or",
}


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that was normalised: its carried values before each round and after it, over index `step`.

    `carried` is None for values that no class stands for. `within` are the indices of ranks and outer
    rounds that all this may read.
    """

    length: int
    reverse: bool
    step: int
    within: frozenset[int]
    initial: tuple[View, ...]
    carried: tuple[View | None, ...]
    after: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the operators of a body say of its carried values, by number.

    `same` stay as they are; `counts` grow by a value that no round changes; `folds` are combined, by a kind
    of reduction, with values that do not depend on them, and are read by nothing else; of `writes` a row is
    written that does not depend on them, and nothing else reads them.
    """

    same: frozenset[int]
    counts: Mapping[int, Value]
    folds: Mapping[int, tuple[str, tuple[Value, ...]]]
    writes: Mapping[int, Write]


def shape_of(body: Module, consts: int, carries: int, length: int) -> Shape:
    """What is seen without normalising anything."""
    inputs = [i.value for i in body.inputs]
    fixed = {v.name for v in inputs[:consts]}
    makers = {v.name: op for op in body.ops for v in op.results}
    fixed |= {n for n, op in makers.items() if op.opcode == "constant"}
    uses: dict[str, list[Op]] = {}
    for op in body.ops:
        for v in op.operands:
            uses.setdefault(v.name, []).append(op)
    results = [o.value.name for o in body.outputs]
    own, counts, folds, writes = set(), {}, {}, {}
    for k in range(carries):
        value, result = inputs[consts + k], results[k]
        if value.name == result:
            own.add(k)
            continue
        maker = makers.get(result)
        if maker is not None and maker.opcode == "add" and value.type.dtype.kind == "int":
            other = [v for v in maker.operands if v.name != value.name]
            if len(other) == 1 and len(maker.operands) == 2 and other[0].name in fixed:
                counts[k] = other[0]
                continue
        found = _fold(value, result, uses, results)
        if found is not None:
            folds[k] = found
            continue
        write = write_of(value, result, uses, results, length)
        if write is not None:
            writes[k] = write
    return Shape(frozenset(own), counts, folds, writes)


def _fold(
    value: Value, result: str, uses: Mapping[str, Sequence[Op]], results: Sequence[str]
) -> tuple[str, tuple[Value, ...]] | None:
    """The operators of one kind through which alone a value becomes its result, and what they add to it."""
    others: list[Value] = []
    kind: str | None = None
    if value.type.dtype.kind not in ("real", "int", "bool"):
        return None
    while value.name != result:
        readers = uses.get(value.name, ())
        if len(readers) != 1 or value.name in results:
            return None
        (op,) = readers
        own = _FOLDS.get(op.opcode)
        rest = [v for v in op.operands if v.name != value.name]
        if own is None or len(rest) != 1 or (kind is not None and own != kind):
            return None
        kind, value = own, op.result
        others += rest
    if kind is None or uses.get(result) or list(results).count(result) != 1:
        return None
    return kind, tuple(others)


def scan(state: Normalised, op: Op, operands: Sequence[View]) -> tuple[View, ...]:
    """The final carried values and the stacked results of a loop."""
    attrs = op.attrs
    body, carries, length, reverse = attrs["body"], attrs["carries"], attrs["length"], attrs["reverse"]
    consts = attrs["consts"]
    before = consts + carries
    given = _Given(
        state,
        body,
        tuple(operands[:consts]),
        tuple(operands[consts:before]),
        tuple(operands[before:]),
        length,
        reverse,
        shape_of(body, consts, carries, length),
    )
    found = given.found()
    assert given.swept is not None
    name = op.results[0].name
    state.rounds[name] = given.swept
    state.opaque.update((f"{name}/{inside}", why) for inside, why in given.swept.opaque.items())
    return found


Candidate = tuple[int, tuple[Expr, ...], tuple[tuple[int, ...], ...]]
"""The number of a carried value of another loop, the position in each of its dims, and the own dims' indices
that these are over."""


@dataclass(slots=True)
class _Given:
    """One loop to normalise."""

    state: Normalised
    body: Module
    consts: tuple[View, ...]
    initial: tuple[View, ...]
    stacked: tuple[View, ...]
    length: int
    reverse: bool
    shape: Shape
    swept: Normalised | None = field(default=None)

    @property
    def store(self) -> Store:
        return self.state.algebra.store

    def free(self) -> list[int]:
        """The carried values that need a class of their own, or a relation."""
        known = {*self.shape.same, *self.shape.counts, *self.shape.folds, *self.shape.writes}
        return [k for k, own in enumerate(self.initial) if k not in known and 0 not in own.shape]

    def found(self) -> tuple[View, ...]:
        """What the loop gives; loops are tried in order from the one after that which was found last."""
        store, carries = self.store, len(self.initial)
        if self.length == 1:
            rows = [_row(store, x, constant(0)) for x in self.stacked]
            results = self.sweep(self.initial, rows)
            return (*results[:carries], *(_stacked(store, y, ()) for y in results[carries:]))
        known = store.loops
        last = next((n for n, x in enumerate(known, 1) if x.step == known[-1].step), 0)
        fit = [x for x in (*known[last:], *known[:last]) if self._fits(x)]
        step, results = self._normalised(fit)
        written = self._written(step)
        if len(written) < len(self.shape.writes):
            kept = {k: self.shape.writes[k] for k in written}
            self.shape = replace(self.shape, writes=kept)
            step, results = self._normalised(fit)
            written = self._written(step)
        return self.results(step, results, written)

    def _normalised(self, fit: Sequence[Loop]) -> tuple[int, tuple[View, ...]]:
        """The number of the round, and the results of that round."""
        for whole, loop in product((True, False), fit):
            made = self.related(loop, whole)
            if made is not None:
                return made
        return self.alone()

    def _written(self, step: int) -> dict[int, View]:
        """What all rounds write, of the carried values that are written by the number of the round."""
        assert self.swept is not None
        found = {
            k: rows_of(self.store, write, self.swept.views, step, self.length)
            for k, write in self.shape.writes.items()
        }
        return {k: view for k, view in found.items() if view is not None}

    def _fits(self, loop: Loop) -> bool:
        """Whether this loop may share the number of `loop`.

        All that `loop` reads must be known here, and its number is none of a round that this loop is in.
        """
        algebra = self.state.algebra
        known = {i for _, i in algebra.ranks.axes} | set(algebra.steps)
        alike = loop.length == self.length and loop.reverse == self.reverse
        return alike and loop.step not in algebra.steps and loop.within <= known

    def alone(self) -> tuple[int, tuple[View, ...]]:
        """The loop by itself: classes of its own for what is carried, finite where that is kept."""
        step, known = self.store.fresh(self.length), len(self.store.loops)
        special = {k: self._special(self.initial[k]) for k in self.free()}
        while True:
            del self.store.loops[known:]
            carried = {k: self._unknown(k, step, special[k]) for k in self.free()}
            results = self._swept(step, carried)
            worse = {k: special[k] | self._special(results[k]) for k in self.free()}
            if worse == special:
                self._register(step, carried, results)
                return step, results
            special = worse

    def related(self, loop: Loop, whole: bool) -> tuple[int, tuple[View, ...]] | None:
        """The loop with what it carries as views of what `loop` does; None where no round keeps any.

        What is no view of that has a class of its own; with `whole` that is None, too.
        """
        options = {k: list(self._candidates(k, loop)) for k in self.free()}
        special = {k: self._special(self.initial[k]) for k in self.free()}
        known = len(self.store.loops)
        for _ in range(SWEEPS):
            if not any(options.values()) or (whole and not all(options.values())):
                break
            chosen = {k: own[0] for k, own in options.items() if own}
            carried = {k: self._through(k, c, loop) for k, c in chosen.items()}
            for k in options.keys() - chosen.keys():
                carried[k] = self._unknown(k, loop.step, special[k])
            results = self._swept(loop.step, carried)
            lost = [k for k, c in chosen.items() if not self._kept(results[k], c, loop)]
            worse = {k: special[k] | self._special(results[k]) for k in carried.keys() - chosen.keys()}
            if not lost and all(special[k] == flags for k, flags in worse.items()):
                self._register(loop.step, carried, results)
                return loop.step, results
            special |= worse
            for k in lost:
                options[k].pop(0)
            del self.store.loops[known:]
        return None

    # carried values

    def _special(self, v: View) -> int:
        return self.store.special(v.term) if v.dtype.kind == "real" else 0

    def _unknown(self, k: int, step: int, special: int) -> View:
        """A class that nothing is known of but what infinities and NaN it may hold."""
        own = self.initial[k]
        steps = self.state.algebra.steps
        steps.append(step)
        made = self.state.algebra.draw(f"carried {k}", TensorType(own.dtype, own.shape), special)
        steps.pop()
        return made

    def _candidates(self, k: int, loop: Loop) -> Iterator[Candidate]:
        """How carried value `k` may be read from one of `loop`'s: initially it is."""
        own = self.initial[k]
        for m in sorted(range(len(loop.initial)), key=lambda m: m != k):
            other, value = loop.initial[m], loop.carried[m]
            if value is None or other.dtype.kind != own.dtype.kind or len(other.shape) != len(own.shape):
                continue
            dims = tuple(fresh(self.store, n) for n in own.shape)
            mine = place(self.store, own, [self.store.flatten(d) for d in dims])
            axes = [i for _, i in self.state.algebra.ranks.axes]
            copies = layouts(self.store, axes, other.shape, own.shape, dims)
            options = [inverse(self.store, other, mine), *copies]
            seen: set[tuple[Expr, ...]] = set()
            for at in options:
                if at is None or at in seen:
                    continue
                seen.add(at)
                if same(self.store, mine, place(self.store, other, at)):
                    yield m, at, dims

    def _through(self, k: int, candidate: Candidate, loop: Loop) -> View:
        m, at, dims = candidate
        source, own = loop.carried[m], self.initial[k]
        assert source is not None
        return View(place(self.store, source, at), dims, own.shape, own.dtype)

    def _kept(self, after: View, candidate: Candidate, loop: Loop) -> bool:
        """Whether a round leaves the value at its place in the other loop's."""
        m, at, dims = candidate
        mine = place(self.store, after, [self.store.flatten(d) for d in dims])
        return same(self.store, mine, place(self.store, loop.after[m], at))

    def _register(self, step: int, carried: Mapping[int, View], results: Sequence[View]) -> None:
        every = tuple(carried.get(k) for k in range(len(self.initial)))
        algebra = self.state.algebra
        within = frozenset({i for _, i in algebra.ranks.axes} | set(algebra.steps))
        after = tuple(results[: len(self.initial)])
        self.store.loops.append(
            Loop(self.length, self.reverse, step, within, self.initial, every, after)
        )

    # rounds

    def _swept(self, step: int, carried: Mapping[int, View]) -> tuple[View, ...]:
        """The results of round `step`."""
        store, algebra = self.store, self.state.algebra
        values: list[View] = []
        for k, own in enumerate(self.initial):
            if k in carried:
                values.append(carried[k])
            elif k in self.shape.counts:
                values.append(self._counted(k, step))
            else:
                values.append(own)
        rows = [_row(store, x, index(step)) for x in self.stacked]
        algebra.steps.append(step)
        try:
            return self.sweep(values, rows)
        finally:
            algebra.steps.pop()

    def sweep(self, carried: Sequence[View], rows: Sequence[View]) -> tuple[View, ...]:
        """The results of the body on these values."""
        from shardproof.passes.normalise import Normalised, continue_from

        views = dict(zip([i.name for i in self.body.inputs], (*self.consts, *carried, *rows), strict=True))
        self.swept = Normalised(self.state.algebra, views)
        continue_from(self.swept, self.body.ops, {}, self.store.check)
        return tuple(views[o.value.name] for o in self.body.outputs)

    def _counted(self, k: int, step: int) -> View:
        """The initial value and the growth of the rounds before."""
        algebra, own = self.state.algebra, self.initial[k]
        type = TensorType(own.dtype, own.shape)
        number = index(step) if not self.reverse else (self.length - 1, ((step, -1),))
        rounds = algebra.broadcast(View(self.store.integer(number), (), (), own.dtype), (), own.shape)
        by = self._growth(k)
        grown = algebra.elementwise("multiply", (rounds, by), type, {})
        return algebra.elementwise("add", (own, grown), type, {})

    def _growth(self, k: int) -> View:
        value = self.shape.counts[k]
        for i, view in zip(self.body.inputs, self.consts, strict=False):
            if i.name == value.name:
                return view
        maker = next(op for op in self.body.ops if value in op.results)
        return self.state.algebra.literal(maker.attrs["value"], value.type)

    # results

    def results(
        self, step: int, results: Sequence[View], written: Mapping[int, View]
    ) -> tuple[View, ...]:
        """What the loop gives, from what round `step` does; `written` is what all rounds write."""
        store = self.store
        last = constant(0 if self.reverse else self.length - 1)
        found: list[View] = []
        for k, own in enumerate(self.initial):
            if k in self.shape.same:
                found.append(own)
            elif k in self.shape.folds:
                found.append(self._folded(k, step))
            elif k in written:
                added = self.shape.writes[k].added
                found.append(self.state.algebra.combine("sum", own, written[k]) if added else written[k])
            else:
                after = results[k]
                term = store.substitute_term(after.term, {step: last})
                found.append(View(term, after.dims, after.shape, after.dtype))
        for y in results[len(self.initial) :]:
            number = store.fresh(self.length)
            term = store.substitute_term(y.term, {step: index(number)})
            found.append(_stacked(store, View(term, y.dims, y.shape, y.dtype), (number,), self.length))
        return tuple(found)

    def _folded(self, k: int, step: int) -> View:
        """The initial value combined with what every round gives."""
        kind, others = self.shape.folds[k]
        algebra, total = self.state.algebra, self.initial[k]
        assert self.swept is not None
        for value in others:
            view = self.swept.views[value.name]
            number = self.store.fresh(self.length)
            term = self.store.substitute_term(view.term, {step: index(number)})
            every = View(term, ((number,), *view.dims), (self.length, *view.shape), view.dtype)
            total = algebra.combine(kind, total, algebra.reduce(every, (0,), kind))
        return total


def _row(store: Store, x: View, at: Expr) -> View:
    """`x` at one position of its first dim."""
    dims = tuple(fresh(store, n) for n in x.shape[1:])
    if 0 in x.shape:
        return View(x.term, dims, x.shape[1:], x.dtype)
    term = place(store, x, [at, *(store.flatten(d) for d in dims)])
    return View(term, dims, x.shape[1:], x.dtype)


def _stacked(store: Store, y: View, number: tuple[int, ...], length: int = 1) -> View:
    """`y` with the number of the round as its first dim."""
    return View(y.term, (number, *y.dims), (length, *y.shape), y.dtype)

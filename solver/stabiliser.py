"""Whether exponents are kept from overflow by what is subtracted of them.

A softmax subtracts its maximum, and over the reals any other value would do as well. In floating point it
would not: the exponentials overflow, or all vanish. So a proof that leads from the maximum to a value that is
made of maxima but is none, such as their sum over the ranks, is no `verified`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardproof.ir.module import Module, Op
from shardproof.passes.classes import Store, Term
from shardproof.passes.normalise import Normalised
from shardproof.passes.unroll import LOOP
from shardproof.solver.prove import Proof

_MAXIMA: Final = ("max", "maximum")
_THROUGH: Final = ("add", "sum", "min", "minimum", "multiply", "prod")

LOWEST: Final = -10000
"""A maximum with a constant up to this one is still that of the scores; a larger one may exceed them all."""


def misplaced(proof: Proof, implementation: Module) -> Op | None:
    """The operator that makes what an exponent subtracts in the place of a maximum, or None.

    `proof` is one without lemmas: its classes are those of the programs as they are written. An exponential
    that the reference has as well is as stable as the reference.
    """
    theirs = {view.term.cls for state in _every(proof.reference) for view in state.views.values()}
    return _Search(proof.store, theirs).misplaced(proof.implementation, implementation.ops)


def _every(state: Normalised) -> Iterator[Normalised]:
    """The program and the rounds of its loops."""
    yield state
    for rounds in state.rounds.values():
        yield from _every(rounds)


class _Search:
    """The search in one store; what is found of a class is kept, as terms share most of theirs."""

    def __init__(self, store: Store, theirs: set[int]) -> None:
        self.store = store
        self.theirs = theirs
        self._subtracting: dict[tuple[int, int], bool] = {}
        self._floors: dict[int, bool] = {}
        self._made: dict[int, bool] = {}

    def misplaced(self, state: Normalised, ops: Sequence[Op]) -> Op | None:
        views = state.views
        for op in ops:
            if op.opcode == LOOP and op.result.name in state.rounds:
                found = self.misplaced(state.rounds[op.result.name], op.attrs["body"].ops)
                if found is not None:
                    return found
            if op.opcode != "exponential" or op.result.name not in views or op.operands[0].name not in views:
                continue
            if views[op.result.name].term.cls in self.theirs:
                continue
            if self.shifted(views[op.operands[0].name].term):
                return self.origin(state, ops, op)
        return None

    def shifted(self, t: Term) -> bool:
        """Whether a sum subtracts something made of maxima that is not one maximum."""
        c = self.store.classes[t.cls]
        if c.op != "add":
            return False
        sign = 1 if t.coef > 0 else -1
        less = [p for p in c.operands if self.subtracts(p, sign)]
        return len(less) > 1 or any(
            self.store.classes[p.cls].op not in _MAXIMA or p.coef * sign > 0 or self.floored(p) for p in less
        )

    def floored(self, t: Term) -> bool:
        """Whether a maximum is one with a constant that scores may all be below."""
        if t.cls not in self._floors:
            c = self.store.classes[t.cls]
            self._floors[t.cls] = c.op in _MAXIMA and any(
                x.coef > LOWEST if x.cls == self.store.ONE else self.floored(x) for x in c.operands
            )
        return self._floors[t.cls]

    def subtracts(self, t: Term, sign: int) -> bool:
        """Whether a term with that sign before it subtracts a maximum, somewhere within.

        A minimum is written as the negative maximum of negatives; a maximum times a mask is a guarded one.
        """
        c, sign = self.store.classes[t.cls], sign if t.coef > 0 else -sign
        if c.op in _MAXIMA and sign < 0:
            return True
        if c.op not in (*_MAXIMA, *_THROUGH):
            return False
        if (t.cls, sign) not in self._subtracting:
            held = [x for x in c.operands if self.subtracts(x, sign)]
            self._subtracting[t.cls, sign] = len(held) > (c.op == "multiply")
        return self._subtracting[t.cls, sign]

    def made_of_maxima(self, t: Term) -> bool:
        """Whether a value is a function of maxima, and not one of them."""
        if t.cls not in self._made:
            self._made[t.cls] = self._is_made(t)
        return self._made[t.cls]

    def _is_made(self, t: Term) -> bool:
        c = self.store.classes[t.cls]
        if self.floored(t):
            return True
        if c.op not in _THROUGH and not (c.op in _MAXIMA and all(x.coef < 0 for x in c.operands)):
            return False
        return all(
            self.store.classes[x.cls].op in _MAXIMA or self.made_of_maxima(x) for x in c.operands
        )

    def origin(self, state: Normalised, ops: Sequence[Op], exponential: Op) -> Op:
        """The first operator before the exponential that makes of maxima what is none; else itself."""
        needed = {exponential.operands[0].name}
        found = exponential
        for op in reversed(ops):
            if not any(v.name in needed for v in op.results):
                continue
            needed.update(v.name for v in op.operands)
            view = state.views.get(op.result.name)
            if view is not None and self.made_of_maxima(view.term):
                found = op
        return found

"""Decompositions, solvers and Fourier transforms: functions known by name, matrix by matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule
from shardproof.frontends.jaxpr.unknown import batched
from shardproof.frontends.jaxpr.walk import evaluate
from shardproof.ir.module import Value

_OF_MATRICES: Final = ("cholesky", "eig", "eigh", "hessenberg", "lu", "qr", "schur", "svd")


def _fft(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    found: Sequence[Value] = batched(len(eqn.params["fft_lengths"]))(state, eqn, operands)
    return found


def _linear_solve(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """A solver that the program brings along: its `solve` of its own constants and the right side."""
    eqn.only("const_lengths", "jaxprs")
    lengths, functions = eqn.params["const_lengths"], eqn.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    right = first + lengths.solve + lengths.transpose_solve
    own = operands[first : first + lengths.solve]
    return evaluate(state, functions.solve, [*own, *operands[right:]])


RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys((*_OF_MATRICES, "triangular_solve"), batched(2)),
    "custom_linear_solve": _linear_solve,
    "fft": _fft,
}

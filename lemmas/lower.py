"""The meaning of a `define` as operators of the intermediate representation (L9 of the soundness rules).

A use matches a define only if its dims fit, each guard holds and each of its attributes is named by
the define. Terms are computed over the indices that they read, in one order for the whole use, reals
in f32, or f64 if an operand is, and integers in the widest type of the integer operands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Op, Value
from shardproof.ir.types import DType, TensorType
from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.functions import SIGNATURES
from shardproof.lemmas.kinds import Inference, kind_of
from shardproof.lemmas.lower_take import Known, known
from shardproof.lemmas.match_define import Unmatched, match
from shardproof.lemmas.terms import (
    Apply,
    Compare,
    Define,
    Extent,
    Kind,
    Number,
    Position,
    Reduce,
    Take,
    Term,
    Variable,
)

__all__ = ["Unmatched", "lower"]

_START: Final[dict[str, float]] = {
    "sum": 0,
    "prod": 1,
    "max": -math.inf,
    "min": math.inf,
    "and": True,
    "or": False,
}


def lower(
    define: Define, operands: Sequence[Value], attrs: Mapping[str, Any], results: Sequence[Value]
) -> list[Op]:
    """Operators that compute `results`, in the order of `define.outputs`, from the operands.

    `attrs` are the attributes of the use without those that only say where it stands; `target` may
    hold the operator's name and an empty `config` says nothing. Raises `Unmatched`.
    """
    use = match(define, [v.type for v in operands], attrs, [v.type for v in results])
    kinds = _kinds(define, operands, use.numbers)
    order = list(dict.fromkeys(d for dims in (*use.results.values(), *use.parameters) for d in dims))
    write = _Writing(results[0], use.sizes, order, use.numbers, *_element_types(operands, results))
    for parameter, operand, dims in zip(define.parameters, operands, use.parameters, strict=True):
        write.variables[parameter.name] = write.operand(operand, dims)
        write.kinds[parameter.name] = kinds[parameter.name]
    values: dict[str, _Tensor] = {}
    for result in define.results:
        values[result.name] = write.term(result.term, None)
        write.assign(result.name, values[result.name])
    for name, result_value in zip(define.outputs, results, strict=True):
        write.finish(values[name], use.results[name], result_value)
    return write.ops


def _kinds(define: Define, operands: Sequence[Value], numbers: Mapping[str, Fraction]) -> dict[str, Kind]:
    """The kinds of the operands, if the body has a meaning at them."""
    kinds: dict[str, Kind] = {}
    inference = Inference()
    for parameter, operand in zip(define.parameters, operands, strict=True):
        kind = operand.type.dtype.kind
        if kind not in ("real", "int", "bool"):
            raise Unmatched(f"operand {parameter.name} is {operand.type}, a real, int or bool is needed")
        kinds[parameter.name] = kind
        inference.known(parameter.name, kind)
    try:
        for result in define.results:
            inference.assign(result.name, _with_numbers(result.term, numbers))
        inference.kinds()
    except LemmaError as error:
        raise Unmatched(error.message) from None
    return kinds


def _with_numbers(term: Term, numbers: Mapping[str, Fraction]) -> Term:
    """The term with the attributes' values in place of their names."""
    match term:
        case Variable(name) if name in numbers:
            return Number(numbers[name])
        case Apply(op, operands):
            return Apply(op, tuple(_with_numbers(x, numbers) for x in operands))
        case Compare(direction, left, right):
            return Compare(direction, _with_numbers(left, numbers), _with_numbers(right, numbers))
        case Reduce(kind, indices, body):
            return Reduce(kind, indices, _with_numbers(body, numbers))
        case Take(indices, body, position):
            return Take(indices, _with_numbers(body, numbers), _with_numbers(position, numbers))
        case _:
            return term


def _element_types(operands: Sequence[Value], results: Sequence[Value]) -> tuple[DType, DType]:
    """The real and the integer type to compute in; reals at least f32, so that numerals keep their digits."""
    types = [v.type.dtype for v in operands]
    real = DType.F64 if DType.F64 in types else DType.F32
    integers = [d for d in types if d.kind == "int"] or [
        v.type.dtype for v in results if v.type.dtype.kind == "int"
    ]
    return real, max(integers, key=lambda d: d.bits, default=DType.S64)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A value, and the index of each of its dims."""

    value: Value
    dims: tuple[str, ...]


@dataclass(slots=True)
class _Writing:
    """The operators so far; all tensors have their dims in `order`."""

    named: Value
    sizes: Mapping[str, int]
    order: list[str]
    numbers: Mapping[str, Fraction]
    real: DType
    integer: DType
    ops: list[Op] = field(default_factory=list)
    variables: dict[str, _Tensor] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    done: dict[tuple[Term, Kind], _Tensor] = field(default_factory=dict)

    def emit(
        self, opcode: str, operands: Sequence[_Tensor], dtype: DType, dims: Sequence[str], /, **attrs: Any
    ) -> _Tensor:
        shape = tuple(self.sizes[d] for d in dims)
        name = f"{self.named.name}.{len(self.ops)}"
        result = Value(name, TensorType(dtype, shape), self.named.location)
        self.ops.append(Op(opcode, tuple(x.value for x in operands), (result,), attrs))
        return _Tensor(result, tuple(dims))

    def operand(self, value: Value, dims: tuple[str, ...]) -> _Tensor:
        """An operand in the common order of dims and the type to compute in."""
        x = _Tensor(value, dims)
        wanted = tuple(sorted(dims, key=self.order.index))
        if wanted != dims:
            permutation = tuple(dims.index(d) for d in wanted)
            x = self.emit("transpose", (x,), value.type.dtype, wanted, permutation=permutation)
        return self.convert(x, self.dtype(value.type.dtype.kind))

    def dtype(self, kind: str) -> DType:
        return {"real": self.real, "int": self.integer, "bool": DType.BOOL}[kind]

    def convert(self, x: _Tensor, dtype: DType) -> _Tensor:
        return x if x.value.type.dtype is dtype else self.emit("convert", (x,), dtype, x.dims)

    def assign(self, name: str, x: _Tensor) -> None:
        """From here on the name means this value; terms that read an older one are forgotten."""
        if name in self.variables:
            self.done.clear()
        self.variables[name] = x
        self.kinds[name] = _KIND_OF[x.value.type.dtype.kind]

    def finish(self, x: _Tensor, dims: tuple[str, ...], result: Value) -> None:
        """Makes the result of the use from the value of its term."""
        have, need = x.value.type.dtype.kind, result.type.dtype.kind
        if have != need and (have, need) != ("int", "real"):
            raise Unmatched(f"result {result.name} is {result.type}, the define gives a value of kind {have}")
        extra = [d for d in x.dims if d not in dims]
        if extra:
            raise Unmatched(
                f"result {result.name} varies along {', '.join(extra)}, which is none of its dims"
            )
        x = self.over(x, [d for d in self.order if d in dims])
        if x.dims != dims:
            permutation = tuple(x.dims.index(d) for d in dims)
            x = self.emit("transpose", (x,), x.value.type.dtype, dims, permutation=permutation)
        self.ops.append(Op("convert", (x.value,), (result,), {}))

    def over(self, x: _Tensor, dims: Sequence[str]) -> _Tensor:
        """The tensor, constant along the dims that it lacks."""
        if x.dims == tuple(dims):
            return x
        places = tuple(list(dims).index(d) for d in x.dims)
        return self.emit("broadcast_in_dim", (x,), x.value.type.dtype, dims, dims=places)

    def together(self, parts: Sequence[_Tensor]) -> list[_Tensor]:
        """The tensors over all indices that one of them reads."""
        dims = [d for d in self.order if any(d in x.dims for x in parts)]
        return [self.over(x, dims) for x in parts]

    def constant(self, value: Fraction | float | bool, dtype: DType) -> _Tensor:
        """A scalar; an integer that the type cannot hold exactly is no literal of it."""
        try:
            plain = int(value) if dtype.kind == "int" else float(value)
            array = np.asarray(bool(value) if dtype.kind == "bool" else plain, dtype.storage)
            exact = math.isinf(value) or value != int(value) or int(array) == value
        except OverflowError:
            exact = False
        if not exact:
            raise Unmatched(f"the number {value} does not fit {dtype.value}")
        return self.emit("constant", (), dtype, (), value=array)

    def term(self, term: Term, context: Kind | None) -> _Tensor:
        """The tensor of a term; numerals and extents take the kind of the context, else real."""
        kind = self.kind(term) or context or "real"
        key = (term, kind)
        if key not in self.done:
            self.done[key] = self._term(term, kind)
        return self.done[key]

    def kind(self, *terms: Term) -> Kind | None:
        """The first kind that one of the terms has by itself."""
        found = (kind_of(_with_numbers(t, self.numbers), self.kinds) for t in terms)
        return next((k for k in found if k is not None), None)

    def _term(self, term: Term, kind: Kind) -> _Tensor:
        match term:
            case Number(value):
                return self.constant(value, self.dtype(kind))
            case Variable(name) if name in self.numbers:
                return self.constant(self.numbers[name], self.dtype(kind))
            case Variable(name):
                return self.variables[name]
            case Extent(index):
                return self.constant(Fraction(self.sizes[index]), self.dtype(kind))
            case Position(index):
                self.constant(Fraction(self.sizes[index]), self.integer)
                return self.emit("iota", (), self.integer, (index,), dim=0)
            case Compare(direction, left, right):
                inside = self.kind(left, right) or "int"
                parts = self.together([self.term(x, inside) for x in (left, right)])
                return self.emit(
                    "compare", parts, DType.BOOL, parts[0].dims, direction=direction, total=False
                )
            case Reduce(monoid, indices, body):
                x = self.term(body, kind)
                x = self.over(x, [d for d in self.order if d in x.dims or d in indices])
                gone = tuple(i for i, d in enumerate(x.dims) if d in indices)
                left_over = tuple(d for d in x.dims if d not in indices)
                dtype = x.value.type.dtype
                return self.emit(
                    "reduce", (x, self._start(monoid, dtype)), dtype, left_over, dims=gone, kind=monoid
                )
            case Apply(op, operands):
                return self._apply(op, operands, kind)
            case Take(indices, body, position) if len(indices) == 1:
                return self._taken(indices[0], body, position, kind)
            case _:
                raise Unmatched("its body has a term without a lowering")

    def _taken(self, index: str, body: Term, position: Term, kind: Kind) -> _Tensor:
        """The body at a position of `index`; the position may read any operand, within range."""
        x = self.term(body, kind)
        size = self.sizes[index]
        at = known(_with_numbers(position, self.numbers), self.sizes)
        if at is not None and not at.within(size):
            raise Unmatched(f"it reads out of the range of {index}, which has the extent {size}")
        if index not in x.dims:
            return x
        found = self._sliced(x, index, at)
        if found is None:
            found = self._gathered(x, index, self.term(position, "int"))
        wanted = tuple(sorted(found.dims, key=self.order.index))
        if wanted == found.dims:
            return found
        permutation = tuple(found.dims.index(d) for d in wanted)
        return self.emit("transpose", (found,), x.value.type.dtype, wanted, permutation=permutation)

    def _sliced(self, x: _Tensor, index: str, at: Known | None) -> _Tensor | None:
        """The read as a slice, if it is one."""
        line = at.line() if at is not None else None
        if line is None or (line[0] in x.dims and line[0] != index):
            return None
        by, start, stride = line
        starts, limits, strides = [], [], []
        for d in x.dims:
            own = (start, start + (self.sizes[by] - 1) * stride + 1, stride)
            low, high, step = own if d == index else (0, self.sizes[d], 1)
            starts.append(low)
            limits.append(high)
            strides.append(step)
        dims = tuple(by if d == index else d for d in x.dims)
        return self.emit(
            "slice",
            (x,),
            x.value.type.dtype,
            dims,
            starts=tuple(starts),
            limits=tuple(limits),
            strides=tuple(strides),
        )

    def _gathered(self, x: _Tensor, index: str, at: _Tensor) -> _Tensor:
        """The read as a gather; indices that both have are batch dims."""
        shared = [d for d in at.dims if d in x.dims and d != index]
        own = [d for d in x.dims if d != index and d not in shared]
        axis = x.dims.index(index)
        return self.emit(
            "gather",
            (x, at),
            x.value.type.dtype,
            (*at.dims, *own),
            offset_dims=tuple(range(len(at.dims), len(at.dims) + len(own))),
            collapsed_slice_dims=(axis,),
            start_index_map=(axis,),
            index_vector_dim=len(at.dims),
            slice_sizes=tuple(self.sizes[d] if d in own else 1 for d in x.dims),
            operand_batching_dims=tuple(x.dims.index(d) for d in shared),
            start_indices_batching_dims=tuple(at.dims.index(d) for d in shared),
        )

    def _start(self, monoid: str, dtype: DType) -> _Tensor:
        """The identity of a reduction."""
        value = _START[monoid]
        if dtype.kind == "int" and math.isinf(value):
            value = -(2 ** (dtype.bits - 1)) if value < 0 else 2 ** (dtype.bits - 1) - 1
        return self.constant(value, dtype)

    def _apply(self, op: str, operands: tuple[Term, ...], kind: Kind) -> _Tensor:
        if op == "infinity":
            return self.constant(math.inf, self.real)
        if op == "select":
            chosen = known(_with_numbers(operands[0], self.numbers), self.sizes)
            if chosen is not None and chosen.values.all():
                return self.term(operands[1], kind)
            if chosen is not None and not chosen.values.any():
                return self.term(operands[2], kind)
        match SIGNATURES[op]:
            case "convert":
                return self.convert(self.term(operands[0], "int"), self.real)
            case "select":
                contexts: list[Kind] = ["bool", kind, kind]
            case "real":
                contexts = ["real"] * len(operands)
            case "bool":
                contexts = ["bool"] * len(operands)
            case _:
                contexts = [kind] * len(operands)
        parts = self.together([self.term(x, k) for x, k in zip(operands, contexts, strict=True)])
        return self.emit(op, parts, parts[-1].value.type.dtype, parts[0].dims)


_KIND_OF: Final[Mapping[str, Kind]] = {"real": "real", "int": "int", "bool": "bool"}

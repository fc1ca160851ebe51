"""Classes, terms and views computed with NumPy straight from the definition of each class.

Nothing here is shared with the rewriting that made the classes: a class is tabulated over the whole
extents of its free slots, its operands over the grid of free and bound indices, and every read is
checked to be in range. Reals are float64, integers int64, booleans bool; functions known by name only
are a fixed pseudo-random function of their slices. It serves tests and the certificate checker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce as fold
from math import prod
from typing import Any, Final
from zlib import crc32

import numpy as np

from shardproof.ir.module import Op, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, TensorType
from shardproof.passes.access import Digit, Expr
from shardproof.passes.classes import Class, Store, Term
from shardproof.passes.views import View

Grid = Any
"""An array that broadcasts against the grid of the indices in use."""


class EvaluationError(ValueError):
    """A class that cannot be computed, or that reads out of range; the message is one line."""


class Evaluation:
    """Values of the classes of `store` for one choice of inputs.

    `inputs` maps the name of each input class to its whole array (extent-1 dims may be left out), `known`
    gives whole tables of classes that nothing else defines, such as the carried values of loops.
    """

    def __init__(
        self, store: Store, inputs: Mapping[str, Any], known: Mapping[int, Grid] | None = None
    ) -> None:
        self.store = store
        self.inputs = inputs
        self._tables: dict[int, Grid] = dict(known or {})

    def view(self, view: View, at: Mapping[int, int]) -> Grid:
        """The tensor of `view` where the indices in `at` (ranks, steps) have those values."""
        if 0 in view.shape:
            return np.zeros(view.shape, STORAGE[view.dtype.kind])
        digits = [i for d in view.dims for i in d]
        grid: dict[int, Grid] = {i: np.asarray(v) for i, v in at.items()} | self._axes(digits)
        shape = tuple(self.store.sizes[i] for i in digits)
        with np.errstate(all="ignore"):
            return np.broadcast_to(self.term(view.term, grid), shape).reshape(view.shape)

    def term(self, t: Term, at: Mapping[int, Grid]) -> Grid:
        """The value of a term where its indices have the values `at`."""
        special = WHOLE_INTEGERS.get(self.store.classes[t.cls].op)
        if special is not None:
            value = special(self.expression(t.access[0], at))
        else:
            value = self._read(t.cls, t.access, at)
        return value if t.coef == 1 else float(t.coef) * value

    def expression(self, e: Expr, at: Mapping[int, Grid]) -> Grid:
        """The value of an access expression."""
        total: Grid = np.int64(e[0])
        for t, stride in e[1]:
            total = total + stride * (self._index(t, at) if t > 0 else self._atom(t, at))
        return total

    def _index(self, i: int, at: Mapping[int, Grid]) -> Grid:
        if i not in at:
            raise EvaluationError(f"index {i} has no value")
        return at[i]

    def _atom(self, t: int, at: Mapping[int, Grid]) -> Grid:
        atom = self.store.atom(t)
        if isinstance(atom, Digit):
            return (self.expression(atom.expr, at) // atom.div) % atom.mod
        return self._read(atom.cls, atom.access, at)

    def _read(self, cls: int, access: Sequence[Expr], at: Mapping[int, Grid]) -> Grid:
        table = self.table(cls)
        places = [self.expression(e, at) for e in access]
        for place, extent in zip(places, table.shape, strict=True):
            if np.min(place) < 0 or np.max(place) >= extent:
                op = self.store.classes[cls].op
                raise EvaluationError(f"{op} class {cls} of extent {extent} is read out of range")
        return table[tuple(places)]

    def table(self, cls: int) -> Grid:
        """The class over the whole extents of its slots."""
        found = self._tables.get(cls)
        if found is None:
            c = self.store.classes[cls]
            with np.errstate(all="ignore"):
                value = self._compute(c)
            found = self._tables[cls] = np.broadcast_to(value, [n or 0 for n in c.extents])
        return found

    def _axes(self, indices: Sequence[int]) -> dict[int, Grid]:
        count = len(indices)
        return {
            i: np.arange(self.store.sizes[i]).reshape([-1 if n == k else 1 for n in range(count)])
            for k, i in enumerate(indices)
        }

    def _compute(self, c: Class) -> Grid:
        if c.op == "concat":
            return self._concat(c)
        if c.op == "opaque":
            return self._opaque(c)
        if not c.operands:
            return self._leaf(c)
        free = [self.store.sizes[i] for i in c.free]
        bound = [self.store.sizes[i] for i in c.bound]
        at = self._axes([*c.free, *c.bound])
        values = [self.term(t, at) for t in c.operands]
        if bound:
            whole = np.broadcast_to(values[0], [*free, *bound])
            reduced = REDUCTIONS[c.op](whole, tuple(range(len(free), whole.ndim)))
            return _repeated(c, [reduced]) if c.attrs else reduced
        function = POINTWISE.get(c.op)
        if function is not None:
            return function(c, values)
        raise EvaluationError(f"class operator {c.op} is not known")

    def _leaf(self, c: Class) -> Grid:
        extents = [n or 0 for n in c.extents]
        if c.op in CONSTANTS:
            return CONSTANTS[c.op]
        if c.op == "literal":
            return np.asarray(complex(c.attrs[0]) if c.kind == "complex" else float(c.attrs[0]))
        if c.op == "table":
            shape, dtype, content = c.attrs
            return np.frombuffer(content, dtype).reshape(shape)
        if c.op == "input":
            if c.attrs[0] not in self.inputs:
                raise EvaluationError(f"input {c.attrs[0]} has no value")
            return np.asarray(self.inputs[c.attrs[0]]).astype(STORAGE[c.kind]).reshape(extents)
        if c.op == "draw":
            return _pseudo(repr(c.attrs), extents, c.kind)
        raise EvaluationError(f"class operator {c.op} is not known")

    def _concat(self, c: Class) -> Grid:
        outer, pieces, first = c.free[:-1], [], 0
        for t, extent, count in zip(c.operands, c.attrs, c.groups, strict=True):
            own = c.bound[first : first + count]
            first += count
            shape = [self.store.sizes[i] for i in (*outer, *own)]
            value = np.broadcast_to(self.term(t, self._axes([*outer, *own])), shape)
            pieces.append(value.reshape([*shape[: len(outer)], extent]))
        return np.concatenate(pieces, axis=-1)

    def _opaque(self, c: Class) -> Grid:
        """Every operand as (free slots, *bound dims), the result as (free slots, *output dims)."""
        name, number, result, operands = c.attrs
        count = len(c.free) - c.out
        outer, groups, first, place = c.free[:count], list(c.groups), 0, 0
        arrays = []
        for t, (_, dims) in zip(c.operands, operands, strict=True):
            own = c.bound[first : first + sum(groups[place : place + len(dims)])]
            first, place = first + len(own), place + len(dims)
            shape = [self.store.sizes[i] for i in (*outer, *own)]
            value = np.broadcast_to(self.term(t, self._axes([*outer, *own])), shape)
            arrays.append(value.reshape([*shape[:count], *dims]))
        dims = result[1]
        known = _known(name, number, [x.reshape(-1, *d) for x, (_, d) in zip(arrays, operands, strict=True)])
        if known is None:
            known = _pseudo_function((name, number, result, operands), arrays, count, prod(dims), c.kind)
        return known.reshape([n or 0 for n in c.extents])


STORAGE: Final[Mapping[str, Any]] = {
    "real": np.float64,
    "int": np.int64,
    "uint": np.int64,
    "bool": np.bool_,
    "complex": np.complex128,
}

CONSTANTS: Final[Mapping[str, Grid]] = {
    "one": np.float64(1),
    "true": np.bool_(True),
    "false": np.bool_(False),
}

WHOLE_INTEGERS: Final[Mapping[str, Callable[[Grid], Grid]]] = {
    "position": lambda e: e,
    "step": lambda e: e >= 0,
    "match": lambda e: e == 0,
    "real": lambda e: np.asarray(e, np.float64),
}

REDUCTIONS: Final[Mapping[str, Callable[[Grid, tuple[int, ...]], Grid]]] = {
    "sum": lambda x, axes: np.sum(x, axis=axes),
    "prod": lambda x, axes: np.prod(x, axis=axes),
    "max": lambda x, axes: np.max(x, axis=axes),
    "min": lambda x, axes: np.min(x, axis=axes),
    "all": lambda x, axes: np.all(x, axis=axes),
    "and": lambda x, axes: np.bitwise_and.reduce(x, axis=axes),
    "or": lambda x, axes: np.bitwise_or.reduce(x, axis=axes),
}


def _table_function(opcode: str, x: Sequence[Grid], source: DType, result: DType, **attrs: Any) -> Grid:
    """An operator of the table on whole arrays."""
    if source.kind != "complex" and any(map(np.iscomplexobj, x)):
        raise EvaluationError(f"{opcode} of complex numbers is not known")
    shape = np.broadcast_shapes(*(np.shape(v) for v in x))
    storage = STORAGE[source.kind] if source.kind in ("real", "complex") else source.storage
    arrays = [np.broadcast_to(v, shape).astype(storage) for v in x]
    operands = tuple(Value(f"x{k}", TensorType(source, shape)) for k in range(len(x)))
    op = Op(opcode, operands, (Value("y", TensorType(result, shape)),), attrs)
    meaning = TABLE[opcode].numpy
    if meaning is None:
        raise EvaluationError(f"{opcode} has no numpy meaning")
    kind = "int" if result.kind == "uint" else result.kind
    return meaning(op, arrays)[0].astype(STORAGE[kind])


_RESULTS: Final[Mapping[str, DType]] = {"bool": DType.BOOL, "complex": DType.C128}


def _source(x: Sequence[Grid]) -> DType:
    return DType.C128 if any(map(np.iscomplexobj, x)) else DType.F64


def _function(c: Class, x: Sequence[Grid]) -> Grid:
    opcode, *rest = c.attrs
    types = [DType(r) for r in rest if isinstance(r, str)]
    source, result = types or (_source(x), _RESULTS.get(c.kind, DType.F64))
    return _table_function(opcode, x, source, result, **dict(r for r in rest if isinstance(r, tuple)))


def _real_function(c: Class, x: Sequence[Grid]) -> Grid:
    return _table_function(c.op, x, _source(x), _RESULTS.get(c.kind, DType.F64))


def _compare(c: Class, x: Sequence[Grid]) -> Grid:
    total = c.op == "compare_total"
    return _table_function("compare", x, _source(x), DType.BOOL, direction=c.attrs[0], total=total)


def _modular(c: Class, x: Sequence[Grid]) -> Grid:
    bits, signed = c.attrs
    if bits == 64:
        return x[0]
    low = -(1 << bits - 1) if signed else 0
    return (x[0] - low) % (1 << bits) + low


def _truncated(c: Class, x: Sequence[Grid]) -> Grid:
    """Integer quotient or remainder: by 0 they are -1 and the dividend; a real quotient has no attribute."""
    a, b = x
    if c.attrs != ("truncate",):
        return a / b
    divisor = np.where(b == 0, 1, b)
    q = np.where(b == 0, -1, np.sign(a) * np.sign(divisor) * (np.abs(a) // np.abs(divisor)))
    return q if c.op == "divide" else np.where(b == 0, a, a - q * divisor)


def _repeated(c: Class, x: Sequence[Grid]) -> Grid:
    """An integer product whose factors are repeated."""
    return x[0] ** c.attrs[1]


POINTWISE: Final[Mapping[str, Callable[[Class, Sequence[Grid]], Grid]]] = {
    "add": lambda c, x: fold(np.add, x),
    "multiply": lambda c, x: fold(np.multiply, x),
    "maximum": lambda c, x: fold(np.maximum, x),
    "minimum": lambda c, x: fold(np.minimum, x),
    "power": lambda c, x: np.power(np.asarray(x[0], _source(x).storage), float(c.attrs[0])),
    "power_of": lambda c, x: np.power(x[0], x[1]),
    "absolute": lambda c, x: np.abs(x[0]),
    "select": lambda c, x: np.where(*x),
    "indicator": lambda c, x: np.asarray(x[0], np.float64),
    "truth": lambda c, x: np.asarray(x[0], np.int64),
    "not": lambda c, x: np.logical_not(x[0]),
    "and": lambda c, x: fold(np.logical_and, x),
    "xor": lambda c, x: np.logical_xor(*x),
    "compare": _compare,
    "compare_total": _compare,
    "divide": _truncated,
    "remainder": _truncated,
    "modular": _modular,
    "prod": _repeated,
    "function": _function,
    **dict.fromkeys(
        ("exponential", "logistic", "tanh", "tan", "sine", "cosine", "erf", "sign", "floor", "ceil"),
        _real_function,
    ),
    **dict.fromkeys(("round_even", "round_away", "cbrt"), _real_function),
}


def _known(name: str, number: int, x: list[Grid]) -> Grid | None:
    """Functions of slices (leading axis) whose meaning the interpreter knows: sort, top_k, argmax, argmin."""
    opcode, *words = name.split()
    if opcode in ("argmax", "argmin"):
        return (np.argmax if opcode == "argmax" else np.argmin)(x[0], axis=1)
    if opcode == "top_k":
        order = np.argsort(-x[0], axis=1, kind="stable")[:, : int(words[0])]
        return order if number else np.take_along_axis(x[0], order, 1)
    direction, _, key = words[0].partition(":") if opcode == "sort" else ("", "", "")
    if direction not in ("lt", "gt"):
        return None
    keys = x[int(key)].astype(np.float64)
    order = np.argsort(keys if direction == "lt" else -keys, axis=1, kind="stable")
    return np.take_along_axis(x[number], order, 1)


def _pseudo_function(key: object, x: Sequence[Grid], free: int, size: int, kind: str) -> Grid:
    """A fixed function of the slices: a weighted sum, other weights for every element of the result."""
    draw = np.random.default_rng(crc32(repr(key).encode()))
    shape = x[0].shape[:free] if x else ()
    total: Grid = np.zeros((*shape, size))
    for array in x:
        parts = np.stack([array.real, array.imag], -1) if np.iscomplexobj(array) else array
        flat = parts.reshape(*array.shape[:free], -1).astype(np.float64)
        total = total + flat @ draw.integers(1, 97, (flat.shape[-1], size))
    return _of_kind(total + draw.integers(0, 97, size), kind)


def _pseudo(key: str, extents: Sequence[int], kind: str) -> Grid:
    draw = np.random.default_rng(crc32(key.encode()))
    return _of_kind(draw.integers(-4096, 4096, extents), kind)


def _of_kind(x: Grid, kind: str) -> Grid:
    if kind == "bool":
        return x % 2 < 1
    return np.floor(x % 7).astype(np.int64) if kind == "int" else x / 64.0

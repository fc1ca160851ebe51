"""Contractions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value

_LARGEST_DET: Final = 6


def _matmul(s: Lowering, n: Node) -> Value:
    return matmul(s, n.operand(0), n.operand(1))


def matmul(s: Lowering, x: Value, y: Value) -> Value:
    """NumPy's `matmul`: batch dims are broadcast, a vector is a row on the left and a column on the right."""
    if not x.type.shape or not y.type.shape:
        s.fail("multiplies a scalar as a matrix")
    left = x if len(x.type.shape) > 1 else s.reshape(x, (1, *x.type.shape))
    right = y if len(y.type.shape) > 1 else s.reshape(y, (*y.type.shape, 1))
    (*a, rows, inner), (*b, inner_too, columns) = left.type.shape, right.type.shape
    if inner != inner_too:
        s.fail(f"multiplies {x.type} and {y.type}")
    if b:
        count = max(len(a), len(b))
        a, b = [1] * (count - len(a)) + a, [1] * (count - len(b)) + b
        batch = [m if k == 1 else k for k, m in zip(a, b, strict=True)]
        left, right = s.spread(left, (*batch, rows, inner)), s.spread(right, (*batch, inner, columns))
        every = tuple(range(count))
        found = s.dot(left, right, (count + 1, count), (every, every))
    else:
        batch = a
        found = s.dot(left, right, (len(a) + 1, 0), ((), ()))
    kept = [*batch, *([rows] if len(x.type.shape) > 1 else []), *([columns] if len(y.type.shape) > 1 else [])]
    return s.reshape(found, kept)


def _gemm(s: Lowering, n: Node) -> Value:
    x, y = n.operand(0), n.operand(1)
    x = s.transpose(x, (1, 0)) if n.attrs["transA"] else x
    y = s.transpose(y, (1, 0)) if n.attrs["transB"] else y
    found = _times(s, s.dot(x, y, (1, 0), ((), ())), n.attrs["alpha"])
    bias, beta = n.given(2), n.attrs["beta"]
    if bias is None or beta == 0:
        return found
    return s.emit("add", found, s.spread(_times(s, bias, beta), found.type.shape))


def _times(s: Lowering, x: Value, factor: float) -> Value:
    if x.type.dtype.kind != "real" and factor != int(factor):
        s.fail(f"multiplies {x.type} by {factor}, whose rounding is not specified")
    return x if factor == 1 else s.pair("multiply", x, factor)


def _det(s: Lowering, n: Node) -> Value:
    """By expansion along the rows, each minor of the last rows made once."""
    x = n.operand(0)
    *batch, rows, size = x.type.shape if len(x.type.shape) > 1 else (0, 1)
    if rows != size or not 1 <= size <= _LARGEST_DET:
        s.fail(f"has the determinant of {x.type}, square matrices of at most {_LARGEST_DET} rows are read")
    last = len(batch)

    def element(row: int, column: int) -> Value:
        line = s.slice(x, last, row, row + 1)
        return s.reshape(s.slice(line, last + 1, column, column + 1), batch)

    minors: dict[tuple[int, ...], Value] = {(c,): element(size - 1, c) for c in range(size)}
    for row in reversed(range(size - 1)):
        larger = {}
        for columns in combinations(range(size), size - row):
            left = [columns[:k] + columns[k + 1 :] for k in range(len(columns))]
            larger[columns] = _expanded(
                s, [(element(row, c), minors[rest]) for c, rest in zip(columns, left, strict=True)]
            )
        minors = larger
    return minors[tuple(range(size))]


def _expanded(s: Lowering, products: Sequence[tuple[Value, Value]]) -> Value:
    """The products added and subtracted in turn."""
    found = s.emit("multiply", *products[0])
    for k, pair in enumerate(products[1:]):
        found = s.emit("add" if k % 2 else "subtract", found, s.emit("multiply", *pair))
    return found


RULES: Final[Mapping[str, Rule]] = {
    "Det": _det,
    "Gemm": _gemm,
    "MatMul": _matmul,
}

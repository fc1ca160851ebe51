"""Contractions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value


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
    found = s.dot(x, y, (1, 0), ((), ()))
    if n.attrs["alpha"] != 1:
        found = s.pair("multiply", found, n.attrs["alpha"])
    bias, beta = n.given(2), n.attrs["beta"]
    if bias is None or beta == 0:
        return found
    return s.pair("add", found, bias if beta == 1 else s.pair("multiply", bias, beta))


RULES: Final[Mapping[str, Rule]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
}

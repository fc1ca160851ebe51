"""Values of symbolic sizes: an expression such as `2*s0 + 1` by the values of its symbols."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

_BINARY: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., int]]] = {
    "Max": max,
    "Min": min,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
}


def size_of(expression: str, values: Mapping[str, int]) -> int | None:
    """The value of a size; None when a symbol has none, or for another operation than arithmetic."""
    known = values.get(expression)
    if known is not None:
        return known
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, values)
    except (ArithmeticError, KeyError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return None


def _value(node: ast.expr, values: Mapping[str, int]) -> int:
    """Raises KeyError for what has no value."""
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, values)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _FUNCTIONS[name](*(_value(a, values) for a in args))
    raise KeyError(type(node).__name__)


def symbols(expression: str) -> frozenset[str]:
    """The symbols that an expression has."""
    try:
        tree: Any = ast.parse(expression.strip(), mode="eval")
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        return frozenset()
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n not in called)

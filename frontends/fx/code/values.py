"""Arguments of operator calls, out of the syntax tree of a dump; nothing is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final

from shardproof.frontends.fx.code.meta import TORCH_DTYPES, TORCH_WORDS, shown
from shardproof.frontends.fx.graph import Argument, Operator, Ref
from shardproof.ir.module import ModuleError

Names = Callable[[str], Ref | None]
"""The live value of a name, None when the name was never defined; raises when it was deleted."""

MAX_DEPTH: Final = 16
_FLOATS: Final = {"inf": float("inf"), "nan": float("nan")}
_IMAGINARY: Final = {"infj": complex(0, float("inf")), "nanj": complex(0, float("nan"))}
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1


def argument(node: ast.expr, names: Names, depth: int = 0) -> Argument:
    """The argument that `node` writes: a literal, a name in scope, a list of those, a torch constant."""
    if isinstance(node, ast.Name):
        return _name(node.id, names)
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if depth > MAX_DEPTH:
        raise ModuleError(f"an argument nested more than {MAX_DEPTH} deep")
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(argument(element, names, depth + 1) for element in node.elts)
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        return number(node)
    if isinstance(node, ast.Attribute):
        return _attribute(node)
    if isinstance(node, ast.Call):
        return _call(node, names, depth)
    raise ModuleError(f"{found(node)}, which is not an argument of an operator")


def _name(name: str, names: Names) -> Argument:
    ref = names(name)
    if ref is not None:
        return ref
    if name in _FLOATS:
        return _FLOATS[name]
    raise ModuleError(f"the name {shown(name)}, which nothing before defines")


def _constant(value: object) -> Argument:
    if value is None or isinstance(value, bool | float | complex | str):
        return value
    if isinstance(value, int):
        if not _LOWEST <= value <= _HIGHEST:
            raise ModuleError("an integer that 64 bits don't hold")
        return value
    raise ModuleError(f"a literal of type {type(value).__name__}, numbers, strings, bools and None are read")


def number(node: ast.expr, depth: int = 0) -> int | float | complex:
    """A signed number, or a complex one written as a sum of its parts."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | complex):
        if isinstance(node.value, bool):
            raise ModuleError("arithmetic on a bool")
        value = _constant(node.value)
        assert isinstance(value, int | float | complex)
        return value
    if isinstance(node, ast.Name) and node.id in _FLOATS:
        return _FLOATS[node.id]
    if isinstance(node, ast.Name) and node.id in _IMAGINARY:
        return _IMAGINARY[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd) and depth < 2:
        value = number(node.operand, depth + 1)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and depth == 0:
        real, imaginary = number(node.left, depth + 1), number(node.right, depth + 1)
        if not isinstance(real, complex) and isinstance(imaginary, complex):
            sign = -1.0 if isinstance(node.op, ast.Sub) else 1.0
            return complex(float(real), sign * imaginary.imag)
    raise ModuleError(f"{found(node)} inside an argument, where only literals and names are read")


def dotted(node: ast.expr) -> tuple[str, ...] | None:
    """The parts of `a.b.c`; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or len(parts) > 64:
        return None
    return (node.id, *reversed(parts))


def operator_name(path: tuple[str, ...] | None) -> str | None:
    """`aten.add.Tensor` for the parts of `torch.ops.aten.add.Tensor`; None for anything else."""
    if path is None or path[:2] != ("torch", "ops") or not 4 <= len(path) <= 5:
        return None
    return ".".join(path[2:])


def attribute_path(node: ast.expr) -> str | None:
    """`layers.0.weight` for `getattr(self.layers, "0").weight`; None for what isn't an attribute of self."""
    parts: list[str] = []
    while len(parts) <= 64:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif _is_getattr(node):
            assert isinstance(node, ast.Call) and isinstance(node.args[1], ast.Constant)
            parts.append(str(node.args[1].value))
            node = node.args[0]
        else:
            is_self = isinstance(node, ast.Name) and node.id == "self" and bool(parts)
            return ".".join(reversed(parts)) if is_self else None
    return None


def _is_getattr(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) == 2
        and not node.keywords
        and isinstance(node.args[1], ast.Constant)
        and isinstance(node.args[1].value, str)
    )


def _attribute(node: ast.Attribute) -> Argument:
    path = dotted(node)
    name = operator_name(path)
    if name is not None:
        return Operator(name)
    if path is not None and len(path) == 2 and path[0] == "torch":
        if path[1] in TORCH_DTYPES:
            return TORCH_DTYPES[path[1]]
        if path[1] in TORCH_WORDS:
            return path[1]
        if path[1] in _FLOATS:
            return _FLOATS[path[1]]
    raise ModuleError(f"{found(node)}, which is not an element type, layout, memory format or operator")


def _call(node: ast.Call, names: Names, depth: int) -> Argument:
    path = dotted(node.func)
    if path in (("device",), ("torch", "device")):
        return _device(node)
    if path == ("slice",) and len(node.args) in (1, 2, 3) and not node.keywords:
        return slice(*(argument(bound, names, depth + 1) for bound in node.args))
    if path == ("torch", "Size") and len(node.args) == 1 and not node.keywords:
        size = argument(node.args[0], names, depth + 1)
        if isinstance(size, tuple):
            return size
    raise ModuleError(f"{found(node)} inside an argument, where nothing is called but device and slice")


def _device(node: ast.Call) -> str:
    parts = {word.arg: word.value for word in node.keywords}
    parts.update(zip(("type", "index"), node.args, strict=False))
    values = {key: part.value for key, part in parts.items() if isinstance(part, ast.Constant)}
    kind, index = values.get("type"), values.get("index")
    if (
        len(values) != len(node.args) + len(node.keywords)
        or not isinstance(kind, str)
        or not (index is None or type(index) is int)
        or not values.keys() <= {"type", "index"}
    ):
        raise ModuleError(f"{found(node)}, a device with a type and an index is needed")
    return kind if index is None else f"{kind}:{index}"


def found(node: ast.AST) -> str:
    """What `node` is, in words for a message."""
    if isinstance(node, ast.Call):
        path = dotted(node.func)
        return f"a call of {shown('.'.join(path))}" if path is not None else "a call of a computed function"
    if isinstance(node, ast.Attribute):
        path = dotted(node)
        return f"the attribute {shown('.'.join(path))}" if path is not None else "an attribute of a value"
    if isinstance(node, ast.Name):
        return f"the name {shown(node.id)}"
    name = type(node).__name__
    word = _WORDS.get(name, name)
    return f"{'an' if word[0] in 'AEIOUaeiou' else 'a'} {word}"


_WORDS: Final = {
    "BinOp": "operation",
    "UnaryOp": "sign",
    "Compare": "comparison",
    "FunctionDef": "function",
    "ClassDef": "class",
    "Import": "import",
    "ImportFrom": "import",
    "Expr": "expression without a name",
    "AugAssign": "in-place operation",
    "Dict": "dict",
    "JoinedStr": "formatted string",
    "ListComp": "comprehension",
    "Constant": "literal",
    "Lambda": "lambda",
    "IfExp": "choice",
    "If": "branch",
    "For": "loop",
    "While": "loop",
}

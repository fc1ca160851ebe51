"""Statements of a dump's `forward`, one logical line at a time, into nodes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardproof.frontends.fx.code.meta import meta_of, shown
from shardproof.frontends.fx.code.scope import Names
from shardproof.frontends.fx.code.values import argument, attribute_path, dotted, found, operator_name
from shardproof.frontends.fx.graph import Argument, Meta, Node, NodeKind, Ref, references
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Location

_BINARY: Final[dict[type[ast.AST], str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Div: "truediv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.MatMult: "matmul",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.Gt: "gt",
    ast.LtE: "le",
    ast.GtE: "ge",
}
_UNARY: Final[dict[type[ast.AST], str]] = {ast.UAdd: "pos", ast.USub: "neg", ast.Invert: "invert"}
OPERATOR_FUNCTIONS: Final = frozenset({*_BINARY.values(), *_UNARY.values(), "getitem"})
SYMBOLIC_FUNCTIONS: Final = frozenset(
    ("sym_max", "sym_min", "sym_int", "sym_float", "sym_not", "sym_ite", "sym_sum")
)
MATH_FUNCTIONS: Final = frozenset(("ceil", "floor", "trunc", "sqrt"))
_UNFLATTEN: Final = (("pytree", "tree_unflatten"), ("torch", "utils", "_pytree", "tree_unflatten"))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of `forward` that only makes nodes, from number `start` of the graph on, and deletes names.

    Another line that makes nodes of the same names and deletes the same can stand for it.
    """

    start: int
    nodes: tuple[Node, ...]
    deleted: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the line defines, in order."""
        return tuple(node.name for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Flattened:
    """`a, b, = fx_pytree.tree_flatten_spec(...)`: the real parameters, in order."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Declared:
    """`name: "f32[2]"` without a value: the annotation of a parameter."""

    name: str
    meta: Meta


@dataclass(frozen=True, slots=True)
class Returned:
    """`return ...`: the nested result."""

    value: Argument


def parse(text: str) -> list[ast.stmt]:
    """The statements of one logical line. Raises `ModuleError` when it isn't Python."""
    try:
        return ast.parse(text).body
    except SyntaxError as error:
        reason = (error.msg or "syntax error").partition(" (")[0].lower()
        raise ModuleError(f"a line that isn't Python ({reason})") from None
    except (RecursionError, MemoryError):
        raise ModuleError("an expression nested too deeply") from None
    except (ValueError, OverflowError):
        raise ModuleError("a line that isn't Python") from None


def statement(
    node: ast.stmt, scope: Names, location: Location | None, metas: dict[str, Meta]
) -> Node | Flattened | Declared | Returned | tuple[str, ...] | None:
    """What one statement does: a node, a change of the parameters, the result, or names deleted.

    A new name is defined in `scope`; deletions are left to the caller, at the end of the line. `metas`
    remembers annotations by their text. Raises `ModuleError` saying what was found.
    """
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        meta = annotation(node.annotation, metas)
        if node.value is None:
            return Declared(node.target.id, meta)
        return _definition(node.target.id, node.value, meta, scope, location)
    if isinstance(node, ast.Assign):
        return _assignment(node, scope, location)
    if isinstance(node, ast.Return):
        return Returned(_result(node.value, scope))
    if isinstance(node, ast.Delete):
        return _names(node.targets)
    if isinstance(node, ast.Pass):
        return None
    raise ModuleError(f"{found(node)}, where only calls of operators are read")


def annotation(node: ast.expr, metas: dict[str, Meta]) -> Meta:
    """What the annotation of a name says; the name of a class (`torch.Tensor`) says nothing."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif dotted(node) is not None:
        return None
    elif isinstance(node, ast.Subscript):
        text = _unquoted(node)
    else:
        raise ModuleError(f"{found(node)} as an annotation")
    if text not in metas:
        metas[text] = meta_of(text)
    return metas[text]


def _unquoted(node: ast.Subscript) -> str:
    sizes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    texts = [
        str(size.value) if isinstance(size, ast.Constant) else size.id
        for size in sizes
        if isinstance(size, ast.Constant | ast.Name)
    ]
    if not isinstance(node.value, ast.Name) or len(texts) != len(sizes):
        raise ModuleError(f"{found(node)} as an annotation")
    return f"{node.value.id}[{', '.join(texts)}]"


def _names(targets: Sequence[ast.expr]) -> tuple[str, ...]:
    names = tuple(target.id for target in targets if isinstance(target, ast.Name))
    if len(names) != len(targets):
        raise ModuleError("an assignment to something that isn't a name")
    return names


def _assignment(
    node: ast.Assign, scope: Names, location: Location | None
) -> Node | Flattened | tuple[str, ...] | None:
    if isinstance(node.value, ast.Constant) and node.value.value is None:
        return _names(node.targets)
    if len(node.targets) != 1:
        raise ModuleError("one value assigned to several names")
    target = node.targets[0]
    if isinstance(target, ast.Tuple):
        return Flattened(_flattened(target, node.value))
    if not isinstance(target, ast.Name):
        raise ModuleError("an assignment to something that isn't a name")
    return _definition(target.id, node.value, None, scope, location)


def _flattened(target: ast.Tuple, value: ast.expr) -> tuple[str, ...]:
    if not isinstance(value, ast.Call) or dotted(value.func) != ("fx_pytree", "tree_flatten_spec"):
        raise ModuleError(f"{found(value)} unpacked, where only the parameters are")
    if len(value.args) != 2 or value.keywords or attribute_path(value.args[1]) != "_in_spec":
        raise ModuleError("a call of 'fx_pytree.tree_flatten_spec' with other arguments than a dump writes")
    pending, seen = [value.args[0]], 0
    while pending:
        part = pending.pop()
        seen += 1
        if isinstance(part, ast.List | ast.Tuple):
            pending.extend(part.elts)
        elif isinstance(part, ast.Dict):
            pending.extend(part.values)
        elif not isinstance(part, ast.Name):
            raise ModuleError(f"{found(part)} among the parameters")
    return _names(target.elts)


def _definition(
    name: str, value: ast.expr, meta: Meta, scope: Names, location: Location | None
) -> Node | None:
    """The node that `value` makes; None for a second name of a value."""
    if isinstance(value, ast.Name):
        meaning = scope.use(value.id)
        if meaning is None:
            raise ModuleError(f"the name {shown(value.id)}, which nothing before defines")
        scope.define(name, meaning)
        return None
    op: NodeKind = "call_function"
    attribute = attribute_path(value)
    kwargs: dict[str, Argument] = {}
    args: tuple[Argument, ...] = ()
    if attribute is not None:
        op, target = "get_attr", attribute
    elif isinstance(value, ast.Call):
        target = _callee(value)
        args = tuple(argument(part, scope.use) for part in value.args)
        for word in value.keywords:
            if word.arg is None or word.arg in kwargs:
                raise ModuleError("an argument written with **, or twice")
            kwargs[word.arg] = argument(word.value, scope.use)
    else:
        target, args = _operation(value, scope)
    scope.define(name)
    return Node(name, op, target, args, kwargs, meta, location)


def _callee(call: ast.Call) -> str:
    path = dotted(call.func)
    name = operator_name(path)
    if name is not None:
        return name
    if path is not None and len(path) == 2:
        module, function = path
        if module in ("operator", "_operator") and function in OPERATOR_FUNCTIONS:
            return function
        if module == "torch" and function in SYMBOLIC_FUNCTIONS:
            return function
        if module == "math" and function in MATH_FUNCTIONS:
            return f"math.{function}"
    raise ModuleError(
        f"{found(call)}, which is no operator torch.ops.*: dump the graph that AOT autograd or export made"
    )


def _operation(node: ast.expr, scope: Names) -> tuple[str, tuple[Argument, ...]]:
    if isinstance(node, ast.Subscript):
        target, parts = "getitem", [node.value, node.slice]
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        target, parts = _BINARY[type(node.op)], [node.left, node.right]
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BINARY:
        target, parts = _BINARY[type(node.ops[0])], [node.left, node.comparators[0]]
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        target, parts = _UNARY[type(node.op)], [node.operand]
    else:
        raise ModuleError(f"{found(node)}, where only calls of operators are read")
    args = tuple(argument(part, scope.use) for part in parts)
    if not any(True for _ in references(args)):
        raise ModuleError(f"{found(node)} on literals only")
    if target == "getitem" and not isinstance(args[0], Ref):
        raise ModuleError("an item of something that isn't a value")
    return target, args


def _result(node: ast.expr | None, scope: Names) -> Argument:
    if isinstance(node, ast.Call):
        if dotted(node.func) not in _UNFLATTEN:
            raise ModuleError(f"{found(node)} returned, a list of values is needed")
        if len(node.args) != 2 or node.keywords or attribute_path(node.args[1]) != "_out_spec":
            raise ModuleError("a call of 'pytree.tree_unflatten' with other arguments than a dump writes")
        node = node.args[0]
    return None if node is None else argument(node, scope.use)

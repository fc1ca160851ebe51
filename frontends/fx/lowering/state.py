"""What lowering a graph builds up, and the few ways in which rules emit operators of the IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from shardproof.frontends.fx.graph import Node, Symbol, Tensor
from shardproof.frontends.fx.lowering.dtypes import combine, of_number, promote
from shardproof.frontends.fx.lowering.sizes import size_of, symbols
from shardproof.ir.build import Builder, Number
from shardproof.ir.module import Guess, ModuleError, Value
from shardproof.ir.types import DType, TensorType

Groups = tuple[tuple[int, ...], ...]
"""Disjoint lists of ranks, each in its group's order."""
Arguments = Mapping[str, Any]
"""The arguments of a call by parameter name, references resolved."""

_KEEPS: Final = frozenset(
    {"reshape", "broadcast_in_dim", "transpose", "slice", "convert", "all_gather", "concatenate", "reverse"}
)
"""Operators that only repeat, drop or rename elements that are all equal."""
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "EQ": lambda x, y: bool(x == y),
    "NE": lambda x, y: bool(x != y),
    "LT": lambda x, y: bool(x < y),
    "LE": lambda x, y: bool(x <= y),
    "GT": lambda x, y: bool(x > y),
    "GE": lambda x, y: bool(x >= y),
}


@dataclass(frozen=True, slots=True)
class Pending:
    """The result of a collective that was not waited for."""

    value: Value
    name: str


Rule = Callable[["Lowering", Arguments], Any]
"""Gives what a node stands for: a Value, a Pending, a number, None or a tuple of those."""


class Lowering(Builder):
    """The state of lowering one graph. `node` is the node being lowered."""

    def __init__(
        self,
        ranks: int,
        groups: Mapping[str, Groups],
        shared: frozenset[str],
        sizes: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.ranks = ranks
        self.groups = groups
        self.shared = shared
        self.sizes = dict(sizes)
        self.told = frozenset(sizes)
        self.guesses: dict[Guess, None] = {}
        self.warnings: dict[str, None] = {}
        self.node: Node = Node("", "output", "output")
        self.declared: Mapping[int, Tensor] = {}
        self.parts: Mapping[int, str] = {}
        self.lines: dict[Value, int] = {}
        self.splats: dict[Value, Any] = {}
        self.raw: set[Value] = set()

    def start(self, node: Node, parts: Mapping[int, str], declared: Mapping[int, Tensor]) -> None:
        """Lower `node` next; `parts` names the nodes that take its results, `declared` are their types."""
        self.node, self.parts, self.declared = node, parts, declared
        self.begin(node.name, node.location)

    def fail(self, text: str) -> NoReturn:
        """Refuse the node."""
        place = f" at {self.node.location}" if self.node.location is not None else ""
        raise ModuleError(f"`{self.node.name}` ({self.node.target}{place}): {text}")

    def guess(self, kind: str, text: str, value: str | None = None) -> None:
        """List a guess about the node, or about the `value` named."""
        self.guesses.setdefault(Guess(kind, text, self.node.name if value is None else value))

    def warn(self, text: str) -> None:
        self.warnings.setdefault(f"`{self.node.name}` ({self.node.target}) {text}")

    # operators

    def rename(self, names: Mapping[Value, str]) -> dict[Value, Value]:
        fresh = super().rename(names)
        for old, new in fresh.items():
            if old in self.splats:
                self.splats[new] = self.splats[old]
            if old in self.lines:
                self.lines[new] = self.lines[old]
            if old in self.raw:
                self.raw.add(new)
        return fresh

    def emit_many(
        self, opcode: str, operands: Sequence[Value], types: Sequence[TensorType], **attrs: Any
    ) -> tuple[Value, ...]:
        values = super().emit_many(opcode, operands, types, **attrs)
        self._follow(opcode, operands, values[0], attrs)
        return values

    def _follow(
        self, opcode: str, operands: Sequence[Value], result: Value, attrs: Mapping[str, Any]
    ) -> None:
        """Keep what is known of integers: all elements equal (`splats`), or counting along a dim (`lines`);
        and which values are uninitialised memory (`raw`)."""
        if operands and operands[0] in self.raw and opcode in _KEEPS:
            self.raw.add(result)
        if result.type.dtype.kind not in ("bool", "int"):
            return
        if opcode == "constant" and not result.type.shape:
            self.splats[result] = attrs["value"][()]
        elif opcode in _KEEPS and all(v in self.splats for v in operands):
            values = [self.splats[v] for v in operands]
            if all(v == values[0] for v in values):
                self.splats[result] = result.type.dtype.storage.type(values[0])
        elif opcode == "compare" and all(v in self.splats for v in operands):
            self.splats[result] = _COMPARE[attrs["direction"]](*(self.splats[v] for v in operands))
        elif opcode == "iota":
            self.lines[result] = attrs["dim"]
        elif operands and operands[0] in self.lines:
            self._follow_line(opcode, operands[0], result, attrs)

    def _follow_line(self, opcode: str, x: Value, result: Value, attrs: Mapping[str, Any]) -> None:
        dim, dtype = self.lines[x], result.type.dtype
        if opcode == "convert":
            if dtype.kind == "int" and x.type.shape[dim] < 1 << (dtype.bits - 1):
                self.lines[result] = dim
        elif opcode == "broadcast_in_dim" and result.type.shape[attrs["dims"][dim]] == x.type.shape[dim]:
            self.lines[result] = attrs["dims"][dim]
        elif opcode == "transpose":
            self.lines[result] = attrs["permutation"].index(dim)
        elif opcode == "reshape":
            size = x.type.shape[dim]
            if x.type.size == size and size > 1 and size in result.type.shape:
                self.lines[result] = result.type.shape.index(size)

    # element types and dims

    def result_type(self, *operands: Value | Number) -> DType:
        """The element type of an operator on tensors and Python numbers (`torch.result_type`)."""
        kinds: list[DType | None] = [None, None, None]
        for x in operands:
            if isinstance(x, Value):
                level, dtype = (1 if not x.type.shape else 0), x.type.dtype
            else:
                level, dtype = 2, of_number(x)
            known = kinds[level]
            try:
                kinds[level] = dtype if known is None else promote(known, dtype)
            except ModuleError as error:
                self.fail(str(error))
        found = combine(kinds[0], combine(kinds[1], kinds[2]))
        assert found is not None
        return found

    def floating(self, dtype: DType) -> DType:
        """The type of a real function of `dtype`: integers become the default type, as recorded or f32."""
        if dtype.kind in ("real", "complex"):
            return dtype
        told = self.declared.get(0)
        return told.dtype if told is not None and told.dtype.kind == "real" else DType.F32

    def tensor(self, x: Value | Number, dtype: DType) -> Value:
        """An operand in element type `dtype`."""
        return self.convert(x, dtype) if isinstance(x, Value) else self.scalar(x, dtype)

    def size(self, value: Any) -> int:
        """An integer argument."""
        if isinstance(value, Symbol):
            return self._size_of(value.expr)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(f"the argument {value!r} is no size that is known here")
        return value

    def _size_of(self, expression: str) -> int:
        found = size_of(expression, self.sizes)
        if found is None:
            self.fail(f"the size {expression} is symbolic: give the value of each symbol in [constants]")
        for name in sorted(self.told & symbols(expression)):
            text = f"the size {name} is {self.sizes[name]} as told: nothing is shown of other sizes"
            self.warnings.setdefault(text)
        return found

    def resolved(self, shape: Sequence[int | str]) -> tuple[int, ...]:
        """A recorded shape, its symbolic sizes by their values."""
        return tuple(n if isinstance(n, int) else self.size(Symbol(n)) for n in shape)

    def shape(self, value: Any) -> tuple[int, ...]:
        """A shape argument."""
        if not isinstance(value, tuple):
            self.fail(f"the shape {value!r} is not a list of sizes")
        return tuple(self.size(n) for n in value)

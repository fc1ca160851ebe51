"""What the small computations of reduce, scatter and sort compute, and names for what isn't recognised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import product
from typing import Any, Final

import numpy as np

from shardproof.frontends.hlo.instruction import HloComputation, HloInstruction, HloModule, Key
from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType

_MONOIDS: Final = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "and": "and",
    "or": "or",
}
_BOOL_MONOIDS: Final = {
    "add": "or",
    "multiply": "and",
    "maximum": "or",
    "minimum": "and",
    "and": "and",
    "or": "or",
}
MAX_DEPTH: Final = 64
_MAX_CASE_INSTRUCTIONS: Final = 64


def _monoid(body: HloComputation, key: Key, first: int, second: int, dtype: DType) -> str | None:
    op = body.instructions[key]
    if len(op.operands) != 2 or op.shape.type is None or op.shape.type.shape:
        return None
    a, b = (body.instructions.get(k) for k in op.operands)
    if a is None or b is None or a.opcode != "parameter" or b.opcode != "parameter":
        return None
    if {a.number, b.number} != {first, second} or a.shape != op.shape or b.shape != op.shape:
        return None
    found = op.shape.type.dtype
    if found is not dtype and not (found.kind == dtype.kind == "real"):
        return None
    table = _BOOL_MONOIDS if op.shape.type.dtype is DType.BOOL else _MONOIDS
    return table.get(op.opcode)


def monoids(body: HloComputation, dtypes: Sequence[DType]) -> tuple[str, ...] | None:
    """The independent monoids that a reducer applies to elements of `dtypes`, or None.

    Its parameters are as many accumulators, then as many elements. Precision doesn't matter for reals.
    """
    count = len(dtypes)
    if len(body.parameters()) != 2 * count:
        return None
    root = body.instructions[body.root]
    keys = root.operands if root.opcode == "tuple" else (body.root,)
    if len(keys) != count or any(k not in body.instructions for k in keys):
        return None
    kinds = tuple(_monoid(body, key, k, count + k, dtypes[k]) for k, key in enumerate(keys))
    return tuple(k for k in kinds if k is not None) if None not in kinds else None


def is_second_parameter(body: HloComputation) -> bool:
    """Whether a two-parameter computation returns its second parameter (scatter that overwrites)."""
    root = body.instructions[body.root]
    return root.opcode == "parameter" and root.number == 1 and len(body.parameters()) == 2


_ORDERS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}
_LOGIC: Final[Mapping[str, Callable[..., Any]]] = {
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
    "select": lambda p, a, b: a if p else b,
    "copy": lambda a: a,
}


def _evaluate(body: HloComputation, arguments: tuple[int, ...]) -> tuple[int, ...] | None:
    """Run a computation made only of comparisons, logic on predicates and selections."""
    values: dict[Key, Any] = {}
    for key, op in body.instructions.items():
        if any(k not in values for k in op.operands):
            return None
        operands = [values[k] for k in op.operands]
        if op.opcode == "parameter" and op.number < len(arguments):
            values[key] = arguments[op.number]
        elif op.opcode == "tuple":
            values[key] = tuple(operands)
        elif op.opcode == "compare" and op.attrs.get("direction") in _ORDERS and len(operands) == 2:
            values[key] = _ORDERS[op.attrs["direction"]](*operands)
        elif op.opcode in ("and", "or", "not") and (
            op.shape.type is None or op.shape.type.dtype is not DType.BOOL
        ):
            return None
        elif op.opcode in _LOGIC and len(operands) == {"not": 1, "copy": 1, "select": 3}.get(op.opcode, 2):
            values[key] = _LOGIC[op.opcode](*operands)
        else:
            return None
    result = values[body.root]
    return result if isinstance(result, tuple) else None


def arg_reduction(body: HloComputation) -> str | None:
    """`max` or `min` when a reducer of (value, index) pairs keeps the extreme value and its first index.

    The body may only compare, combine predicates and select, so that what it does depends on the order
    of its arguments alone; all orders of non-NaN values are tried, which makes the answer a proof.
    """
    parameters = body.parameters()
    if len(parameters) != 4 or len(body.instructions) > _MAX_CASE_INSTRUCTIONS:
        return None
    if not all(_stays_in_kind(body, op) for op in body.instructions.values()):
        return None
    found = {"max", "min"}
    for a, b, i, j in product(range(2), range(2), range(2), range(2)):
        result = _evaluate(body, (a, i, b, j))
        if result is None:
            return None
        for kind in tuple(found):
            best = max(a, b) if kind == "max" else min(a, b)
            index = min(i, j) if a == b else (i if a == best else j)
            if result != (best, index):
                found.discard(kind)
    return found.pop() if len(found) == 1 else None


def _stays_in_kind(body: HloComputation, op: HloInstruction) -> bool:
    """Comparisons and selections pair values with values and indices with indices (by their types)."""
    if op.opcode not in ("compare", "select"):
        return True
    pair = [body.instructions.get(k) for k in op.operands[-2:]]
    return len(pair) == 2 and _sort_of(body, op.operands[-2]) == _sort_of(body, op.operands[-1])


def _sort_of(body: HloComputation, key: Key) -> int | None:
    """0 for what derives from the value parameters, 1 from the index parameters, None if mixed."""
    stack, sorts, seen = [key], set(), set()
    while stack:
        at = stack.pop()
        op = body.instructions.get(at)
        if op is None or at in seen:
            continue
        seen.add(at)
        if op.opcode == "parameter":
            sorts.add(op.number % 2)
        elif op.opcode == "select":
            stack.extend(op.operands[1:])
        else:
            stack.extend(op.operands)
    return sorts.pop() if len(sorts) == 1 else None


def comparator(module: HloModule, body: HloComputation, known: dict[Key, str] | None = None) -> str:
    """`lt:k` or `gt:k` when a sort orders by its operand k alone, else the body as text.

    Over the reals there is no NaN and one zero, so selections that only make these uniform are seen through.
    """
    root = body.instructions[body.root]
    if root.opcode == "compare" and root.attrs.get("direction") in ("LT", "GT") and len(root.operands) == 2:
        (a, a_bits), (b, b_bits) = (_canonical_source(body, key) for key in root.operands)
        if a.opcode == b.opcode == "parameter" and a_bits == b_bits:
            less = root.attrs["direction"] == "LT"
            if a.number // 2 == b.number // 2 and a.number != b.number:
                return f"{'lt' if less == (a.number < b.number) else 'gt'}:{a.number // 2}"
    return structure(module, body.key, known)


def _canonical_source(body: HloComputation, key: Key) -> tuple[HloInstruction, bool]:
    """What a comparator orders by, and whether it orders the bits of a float as an integer.

    Seen through: a zero for both zeros, one NaN for all, and `x` for `x < 0 ? MAX ^ x : x` on the bits of
    a float, which orders them as the float is ordered.
    """
    op = body.instructions[key]
    bits = False
    for _ in range(8):
        if op.opcode != "select" or len(op.operands) != 3:
            break
        test, replaced, kept = (body.instructions.get(k) for k in op.operands)
        if (
            test is None
            or replaced is None
            or kept is None
            or test.opcode != "compare"
            or len(test.operands) != 2
        ):
            break
        left, right = test.operands
        direction = test.attrs.get("direction")
        if _is_sign_flip(body, replaced, op.operands[2]) and left == op.operands[2] and not bits:
            source = body.instructions.get(kept.operands[0]) if kept.operands else None
            if (
                direction != "LT"
                or not _holds(body, right, 0)
                or source is None
                or not _is_float_bits(kept, source)
            ):
                break
            op, bits = source, True
            continue
        inner = _canonical_source(body, op.operands[2])[0]
        seen = [_canonical_source(body, k)[0] for k in (left, right)]
        zero = direction == "EQ" and seen[0] is inner and _holds(body, right, 0) and _literal(replaced) == 0.0
        value = _literal(replaced)
        nan = direction == "NE" and seen[0] is inner is seen[1] and value is not None and value != value
        if not (zero or nan):
            break
        op = kept
    return op, bits


def _literal(op: HloInstruction) -> float | None:
    if op.literal is None or op.literal.size != 1 or op.literal.dtype.kind != "f":
        return None
    return float(op.literal.item())


def _holds(body: HloComputation, key: Key, value: int) -> bool:
    literal = body.instructions[key].literal
    return literal is not None and literal.size == 1 and bool(literal.item() == value)


def _is_float_bits(op: HloInstruction, source: HloInstruction) -> bool:
    if op.opcode not in ("bitcast", "bitcast-convert") or op.shape.type is None or source.shape.type is None:
        return False
    to, of = op.shape.type.dtype, source.shape.type.dtype
    return to.kind == "int" and of.kind == "real" and to.bits == of.bits and not op.shape.type.shape


def _is_sign_flip(body: HloComputation, op: HloInstruction, key: Key) -> bool:
    """Whether `op` is the largest integer xor the instruction `key`."""
    if (
        op.opcode != "xor"
        or op.shape.type is None
        or op.shape.type.dtype.kind != "int"
        or len(op.operands) != 2
    ):
        return False
    others = [k for k in op.operands if k != key]
    return len(others) == 1 and _holds(body, others[0], (1 << (op.shape.type.dtype.bits - 1)) - 1)


def calls(module: HloModule, key: Key) -> Iterator[HloInstruction]:
    """Every instruction of a computation and of those it calls, each once."""
    stack, seen = [key], set()
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        body = module.computations.get(at)
        if body is None:
            raise ModuleError(f"a called computation ({at}) is missing")
        for op in body.instructions.values():
            yield op
            stack.extend(op.called)


def structure(module: HloModule, key: Key, known: dict[Key, str] | None = None, depth: int = 0) -> str:
    """A text that two computations share exactly when they are the same up to names and order.

    What they call is in it as a digest of its own text. `known` keeps the texts of a module.
    """
    known = {} if known is None else known
    if key in known:
        return known[key]
    if depth > MAX_DEPTH:
        raise ModuleError("computations call each other without end")
    body = module.computations.get(key)
    if body is None:
        raise ModuleError(f"a called computation ({key}) is missing")
    number: dict[Key, int] = {}
    lines = [" ".join(f"{p.number}:{p.shape}" for p in body.parameters())]
    stack: list[tuple[Key, bool]] = [(body.root, False)]
    opened: set[Key] = set()
    while stack:
        at, done = stack.pop()
        if at in number:
            continue
        op = body.instructions.get(at)
        if op is None:
            raise ModuleError(f"computation {body.name} uses an instruction that it doesn't have")
        if done:
            number[at] = len(number)
            called = [f"{{{_short(structure(module, c, known, depth + 1))}}}" for c in op.called]
            operands = ",".join(f"%{number[k]}" for k in op.operands)
            lines.append(f"{op.opcode}({operands}){op.shape}{described(op)}{''.join(called)}")
            continue
        if at in opened:
            raise ModuleError(f"computation {body.name} is cyclic at `{op.name}`")
        opened.add(at)
        stack.append((at, True))
        stack.extend((k, False) for k in reversed(op.operands) if k not in number)
    known[key] = "; ".join(lines)
    return known[key]


def _short(text: str) -> str:
    return text if len(text) < 400 else sha256(text.encode()).hexdigest()


def described(op: HloInstruction) -> str:
    """The attributes of an instruction as text, without names and locations."""
    parts = [f"{k}={op.attrs[k]!r}" for k in sorted(op.attrs) if k != "channel_id"]
    if op.opcode == "parameter":
        parts.append(f"number={op.number}")
    if op.literal is not None:
        parts.append(f"value={_digest(op.literal)}")
    return f"[{' '.join(parts)}]" if parts else ""


def _digest(value: Any) -> str:
    return (
        repr(value.item()) if value.size == 1 else sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    )

"""Serialised programs with fields changed at random: opcodes, operands, bounds, dims, groups, literals."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

UNARY: Final = (
    *("abs", "negate", "exponential", "log", "tanh", "sine", "cosine", "sqrt", "rsqrt", "sign", "floor"),
    *("logistic", "copy", "not", "convert", "exponential-minus-one", "log-plus-one", "ceil"),
)
BINARY: Final = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "and", "or", "xor"),
    "remainder",
)
CONTROL: Final = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "call", "while"})
DIRECTIONS: Final = ("EQ", "NE", "LT", "LE", "GT", "GE")


def mutate(module: Any, rng: Random) -> str:
    """Change one thing in an HloModuleProto in place; returns what was changed."""
    for _ in range(200):
        kind = rng.choice(MUTATIONS)
        body = rng.choice(list(module.computations))
        if not body.instructions:
            continue
        op = rng.choice(list(body.instructions))
        done = kind(module, body, op, rng)
        if done is not None:
            return f"{kind.__name__} {op.name}: {done}"
    return "nothing"


def mutate_alike(first: Any, second: Any, rng: Random) -> str:
    """Change one thing in two modules at instructions of one name and opcode, in the same way."""
    for _ in range(200):
        kind = rng.choice(MUTATIONS)
        body = rng.choice([first.computations[-1], *first.computations])
        op = rng.choice(list(body.instructions))
        twins = [
            (other, i)
            for other in second.computations
            for i in other.instructions
            if (i.name, i.opcode) == (op.name, op.opcode)
        ]
        seed = rng.getrandbits(32)
        if not twins or (done := kind(first, body, op, Random(seed))) is None:
            continue
        return f"{kind.__name__} {op.name}: {done}, {kind(second, *twins[0], Random(seed))}"
    return "nothing"


def _opcode(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    pool = UNARY if op.opcode in UNARY else BINARY if op.opcode in BINARY else None
    if pool is None:
        return None
    op.opcode = rng.choice([o for o in pool if o != op.opcode])
    return str(op.opcode)


def _operand(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    """Read another value, mostly an earlier one of the same type."""
    if not op.operand_ids:
        return None
    at = rng.randrange(len(op.operand_ids))
    by_id = {i.id: i for i in body.instructions}
    old = by_id.get(op.operand_ids[at])
    others = list(body.instructions)
    if rng.random() < 0.9 and old is not None:
        order = {i.id: n for n, i in enumerate(body.instructions)}
        others = [
            i
            for i in body.instructions
            if i.shape.element_type == old.shape.element_type
            and i.shape.dimensions == old.shape.dimensions
            and order[i.id] < order.get(op.id, 0)
            and i.id != old.id
        ]
    if not others:
        return None
    other = rng.choice(others)
    op.operand_ids[at] = other.id
    return f"operand {at} is {other.name}"


def _operand_order(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if len(op.operand_ids) < 2:
        return None
    ids = list(op.operand_ids)
    rng.shuffle(ids)
    if ids == list(op.operand_ids):
        return None
    op.operand_ids[:] = ids
    return f"operands {ids}"


def _slice(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if not op.slice_dimensions:
        return None
    cut = rng.choice(list(op.slice_dimensions))
    step = rng.choice([-1, 1, cut.limit - cut.start, cut.start - cut.limit, cut.start])
    what = rng.choice(["both", "start", "limit", "stride"])
    if what in ("both", "start"):
        cut.start = max(-1, cut.start + step)
    if what in ("both", "limit"):
        cut.limit = cut.limit + step
    if what == "stride":
        cut.stride = rng.choice([0, 2, 3])
    return f"{what} {cut.start}:{cut.limit}:{cut.stride}"


def _dims(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    """Another order of dims, another dim, or one dim changed."""
    if not op.dimensions:
        return None
    dims = list(op.dimensions)
    if len(dims) > 1 and rng.random() < 0.7:
        rng.shuffle(dims)
    else:
        at = rng.randrange(len(dims))
        dims[at] = rng.choice([0, 1, 2, 3, dims[at] + 1, dims[at] - 1])
    if dims == list(op.dimensions):
        return None
    op.dimensions[:] = dims
    return f"dims {dims}"


def _transposed(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    """A transposition together with the shape that it makes."""
    if op.opcode != "transpose":
        return None
    by_id = {i.id: i for i in body.instructions}
    source = by_id[op.operand_ids[0]] if op.operand_ids and op.operand_ids[0] in by_id else None
    if source is None:
        return None
    dims = list(range(len(source.shape.dimensions)))
    rng.shuffle(dims)
    op.dimensions[:] = dims
    if rng.random() < 0.5:
        op.shape.dimensions[:] = [source.shape.dimensions[d] for d in dims]
    return f"dims {dims}"


def _shape(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if not op.shape.dimensions:
        return None
    dims = list(op.shape.dimensions)
    if rng.random() < 0.6:
        rng.shuffle(dims)
    else:
        dims[rng.randrange(len(dims))] += rng.choice([-1, 1])
    if dims == list(op.shape.dimensions):
        return None
    op.shape.dimensions[:] = dims
    return f"shape {dims}"


def _layout(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    order = list(op.shape.layout.minor_to_major)
    rng.shuffle(order)
    if order == list(op.shape.layout.minor_to_major):
        return None
    op.shape.layout.minor_to_major[:] = order
    return f"layout {order}"


def _element_type(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    op.shape.element_type = rng.choice([1, 3, 4, 5, 6, 8, 10, 11, 12, 16])
    return f"type {op.shape.element_type}"


def _groups(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if not op.replica_groups:
        return None
    groups = [list(g.replica_ids) for g in op.replica_groups]
    ranks = [r for g in groups for r in g]
    match rng.choice(["halves", "order", "shuffled", "other axis", "short", "twice", "alone"]):
        case "halves":
            groups = [part for g in groups for part in (g[: len(g) // 2], g[len(g) // 2 :])]
        case "order":
            rng.shuffle(rng.choice(groups))
        case "shuffled":
            rng.shuffle(ranks)
            size = len(groups[0])
            groups = [ranks[i : i + size] for i in range(0, len(ranks), size)] if size else groups
        case "other axis":
            groups = [list(g) for g in zip(*groups, strict=False)]
        case "short":
            groups = groups[:-1] if len(groups) > 1 else [groups[0][:-1]]
        case "twice":
            groups = [*groups, groups[0]]
        case "alone":
            groups = [[r] for r in ranks]
    del op.replica_groups[:]
    for g in groups:
        op.replica_groups.add().replica_ids.extend(g)
    return f"groups {groups}"


def _pairs(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if not op.source_target_pairs:
        return None
    if rng.random() < 0.5:
        del op.source_target_pairs[rng.randrange(len(op.source_target_pairs))]
    else:
        pair = rng.choice(list(op.source_target_pairs))
        pair.source, pair.target = pair.target, pair.source
    return f"pairs {[(p.source, p.target) for p in op.source_target_pairs]}"


def _literal(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if not op.HasField("literal"):
        return None
    for field, value in op.literal.ListFields():
        if field.name == "shape":
            continue
        if isinstance(value, bytes):
            data = bytearray(value)
            if field.name in ("f16s", "bf16s") and len(data) >= 2 and rng.random() < 0.7:
                at = rng.randrange(len(data) // 2) * 2
                data[at : at + 2] = struct.pack("<e", rng.choice([0.0, 1.0, -1.0, 2.0, 0.5]))
            elif data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            setattr(op.literal, field.name, bytes(data))
            return f"{field.name} {bytes(data[:8])!r}"
        if len(value):
            at = rng.randrange(len(value))
            value[at] = rng.choice([0, 1, 2, 3]) if field.name != "preds" else not value[at]
            return f"{field.name}[{at}] is {value[at]}"
    return None


def _dot(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if not op.HasField("dot_dimension_numbers"):
        return None
    numbers = op.dot_dimension_numbers
    names = [f.name for f, _ in numbers.ListFields()]
    if not names:
        return None
    name = rng.choice(names)
    dims = getattr(numbers, name)
    if len(dims) > 1 and rng.random() < 0.5:
        changed = list(dims)
        rng.shuffle(changed)
        dims[:] = changed
    else:
        dims[rng.randrange(len(dims))] = rng.choice([0, 1, 2])
    return f"{name} {list(dims)}"


def _number(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    """Any whole number anywhere in an instruction that isn't its id or metadata."""
    places = [
        (m, f, n)
        for m, f, n in _numbers(op)
        if f not in ("id", "source_line", "element_type", "stack_frame_id")
    ]
    if not places:
        return None
    message, name, at = rng.choice(places)
    held = getattr(message, name)
    old = held if at is None else held[at]
    new = rng.choice([old + 1, old - 1, 0, 1, 2, -1, 1 << 40])
    if new == old:
        return None
    try:
        if at is None:
            setattr(message, name, new)
        else:
            held[at] = new
    except ValueError:
        return None
    return f"{name} {old} is {new}"


def _numbers(message: Any) -> Iterator[tuple[Any, str, int | None]]:
    for field, value in message.ListFields():
        if field.name == "metadata":
            continue
        if field.cpp_type == field.CPPTYPE_MESSAGE:
            if field.message_type.GetOptions().map_entry:
                continue
            for part in [value] if hasattr(value, "ListFields") else value:
                yield from _numbers(part)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield message, field.name, None
        elif field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64) and not isinstance(value, int):
            for at in range(len(value)):
                yield message, field.name, at


def _direction(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if not op.comparison_direction:
        return None
    op.comparison_direction = rng.choice(DIRECTIONS)
    return str(op.comparison_direction)


def _cleared(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    names = [f.name for f, _ in op.ListFields() if f.name not in ("id", "name", "opcode", "metadata")]
    if not names:
        return None
    name = rng.choice(names)
    op.ClearField(name)
    return f"no {name}"


def _flag(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    flags = "is_stable", "unique_indices", "use_global_device_ids", "largest", "indices_are_sorted"
    name = rng.choice(flags)
    setattr(op, name, not getattr(op, name))
    return f"{name} {getattr(op, name)}"


def _parameters(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    """Two parameters change places."""
    if op.opcode != "parameter":
        return None
    others = [
        i
        for i in body.instructions
        if i.opcode == "parameter" and i.id != op.id and i.shape.dimensions == op.shape.dimensions
    ]
    if not others:
        return None
    other = rng.choice(others)
    op.parameter_number, other.parameter_number = other.parameter_number, op.parameter_number
    return f"is parameter {op.parameter_number}"


def _bypassed(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    """Readers of a value read its first operand."""
    if not op.operand_ids:
        return None
    source = op.operand_ids[0]
    for other in body.instructions:
        for at, v in enumerate(other.operand_ids):
            if v == op.id:
                other.operand_ids[at] = source
    return "is bypassed"


def _inserted(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    """A copy of an instruction after itself, or an elementwise one of the same type, read by all."""
    if not op.shape.dimensions and not op.operand_ids:
        return None
    if op.shape.tuple_shapes:
        return None
    at = next(n for n, i in enumerate(body.instructions) if i.id == op.id)
    new_id = 1 + max(i.id for c in module.computations for i in c.instructions)
    new = type(op)()
    if op.opcode in ("all-reduce", "collective-permute", "reverse", "custom-call") and rng.random() < 0.5:
        new.CopyFrom(op)
        del new.operand_ids[1:]
    else:
        new.opcode = rng.choice([*UNARY[:8], "add", "multiply", "subtract", "maximum", "all-reduce"])
        if new.opcode == "all-reduce":
            others = [i for i in body.instructions if i.opcode == "all-reduce"]
            if not others:
                return None
            new.CopyFrom(rng.choice(others))
        new.shape.CopyFrom(op.shape)
    count = 2 if new.opcode in BINARY else 1
    new.id, new.name = new_id, f"inserted.{new_id}"
    new.operand_ids[:] = [op.id] * count
    for other in body.instructions:
        for n, v in enumerate(other.operand_ids):
            if v == op.id:
                other.operand_ids[n] = new_id
    if body.root_id == op.id:
        body.root_id = new_id
    rest = [type(op).FromString(i.SerializeToString()) for i in body.instructions]
    rest.insert(at + 1, new)
    del body.instructions[:]
    body.instructions.extend(rest)
    return f"then {new.opcode}"


def _padding(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if not op.padding_config.dimensions:
        return None
    pad = rng.choice(list(op.padding_config.dimensions))
    step = rng.choice([-1, 1])
    pad.edge_padding_low += step
    pad.edge_padding_high -= step
    return f"pad {pad.edge_padding_low}, {pad.edge_padding_high}"


def _target(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if not op.custom_call_target:
        return None
    op.custom_call_target = rng.choice(
        ["AwsNeuronRmsNorm", "AwsNeuronTransferWithStaticRing", "Sharding", "Other", "TopK"]
    )
    return str(op.custom_call_target)


def _config(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if not op.backend_config:
        return None
    data = bytearray(op.backend_config)
    data[rng.randrange(len(data))] = rng.choice(b"0123456789")
    op.backend_config = bytes(data)
    return f"config {op.backend_config!r}"


def _moved_root(module: Any, body: Any, op: Any, rng: Random) -> str | None:
    if body.root_id == op.id:
        return None
    body.root_id = op.id
    return "is the root"


Mutation = Callable[[Any, Any, Any, Random], str | None]
MUTATIONS: Final[tuple[Mutation, ...]] = (
    *(_opcode, _operand, _operand, _operand_order, _slice, _slice, _dims, _dims, _transposed, _shape),
    *(_layout, _element_type, _groups, _groups, _pairs, _literal, _literal, _dot, _dot, _number),
    *(_direction, _cleared),
    *(_flag, _parameters, _bypassed, _inserted, _padding, _target, _config, _moved_root),
)

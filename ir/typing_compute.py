"""Type rules of operators that contract, reduce, communicate or are known by name only."""

from __future__ import annotations

from math import prod

from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import DType, TensorType
from shardproof.ir.typing import (
    Attrs,
    Types,
    declared_one,
    dims,
    flag,
    in_range,
    integer,
    integers,
    is_integer,
    of_kind,
    operand_count,
    same_dtype,
    scalar,
    word,
)

REDUCTIONS = ("sum", "prod", "max", "min", "and", "or")
Result = tuple[TensorType, ...]


def accumulated(operands: Types, declared: Types) -> DType:
    """The declared element type of a contraction: of the operands' kind, and for integers as wide."""
    dtype = declared_one(declared).dtype
    for x in operands:
        of_kind(x, "bool", "int", "uint", "real", "complex")
        if x.dtype.kind != dtype.kind or (dtype.kind != "real" and x.dtype.bits > dtype.bits):
            raise ModuleError(f"operand is {x}, it can't be accumulated as {dtype.value}")
    return dtype


def dot_general(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """Batch dims, then the free dims of the left, then of the right operand."""
    operand_count(operands, 2)
    lhs, rhs = operands
    sides = []
    for side, x in (("lhs", lhs), ("rhs", rhs)):
        batch = dims(attrs, f"{side}_batch", len(x.shape))
        contracting = dims(attrs, f"{side}_contracting", len(x.shape))
        if set(batch) & set(contracting):
            raise ModuleError(f"{side} dims {batch} and {contracting} overlap, a dim is batch or contracted")
        sides.append((x, batch, contracting))
    for what, left_dims, right_dims in (
        ("batch", sides[0][1], sides[1][1]),
        ("contracting", sides[0][2], sides[1][2]),
    ):
        left, right = tuple(lhs.shape[d] for d in left_dims), tuple(rhs.shape[d] for d in right_dims)
        if left != right:
            raise ModuleError(f"operands are {lhs} and {rhs}, {what} sizes {left} and {right} differ")
    free = [tuple(n for d, n in enumerate(x.shape) if d not in (*b, *c)) for x, b, c in sides]
    batch_sizes = tuple(lhs.shape[d] for d in sides[0][1])
    return (TensorType(accumulated(operands, declared), (*batch_sizes, *free[0], *free[1])),)


def window_size(size: int, kernel: int, stride: int, low: int, high: int, base: int, dilation: int) -> int:
    """Number of window positions along one dim."""
    for what, n in (("kernel size", kernel), ("stride", stride), ("dilation", min(base, dilation))):
        if n < 1 and not (what == "kernel size" and n == 0):
            raise ModuleError(f"{what} {n} found, at least 1 is needed")
    padded = low + (max(size - 1, 0) * base + min(size, 1)) + high
    if padded < 0:
        raise ModuleError(f"padding gives the negative size {padded}")
    span = (kernel - 1) * dilation + 1 if kernel else 0
    return max(0, (padded - span) // stride + 1)


def convolution(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(x, kernel): cross-correlation; positions of batch, feature and spatial dims are attributes."""
    operand_count(operands, 2)
    lhs, rhs = operands
    rank = len(lhs.shape)
    if rank < 2 or len(rhs.shape) != rank:
        raise ModuleError(f"operands are {lhs} and {rhs}, the same number of dims, at least 2, is needed")
    lhs_dims, rhs_dims, out_dims = (dims(attrs, n, rank, rank) for n in ("lhs_dims", "rhs_dims", "out_dims"))
    names = ("strides", "pad_low", "pad_high", "lhs_dilation", "rhs_dilation")
    window = [integers(attrs, name, rank - 2) for name in names]
    if not isinstance(attrs["reversal"], tuple) or len(attrs["reversal"]) != rank - 2:
        raise ModuleError(f"attribute reversal is {attrs['reversal']!r}, {rank - 2} entries are needed")
    if not all(isinstance(r, bool) for r in attrs["reversal"]):
        raise ModuleError(f"attribute reversal is {attrs['reversal']!r}, true or false is needed")
    features, batches = integer(attrs, "feature_groups"), integer(attrs, "batch_groups")
    if features < 1 or batches < 1 or min(features, batches) != 1:
        raise ModuleError(f"feature_groups {features} and batch_groups {batches} found, one must be 1")
    batch, feature, *space = (lhs.shape[d] for d in lhs_dims)
    inner, outer, *kernel = (rhs.shape[d] for d in rhs_dims)
    if feature != inner * features:
        raise ModuleError(f"operands are {lhs} and {rhs}, {feature} is not {features} times {inner} features")
    if outer % (features * batches) or batch % batches:
        raise ModuleError(f"operands are {lhs} and {rhs}, groups do not divide the output features and batch")
    sizes = [batch // batches, outer]
    for size, extent, stride, low, high, base, dilation in zip(space, kernel, *window, strict=True):
        sizes.append(window_size(size, extent, stride, low, high, base, dilation))
    shape = [0] * rank
    for position, size in zip(out_dims, sizes, strict=True):
        shape[position] = size
    return (TensorType(accumulated(operands, declared), tuple(shape)),)


def monoid(attrs: Attrs, x: TensorType, kinds: tuple[str, ...] = REDUCTIONS) -> None:
    """`kind` is an associative function on the element type of `x`."""
    kind = word(attrs, "kind", kinds)
    if x.dtype.kind == "complex":
        fits = kind in ("sum", "prod", "set")
    elif x.dtype.kind == "real":
        fits = kind not in ("and", "or")
    else:
        fits = x.dtype.kind != "token"
    if not fits:
        raise ModuleError(f"operand is {x}, kind {kind} is not defined on it")


def reduce(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(x, init scalar): x without `dims`."""
    operand_count(operands, 2)
    x, init = operands
    same_dtype(operands)
    scalar(init, "initial value")
    monoid(attrs, x)
    gone = dims(attrs, "dims", len(x.shape))
    return (TensorType(x.dtype, tuple(n for d, n in enumerate(x.shape) if d not in gone)),)


def reduce_window(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(x, init scalar): one reduction for each window position."""
    operand_count(operands, 2)
    x, init = operands
    same_dtype(operands)
    scalar(init, "initial value")
    monoid(attrs, x)
    names = ("sizes", "strides", "pad_low", "pad_high", "base_dilations", "window_dilations")
    window = [integers(attrs, name, len(x.shape)) for name in names]
    shape = tuple(window_size(*each) for each in zip(x.shape, *window, strict=True))
    return (TensorType(x.dtype, shape),)


def argreduce(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(x,): the extreme value along `dim` and its first position, of the declared integer type."""
    operand_count(operands, 1)
    x = operands[0]
    of_kind(x, "bool", "int", "uint", "real")
    word(attrs, "kind", ("max", "min"))
    dim = in_range("dim", integer(attrs, "dim"), len(x.shape))
    if x.shape[dim] == 0:
        raise ModuleError(f"dim {dim} of {x} is empty, it has no extreme value")
    if len(declared) != 2:
        raise ModuleError(f"{len(declared)} results declared, 2 needed")
    of_kind(declared[1], "int", "uint")
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return (TensorType(x.dtype, shape), TensorType(declared[1].dtype, shape))


def rng(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(a, b scalars): draws of the declared shape."""
    operand_count(operands, 2)
    word(attrs, "distribution", ("uniform", "normal"))
    for x in operands:
        scalar(x, "parameter")
    return (TensorType(same_dtype(operands), declared_one(declared).shape),)


def rng_bit_generator(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(state,): the next state and bits of the declared type."""
    operand_count(operands, 1)
    word(attrs, "algorithm")
    if len(declared) != 2:
        raise ModuleError(f"{len(declared)} results declared, 2 needed")
    of_kind(operands[0], "uint")
    of_kind(declared[1], "int", "uint", "real")
    return (operands[0], declared[1])


def custom_call(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """The declared types; a target with a known meaning is checked (its result may be of any real type)."""
    target, config = word(attrs, "target"), word(attrs, "config")
    if target != "AwsNeuronRmsNorm":
        return tuple(declared)
    operand_count(operands, 3)
    x, weight, eps = operands
    of_kind(x, "real")
    if not (config.isascii() and config.isdigit()):
        raise ModuleError(f"attribute config is {config!r}, {target} needs the number of a dim")
    dim = in_range("config", int(config), len(x.shape))
    of_kind(weight, "real")
    of_kind(eps, "real")
    if weight.size != x.shape[dim] or eps.size != 1:
        raise ModuleError(
            f"operands are {x}, {weight}, {eps}, a weight per element of dim {dim} and one eps are needed"
        )
    if len(declared) != 1:
        raise ModuleError(f"{len(declared)} results declared, 1 needed")
    of_kind(declared[0], "real")
    return (TensorType(declared[0].dtype, x.shape),)


def opaque(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """The declared types; each entry of `free` names dims of one size, -1 where a tensor lacks it."""
    word(attrs, "name")
    if not isinstance(attrs["free"], tuple):
        raise ModuleError(f"attribute free is {attrs['free']!r}, a tuple is needed")
    for entry in attrs["free"]:
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise ModuleError(f"attribute free holds {entry!r}, (operand dims, result dims) is needed")
        sizes = _free_sizes(entry[0], operands) | _free_sizes(entry[1], declared)
        if len(sizes) != 1:
            raise ModuleError(f"attribute free holds {entry!r}, dims of one size are needed")
    return tuple(declared)


def _free_sizes(places: object, types: Types) -> set[int]:
    if not isinstance(places, tuple) or len(places) != len(types) or not all(map(is_integer, places)):
        raise ModuleError(
            f"attribute free holds {places!r}, one dim for each of {len(types)} tensors is needed"
        )
    pairs = [(d, x.shape) for d, x in zip(places, types, strict=True) if d != -1]
    return {shape[in_range("free", d, len(shape))] for d, shape in pairs}


def group_size(attrs: Attrs) -> int:
    """The common size of the rank groups, else `ModuleError`."""
    sizes = {len(group) for group in attrs["groups"]}
    if len(sizes) != 1:
        raise ModuleError(f"groups have sizes {sorted(sizes)}, one size is needed")
    return sizes.pop()


def all_reduce(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """The operand's type."""
    operand_count(operands, 1)
    monoid(attrs, operands[0])
    return (operands[0],)


def all_gather(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """`dim` grows by the group size."""
    return _rescaled(operands, attrs, "dim", grow=True)


def reduce_scatter(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """`dim` shrinks by the group size."""
    operand_count(operands, 1)
    monoid(attrs, operands[0])
    return _rescaled(operands, attrs, "dim", grow=False)


def all_to_all(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """`split_dim` shrinks by the group size, then `concat_dim` grows by it."""
    split = _rescaled(operands, attrs, "split_dim", grow=False)
    return _rescaled(split, attrs, "concat_dim", grow=True)


def _rescaled(operands: Types, attrs: Attrs, name: str, *, grow: bool) -> Result:
    operand_count(operands, 1)
    x, size = operands[0], group_size(attrs)
    dim = in_range(name, integer(attrs, name), len(x.shape))
    if not grow and x.shape[dim] % size:
        raise ModuleError(f"dim {dim} of {x} is not divided by the group size {size}")
    changed = x.shape[dim] * size if grow else x.shape[dim] // size
    return (TensorType(x.dtype, (*x.shape[:dim], changed, *x.shape[dim + 1 :])),)


def same_as_operand(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """The operand's type."""
    operand_count(operands, 1)
    return (operands[0],)


def scan(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(constants, initial carried values, stacked rows): the last carried values, then stacked results.

    `body` takes the constants, the carried values and one row of each stacked tensor, and gives new carried
    values and one row of each result.
    """
    body = attrs["body"]
    if not isinstance(body, Module):
        raise ModuleError("attribute body is no module")
    consts, carries = integer(attrs, "consts"), integer(attrs, "carries")
    length = integer(attrs, "length")
    flag(attrs, "reverse")
    before = consts + carries
    if min(consts, carries) < 0 or length < 1 or before > len(operands):
        raise ModuleError(f"{length} rounds, {consts} constants and {carries} carried values found")
    for x in operands[before:]:
        if not x.shape or x.shape[0] != length:
            raise ModuleError(f"operand is {x}, {length} rows are needed")
    rows = [TensorType(x.dtype, x.shape[1:]) for x in operands[before:]]
    taken = [i.value.type for i in body.inputs]
    if taken != [*operands[:before], *rows]:
        raise ModuleError("the body takes other types than it is given")
    given = [o.value.type for o in body.outputs]
    if given[:carries] != list(operands[consts:before]):
        raise ModuleError("the body carries on other types than it is given")
    stacked = (TensorType(y.dtype, (length, *y.shape)) for y in given[carries:])
    return (*operands[consts:before], *stacked)


def rank_id(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """u32[] or s32[], as declared."""
    operand_count(operands, 0)
    result = declared_one(declared)
    if result.dtype not in (DType.U32, DType.S32) or prod(result.shape) != 1 or result.shape:
        raise ModuleError(f"{result} declared, u32[] or s32[] is needed")
    return (result,)

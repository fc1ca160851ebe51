"""Type rules of operators that read or write at computed positions, and of sorting."""

from __future__ import annotations

from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType, TensorType
from shardproof.ir.typing import (
    Attrs,
    Types,
    at_least,
    dims,
    flag,
    in_range,
    integer,
    integers,
    of_kind,
    operand_count,
    same_dtype,
    scalar,
    word,
)
from shardproof.ir.typing_compute import monoid

SCATTERS = ("sum", "prod", "max", "min", "set")
Result = tuple[TensorType, ...]


def _index_batch(attrs: Attrs, indices: TensorType, entries: int) -> tuple[int, ...]:
    """Sizes of the dims of start indices without the one that holds the index vector."""
    of_kind(indices, "int", "uint")
    rank, vector = len(indices.shape), integer(attrs, "index_vector_dim")
    if not 0 <= vector <= rank:
        raise ModuleError(f"attribute index_vector_dim is {vector}, indices are {indices}")
    found = indices.shape[vector] if vector < rank else 1
    if found != entries:
        raise ModuleError(f"indices are {indices}, {entries} entries are needed in dim {vector}")
    return tuple(n for d, n in enumerate(indices.shape) if d != vector)


def _batching(x: TensorType, indices: TensorType, ours: tuple[int, ...], theirs: tuple[int, ...]) -> None:
    left, right = tuple(x.shape[d] for d in ours), tuple(indices.shape[d] for d in theirs)
    if left != right:
        raise ModuleError(f"operands are {x} and {indices}, batching sizes {left} and {right} differ")


def _disjoint(**groups: tuple[int, ...]) -> None:
    joined = [d for group in groups.values() for d in group]
    if len(set(joined)) != len(joined):
        raise ModuleError(f"{' and '.join(groups)} overlap, a dim has one role")


def gather(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(x, start indices): a slice of `slice_sizes` of x at each index vector, clamped into x."""
    operand_count(operands, 2)
    x, indices = operands
    rank, index_rank = len(x.shape), len(indices.shape)
    sizes = integers(attrs, "slice_sizes", rank)
    for d, size in enumerate(sizes):
        if not 0 <= size <= x.shape[d]:
            raise ModuleError(f"slice size {size} of dim {d} does not fit in {x}")
    mapped = dims(attrs, "start_index_map", rank)
    collapsed = dims(attrs, "collapsed_slice_dims", rank)
    batching = dims(attrs, "operand_batching_dims", rank)
    index_batching = dims(attrs, "start_indices_batching_dims", index_rank)
    _disjoint(collapsed_slice_dims=collapsed, operand_batching_dims=batching)
    _disjoint(start_index_map=mapped, operand_batching_dims=batching)
    vector = integer(attrs, "index_vector_dim")
    _disjoint(start_indices_batching_dims=index_batching, index_vector_dim=(vector,))
    if any(sizes[d] != 1 for d in collapsed) or any(sizes[d] > 1 for d in batching):
        raise ModuleError(f"slice sizes {sizes} found, size 1 is needed in collapsed and batching dims")
    _batching(x, indices, batching, index_batching)
    batch = _index_batch(attrs, indices, len(mapped))
    window = [n for d, n in enumerate(sizes) if d not in (*collapsed, *batching)]
    return (TensorType(x.dtype, _interleave(attrs, "offset_dims", window, batch)),)


def _interleave(attrs: Attrs, name: str, window: list[int], batch: tuple[int, ...]) -> tuple[int, ...]:
    total = len(window) + len(batch)
    places = dims(attrs, name, total, len(window))
    if list(places) != sorted(places):
        raise ModuleError(f"attribute {name} is {places}, increasing dims are needed")
    inner, outer = iter(window), iter(batch)
    return tuple(next(inner) if d in places else next(outer) for d in range(total))


def scatter(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(x, indices, updates): x with the updates combined in; windows out of range are dropped."""
    operand_count(operands, 3)
    x, indices, updates = operands
    same_dtype((x, updates))
    if x.dtype.kind == "token":
        raise ModuleError("a token has no elements to scatter")
    rank = len(x.shape)
    monoid(attrs, x, SCATTERS)
    flag(attrs, "unique")
    mapped = dims(attrs, "scatter_dims_to_operand_dims", rank)
    inserted = dims(attrs, "inserted_window_dims", rank)
    batching = dims(attrs, "input_batching_dims", rank)
    index_batching = dims(attrs, "scatter_indices_batching_dims", len(indices.shape))
    _disjoint(inserted_window_dims=inserted, input_batching_dims=batching)
    _disjoint(scatter_dims_to_operand_dims=mapped, input_batching_dims=batching)
    vector = integer(attrs, "index_vector_dim")
    _disjoint(scatter_indices_batching_dims=index_batching, index_vector_dim=(vector,))
    _batching(x, indices, batching, index_batching)
    batch = _index_batch(attrs, indices, len(mapped))
    window_dims = dims(attrs, "update_window_dims", len(updates.shape))
    kept = [d for d in range(rank) if d not in (*inserted, *batching)]
    window = [updates.shape[d] for d in window_dims]
    if len(window) != len(kept) or any(n > x.shape[d] for n, d in zip(window, kept, strict=True)):
        raise ModuleError(f"updates are {updates}, their window {window} does not fit in {x}")
    needed = _interleave(attrs, "update_window_dims", window, batch)
    if updates.shape != needed:
        raise ModuleError(f"updates are {updates}, shape {list(needed)} is needed")
    return (x,)


def _starts(starts: Types, x: TensorType) -> None:
    if len(starts) != len(x.shape):
        raise ModuleError(f"{len(starts)} start indices found, {x} needs {len(x.shape)}")
    for start in starts:
        scalar(start, "start index")
        of_kind(start, "int", "uint")


def dynamic_slice(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(x, *scalar starts): `sizes` elements per dim, starts clamped."""
    at_least(operands, 1)
    x = operands[0]
    _starts(operands[1:], x)
    sizes = integers(attrs, "sizes", len(x.shape))
    if any(not 0 <= n <= size for n, size in zip(sizes, x.shape, strict=True)):
        raise ModuleError(f"slice sizes {sizes} do not fit in {x}")
    return (TensorType(x.dtype, sizes),)


def dynamic_update_slice(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(x, update, *scalar starts): x with `update` written over it, starts clamped."""
    at_least(operands, 2)
    x, update = operands[:2]
    same_dtype((x, update))
    _starts(operands[2:], x)
    if len(update.shape) != len(x.shape) or any(n > m for n, m in zip(update.shape, x.shape, strict=True)):
        raise ModuleError(f"update is {update}, it does not fit in {x}")
    return (x,)


def sort(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """All operands, of one shape, reordered together along `dim`."""
    at_least(operands, 1)
    first = operands[0]
    in_range("dim", integer(attrs, "dim"), len(first.shape))
    word(attrs, "comparator")
    flag(attrs, "stable")
    for other in operands[1:]:
        if other.shape != first.shape:
            raise ModuleError(f"operands are {first} and {other}, one shape is needed")
    return tuple(operands)


def top_k(operands: Types, attrs: Attrs, declared: Types) -> Result:
    """(x,): the `k` largest along the last dim, and their positions as s32."""
    operand_count(operands, 1)
    x, k = operands[0], integer(attrs, "k")
    of_kind(x, "int", "uint", "real")
    if not x.shape or not 0 <= k <= x.shape[-1]:
        raise ModuleError(f"k is {k}, operand {x} needs a last dim of at least that size")
    shape = (*x.shape[:-1], k)
    return (TensorType(x.dtype, shape), TensorType(DType.S32, shape))

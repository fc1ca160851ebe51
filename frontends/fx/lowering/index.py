"""Reads and writes at computed positions.

PyTorch refuses a position out of range when the program runs. The operators here give such a position some
element (reads clamp) or drop it (writes), so what is proved holds of every run that PyTorch completes; each
operator whose positions are not known here is listed as a guess of kind `ids_in_range`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardproof.frontends.fx.lowering.call import Table, entries
from shardproof.frontends.fx.lowering.cuts import written
from shardproof.frontends.fx.lowering.state import Arguments, Lowering, Rule
from shardproof.frontends.spans import distinct, span
from shardproof.ir.module import Value
from shardproof.ir.types import DType


def _known_within(s: Lowering, at: Value, low: int, size: int) -> bool:
    """Whether positions are known to be at least `low` and less than `size`."""
    known, line = s.splats.get(at), s.lines.get(at)
    if known is not None and low <= known < size:
        return True
    if line is not None and at.type.shape[line] <= size:
        return True
    found = span(s, at)
    return found is not None and low <= found[0] and found[1] < size


def within(s: Lowering, at: Value, size: int, *, wraps: bool = False) -> None:
    """List that positions lie in a dim of `size`, unless they are known to."""
    low = -size if wraps else 0
    if _known_within(s, at, low, size):
        return
    of = f"at least {low} and less than {size}"
    s.guess("ids_in_range", f"the positions that `{s.node.name}` reads are {of}, as torch raises otherwise")


def wrapped(s: Lowering, at: Value, size: int) -> Value:
    """Positions of which negative ones count from the end: `clamp(i, 0, size-1) + (i < 0 ? i + size : 0)`.

    The clamp states the range of positions that are not negative, the usual case.
    """
    if _known_within(s, at, 0, size):
        return at
    bounds = [s.scalar(n, at.type.dtype) for n in (0, max(size - 1, 0))]
    inside = s.emit("clamp", bounds[0], at, bounds[1])
    below = s.select(s.compare("LT", at, 0), s.pair("add", at, size), s.like(at, 0))
    return s.pair("add", inside, below)


def taken(s: Lowering, x: Value, at: Value, dim: int) -> Value:
    """`x` at the positions `at` of `dim`, whose dims take the place of `dim`."""
    within(s, at, x.type.shape[dim])
    rank, extra = len(x.type.shape), len(at.type.shape)
    kept = [d if d < dim else d - 1 + extra for d in range(rank) if d != dim]
    return s.emit(
        "gather",
        x,
        at,
        offset_dims=tuple(kept),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        index_vector_dim=extra,
        slice_sizes=tuple(1 if d == dim else n for d, n in enumerate(x.type.shape)),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
    )


def _embedding(s: Lowering, a: Arguments) -> Value:
    return taken(s, a["weight"], a["indices"], 0)


def _index_select(s: Lowering, a: Arguments) -> Value:
    x: Value = a["self"]
    at = a["index"]
    if not x.type.shape:
        return x
    return taken(s, x, s.reshape(at, (at.type.size,)), s.dim(a["dim"], len(x.type.shape)))


def _embedding_backward(s: Lowering, a: Arguments) -> Value:
    grad, at, rows = a["grad_output"], a["indices"], s.size(a["num_weights"])
    if a["scale_grad_by_freq"]:
        s.fail("scales a gradient by how often a row is read, which is not supported")
    within(s, at, rows)
    width = grad.type.shape[-1]
    flat = s.reshape(at, (at.type.size,))
    change = s.reshape(grad, (at.type.size, width))
    if a["padding_idx"] >= 0:
        padding = s.reshape(s.compare("EQ", flat, s.size(a["padding_idx"])), (at.type.size, 1))
        change = s.select(padding, s.like(change, 0), change)
    zeros = s.full(0, grad.type.dtype, (rows, width))
    return _scattered(s, zeros, flat, change, "sum", window=(1,), inserted=(0,), mapped=(0,), vector=1)


def _scattered(
    s: Lowering,
    x: Value,
    at: Value,
    update: Value,
    kind: str,
    *,
    window: Sequence[int],
    inserted: Sequence[int],
    mapped: Sequence[int],
    vector: int,
    batching: tuple[Sequence[int], Sequence[int]] = ((), ()),
    unique: bool = False,
) -> Value:
    return s.emit(
        "scatter",
        x,
        at,
        update,
        update_window_dims=tuple(window),
        inserted_window_dims=tuple(inserted),
        scatter_dims_to_operand_dims=tuple(mapped),
        index_vector_dim=vector,
        input_batching_dims=tuple(batching[0]),
        scatter_indices_batching_dims=tuple(batching[1]),
        kind=kind,
        unique=unique,
    )


def _corner(s: Lowering, x: Value, shape: Sequence[int], besides: int) -> Value:
    """The leading part of `x` of a shape, whole along the dim `besides`."""
    for d, n in enumerate(shape):
        if d != besides and n > x.type.shape[d]:
            s.fail(f"has an index of shape {list(shape)} for {x.type}")
        if d != besides and n < x.type.shape[d]:
            x = s.slice(x, d, 0, n)
    return x


def _gather(s: Lowering, a: Arguments) -> Value:
    """Element by element along one dim, the index giving the shape."""
    x, at = a["self"], a["index"]
    shape = at.type.shape
    if not x.type.shape or not shape:
        flat = taken(s, s.reshape(x, (x.type.size,)), s.reshape(at, (at.type.size,)), 0)
        return s.reshape(flat, shape)
    dim = s.dim(a["dim"], len(x.type.shape))
    within(s, at, x.type.shape[dim])
    others = tuple(d for d in range(len(shape)) if d != dim)
    return s.emit(
        "gather",
        _corner(s, x, shape, dim),
        at,
        offset_dims=(),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        index_vector_dim=len(shape),
        slice_sizes=(1,) * len(shape),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )


def _scatter(kind: str) -> Rule:
    def rule(s: Lowering, a: Arguments) -> Value:
        x, at = a["self"], a["index"]
        shape = at.type.shape
        if not x.type.shape or len(shape) != len(x.type.shape):
            s.fail(f"writes to {x.type} at positions {at.type}")
        dim = s.dim(a["dim"], len(shape))
        source = a["src"] if "src" in a else a["value"]
        if isinstance(source, Value):
            update = s.convert(_corner(s, source, shape, -1), x.type.dtype)
        else:
            update = s.full(source, x.type.dtype, shape)
        within(s, at, x.type.shape[dim])
        others = tuple(d for d in range(len(shape)) if d != dim)
        part = _corner(s, x, shape, dim)
        changed = _scattered(
            s,
            part,
            at,
            update,
            kind,
            window=(),
            inserted=(dim,),
            mapped=(dim,),
            vector=len(shape),
            batching=(others, others),
            unique=kind == "set" and distinct(s, at, dim),
        )
        if part is x:
            return changed
        zero = s.scalar(0, DType.S64)
        return s.emit("dynamic_update_slice", x, changed, *[zero] * len(shape))

    return rule


@dataclass(frozen=True, slots=True)
class Positions:
    """An advanced index: the dims of the tensor that it names with their positions, all of one shape.

    The dims of the positions come at `front` in the result, those of the tensor without an index around it.
    `counted` are the indexed dims that dim `counted[d]` of the positions counts through from 0 to the last.
    """

    at: dict[int, Value]
    shape: tuple[int, ...]
    front: int
    counted: dict[int, int]


def _masked(indices: Sequence[Value | None]) -> bool:
    return any(i is not None and i.type.dtype in (DType.BOOL, DType.U8) for i in indices)


def positions(s: Lowering, x: Value, indices: Sequence[Value | None]) -> Positions:
    """What the list of indices of `index` and `index_put` names; negative positions wrap around."""
    if _masked(indices):
        s.fail("reads elements by a mask, whose number depends on the data")
    dims = [d for d, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    if not dims or len(indices) > len(x.type.shape):
        s.fail(f"has {len(indices)} indices for {x.type}")
    shape = s.common_shape(*given)
    at: dict[int, Value] = {}
    counted: dict[int, int] = {}
    for d, index in zip(dims, given, strict=True):
        size = x.type.shape[d]
        line = s.lines.get(index)
        if line is not None and index.type.shape[line] == size:
            along = line + len(shape) - len(index.type.shape)
            if along not in counted.values():
                counted[d] = along
        within(s, index, size, wraps=True)
        at[d] = s.spread(wrapped(s, index, size), shape)
    front = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    return Positions(at, shape, front, counted)


def _vector(s: Lowering, found: Positions, dims: Sequence[int]) -> Value:
    """The positions in these dims, stacked in a last dim; in the widest type that occurs."""
    parts = [s.reshape(s.convert(found.at[d], DType.S64), (*found.shape, 1)) for d in dims]
    return parts[0] if len(parts) == 1 else s.emit("concatenate", *parts, dim=len(found.shape))


def _index(s: Lowering, a: Arguments) -> Value:
    x, indices = a["self"], list(a["indices"])
    if _masked(indices):
        s.fail("reads elements by a mask, whose number depends on the data")
    if sum(i is not None for i in indices) == 1:
        (dim,) = (d for d, i in enumerate(indices) if i is not None)
        at, size = indices[dim], x.type.shape[dim]
        if at in s.lines and at.type.shape[s.lines[at]] == size == at.type.size:
            return s.reshape(x, (*x.type.shape[:dim], *at.type.shape, *x.type.shape[dim + 1 :]))
    found = positions(s, x, indices)
    batching = tuple(d for d in found.at if d in found.counted)
    mapped = tuple(d for d in found.at if d not in found.counted)
    if not mapped:
        batching, mapped = batching[:-1], batching[-1:]
    rank, extra = len(x.type.shape), len(found.shape)
    kept = [d for d in range(rank) if d not in found.at]
    return s.emit(
        "gather",
        x,
        _vector(s, found, mapped),
        offset_dims=tuple(k if k < found.front else k + extra for k in range(len(kept))),
        collapsed_slice_dims=mapped,
        start_index_map=mapped,
        index_vector_dim=extra,
        slice_sizes=tuple(1 if d in found.at else n for d, n in enumerate(x.type.shape)),
        operand_batching_dims=batching,
        start_indices_batching_dims=tuple(found.counted[d] for d in batching),
    )


def _index_put(s: Lowering, a: Arguments) -> Value:
    x, indices, values = a["self"], list(a["indices"]), a["values"]
    if values.type.dtype is not x.type.dtype:
        s.fail(f"writes {values.type} into {x.type}")
    masks = [i for i in indices if i is not None and i.type.dtype is DType.BOOL]
    if masks:
        return _put_by_mask(s, x, indices, values, accumulate=a["accumulate"])
    return _put(s, x, positions(s, x, indices), values, accumulate=a["accumulate"])


def _index_copy(s: Lowering, a: Arguments) -> Value:
    x, source = a["self"], s.convert(a["source"], a["self"].type.dtype)
    dim = s.dim(a["dim"], len(x.type.shape))
    at = s.reshape(a["index"], (a["index"].type.size,))
    within(s, at, x.type.shape[dim])
    counted = {dim: 0} if s.lines.get(at) == 0 and at.type.size == x.type.shape[dim] else {}
    return _put(s, x, Positions({dim: at}, at.type.shape, dim, counted), source, accumulate=False)


def _put(s: Lowering, x: Value, found: Positions, values: Value, *, accumulate: bool) -> Value:
    """`x` with values written at the positions, or added there."""
    kept = [n for d, n in enumerate(x.type.shape) if d not in found.at]
    whole = (*kept[: found.front], *found.shape, *kept[found.front :])
    values = s.spread(values, whole)
    if all(n == 1 or k in found.counted.values() for k, n in enumerate(found.shape)):
        return _put_in_rows(s, x, found, values, accumulate=accumulate)
    extra = len(found.shape)
    window = [k if k < found.front else k + extra for k in range(len(kept))]
    dims = tuple(found.at)
    if len(dims) == 1 and not accumulate and s.lines.get(found.at[dims[0]]) == 0 and extra == 1:
        return written(s, x, values, dims[0], 0)
    kind = "sum" if accumulate else "set"
    at = _vector(s, found, dims)
    return _scattered(s, x, at, values, kind, window=window, inserted=dims, mapped=dims, vector=extra)


def _put_in_rows(s: Lowering, x: Value, found: Positions, values: Value, *, accumulate: bool) -> Value:
    """A write of at most one element to each place: the positions count through every dim they have."""
    rank, extra = len(x.type.shape), len(found.shape)
    owner = {along: d for d, along in found.counted.items()}
    kept = [d for d in range(rank) if d not in found.at]
    target = [kept[k] for k in range(found.front)]
    target += [owner.get(k, -1) for k in range(extra)]
    target += kept[found.front :]
    spread = _placed(s, values, target, x.type.shape)
    hit: Value | None = None
    for d, at in found.at.items():
        if d in found.counted:
            continue
        column = s.iota(at.type.dtype, x.type.shape, d)
        wanted = _placed(s, at, [owner.get(k, -1) for k in range(extra)], x.type.shape)
        here = s.compare("EQ", column, wanted)
        hit = here if hit is None else s.pair("and", hit, here)
    new = s.pair("add", x, spread) if accumulate else spread
    return new if hit is None else s.select(hit, new, x)


def _placed(s: Lowering, x: Value, target: Sequence[int], shape: Sequence[int]) -> Value:
    """`x` repeated to `shape`, dim k becoming dim `target[k]`; dims of -1 have size 1 and vanish."""
    named = [d for d in target if d >= 0]
    flat = s.reshape(x, [n for n, d in zip(x.type.shape, target, strict=True) if d >= 0])
    return s.place(flat, named, shape)


def _put_by_mask(
    s: Lowering, x: Value, indices: Sequence[Value | None], values: Value, *, accumulate: bool
) -> Value:
    """A mask over leading dims picks where to write one value, or one per place in the other dims."""
    mask = indices[0]
    if len(indices) != 1 or mask is None:
        s.fail("writes by a mask beside other indices, which is not supported")
    rank, covered = len(x.type.shape), len(mask.type.shape)
    rest = x.type.shape[covered:]
    if mask.type.shape != x.type.shape[:covered]:
        s.fail(f"writes to {x.type} by the mask {mask.type}")
    shape = values.type.shape
    if len(shape) > len(rest):
        if len(shape) > len(rest) + 1 or shape[0] != 1:
            s.fail(f"writes the rows {values.type} by a mask, whose number depends on the data")
        values = s.reshape(values, shape[1:])
    spread = s.spread(values, x.type.shape)
    hit = s.place(mask, range(covered), x.type.shape) if covered < rank else mask
    return s.select(hit, s.pair("add", x, spread) if accumulate else spread, x)


def _nonzero(s: Lowering, a: Arguments) -> Value:
    """Positions of the elements that are not 0, where it is known that all or none are."""
    x = a["self"]
    known = s.splats.get(x)
    if known is None or len(x.type.shape) != 1:
        s.fail("gives as many positions as elements are not 0, which depends on the data")
    return s.iota(DType.S64, (x.type.size if known else 0, 1), 0)


def _index_add(s: Lowering, a: Arguments) -> Value:
    x, source = a["self"], s.convert(a["source"], a["self"].type.dtype)
    dim = s.dim(a["dim"], len(x.type.shape))
    at = s.reshape(a["index"], (a["index"].type.size,))
    within(s, at, x.type.shape[dim])
    if a["alpha"] != 1:
        source = s.pair("multiply", source, a["alpha"])
    window = [d for d in range(len(x.type.shape)) if d != dim]
    return _scattered(s, x, at, source, "sum", window=window, inserted=(dim,), mapped=(dim,), vector=1)


_EMBEDDING: Final = "weight indices padding_idx=-1 scale_grad_by_freq=False sparse=False"
_PUT: Final = "self indices values accumulate=False"

TABLE: Final[Table] = {
    **entries(_EMBEDDING, _embedding, "aten.embedding"),
    **entries(
        "grad_output indices num_weights padding_idx scale_grad_by_freq",
        _embedding_backward,
        "aten.embedding_dense_backward",
    ),
    **entries("self dim index", _index_select, "aten.index_select"),
    **entries("self dim index sparse_grad=False", _gather, "aten.gather"),
    **entries("self dim index src", _scatter("set"), "aten.scatter.src"),
    **entries("self dim index value", _scatter("set"), "aten.scatter.value"),
    **entries("self dim index src", _scatter("sum"), "aten.scatter_add"),
    **entries("self indices", _index, "aten.index.Tensor", "aten._unsafe_index.Tensor"),
    **entries(_PUT, _index_put, "aten.index_put", "aten._unsafe_index_put"),
    **entries("self dim index source alpha=1", _index_add, "aten.index_add"),
    **entries("self dim index source", _index_copy, "aten.index_copy"),
    **entries("self", _nonzero, "aten.nonzero"),
}

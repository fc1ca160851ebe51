"""The normaliser's operations on views, one instance per program (its mesh) over a shared store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardproof.ir.types import Array, DType, Kind, TensorType
from shardproof.passes import elementwise as pointwise
from shardproof.passes import views
from shardproof.passes.access import Expr, constant, index, scale, shift
from shardproof.passes.canonical import node
from shardproof.passes.classes import NEGATIVE_INFINITY, POSITIVE_INFINITY, Store, Term
from shardproof.passes.collectives import Ranks
from shardproof.passes.concatenate import same
from shardproof.passes.folding import fold_sum
from shardproof.passes.literals import literal, scalar
from shardproof.passes.logic import clamp, conjunction, modular, within
from shardproof.passes.pieces import read
from shardproof.passes.reduction import contract, reduce
from shardproof.passes.scattering import scatter
from shardproof.passes.selection import select
from shardproof.passes.views import Unsupported, View, align, fresh, place, rename

Groups = tuple[tuple[int, ...], ...]


class Views:
    """`shardproof.ir.index_meaning.Algebra` over a store, for the ranks of one mesh.

    `steps` are the numbers of the rounds that are being normalised, outermost first: every value of a round
    may depend on them.
    """

    def __init__(self, store: Store, ranks: Ranks) -> None:
        self.store = store
        self.ranks = ranks
        self.steps: list[int] = []

    # sources

    def literal(self, value: Array, type: TensorType) -> View:
        dims = tuple(fresh(self.store, n) for n in type.shape)
        if 0 in type.shape:
            return views.empty(self.store, type.shape, type.dtype)
        term = literal(self.store, value, type.dtype, [d[0] if d else None for d in dims])
        return View(term, dims, type.shape, type.dtype)

    def iota(self, type: TensorType, dim: int) -> View:
        dims = tuple(fresh(self.store, n) for n in type.shape)
        e = self.store.flatten(dims[dim])
        whole = type.dtype.kind in ("int", "uint")
        term = self.store.integer(modular(self.store, e, type.dtype) if whole else e)
        if type.dtype.kind == "real":
            term = pointwise.convert(self.store, term, DType.S64, type.dtype)
        return View(term, dims, type.shape, type.dtype)

    def rank(self, type: TensorType) -> View:
        return View(self.store.integer(self.ranks.flat), (), (), type.dtype)

    def draw(self, name: str, type: TensorType, special: int = 0) -> View:
        """A fresh random tensor, other on every rank and in every round of a loop.

        `special` are the infinities and NaN that it may hold.
        """
        dims = tuple(fresh(self.store, n) for n in type.shape)
        indices = [*(i for _, i in self.ranks.axes), *self.steps, *(i for d in dims for i in d)]
        kind = "int" if type.dtype.kind == "uint" else type.dtype.kind
        facts = {"special": special} if kind == "real" else {}
        cls = self.store.draw(name, kind, tuple(self.store.sizes[i] for i in indices), **facts)
        return View(self.store.whole(cls, indices), dims, type.shape, type.dtype)

    # elements

    def elementwise(self, opcode: str, x: Sequence[View], type: TensorType, attrs: Mapping[str, Any]) -> View:
        source = x[1].dtype if opcode == "select" else x[0].dtype
        if opcode == "bitcast_convert" and (x[0].shape != type.shape or source.bits != type.dtype.bits):
            raise Unsupported("a bit cast that changes the shape")
        return views.pointwise(
            self.store,
            x,
            type.dtype,
            lambda t: pointwise.apply(self.store, opcode, t, source, type.dtype, attrs),
        )

    def combine(self, kind: str, x: View, y: View) -> View:
        """The monoid `kind` of two tensors."""
        store, a = self.store, x.term
        literal_of = store.classes[a.cls]
        if kind == "max" and literal_of.special == NEGATIVE_INFINITY and literal_of.op == "literal":
            return y
        if kind == "min" and literal_of.special == POSITIVE_INFINITY and literal_of.op == "literal":
            return y
        if kind in ("max", "min") and x.dtype.kind in ("int", "uint") and self._is_limit(x, kind):
            return y
        opcode = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}.get(kind, kind)
        return self.elementwise(opcode, (x, y), TensorType(y.dtype, y.shape), {})

    def _is_limit(self, x: View, kind: str) -> bool:
        e = self.store.expression(x.term)
        bits, signed = x.dtype.bits, x.dtype.kind == "int"
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return not e[1] and e[0] == (low if kind == "max" else high)

    # layout

    def broadcast(self, x: View, dims: Sequence[int], shape: tuple[int, ...]) -> View:
        if 0 in shape:
            return views.empty(self.store, shape, x.dtype)
        out = [fresh(self.store, n) for n in shape]
        for d, to in enumerate(dims):
            if x.shape[d] == shape[to]:
                out[to] = x.dims[d]
        return View(x.term, tuple(out), shape, x.dtype)

    def reshape(self, x: View, shape: tuple[int, ...]) -> View:
        return x if shape == x.shape else views.reshape(self.store, x, shape)

    def transpose(self, x: View, permutation: Sequence[int]) -> View:
        return View(
            x.term, tuple(x.dims[p] for p in permutation), tuple(x.shape[p] for p in permutation), x.dtype
        )

    def slice(self, x: View, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> View:
        return views.slice_(self.store, x, starts, limits, strides)

    def reverse(self, x: View, dims: Sequence[int]) -> View:
        by: dict[int, Expr] = {}
        for d in dims:
            for i in x.dims[d]:
                by[i] = shift(scale(index(i), -1), self.store.sizes[i] - 1)
        return View(self.store.substitute_term(x.term, by), x.dims, x.shape, x.dtype)

    def join(self, x: Sequence[View], dim: int) -> View:
        return views.join(self.store, x, dim)

    def pad(
        self, x: View, value: View, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
    ) -> View:
        for d in range(len(x.shape)):
            spread = max(0, x.shape[d] * (interior[d] + 1) - interior[d])
            if max(0, -low[d]) + max(0, -high[d]) > spread:
                raise Unsupported("negative padding of more elements than there are")
            if interior[d] and x.shape[d] > 1:
                n, gap = x.shape[d], interior[d]
                x = self.reshape(x, (*x.shape[: d + 1], 1, *x.shape[d + 1 :]))
                x = self._edges(x, value, d + 1, 0, gap)
                x = self.reshape(x, (*x.shape[:d], n * (gap + 1), *x.shape[d + 2 :]))
                x = self._crop(x, d, 0, n * (gap + 1) - gap)
            x = self._crop(x, d, max(0, -low[d]), x.shape[d] - max(0, -high[d]))
            x = self._edges(x, value, d, max(0, low[d]), max(0, high[d]))
        return x

    def _crop(self, x: View, dim: int, start: int, limit: int) -> View:
        starts, limits = [0] * len(x.shape), list(x.shape)
        starts[dim], limits[dim] = start, max(start, limit)
        return self.slice(x, starts, limits, [1] * len(x.shape))

    def _edges(self, x: View, value: View, dim: int, before: int, after: int) -> View:
        def block(n: int) -> View:
            return self.broadcast(value, (), (*x.shape[:dim], n, *x.shape[dim + 1 :]))

        if not before and not after:
            return x
        return self.join([block(before), x, block(after)], dim)

    # reductions

    def reduce(self, x: View, dims: Sequence[int], kind: str) -> View:
        shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
        kept = tuple(digits for d, digits in enumerate(x.dims) if d not in dims)
        if 0 in shape:
            return views.empty(self.store, shape, x.dtype)
        if any(x.shape[d] == 0 for d in dims):
            return self._identity(kind, shape, x.dtype)
        bound = {i for d in dims for i in x.dims[d]}
        return View(self._reduced(x, kind, bound), kept, shape, x.dtype)

    def _identity(self, kind: str, shape: tuple[int, ...], dtype: DType) -> View:
        if kind not in ("sum", "prod", "and", "or") or dtype.kind == "complex":
            raise Unsupported(f"a {kind} over no elements")
        term = scalar(self.store, int(kind in ("prod", "and")), dtype)
        return View(term, tuple(fresh(self.store, n) for n in shape), shape, dtype)

    def _reduced(self, x: View, kind: str, bound: set[int]) -> Term:
        if x.dtype.kind == "complex":
            raise Unsupported(f"a {kind} of complex numbers")
        term = reduce(self.store, kind, bound, x.term)
        if x.dtype.kind in ("int", "uint") and kind in ("sum", "prod") and bound:
            if x.dtype.kind == "uint":
                raise Unsupported(f"a {kind} of unsigned integers")
            self.store.assume("no_overflow", f"no {x.dtype.value} addition or multiplication overflows")
        return term

    def window(self, x: View, dim: int, size: int, stride: int, dilation: int, extent: int) -> View:
        """`extent` windows of `size` along `dim`; the window's positions become a new last dim."""
        outer, inner = fresh(self.store, extent), fresh(self.store, size)
        e = self.store.add(
            scale(self.store.flatten(outer), stride), scale(self.store.flatten(inner), dilation)
        )
        by: dict[int, Expr] = {}
        views.split_into(self.store, x.dims[dim], e, by)
        term = read(self.store, self.store.substitute_term(x.term, by))
        dims = (*x.dims[:dim], outer, *x.dims[dim + 1 :], inner)
        shape = (*x.shape[:dim], extent, *x.shape[dim + 1 :], size)
        return View(term, dims, shape, x.dtype)

    def dot(
        self,
        x: View,
        y: View,
        contracting: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]],
    ) -> View:
        (xc, yc), (xb, yb) = contracting, batch
        y = rename(self.store, y)
        common, (a, b) = align(self.store, (x, y), ((*xb, *xc), (*yb, *yc)))
        bound = {i for digits in common[len(xb) :] for i in digits}
        x_free = [d for d in range(len(x.shape)) if d not in xb and d not in xc]
        y_free = [d for d in range(len(y.shape)) if d not in yb and d not in yc]
        dims = (*common[: len(xb)], *(x.dims[d] for d in x_free), *(y.dims[d] for d in y_free))
        shape = (*(x.shape[d] for d in xb), *(x.shape[d] for d in x_free), *(y.shape[d] for d in y_free))
        if 0 in shape:
            return views.empty(self.store, shape, x.dtype)
        if any(x.shape[d] == 0 for d in xc):
            return self._identity("sum", shape, x.dtype)
        if x.dtype.kind == "real":
            return View(contract(self.store, bound, (a, b)), dims, shape, x.dtype)
        product = pointwise.apply(self.store, "multiply", (a, b), x.dtype, x.dtype, {})
        return View(self._reduced(View(product, (), (), x.dtype), "sum", bound), dims, shape, x.dtype)

    # computed positions

    def read_at(self, x: View, starts: Sequence[View], sizes: Sequence[int]) -> View:
        if 0 in sizes:
            return views.empty(self.store, tuple(sizes), x.dtype)
        dims = tuple(fresh(self.store, n) for n in sizes)
        at = []
        for d, n in enumerate(sizes):
            start = clamp(self.store, self.store.expression(starts[d].term), 0, x.shape[d] - n)
            at.append(self.store.add(start, self.store.flatten(dims[d])))
        return View(place(self.store, x, at), dims, tuple(sizes), x.dtype)

    def write_at(self, x: View, update: View, starts: Sequence[View]) -> View:
        """`x` with a block replaced: a concatenation at constant positions, else a guarded read."""
        store = self.store
        if 0 in update.shape:
            return x
        at = [
            clamp(store, store.expression(s.term), 0, n - m)
            for s, n, m in zip(starts, x.shape, update.shape, strict=True)
        ]
        moving = [d for d in range(len(at)) if update.shape[d] < x.shape[d]]
        if not moving:
            return update
        if len(moving) == 1 and not at[moving[0]][1]:
            d, start = moving[0], at[moving[0]][0]
            end = start + update.shape[d]
            return self.join([self._crop(x, d, 0, start), update, self._crop(x, d, end, x.shape[d])], d)
        positions = [store.flatten(digits) for digits in x.dims]
        inside, local = [], []
        for d, e in enumerate(positions):
            m = update.shape[d]
            offset = store.add(e, scale(at[d], -1))
            if m < x.shape[d]:
                inside += within(store, offset, m)
            local.append(clamp(store, offset, 0, m - 1) if m < x.shape[d] else e)
        value = place(store, rename(store, update), local)
        term = select(store, conjunction(store, inside), value, x.term)
        return View(term, x.dims, x.shape, x.dtype)

    def gather(self, x: View, starts: View, attrs: Mapping[str, Any], shape: tuple[int, ...]) -> View:
        store = self.store
        if 0 in shape:
            return views.empty(store, shape, x.dtype)
        vector = attrs["index_vector_dim"]
        offset_dims, sizes = attrs["offset_dims"], attrs["slice_sizes"]
        hidden = {*attrs["collapsed_slice_dims"], *attrs["operand_batching_dims"]}
        starts = rename(store, starts)
        batch_dims = [d for d in range(len(starts.shape)) if d != vector]
        batch = [starts.dims[d] for d in batch_dims]
        free_batch = iter(batch)
        windows = iter([d for d in range(len(x.shape)) if d not in hidden])
        dims: list[tuple[int, ...]] = []
        local: dict[int, Expr] = {}
        for d in range(len(shape)):
            if d in offset_dims:
                digits = fresh(store, shape[d])
                local[next(windows)] = store.flatten(digits)
                dims.append(digits)
            else:
                dims.append(next(free_batch))
        at = [local.get(d, constant(0)) for d in range(len(x.shape))]
        for n, d in enumerate(attrs["start_index_map"]):
            component = starts.term
            if vector < len(starts.shape):
                by: dict[int, Expr] = {}
                views.split_into(store, starts.dims[vector], constant(n), by)
                component = read(store, store.substitute_term(component, by))
            e = clamp(store, fold_sum(store, store.expression(component)), 0, x.shape[d] - sizes[d])
            at[d] = store.add(at[d], e)
        for d, b in zip(attrs["operand_batching_dims"], attrs["start_indices_batching_dims"], strict=True):
            at[d] = store.add(at[d], store.flatten(starts.dims[b]))
        return View(place(store, x, at), tuple(dims), shape, x.dtype)

    def scatter(self, x: View, starts: View, update: View, attrs: Mapping[str, Any]) -> View:
        return scatter(self.store, x, rename(self.store, starts), rename(self.store, update), attrs)

    # opaque functions

    def opaque(
        self,
        name: str,
        x: Sequence[View],
        types: Sequence[TensorType],
        free: Sequence[tuple[Sequence[int], Sequence[int]]],
    ) -> tuple[View, ...]:
        """A function known by name: slice by slice along `free`, binding every other dim in order (K2, K3).

        `name` holds whatever else the function depends on, such as which of its dims are free.
        """
        store = self.store
        if any(0 in v.shape for v in x) or any(0 in t.shape for t in types):
            raise Unsupported(f"{name} of tensors without elements")
        x = [x[0], *(rename(store, v) for v in x[1:])] if x else []
        dims = [list(v.dims) for v in x]
        terms = [v.term for v in x]
        shared: list[tuple[int, ...]] = []
        for operand_dims, _ in free:
            users = [k for k, d in enumerate(operand_dims) if d >= 0]
            current = [View(terms[k], tuple(dims[k]), x[k].shape, x[k].dtype) for k in users]
            common, new = align(store, current, [(operand_dims[k],) for k in users])
            for k, t in zip(users, new, strict=True):
                terms[k] = t
                dims[k][operand_dims[k]] = common[0]
            shared.append(common[0])
        groups = []
        signature = []
        for k, v in enumerate(x):
            held = [d for d in range(len(v.shape)) if all(f[0][k] != d for f in free)]
            groups += [tuple(dims[k][d]) for d in held]
            signature.append((v.dtype.value, tuple(v.shape[d] for d in held)))
        results = []
        for n, type_ in enumerate(types):
            shape, dtype = type_.shape, type_.dtype
            own = {f[1][n]: common for f, common in zip(free, shared, strict=True) if f[1][n] >= 0}
            out_dims = tuple(own[d] if d in own else fresh(store, size) for d, size in enumerate(shape))
            out = [i for d, digits in enumerate(out_dims) if d not in own for i in digits]
            held_shape = tuple(size for d, size in enumerate(shape) if d not in own)
            attrs = (name, n, (dtype.value, held_shape), tuple(signature))
            kind: Kind = "int" if dtype.kind == "uint" else dtype.kind
            term = node(store, "opaque", attrs, kind, terms, groups=tuple(groups), out=out)
            results.append(View(term, out_dims, shape, dtype))
        return tuple(results)

    # collectives

    def all_reduce(self, x: View, kind: str, groups: Groups) -> View:
        unordered = tuple(sorted(tuple(sorted(g)) for g in groups))
        by, members = self.ranks.members(unordered)
        term = self.store.substitute_term(x.term, by)
        return View(self._reduced(View(term, (), (), x.dtype), kind, set(members)), x.dims, x.shape, x.dtype)

    def all_gather(self, x: View, dim: int, groups: Groups) -> View:
        by, members = self.ranks.members(groups)
        size = len(groups[0])
        shape = (*x.shape[:dim], x.shape[dim] * size, *x.shape[dim + 1 :])
        dims = (*x.dims[:dim], (*members, *x.dims[dim]), *x.dims[dim + 1 :])
        return View(self.store.substitute_term(x.term, by), dims, shape, x.dtype)

    def own_shard(self, x: View, dim: int, groups: Groups) -> View:
        """Part number "position of this rank in its group" of the equal parts along `dim`."""
        m = x.shape[dim] // len(groups[0])
        digits = fresh(self.store, m)
        at = [self.store.flatten(d) for d in x.dims]
        at[dim] = self.store.add(scale(self.ranks.position(groups), m), self.store.flatten(digits))
        dims = (*x.dims[:dim], digits, *x.dims[dim + 1 :])
        shape = (*x.shape[:dim], m, *x.shape[dim + 1 :])
        return View(place(self.store, x, at), dims, shape, x.dtype)

    def all_to_all(self, x: View, split: int, join: int, groups: Groups) -> View:
        by, members = self.ranks.members(groups)
        size = len(groups[0])
        m = x.shape[split] // size
        digits = fresh(self.store, m)
        own = self.store.add(scale(self.ranks.position(groups), m), self.store.flatten(digits))
        views.split_into(self.store, x.dims[split], own, by)
        shape, dims = list(x.shape), list(x.dims)
        shape[split], dims[split] = m, digits
        shape[join], dims[join] = shape[join] * size, (*members, *dims[join])
        term = read(self.store, self.store.substitute_term(x.term, by))
        return View(term, tuple(dims), tuple(shape), x.dtype)

    def permute(self, x: View, pairs: Sequence[tuple[int, int]]) -> View:
        by, received = self.ranks.sources(pairs)
        term = self.store.substitute_term(x.term, by)
        if received.cls != self.store.TRUE:
            term = select(self.store, received, term, scalar(self.store, 0, x.dtype))
        return View(term, x.dims, x.shape, x.dtype)

    def from_first(self, x: View, groups: Groups) -> View:
        pairs = [(g[0], r) for g in groups for r in g]
        return self.permute(x, pairs)

    def agreed(self, x: View, groups: Groups) -> View:
        """`x`, which all members of a group are shown to hold alike; else it is no value that is known."""
        first = self.from_first(x, groups)
        _, (own, other) = align(self.store, (x, first), [range(len(x.shape))] * 2)
        if not same(self.store, own, other):
            raise Unsupported("ranks that are said to hold the same value are not shown to")
        return x

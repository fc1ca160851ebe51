"""What the names of a graph stand for while operators write to tensors in place (E2 of the soundness rules).

A view names the tensor it was made from and the operator that made it. A write to a tensor goes back to
that tensor by the inverse of each view, and every other view of it is made anew when it is read next.
Operators that give a view or a copy depending on strides join their operand and result in doubt: reading
one after a write to the other is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardproof.frontends.fx.lowering.cuts import bounds, position, strided, written
from shardproof.frontends.fx.lowering.state import Arguments, Lowering, Pending
from shardproof.ir.module import Value

Inverse = Callable[[Lowering, Arguments, Value, Value, int | None], Value]
"""(state, arguments of the view, tensor, new view, place among the results) -> the tensor with it written."""


@dataclass(frozen=True, slots=True)
class View:
    """A name that reads the memory of `parent`: `remake` gives it from the parent's value, `write` the
    parent's value from it; None where the operator may have copied. `listed` says that the name is a list of
    views, which have names of their own."""

    parent: str
    remake: Callable[[Value], Value] | None
    write: Callable[[Value, Value], Value] | None
    listed: bool = False


def _reshaped(s: Lowering, a: Arguments, x: Value, new: Value, place: int | None) -> Value:
    return s.reshape(new, x.type.shape)


def _same(s: Lowering, a: Arguments, x: Value, new: Value, place: int | None) -> Value:
    return new


def _permuted(s: Lowering, a: Arguments, x: Value, new: Value, place: int | None) -> Value:
    rank = len(x.type.shape)
    if "dims" in a:
        order = s.dims(a["dims"], rank, empty_is_all=False)
    else:
        order = tuple(range(rank))
        first, second = (s.dim(a.get(n, k), rank) for n, k in (("dim0", 0), ("dim1", -1)))
        if rank:
            order = tuple(second if d == first else first if d == second else d for d in order)
    return s.transpose(new, [order.index(d) for d in range(rank)])


def _cut(s: Lowering, a: Arguments, x: Value, new: Value, place: int | None) -> Value:
    dim = s.dim(a["dim"], len(x.type.shape))
    low, high = bounds(s, x.type.shape[dim], a["start"], a["end"])
    if a["step"] != 1:
        return strided(s, x, new, dim, low, s.size(a["step"]))
    return new if (low, high) == (0, x.type.shape[dim]) else written(s, x, new, dim, low)


def _narrowed(s: Lowering, a: Arguments, x: Value, new: Value, place: int | None) -> Value:
    dim = s.dim(a["dim"], len(x.type.shape))
    start = s.size(a["start"])
    return written(s, x, new, dim, start + (x.type.shape[dim] if start < 0 else 0))


def _at(s: Lowering, x: Value, new: Value, dim: int, index: int) -> Value:
    shape = x.type.shape
    return written(s, x, s.reshape(new, (*shape[:dim], 1, *shape[dim + 1 :])), dim, index)


def _selected(s: Lowering, a: Arguments, x: Value, new: Value, place: int | None) -> Value:
    dim = s.dim(a["dim"], len(x.type.shape))
    return _at(s, x, new, dim, position(s, x, dim, a["index"]))


def _unbound(s: Lowering, a: Arguments, x: Value, new: Value, place: int | None) -> Value:
    assert place is not None
    return _at(s, x, new, s.dim(a["dim"], len(x.type.shape)), place)


def _piece(s: Lowering, a: Arguments, x: Value, new: Value, place: int | None) -> Value:
    assert place is not None
    dim = s.dim(a["dim"], len(x.type.shape))
    if "sizes" in a:
        return written(s, x, new, dim, sum(s.shape(a["sizes"])[:place]))
    total = x.type.shape[dim]
    each = s.size(a["size"]) if "size" in a else -(-total // s.size(a["chunks"]))
    return written(s, x, new, dim, place * each)


def _repeated(s: Lowering, a: Arguments, x: Value, new: Value, place: int | None) -> Value:
    if new.type.shape != x.type.shape:
        s.fail("writes to a tensor whose elements share memory")
    return new


VIEWS: Final[Mapping[str, Inverse]] = {
    **dict.fromkeys(
        (
            "aten.view.default",
            "aten.squeeze.default",
            "aten.squeeze.dim",
            "aten.squeeze.dims",
            "aten.unsqueeze.default",
            "aten.unflatten.int",
        ),
        _reshaped,
    ),
    **dict.fromkeys(("aten.detach.default", "aten.alias.default", "aten.lift_fresh.default"), _same),
    **dict.fromkeys(
        ("aten.transpose.int", "aten.swapaxes.default", "aten.t.default", "aten.permute.default"), _permuted
    ),
    "aten.slice.Tensor": _cut,
    "aten.narrow.default": _narrowed,
    "aten.select.int": _selected,
    "aten.unbind.int": _unbound,
    "aten.split.Tensor": _piece,
    "aten.split_with_sizes.default": _piece,
    "aten.chunk.default": _piece,
    "aten.expand.default": _repeated,
    "aten.expand_as.default": _repeated,
}
"""Views, by how a write to them reaches the tensor they read; `self` is that tensor."""

UNSURE: Final = frozenset(
    {
        "aten._unsafe_view.default",
        "aten.reshape.default",
        "aten.contiguous.default",
        "aten.flatten.using_ints",
        "aten.to.dtype",
        "aten.to.dtype_layout",
        "aten.to.device",
        "aten.type_as.default",
        "aten.movedim.int",
        "aten.movedim.intlist",
        "aten.view.dtype",
        "aten.numpy_T.default",
        "aten.dropout.default",
        "aten.lift.default",
    }
)
"""Operators whose result may or may not be the memory of `self`."""


class Memory:
    """The values of the names of one graph."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.views: dict[str, View] = {}
        self.children: dict[str, list[str]] = {}
        self.stale: set[str] = set()
        self.torn: dict[str, str] = {}
        self.waiting: dict[str, str] = {}
        self.written: set[str] = set()
        self.outdated: set[str] = set()
        self.touched: set[str] = set()

    def join(self, name: str, view: View) -> None:
        """`name`, which has a value, reads the memory of another name."""
        self.views[name] = view
        self.children.setdefault(view.parent, []).append(name)

    def root(self, name: str) -> str:
        """The name that a chain of views begins with."""
        while name in self.views:
            name = self.views[name].parent
        return name

    def read(self, s: Lowering, name: str) -> Any:
        """The current value of a name."""
        if name in self.torn:
            s.fail(f"reads `{name}`, which `{self.torn[name]}` overwrote if it shares its memory")
        if self.waiting:
            root = self.root(name)
            if root in self.waiting:
                s.fail(f"uses the result of `{self.waiting[root]}` before its wait")
        if name in self.outdated:
            s.fail(f"reads the list `{name}`, parts of which were overwritten since")
        if name in self.stale:
            view = self.views[name]
            assert view.remake is not None
            self.values[name] = view.remake(self.read(s, view.parent))
            self.stale.discard(name)
            self.touched.add(name)
        return self.values[name]

    def write(self, s: Lowering, name: str, new: Value) -> None:
        """Overwrite a tensor, and with it all that share its memory."""
        self.read(s, name)
        self._spoil(s, name, besides=None)
        self.values[name] = new
        self.touched.add(name)
        while True:
            view = self.views.get(name)
            if view is None:
                self.written.add(name)
                return
            if view.write is None:
                self._tear(s, view.parent, besides=name)
                return
            old = self.read(s, view.parent)
            new = view.write(old, new)
            self._spoil(s, view.parent, besides=name)
            self.values[view.parent] = new
            name = view.parent
            self.touched.add(name)

    def _spoil(self, s: Lowering, name: str, besides: str | None) -> None:
        """The views of `name` are to be made anew, but for the one that was just written."""
        for child in self.children.get(name, ()):
            if child == besides:
                continue
            if self.views[child].listed:
                self.outdated.add(child)
                continue
            if self.views[child].remake is None:
                self._tear(s, child, besides=None)
                continue
            self.stale.add(child)
            self._spoil(s, child, besides=None)

    def _tear(self, s: Lowering, name: str, besides: str | None) -> None:
        """What `name` and all related to it hold is not known."""
        pending = [name]
        while pending:
            current = pending.pop()
            if current in self.torn or current == besides:
                continue
            self.torn[current] = s.node.name
            pending += self.children.get(current, ())
            if current in self.views:
                pending.append(self.views[current].parent)

    def block(self, name: str, collective: str) -> None:
        """A collective writes to `name` until it is waited for."""
        self.waiting[self.root(name)] = collective

    def release(self, name: str) -> None:
        self.waiting.pop(self.root(name), None)


def settled(bound: Any) -> Any:
    """A value without the note that it is waited for."""
    return bound.value if isinstance(bound, Pending) else bound

"""Which reference tensors each stored tensor of another program is made of, and the programs that this gives.

A tensor of the implementation that holds the bits of a reference tensor, of a part or rearrangement of it, or
of several side by side, is made of it; the proof then covers all values of the reference's tensors, of which
those in the files are one. Bits, never what proves, decide. Tensors that hold anything else are constants,
and so are then those of the reference that the implementation does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import permutations
from math import prod
from typing import Final

import numpy as np

from shardproof.frontends.codes import cast, values_of
from shardproof.frontends.weights import Weight
from shardproof.ir.evaluate import apply
from shardproof.ir.module import Input, Module, Op, Value
from shardproof.ir.types import Array, Mesh, TensorType
from shardproof.solver.relations.layout import Cutter

MOVES: Final = frozenset({"broadcast_in_dim", "concatenate", "reshape", "reverse", "slice", "transpose"})
"""Operators that only move elements, whatever their type."""
MOVED: Final = 1 << 28
"""Most elements of a moved tensor that is looked at."""
TURNED: Final = 4
"""Most dims of a tensor whose permutations are tried."""
SHOWN: Final = 3

Make = Callable[[Cutter, Callable[[str], Value]], Value]
"""Makes a tensor of the reference tensors that the second argument gives by name."""
Key = tuple[str, tuple[int, ...], bytes]


@dataclass(frozen=True, slots=True)
class Related:
    """Both programs, the implementation's in terms of reference tensors, and what was found, in words.

    It is not `certain` which tensors belong together where several hold the same.
    """

    reference: Module
    implementation: Module
    told: tuple[str, ...] = ()
    certain: bool = True


def _digest(codes: Array) -> bytes:
    return blake2b(np.ascontiguousarray(codes).tobytes(), digest_size=16).digest()


def _key(weight: Weight, codes: Array) -> Key:
    return weight.element.name, codes.shape, _digest(codes)


@dataclass(slots=True)
class Matching:
    """`made` are implementation tensors by how they are made, `constants` those that are not.

    `merged` names the reference tensor in whose place another stands that holds the same. Where the tensors
    of the implementation are `complete`, reference tensors that none is made of are `copies` of others with
    their dims in another order, or constants, too.
    """

    own: Mapping[str, Weight]
    theirs: Mapping[str, Weight]
    reference: Module
    complete: bool
    same: dict[str, str] = field(default_factory=dict)
    made: dict[str, tuple[Make, str]] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    merged: dict[str, str] = field(default_factory=dict)
    copies: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    _alike: dict[Key, list[str]] = field(default_factory=dict)

    def pair(self) -> None:
        for name, weight in self.own.items():
            self._alike.setdefault(_key(weight, weight.codes()), []).append(name)
        groups: dict[Key, list[str]] = {}
        for name, weight in self.theirs.items():
            groups.setdefault(_key(weight, weight.codes()), []).append(name)
        rest = []
        for key, names in groups.items():
            sources = self._alike.get(key)
            if sources is None:
                rest += names
            elif set(names) <= set(sources) and len(names) == len(sources):
                self.same |= {n: n for n in names}
                self.used.update(names)
            else:
                self.same |= dict.fromkeys(names, self._one(sources))
        if rest:
            self._rearranged(rest)
        alone = self.alone()
        if alone and self.used:
            turned = self._turned(dict.fromkeys(map(self._root, sorted(self.used))))
            for name in alone:
                names, order = turned.get(_key(self.own[name], self.own[name].codes()), ([], ()))
                if names:
                    self.copies[name] = names[0], order

    def _root(self, name: str) -> str:
        """The reference tensor that stands for this one."""
        while name in self.merged:
            name = self.merged[name]
        return name

    def _one(self, names: Sequence[str]) -> str:
        """Read these reference tensors, which hold the same, as one; any of them."""
        first = self._root(names[0])
        self.merged |= {r: first for n in names if (r := self._root(n)) != first}
        self.used.add(first)
        return names[0]

    # tensors that hold rearranged contents

    def _rearranged(self, names: Sequence[str]) -> None:
        flat: dict[tuple[str, int, bytes], list[str]] = {}
        for (element, shape, digest), sources in self._alike.items():
            flat.setdefault((element, prod(shape), digest), []).extend(sources)
        wanted = {(w.element.name, w.shape) for n in names if (w := self.theirs[n])}
        moved = self._moved(wanted)
        turned: dict[Key, tuple[list[str], tuple[int, ...]]] | None = None
        for name in names:
            weight = self.theirs[name]
            codes = weight.codes()
            key = _key(weight, codes)
            reshaped = flat.get((key[0], prod(key[1]), key[2]))
            if self._is_cast(name, codes):
                self.made[name] = _converted(self._one([name]), weight), f"`{name}` as {weight.element}"
            elif reshaped is not None:
                source = self._one(reshaped)
                self.made[name] = _reshaped(source, weight.shape), f"`{source}` in another shape"
            elif key in moved:
                self.made[name] = self._copied(moved[key])
            else:
                turned = self._turned(self.own) if turned is None else turned
                self._side_by_side(name, weight, codes, turned)

    def _is_cast(self, name: str, codes: Array) -> bool:
        """Whether a tensor holds the reference's of its name rounded to its own type."""
        own, kind = self.own.get(name), self.theirs[name].element.dtype
        if own is None or own.shape != codes.shape or own.element.dtype in (None, kind) or kind is None:
            return False
        assert own.element.dtype is not None
        rounded = cast(own.codes(), own.element.dtype, kind)
        return rounded is not None and np.array_equal(rounded, codes)

    def _moved(self, wanted: Collection[tuple[str, tuple[int, ...]]]) -> dict[Key, Value]:
        """Values of the reference of these types that are stored tensors moved about."""
        held: dict[Value, Array] = {}
        weights = {i.value: self.own[i.name] for i in self.reference.inputs if i.name in self.own}
        found: dict[Key, Value] = {}
        for op in self.reference.ops:
            if op.opcode not in MOVES or op.result.type.size > MOVED:
                continue
            for v in op.operands:
                if v not in held and v in weights:
                    held[v] = weights[v].codes()
            if not all(v in held for v in op.operands):
                continue
            (array,) = apply(op, [held[v] for v in op.operands])
            held[op.result] = array
            if (op.result.type.dtype.value, array.shape) in wanted:
                key = op.result.type.dtype.value, array.shape, _digest(array)
                found.setdefault(key, op.result)
        return found

    def _copied(self, target: Value) -> tuple[Make, str]:
        """The operators of the reference that make a value of stored tensors, and the value in words."""
        wanted, chain = {target}, []
        for op in reversed(self.reference.ops):
            if op.opcode in MOVES and op.result in wanted:
                wanted.update(op.operands)
                chain.append(op)
        names = {i.value: i.name for i in self.reference.inputs if i.value in wanted}
        for n in names.values():
            self._one([n])

        def make(cutter: Cutter, find: Callable[[str], Value]) -> Value:
            values = {v: find(n) for v, n in names.items()}
            for op in reversed(chain):
                operands = tuple(values[v] for v in op.operands)
                values[op.result] = cutter.op(op.opcode, operands, op.result.type, **op.attrs)
            return values[target]

        sources = ", ".join(f"`{n}`" for n in names.values())
        return make, f"the reference's value `{target.name}`, of {sources}"

    def _turned(self, names: Iterable[str]) -> dict[Key, tuple[list[str], tuple[int, ...]]]:
        """Reference tensors with their dims in every order."""
        found: dict[Key, tuple[list[str], tuple[int, ...]]] = {}
        for weight in map(self.own.__getitem__, names):
            rank = len(weight.shape)
            for order in permutations(range(rank)) if rank <= TURNED else (tuple(range(rank)),):
                key = _key(weight, weight.codes().transpose(order))
                alike, kept = found.setdefault(key, ([], order))
                if kept == order:
                    alike.append(weight.name)
        return found

    def _side_by_side(
        self,
        name: str,
        weight: Weight,
        codes: Array,
        turned: Mapping[Key, tuple[list[str], tuple[int, ...]]],
    ) -> None:
        """One reference tensor, or several side by side, with their dims in some order; else a constant."""
        for dim in range(max(len(weight.shape), 1)):
            pieces = _pieces(weight.element.name, codes, dim, turned)
            if pieces is None:
                continue
            parts = [(self._one(names), order) for names, order in pieces]
            words = [f"`{n}`" + ("" if list(o) == sorted(o) else f" | permute{o}") for n, o in parts]
            text = words[0] if len(words) == 1 else f"{', '.join(words)} along dim {dim}"
            self.made[name] = _joined(parts, dim), text
            return
        self.constants.append(name)

    # the programs

    def result(self, reference: Module, implementation: Module) -> Related:
        renamed = any(a != b for a, b in self.same.items())
        if not (renamed or self.made or self.constants or self.merged or self.copies or self.alone()):
            return Related(reference, implementation)
        cutter = Cutter(Mesh(), "stored ")
        types = {i.name: i.value.type for i in reference.inputs}
        values: dict[str, Value] = {}

        def find(name: str) -> Value:
            found = self._root(name)
            return cutter.reshape(values.setdefault(found, Value(found, types[found])), types[name].shape)

        inputs = {i.name: i for i in implementation.inputs}
        plain = {n for n, source in self.same.items() if self._root(source) == n}
        values |= {n: inputs[n].value for n in plain}
        for name, source in self.same.items():
            if name not in plain:
                cutter.define(inputs[name].value, find(source))
        for name, (make, _) in self.made.items():
            cutter.define(inputs[name].value, make(cutter, find))
        for name in self.constants:
            cutter.ops.append(constant(inputs[name].value, self.theirs[name]))
        gone = {*self.made, *self.constants, *(self.same.keys() - plain)}
        kept = [i for i in implementation.inputs if i.name not in gone]
        new = [Input(v, 0) for n, v in values.items() if n not in plain]
        told = _numbered((*kept, *new), reference)
        other = _prefixed(implementation, tuple(cutter.ops), told, set(values) - plain)
        certain = not self.merged and not self.copies
        return Related(self._reference(reference), other, tuple(self._words()), certain)

    def alone(self) -> list[str]:
        """The reference tensors that become constants."""
        known = {*self.merged, *self.used, *self.copies}
        return [n for n in self.own if self.complete and n not in known]

    def _reference(self, module: Module) -> Module:
        cutter = Cutter(Mesh(), "stored ")
        values = {i.name: i.value for i in module.inputs}
        for name in self.merged:
            cutter.define(values[name], values[self._root(name)])
        for name, (first, order) in self.copies.items():
            cutter.define(values[name], cutter.transpose(values[first], order))
        gone = {*self.merged, *self.copies}
        for name in self.alone():
            cutter.ops.append(constant(values[name], self.own[name]))
            gone.add(name)
        inputs = tuple(i for i in module.inputs if i.name not in gone)
        return replace(module, inputs=inputs, ops=(*cutter.ops, *module.ops))

    def _words(self) -> Iterable[str]:
        pairs = [f"`{a}` is `{b}`" for a, b in self.same.items() if a != b]
        pairs += [f"`{a}` is {how}" for a, (_, how) in self.made.items()]
        if pairs:
            yield f"related by equal contents: {_some(pairs)}"
        if self.merged:
            alike = [f"`{a}` is `{self._root(a)}`" for a in self.merged]
            yield f"reference tensors of equal contents are taken as one: {_some(alike)}"
        if self.copies:
            alike = [f"`{a}` is `{b}` | permute{order}" for a, (b, order) in self.copies.items()]
            yield f"reference tensors of equal contents in another order are taken as one: {_some(alike)}"
        if self.constants:
            names = [f"`{n}`" for n in self.constants]
            yield f"constants, as the reference has no tensor of these contents: {_some(names)}"
        if self.alone():
            names = [f"`{n}`" for n in self.alone()]
            yield f"constants, as only the reference has tensors of these contents: {_some(names)}"
        other = [f"`{n}`" for n in self.constants if n in self.own]
        if other:
            yield f"other contents than the reference's tensor of that name: {_some(other)}"


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more


def _reshaped(name: str, shape: tuple[int, ...]) -> Make:
    return lambda cutter, find: cutter.reshape(find(name), shape)


def _converted(name: str, weight: Weight) -> Make:
    assert weight.element.dtype is not None
    type = TensorType(weight.element.dtype, weight.shape)
    return lambda cutter, find: cutter.op("convert", (find(name),), type)


def _joined(parts: Sequence[tuple[str, tuple[int, ...]]], dim: int) -> Make:
    return lambda cutter, find: cutter.join([cutter.transpose(find(n), order) for n, order in parts], dim)


def _pieces(
    element: str, codes: Array, dim: int, turned: Mapping[Key, tuple[list[str], tuple[int, ...]]]
) -> list[tuple[list[str], tuple[int, ...]]] | None:
    """The tensors that lie side by side along `dim`, the shortest that fits first; None if there is a gap."""
    shape = codes.shape

    def others(extents: tuple[int, ...]) -> tuple[int, ...]:
        return (*extents[:dim], *extents[dim + 1 :])

    alike = (s for e, s, _ in turned if e == element and len(s) == len(shape) > dim)
    sizes = sorted({s[dim] for s in alike if others(s) == others(shape)})
    found, at = [], 0
    while shape and at < shape[dim]:
        for size in sizes:
            if size < 1 or at + size > shape[dim]:
                continue
            part = codes[(slice(None),) * dim + (slice(at, at + size),)]
            piece = turned.get((element, part.shape, _digest(part)))
            if piece is not None:
                found.append(piece)
                at += size
                break
        else:
            return None
    return found or None


def constant(value: Value, weight: Weight) -> Op:
    """Makes a value what a file holds."""
    array = values_of(weight.codes(), value.type.dtype).astype(value.type.dtype.storage)
    return Op("constant", (), (value,), {"value": np.ascontiguousarray(array).reshape(value.type.shape)})


def _numbered(inputs: Sequence[Input], reference: Module) -> tuple[Input, ...]:
    """The inputs, each with the number of the reference input of its name; in order where that fails."""
    numbers = {i.name: i.number for i in reference.inputs}
    told = [numbers.get(i.name, i.number) for i in inputs]
    if len(set(told)) < len(told):
        told = list(range(len(inputs)))
    return tuple(replace(i, number=n) for i, n in zip(inputs, told, strict=True))


def _prefixed(
    module: Module, ops: tuple[Op, ...], inputs: tuple[Input, ...], taken: Collection[str]
) -> Module:
    """The program after `ops`, of new inputs; other values of names that these have get other ones."""
    every = (*ops, *module.ops)
    fresh = {
        v: Value(f"{v.name} of the implementation", v.type, v.location)
        for op in every
        for v in op.results
        if v.name in taken
    }

    def one(v: Value) -> Value:
        return fresh.get(v, v)

    if fresh:
        every = tuple(
            Op(op.opcode, tuple(map(one, op.operands)), tuple(map(one, op.results)), op.attrs) for op in every
        )
    outputs = tuple(replace(o, value=one(o.value)) for o in module.outputs)
    return replace(module, inputs=inputs, ops=every, outputs=outputs)

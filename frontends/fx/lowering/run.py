"""The nodes of one graph, lowered one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from shardproof.frontends.fx.graph import Argument, Graph, Node, Ref, Symbol, Tensor, references
from shardproof.frontends.fx.lowering import custom, inplace
from shardproof.frontends.fx.lowering.call import Entry, bind
from shardproof.frontends.fx.lowering.collectives import WAITS
from shardproof.frontends.fx.lowering.cuts import selected
from shardproof.frontends.fx.lowering.memory import UNSURE, VIEWS, Memory, View, settled
from shardproof.frontends.fx.lowering.sizes import size_of
from shardproof.frontends.fx.lowering.state import Lowering, Pending
from shardproof.frontends.fx.lowering.table import IGNORED, NUMBERS, ON_TENSORS, RANDOM, TABLE
from shardproof.ir.module import Input, ModuleError, Output, Value
from shardproof.ir.types import TensorType


class Run:
    """The nodes of one graph, lowered one after the other."""

    def __init__(self, graph: Graph, state: Lowering, constants: dict[str, Any]) -> None:
        self.graph = graph
        self.state = state
        self.constants = constants
        self.memory = Memory()
        self.inputs: list[Input] = []
        self.placeholders = 0
        self.parts: dict[str, dict[int, str]] = {}
        self.types: dict[str, dict[int, Tensor]] = {}
        self.guessed: dict[str, Tensor] = {}
        self.mutates = False
        self.names: set[str] = set()
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Who takes the results of whom, and the types that are recorded at the takers only."""
        for node in self.graph.nodes:
            if node.op != "call_function":
                continue
            if inplace.is_inplace(node.target) or node.target.endswith("_.default"):
                self.mutates = True
            if inplace.writes_out(node.target):
                self.mutates = True
            if node.target in custom.SIGNATURES and custom.SIGNATURES[node.target].mutated:
                self.mutates = True
            first = node.args[0] if node.args else None
            if not isinstance(first, Ref):
                continue
            if node.target == "getitem" and isinstance(node.args[1], int):
                self.parts.setdefault(first.name, {}).setdefault(node.args[1], node.name)
                if isinstance(node.meta, Tensor):
                    self.types.setdefault(first.name, {})[node.args[1]] = node.meta
            elif isinstance(node.meta, Tensor):
                self.guessed.setdefault(first.name, node.meta)

    def step(self, node: Node) -> None:
        """Lower one node."""
        state = self.state
        declared = dict(self.types.get(node.name, {}))
        if isinstance(node.meta, Tensor):
            declared[0] = node.meta
        elif isinstance(node.meta, tuple):
            declared |= {k: m for k, m in enumerate(node.meta) if isinstance(m, Tensor)}
        parts = self.parts.get(node.name, {})
        state.start(node, parts, declared)
        self.memory.touched.clear()
        if node.op == "output":
            return
        try:
            if node.op == "placeholder":
                bound = self._placeholder(node)
            elif node.op == "get_attr":
                bound = self._constant(node)
            else:
                bound = self._call(node)
        except ModuleError as error:
            if str(error).startswith("`"):
                raise
            state.fail(str(error))
        bound = self._named(node, bound, parts)
        self._check(node, bound)
        self.memory.values[node.name] = bound

    def _placeholder(self, node: Node) -> Any:
        state = self.state
        number, self.placeholders = self.placeholders, self.placeholders + 1
        if isinstance(node.meta, Symbol):
            return state.size(node.meta)
        if not isinstance(node.meta, Tensor):
            if node.meta is None and node.name not in self.guessed:
                return None
            state.fail("is an input without a recorded type")
        type = TensorType(node.meta.dtype, state.resolved(node.meta.shape))
        title = self.graph.titles.get(node.name, node.name)
        given = self._given(title) if title in self.graph.computed else None
        if given is not None:
            return self._literal(given, type)
        value = Value(node.name, type, node.location)
        self.inputs.append(Input(value, number))
        return value

    def _constant(self, node: Node) -> Value:
        state = self.state
        told = node.meta if isinstance(node.meta, Tensor) else self.guessed.get(node.name)
        value: Any = self.graph.constants.get(node.target)
        if value is None:
            value = self._given(node.target)
        if told is None:
            state.fail("is a constant without a recorded type")
        type = TensorType(told.dtype, state.resolved(told.shape))
        if value is None and type.size == 0:
            value = 0
        if value is None:
            state.guess(
                "constant_guess",
                f"constant {node.target} has one value, the same wherever it is read",
                node.target,
            )
            return state.emit("opaque", type=type, name=f"constant {node.target}", free=())
        return self._literal(value, type)

    def _given(self, name: str) -> Any:
        """What the caller says of a constant that the graph has no elements of."""
        return next((v for k, v in self.constants.items() if fnmatchcase(name, k)), None)

    def _literal(self, value: Any, type: TensorType) -> Value:
        array = np.asarray(value)
        if array.shape == () and type.shape:
            array = np.broadcast_to(array, type.shape)
        if array.shape != type.shape:
            self.state.fail(f"is given as {array.size} numbers, its type is {type}")
        return self.state.literal(array.astype(type.dtype.storage), type.dtype)

    def _call(self, node: Node) -> Any:
        target = node.target
        if target == "getitem":
            return self._item(node)
        if target in IGNORED:
            return None
        if target in WAITS:
            return self._wait(node)
        args = tuple(self._resolved(a) for a in node.args)
        kwargs = {k: self._resolved(a) for k, a in node.kwargs.items()}
        if target in NUMBERS or target in ON_TENSORS:
            return self._python(target, args)
        if target.startswith("aten.sym_"):
            return self._measured(target, args)
        if inplace.is_inplace(target):
            return self._overwrite(node, args, kwargs)
        if inplace.writes_out(target):
            return self._write_out(node, args, kwargs)
        if target == "higher_order.auto_functionalized":
            return custom.functionalized(self.state, args, kwargs)
        if target == "higher_order.auto_functionalized_v2":
            return custom.functionalized_by_bases(self.state, args, kwargs)
        entry = TABLE.get(target)
        if entry is not None:
            return self._apply(node, entry, args, kwargs)
        return self._custom(node, args, kwargs)

    def _apply(self, node: Node, entry: Entry, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A table operator; views and in-place collectives are remembered when the graph writes in place."""
        state = self.state
        a = bind(state, entry.parameters, args, kwargs)
        bound = entry.rule(state, a)
        if not self.mutates:
            return bound
        first = node.args[0] if node.args else None
        if not isinstance(first, Ref):
            if node.target.endswith("_.default"):
                state.fail("writes to several tensors at once, which is not supported")
            return bound
        if node.target.endswith("_.default"):
            self.memory.values[node.name] = settled(bound)
            self.memory.write(state, first.name, settled(bound))
            self._alias(node.name, first.name)
            self.memory.block(first.name, node.name)
            return settled(bound)
        inverse = VIEWS.get(node.target)
        if inverse is not None and isinstance(bound, Value):
            self.memory.join(
                node.name,
                View(
                    first.name,
                    lambda x: _tensor(entry.rule(state, {**a, "self": x})),
                    lambda x, new: inverse(state, a, x, new, None),
                ),
            )
        elif inverse is not None:
            self.memory.join(node.name, View(first.name, None, None, listed=True))
            for place, name in self.parts.get(node.name, {}).items():
                self.memory.join(name, self._part(entry, a, first.name, place, inverse))
        elif node.target in UNSURE:
            self.memory.join(node.name, View(first.name, None, None))
        return bound

    def _part(self, entry: Entry, a: Mapping[str, Any], parent: str, place: int, inverse: Any) -> View:
        state = self.state
        return View(
            parent,
            lambda x: _tensor(entry.rule(state, {**a, "self": x})[place]),
            lambda x, new: _tensor(inverse(state, a, x, new, place)),
        )

    def _alias(self, name: str, parent: str) -> None:
        """`name` is the tensor `parent` itself."""
        self.memory.join(name, View(parent, lambda x: x, lambda x, new: new))

    def _overwrite(self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        state, first = self.state, node.args[0] if node.args else None
        if not isinstance(first, Ref) or not isinstance(args[0], Value):
            state.fail("writes to something that is no tensor")
        target = inplace.functional(state, node.target)
        new = old = args[0]
        if target is not None:
            entry = TABLE.get(target) or inplace.TABLE.get(target)
            if entry is None:
                state.fail("is an in-place operator that is not known")
            new = _tensor(entry.rule(state, bind(state, entry.parameters, args, kwargs)))
            new = state.spread(state.convert(new, old.type.dtype), old.type.shape)
            self.memory.write(state, first.name, new)
        self._alias(node.name, first.name)
        return new

    def _write_out(self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        state, written, old = self.state, node.kwargs.get("out"), kwargs.get("out")
        names = inplace.without_out(node.target)
        entry = next((TABLE[name] for name in names if name in TABLE), None)
        if entry is None or not isinstance(written, Ref) or not isinstance(old, Value):
            state.fail("writes to an argument in a way that is not known")
        given = {k: v for k, v in kwargs.items() if k != "out"}
        new = _tensor(entry.rule(state, bind(state, entry.parameters, args, given)))
        if new.type.shape != old.type.shape:
            state.fail(f"writes {new.type} to an `out` of another shape, {old.type}")
        new = state.convert(new, old.type.dtype)
        self.memory.write(state, written.name, new)
        self._alias(node.name, written.name)
        return new

    def _custom(self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        state, target = self.state, node.target
        if RANDOM.match(target):
            state.fail("draws random or uninitialised values in a way that is not known")
        signature = custom.SIGNATURES.get(target)
        if signature is not None and signature.mutated:
            named = custom.named(target, node.args, node.kwargs)
            values = custom.named(target, args, kwargs)
            for name, new in zip(
                signature.mutated, custom.overwriting(state, target, values), strict=True
            ):
                written = named[name]
                if not isinstance(written, Ref):
                    state.fail(f"writes to {name}, which is no tensor")
                self.memory.write(state, written.name, new)
            return None
        if self.mutates:
            self._doubt(node)
        return custom.opaque(state, target, args, kwargs)

    def _doubt(self, node: Node) -> None:
        """An operator that is not known may give views of what it reads."""
        read = list(dict.fromkeys(references((*node.args, *node.kwargs.values()))))
        if any(name in self.memory.views or name in self.memory.children for name in read[1:]):
            self.state.fail("may give a view of one of several tensors in a graph that writes in place")
        for parent in read[:1]:
            self.memory.join(node.name, View(parent, None, None))
            for name in self.parts.get(node.name, {}).values():
                self.memory.join(name, View(node.name, None, None))

    def _item(self, node: Node) -> Any:
        state, (source, key) = self.state, node.args
        if not isinstance(source, Ref):
            state.fail("takes a part of a literal")
        if self.mutates and isinstance(key, int) and source.name in self.memory.views:
            owner = self.parts[source.name].get(key, node.name)
            if key < 0:
                state.fail("takes a part counted from the end in a graph that writes in place")
            if owner != node.name:
                self._alias(node.name, owner)
            if owner != node.name or owner in self.memory.stale:
                return self.memory.read(state, owner)
        whole = self.memory.values[source.name]
        if isinstance(whole, tuple):
            if isinstance(key, bool) or not isinstance(key, int) or not -len(whole) <= key < len(whole):
                state.fail(f"takes part {key!r} of {len(whole)}")
            if source.name in self.memory.torn:
                self.memory.read(state, source.name)
            return whole[key]
        if isinstance(whole, Value):
            return self._sliced(node, self.memory.read(state, source.name), key)
        state.fail(f"takes a part of `{source.name}`, which has none")
        return None

    def _sliced(self, node: Node, x: Value, key: Argument) -> Value:
        """A tensor indexed by numbers, slices and None."""
        state = self.state
        if self.mutates:
            state.fail("indexes a tensor in a graph that writes in place, which is not supported")
        dim = 0
        for part in key if isinstance(key, tuple) else (key,):
            part = self._resolved(part)
            if part is None:
                x = state.reshape(x, (*x.type.shape[:dim], 1, *x.type.shape[dim:]))
                dim += 1
            elif isinstance(part, slice):
                a = {"self": x, "dim": dim, "start": part.start, "end": part.stop, "step": part.step or 1}
                x = _tensor(TABLE["aten.slice.Tensor"].rule(state, a))
                dim += 1
            elif isinstance(part, int) and not isinstance(part, bool):
                x = selected(state, x, dim, part)
            else:
                state.fail(f"indexes a tensor by {part!r}, which is not supported")
        return x

    def _wait(self, node: Node) -> Any:
        state, (source,) = self.state, node.args
        if not isinstance(source, Ref):
            state.fail("waits for something that is no tensor")
        if self.memory.root(source.name) in self.memory.waiting:
            self.memory.release(source.name)
        bound = settled(self.memory.values[source.name])
        if not isinstance(bound, Value):
            state.fail(f"waits for `{source.name}`, which is no tensor")
        if self.mutates:
            self._alias(node.name, source.name)
        if source.name in self.memory.stale or source.name in self.memory.torn:
            return self.memory.read(state, source.name)
        return bound

    def _python(self, target: str, args: Sequence[Any]) -> Any:
        """A function of Python on sizes, or on tensors."""
        state = self.state
        if any(isinstance(a, Value) for a in args):
            entry = TABLE.get(ON_TENSORS.get(target, ""))
            if entry is None or not isinstance(args[0], Value):
                state.fail("is a function of Python on tensors that is not known")
            return entry.rule(state, bind(state, entry.parameters, args, {}))
        numbers = [state.size(a) if isinstance(a, Symbol) else a for a in args]
        try:
            return NUMBERS[target](*numbers)
        except (ArithmeticError, KeyError, TypeError, ValueError):
            state.fail(f"can't be computed of {numbers}")

    def _measured(self, target: str, args: Sequence[Any]) -> Any:
        state = self.state
        if target == "aten.sym_size.int" and isinstance(args[0], Value):
            return args[0].type.shape[state.dim(args[1], len(args[0].type.shape))]
        if target == "aten.sym_numel.default" and isinstance(args[0], Value):
            return args[0].type.size
        state.fail("measures a tensor in a way that is not known")
        return None

    def _resolved(self, argument: Argument) -> Any:
        """An argument with the current values of what it refers to."""
        if isinstance(argument, Ref):
            bound = self.memory.read(self.state, argument.name)
            for part in bound if isinstance(bound, tuple) else (bound,):
                if isinstance(part, Pending):
                    self.state.fail(f"uses the result of `{part.name}` before its wait")
            return bound
        if isinstance(argument, tuple):
            return tuple(self._resolved(a) for a in argument)
        if isinstance(argument, slice):
            return slice(*(self._resolved(a) for a in (argument.start, argument.stop, argument.step)))
        if isinstance(argument, Symbol):
            return self.state.size(argument)
        return argument

    def _named(self, node: Node, bound: Any, parts: Mapping[int, str]) -> Any:
        """The results under the names of their nodes, if this node made them."""
        made = {v for op in self.state.ops[self.state.first :] for v in op.results}
        names: dict[Value, str] = {}
        if isinstance(bound, tuple):
            for k, part in enumerate(bound):
                value = settled(part)
                if isinstance(value, Value) and value in made:
                    names.setdefault(value, parts.get(k, f"{node.name}#{k}"))
        elif settled(bound) in made:
            names[settled(bound)] = node.name
        names = {value: name for value, name in names.items() if name not in self.names}
        if not names:
            return bound
        self.names.update(names.values())
        fresh = self.state.rename(names)
        for name in self.memory.touched:
            value = self.memory.values.get(name)
            if isinstance(value, Value) and value in fresh:
                self.memory.values[name] = fresh[value]

        def renamed(part: Any) -> Any:
            if isinstance(part, Pending):
                return Pending(renamed(part.value), part.name)
            return fresh.get(part, part) if isinstance(part, Value) else part

        return tuple(map(renamed, bound)) if isinstance(bound, tuple) else renamed(bound)

    def _check(self, node: Node, bound: Any) -> None:
        """Compare a result with what the tracer recorded, and learn symbolic sizes from it."""
        metas = node.meta if isinstance(node.meta, tuple) else (node.meta,)
        values = bound if isinstance(bound, tuple) else (bound,)
        for meta, part in zip(metas, values, strict=False):
            value = settled(part)
            if not isinstance(meta, Tensor) or not isinstance(value, Value):
                continue
            fits = meta.dtype is value.type.dtype and len(meta.shape) == len(value.type.shape)
            for told, size in zip(meta.shape, value.type.shape, strict=False):
                if isinstance(told, str) and told.isidentifier():
                    told = self.state.sizes.setdefault(told, size)
                elif isinstance(told, str):
                    known = size_of(told, self.state.sizes)
                    told = told if known is None else known
                fits &= not isinstance(told, int) or told == size
            if not fits:
                self.state.fail(f"is recorded as {meta}, but gives {value.type}")

    def outputs(self) -> tuple[Output, ...]:
        """The results in order, then the inputs that were written to and are not among them."""
        state, graph = self.state, self.graph
        state.start(Node("output", "output", "output"), {}, {})
        found: list[Output] = []
        taken: set[str] = set()
        updated = set(graph.updates.values())
        overwritten = {n.name for n in graph.placeholders if n.name in self.memory.written}
        for place, leaf in enumerate(_leaves(graph.outputs)):
            if leaf is None:
                continue
            value = self._resolved(leaf)
            if not isinstance(value, Value):
                state.warnings.setdefault(f"output {place} is {value!r}, which is no tensor, and is left out")
                continue
            assert isinstance(leaf, Ref)
            updates = graph.updates.get(place)
            if updates is None and leaf.name in overwritten - updated:
                updates = leaf.name
                updated.add(leaf.name)
            found.append(Output(_unused(leaf.name, taken), value, updates))
        for node in graph.placeholders:
            if node.name in overwritten - updated:
                value = self.memory.read(state, node.name)
                found.append(Output(_unused(node.name, taken), value, node.name))
        return tuple(found)


def _tensor(bound: Any) -> Value:
    if not isinstance(bound, Value):
        raise ModuleError("gives no tensor where one is needed")
    return bound


def _leaves(argument: Argument) -> list[Argument]:
    if isinstance(argument, tuple):
        return [leaf for part in argument for leaf in _leaves(part)]
    return [argument]


def _unused(name: str, taken: set[str]) -> str:
    """The name, with a number if an output has it already."""
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}#{count}"
    taken.add(found)
    return found

"""Relations: how the implementation's inputs and outputs are laid out, and the programs that this makes.

A relation is a parametrisation (soundness R1): every input of both programs is cut out of free *base*
tensors by ordinary operators, so proof and replay run on the same three modules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.types import Mesh, TensorType
from shardproof.solver.relations.layout import Cutter, chosen_axes
from shardproof.solver.relations.steps import Layout, RelationError, Step, show
from shardproof.solver.sweep import BASE as BASE
from shardproof.solver.sweep import OF as OF
from shardproof.solver.sweep import Composed as Composed
from shardproof.solver.sweep import Layouts
from shardproof.solver.sweep import joined as joined


@dataclass(frozen=True, slots=True)
class Segments:
    """A tensor of segments side by side along `dim`: (extent in the source or None, layout) each.

    With extents the source is cut at them in order; without, each layout starts from the whole source, or
    from the reference input that it names.
    """

    dim: int
    parts: tuple[tuple[int | None, Layout], ...]
    source: str | None = None

    def __str__(self) -> str:
        inner = " | ".join(
            f"{size} {layout}" if size is not None else str(layout) for size, layout in self.parts
        )
        return f"[{inner}] side by side on dim {self.dim}"


Spec = Layout | Segments
REPLICATE = Layout(None, ())


@dataclass(frozen=True, slots=True)
class Relation:
    """Layouts of the implementation's inputs and outputs by name.

    `sources` names the reference input (output) that each is made of. `reference` holds the layouts of a
    distributed reference's own inputs. `ranges` bounds integer inputs of the reference: low, high
    (exclusive). `inferred` are the inputs that nobody declared, with the evidence. `unused` are inputs
    of the implementation that no output depends on and that no layout is known for: they are free.
    `independent` are its random draws that are none of the reference's: free, on every rank another.
    """

    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    sources: Mapping[str, str]
    reference: Mapping[str, Spec] = field(default_factory=dict)
    reference_outputs: Mapping[str, Spec] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    inferred: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    independent: tuple[str, ...] = ()


def compose(reference: Module, implementation: Module, relation: Relation) -> Composed:
    """The programs that a relation makes of two modules; RelationError when a layout does not fit."""
    bases, reference_ops = _bases(reference, implementation, relation)
    cutter = Cutter(implementation.mesh, "layout ")
    in_parts = {relation.sources.get(n, n) for n, s in relation.inputs.items() if _is_partial(s)}
    unused: list[Value] = []
    for own in implementation.inputs:
        if own.name in relation.unused:
            unused.append(Value(f"{BASE}{own.name} of the implementation", own.value.type))
            cutter.define(own.value, unused[-1])
            continue
        if own.name in relation.independent:
            unused.append(_of_each_rank(cutter, own))
            continue
        spec = relation.inputs[own.name]
        try:
            v = _input(cutter, spec, relation.sources.get(own.name, own.name), bases, in_parts)
        except RelationError as e:
            raise RelationError(f"input `{own.name}`: {e}") from None
        if v.type.shape != own.value.type.shape:
            raise RelationError(
                f"input `{own.name}`: the layout `{spec}` makes {v.type}, the program takes {own.value.type}"
            )
        if v.type.dtype is not own.value.type.dtype:
            if v.type.dtype.kind != own.value.type.dtype.kind:
                raise RelationError(
                    f"input `{own.name}`: the reference has {v.type}, the program takes {own.value.type}"
                )
            v = cutter.op("convert", (v,), own.value.type)
        cutter.define(own.value, v)
    base_inputs = tuple(Input(v, n) for n, v in enumerate(bases.values()))
    free = tuple(Input(v, n) for n, v in enumerate(unused, len(base_inputs)))
    expected, summed = _expected(reference, implementation, relation)
    layouts = Layouts(
        _layout("reference layout", reference, base_inputs, reference_ops),
        _layout("layout", implementation, (*base_inputs, *free), cutter.ops),
        summed,
    )
    ranges = {BASE + name: r for name, r in relation.ranges.items()}
    return joined(reference, implementation, layouts, expected, ranges, _even(reference, relation))


def _of_each_rank(cutter: Cutter, own: Input) -> Value:
    """A base tensor that holds the input of each rank, in rank order along a first dim."""
    type, count = own.value.type, cutter.mesh.size
    base = Value(f"{BASE}{own.name} of the implementation", TensorType(type.dtype, (count, *type.shape)))
    if count == 1:
        cutter.define(own.value, cutter.reshape(base, type.shape))
    else:
        part = cutter.ranks.part(base, 0, count, cutter.ranks.along([name for name, _ in cutter.mesh.axes]))
        cutter.define(own.value, cutter.reshape(part, type.shape))
    return base


def _layout(name: str, program: Module, inputs: tuple[Input, ...], ops: Sequence[Op]) -> Module:
    """The program that makes the inputs of another of base tensors."""
    made = tuple(Output(i.name, i.value) for i in program.inputs)
    return Module(name, program.mesh, inputs, tuple(ops), made)


def _even(reference: Module, relation: Relation) -> frozenset[str]:
    if reference.mesh.size == 1:
        return frozenset()
    sources = {relation.sources.get("output " + name, name) for name in relation.outputs}
    return frozenset(n for n in sources if relation.reference_outputs.get(n, REPLICATE) == REPLICATE)


def _is_partial(spec: Spec) -> bool:
    return isinstance(spec, Layout) and any(isinstance(s, Step) and s.name == "partial" for s in spec.steps)


def _partial(spec: Spec, mesh: Mesh) -> tuple[tuple[str, ...], int, Spec] | None:
    """The axes that a layout is a partial sum over, their number of ranks, and the other steps."""
    if isinstance(spec, Segments) or not _is_partial(spec):
        return None
    found = [s for s in spec.steps if isinstance(s, Step) and s.name == "partial"]
    axes = chosen_axes(mesh, [a for s in found for a in s.args], "partial(axis)")
    rest = tuple(s for s in spec.steps if s not in found)
    used = {
        axis
        for s in rest
        if isinstance(s, Step) and s.name == "shard"
        for axis in chosen_axes(mesh, s.args[1:], f"shard({s.args[0]}, axis)")
    }
    if len(found) > 1 or used & set(axes):
        raise RelationError(f"`{spec}`: an axis is used twice")
    return axes, prod(n for name, n in mesh.axes if name in axes), Layout(spec.source, rest)


def _bases(
    reference: Module, implementation: Module, relation: Relation
) -> tuple[dict[str, Value], list[Op]]:
    """The base tensor of each reference input, and the operators that make the input of it."""
    cutter = Cutter(reference.mesh, "reference layout ")
    partial: dict[str, tuple[tuple[str, ...], int]] = {}
    for name, spec in relation.inputs.items():
        try:
            found = _partial(spec, implementation.mesh)
        except RelationError as e:
            raise RelationError(f"input `{name}`: {e}") from None
        if found is not None:
            source = relation.sources.get(name, name)
            if partial.setdefault(source, found[:2]) != found[:2]:
                raise RelationError(f"input `{name}`: `{source}` is a partial sum in two ways")
            if source in relation.ranges:
                raise RelationError(f"input `{name}`: a partial sum of `{source}` can't keep to its range")
    bases: dict[str, Value] = {}
    for own in reference.inputs:
        name, type = own.name, own.value.type
        spec = relation.reference.get(name, REPLICATE)
        try:
            if name in partial:
                if spec != REPLICATE:
                    raise RelationError("an input that is held as partial sums is whole here")
                base = Value(BASE + name, TensorType(type.dtype, (partial[name][1], *type.shape)))
                cutter.define(own.value, _total(cutter, base))
            else:
                base = Value(
                    BASE + name, TensorType(type.dtype, _whole_shape(type.shape, spec, reference.mesh))
                )
                v = cut(cutter, spec, base, _missing)
                if v.type != type:
                    raise RelationError(f"the layout `{spec}` makes {v.type}, the program takes {type}")
                cutter.define(own.value, v)
        except RelationError as e:
            raise RelationError(f"reference input `{name}`: {e}") from None
        bases[name] = base
    return bases, cutter.ops


def _total(cutter: Cutter, base: Value) -> Value:
    """The sum over the leading dim."""
    type = TensorType(base.type.dtype, base.type.shape[1:])
    return cutter.op("reduce", (base, cutter.zeros(type.dtype, ())), type, dims=(0,), kind="sum")


def _missing(name: str) -> Value:
    raise RelationError(f"the reference has no input `{name}`")


def _whole_shape(shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> tuple[int, ...]:
    """The shape of the whole tensor of which a distributed reference holds `shape` per rank."""
    sizes = dict(mesh.axes)
    out = list(shape)
    layout = spec if isinstance(spec, Layout) else spec.parts[0][1]
    if layout.source is not None or (isinstance(spec, Segments) and spec.source is not None):
        raise RelationError("a reference input is made of no other")
    for step in layout.steps:
        if not isinstance(step, Step) or step.name != "shard":
            raise RelationError(f"may only be replicated or sharded, not `{show(step)}`")
        if not 0 <= step.args[0] < len(out):
            raise RelationError(f"`{show(step)}`: there is no dim {step.args[0]} in {list(shape)}")
        for axis in chosen_axes(mesh, step.args[1:], f"shard({step.args[0]}, axis)"):
            out[step.args[0]] *= sizes[axis]
    return tuple(out)


def _input(
    cutter: Cutter, spec: Spec, source: str, bases: Mapping[str, Value], summed: Collection[str]
) -> Value:
    """What a layout makes of `source`; of the reference inputs `summed` the bases hold the addends."""
    if source not in bases:
        raise RelationError(f"the reference has no input `{source}` (it has {_some(bases)})")

    def whole(wanted: str) -> Value:
        base = bases[wanted] if wanted in bases else _missing(wanted)
        return _total(cutter, base) if wanted in summed else base

    partial = _partial(spec, cutter.mesh)
    if partial is None:
        return cut(cutter, spec, whole(source), whole)
    axes, count, rest = partial
    own = cutter.ranks.part(bases[source], 0, count, cutter.ranks.along(axes))
    return cut(cutter, rest, cutter.reshape(own, bases[source].type.shape[1:]), whole)


def _some(bases: Mapping[str, Value]) -> str:
    names = list(bases)
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def cut(cutter: Cutter, spec: Spec, v: Value, find: Callable[[str], Value]) -> Value:
    """The tensor that a layout makes of `v`; `find` gives other tensors by name."""
    if isinstance(spec, Layout):
        return cutter.apply(spec, v, find)
    parts, at = [], 0
    if not 0 <= spec.dim < len(v.type.shape):
        raise RelationError(f"there is no dim {spec.dim} in {v.type}")
    extent = v.type.shape[spec.dim]
    for size, layout in spec.parts:
        piece = v if layout.source is None else find(layout.source)
        if size is not None:
            if layout.source is not None:
                raise RelationError(f"the segment `{layout}` has a size, so it can't name another input")
            if size < 1 or at + size > extent:
                raise RelationError(f"the segments reach beyond dim {spec.dim} of {v.type}")
            piece = cutter.slice(v, spec.dim, at, at + size)
            at += size
        parts.append(cutter.apply(layout, piece, find))
    if at and at != extent:
        raise RelationError(f"the segments hold {at} of the {extent} elements of dim {spec.dim} of {v.type}")
    return cutter.join(parts, spec.dim)


def _expected(reference: Module, implementation: Module, relation: Relation) -> tuple[Module, Module]:
    """The module of expected outputs, and the implementation's outputs with partial sums completed."""
    cutter = Cutter(implementation.mesh, "expected ")
    after = Cutter(implementation.mesh, "summed ")
    ranks = reference.mesh.size
    inputs: dict[str, Value] = {}
    for out in reference.outputs:
        shape = out.value.type.shape
        whole = (ranks, *shape) if ranks > 1 else shape
        inputs[out.name] = Value(out.name + OF, TensorType(out.value.type.dtype, whole))
    wholes: dict[str, Value] = {}
    wanted: list[Output] = []
    found: list[Output] = []
    for own in implementation.outputs:
        if own.name not in relation.outputs:
            continue
        spec = relation.outputs[own.name]
        source = relation.sources.get("output " + own.name, own.name)
        if source not in inputs:
            raise RelationError(f"output `{own.name}`: the reference has no output `{source}`")
        if source not in wholes:
            wholes[source] = whole_output(
                cutter,
                inputs[source],
                relation.reference_outputs.get(source, REPLICATE),
                reference.mesh,
                implementation.mesh,
            )
        value = own.value
        try:
            partial = _partial(spec, implementation.mesh)
            if partial is not None:
                value = _summed(after, value, partial[0])
                spec = partial[2]
            v = cut(cutter, spec, wholes[source], _missing)
        except RelationError as e:
            raise RelationError(f"output `{own.name}`: {e}") from None
        if v.type.shape != own.value.type.shape:
            raise RelationError(
                f"output `{own.name}`: the placement `{spec}` makes {v.type}, "
                f"the program returns {own.value.type}"
            )
        wanted.append(Output(own.name, v))
        found.append(Output(own.name, value))
    expected = Module(
        "expected",
        implementation.mesh,
        tuple(Input(v, n) for n, v in enumerate(inputs.values())),
        tuple(cutter.ops),
        tuple(wanted),
    )
    held = {o.value.name: o.value for o in implementation.outputs if o.name in relation.outputs}
    returned = tuple(Input(v, n) for n, v in enumerate(held.values()))
    return expected, Module("summed", implementation.mesh, returned, tuple(after.ops), tuple(found))


def whole_output(cutter: Cutter, v: Value, spec: Spec, own: Mesh, other: Mesh) -> Value:
    """The whole output of a distributed reference from its ranks' parts (leading dim)."""
    if own.size == 1:
        return v
    shape = v.type.shape[1:]
    if spec == PER_RANK:
        number = cutter.ranks.along([n for n, _ in other.axes])
        return cutter.reshape(cutter.ranks.part(v, 0, own.size, number), shape)
    if isinstance(spec, Segments) or len(spec.steps) > 1:
        raise RelationError("a distributed reference's output may only be replicated or sharded on one dim")
    if not spec.steps:
        return cutter.reshape(cutter.slice(v, 0, 0, 1), shape)
    (step,) = spec.steps
    if not isinstance(step, Step) or step.name != "shard" or not 0 <= step.args[0] < len(shape):
        raise RelationError(f"a distributed reference's output can't be `{spec}`")
    names = [name for name, n in own.axes if n > 1]
    if list(step.args[1:] or names) != names:
        raise RelationError(f"`{spec}` does not use all axes of the reference's mesh ({own}) in their order")
    dim = step.args[0]
    moved = cutter.transpose(v, [*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1)])
    return cutter.reshape(moved, (*shape[:dim], shape[dim] * own.size, *shape[dim + 1 :]))


PER_RANK = Layout(None, (Step("per_rank"),))
"""A distributed reference's tensor of which every implementation rank has its own, by rank number."""


def _summed(cutter: Cutter, v: Value, axes: Sequence[str]) -> Value:
    return cutter.op("all_reduce", (v,), v.type, kind="sum", groups=rank_groups(cutter.mesh, axes))


def rank_groups(mesh: Mesh, axes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks that differ only along some axes, each in rank order."""
    return mesh.groups([name for name, _ in mesh.axes if name in axes])

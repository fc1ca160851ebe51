"""Relation inference: one preferred layout per input, by evidence, never by what proves (soundness R2)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from shardproof.ir.module import Input, Module, Op, Output
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Mesh
from shardproof.solver.names import is_draw
from shardproof.solver.randomness import pairs as pair_draws
from shardproof.solver.relations.placement import Ambiguous, Unfit, natural
from shardproof.solver.relations.relation import PER_RANK, REPLICATE, Relation, Segments, Spec
from shardproof.solver.relations.steps import Layout, Step

ELEMENTWISE: Final = frozenset(
    {*(name for name, row in TABLE.items() if "elementwise" in row.traits), "custom_call"}
)


OWN_TENSORS = "programs on as many ranks: every rank has its own tensor"
"""The evidence for inputs that are compared rank by rank."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What keeps inference from proposing a layout: the input or output, and the reason."""

    name: str
    reason: str
    ambiguous: bool = False


@dataclass(slots=True)
class Inferred:
    """A relation as far as it could be inferred.

    `alternatives` lists, per input, further layouts that the evidence allows but does not prefer. `following`
    are outputs that are laid out like an input.
    """

    relation: Relation
    gaps: list[Gap] = field(default_factory=list)
    alternatives: dict[str, list[Spec]] = field(default_factory=dict)
    following: dict[str, str] = field(default_factory=dict)

    def with_layouts(self, changes: Mapping[str, Spec]) -> Relation:
        """The relation with other layouts of some inputs, and of the outputs that follow them."""
        outputs = {o: changes[i] for o, i in self.following.items() if i in changes}
        return replace(
            self.relation,
            inputs={**self.relation.inputs, **changes},
            outputs={**self.relation.outputs, **outputs},
        )


def infer(
    reference: Module, implementation: Module, declared: Relation, data: Collection[str] = ()
) -> Inferred:
    """`declared` completed by inference for everything that it leaves out.

    `data` are inputs of the implementation that are no weights: nothing is fused in them (soundness R2).
    """
    out = Inferred(declared)
    inputs, outputs = dict(declared.inputs), dict(declared.outputs)
    sources, evidence = dict(declared.sources), dict(declared.inferred)
    own_layouts, own_outputs = dict(declared.reference), dict(declared.reference_outputs)
    pairs = _pair_inputs(reference, implementation, inputs, sources, out)
    cuts, own_cuts = Cuts(reference), Cuts(implementation)
    own_draws = [i for i in reference.inputs if is_draw(i.name)]
    other_draws = [i for i in implementation.inputs if is_draw(i.name)]
    taken = {sources[i.name] for i in other_draws if i.name in inputs}
    for own, other in pair_draws(own_draws, other_draws):
        if own.name not in taken and other.name not in inputs:
            pairs.append((own, other))
    for own, other in pairs:
        try:
            spec, reference_spec, why, others = _layout(
                own, other, reference.mesh, implementation.mesh, Cuts() if other.name in data else cuts
            )
        except (Unfit, Ambiguous) as e:
            if is_draw(other.name):
                continue
            reason = f"{other.value.type} of {own.value.type}: {e}"
            out.gaps.append(Gap(other.name, reason, isinstance(e, Ambiguous)))
            continue
        inputs[other.name], evidence[other.name] = spec, why
        sources[other.name] = own.name
        if reference.mesh.size > 1:
            own_layouts[own.name] = reference_spec
        if other.name not in data:
            others = others or _cut_otherwise(spec, own, other, own_cuts)
        if others and not is_draw(other.name):
            out.alternatives[other.name] = others
    for name, source in _pair_outputs(reference, implementation, outputs, sources, out):
        whole = next((o for o in reference.outputs if o.name == source), None)
        part = next(o for o in implementation.outputs if o.name == name)
        if whole is None:
            out.gaps.append(Gap("output " + name, f"the reference has no output `{source}`"))
            continue
        own_type, type = whole.value.type, part.value.type
        if (clash := _overwrites(whole, part, sources)) is not None:
            out.gaps.append(Gap("output " + name, clash))
            continue
        sources["output " + name] = source
        if name in outputs:
            continue
        like = _like_an_input(whole, part, implementation, reference, inputs, sources)
        if like is not None and reference.mesh.size == 1:
            outputs[name], own_outputs[source] = inputs[like], REPLICATE
            out.following[name] = like
            continue
        try:
            placement, own_placement = _output(
                own_type.shape, type.shape, reference.mesh, implementation.mesh
            )
        except (Unfit, Ambiguous) as e:
            out.gaps.append(
                Gap("output " + name, f"{type} against {own_type}: {e}", isinstance(e, Ambiguous))
            )
            continue
        outputs[name], own_outputs[source] = placement, own_placement
    unused = unread(implementation) & {g.name for g in out.gaps}
    out.gaps = [g for g in out.gaps if g.name not in unused]
    out.relation = replace(
        declared,
        inputs=inputs,
        outputs=outputs,
        sources=sources,
        reference=own_layouts,
        reference_outputs=own_outputs,
        inferred=evidence,
        unused=tuple(sorted(unused)),
        independent=tuple(i.name for i in other_draws if i.name not in inputs),
    )
    return out


def _like_an_input(
    whole: Output,
    part: Output,
    implementation: Module,
    reference: Module,
    inputs: Mapping[str, Spec],
    sources: Mapping[str, str],
) -> str | None:
    """The input of which an output is the new value or the gradient, if the shapes are the same.

    A gradient is told by its name, `grad.w` or another path that ends in the input's name.
    """
    types = {i.name: i.value.type.shape for i in implementation.inputs}
    name = part.updates if part.updates is not None else _named_in(part.name, types)
    if name is None or name not in inputs or types[name] != part.value.type.shape:
        return None
    spec = inputs[name]
    own = {i.name: i.value.type.shape for i in reference.inputs}
    sums = isinstance(spec, Layout) and any(isinstance(s, Step) and s.name == "partial" for s in spec.steps)
    return None if sums or own.get(sources.get(name, name)) != whole.value.type.shape else name


def _named_in(path: str, names: Collection[str]) -> str | None:
    """The longest of the names that the path ends in."""
    parts = path.split(".")
    ends = (".".join(parts[k:]) for k in range(1, len(parts)))
    return next((end for end in ends if end in names), None)


def _overwrites(whole: Output, part: Output, sources: Mapping[str, str]) -> str | None:
    """Why two outputs that overwrite inputs can't be one another's counterparts, or None (soundness E2)."""
    if whole.updates is None or part.updates is None:
        return None
    theirs = sources.get(part.updates, part.updates)
    if theirs == whole.updates:
        return None
    return f"it overwrites `{part.updates}`, in the reference `{whole.name}` overwrites `{whole.updates}`"


def unread(module: Module) -> set[str]:
    """The inputs that no output depends on."""
    read = {o.value.name for o in module.outputs}
    for op in reversed(module.ops):
        if any(v.name in read for v in op.results):
            read.update(v.name for v in op.operands)
    return {i.name for i in module.inputs} - read


def _pair_inputs(
    reference: Module,
    implementation: Module,
    declared: Mapping[str, Spec],
    sources: Mapping[str, str],
    out: Inferred,
) -> list[tuple[Input, Input]]:
    """Undeclared implementation inputs with the reference inputs of the same name, else number.

    Where both would fit and differ, neither is taken.
    """
    theirs = [i for i in implementation.inputs if not is_draw(i.name)]
    rest = [i for i in theirs if i.name not in declared]
    if not rest:
        return []
    own = [i for i in reference.inputs if not is_draw(i.name)]
    by_name = {i.name: i for i in own}
    by_number = {i.number: i for i in own}
    as_many = len(own) == len(theirs)
    if all(i.name in by_name for i in rest):
        if as_many and all(i.number in by_number for i in rest):
            numbered = [(by_number[i.number], i) for i in rest]
            if all(_fits(own, other, reference.mesh, implementation.mesh) for own, other in numbered):
                for whole, i in numbered:
                    if whole is not by_name[i.name]:
                        reason = f"its name and its number, {i.number}, are those of two reference inputs"
                        out.gaps.append(Gap(i.name, reason, ambiguous=True))
        return [(by_name[i.name], i) for i in rest]
    if as_many:
        return [(by_number[i.number], i) for i in rest if i.number in by_number]
    for i in rest:
        if i.name not in by_name:
            reason = (
                f"the reference has no input of that name, and {len(own)} inputs "
                f"against {len(theirs)} do not pair by number"
            )
            out.gaps.append(Gap(i.name, reason))
    return [(by_name[i.name], i) for i in rest if i.name in by_name]


def _pair_outputs(
    reference: Module,
    implementation: Module,
    declared: Mapping[str, Spec],
    sources: Mapping[str, str],
    out: Inferred,
) -> Iterator[tuple[str, str]]:
    """(implementation output, reference output): as declared, else by position, else by name."""
    taken = {sources["output " + n] for n in declared if "output " + n in sources}
    own = [o.name for o in reference.outputs if o.name not in taken]
    theirs = [o.name for o in implementation.outputs if "output " + o.name not in sources]
    for name in declared:
        if "output " + name in sources:
            yield name, sources["output " + name]
    if len(own) == len(theirs):
        clash = set(own) == set(theirs)
        for name, source in zip(theirs, own, strict=True):
            if clash and name != source:
                reason = f"its name is that of another reference output than `{source}`, its position"
                out.gaps.append(Gap("output " + name, reason, ambiguous=True))
            yield name, source
        return
    for name in own:
        if name in theirs:
            yield name, name
        else:
            out.gaps.append(
                Gap(
                    "output " + name,
                    f"the implementation has no output of that name, and {len(own)} outputs "
                    f"against {len(theirs)} do not pair by position",
                )
            )


def _layout(
    own: Input, other: Input, mesh: Mesh, target: Mesh, cuts: Cuts
) -> tuple[Spec, Spec, str, list[Spec]]:
    """(layout, the reference's own layout, evidence, other layouts that fit) of one input."""
    a, b = own.value.type, other.value.type
    if a.dtype.kind != b.dtype.kind:
        raise Unfit("the element types are of different kinds")
    if mesh.size > 1 and mesh.size == target.size:
        if a.shape != b.shape:
            raise Unfit("programs on as many ranks differ in the shape of an input")
        return _per_rank(a.shape, target), _per_rank(a.shape, mesh), OWN_TENSORS, []
    if mesh.size > 1:
        return _both_divided(own, other, mesh, target, cuts)
    shards = natural(a.shape, b.shape, target)
    metadata = other.sharding
    if metadata is not None and target.size > 1:
        wanted = tuple(n // m if m else 1 for n, m in zip(a.shape, b.shape, strict=True))
        if metadata != wanted:
            raise Unfit(
                f"its sharding says that the dims are cut into {list(metadata)} parts, not {list(wanted)}"
            )
        return shards, REPLICATE, "sharding metadata", []
    if not shards.steps:
        return REPLICATE, REPLICATE, "equal shapes", []
    if len(shards.steps) == 1 and a.dtype.kind == "real":
        (step,) = shards.steps
        assert isinstance(step, Step)
        dim = step.args[0]
        segments = cuts.of(own.name, dim)
        parts = a.shape[dim] // b.shape[dim]
        if segments and all(s % parts == 0 for s in segments):
            whole = Layout(None, (step,))
            fused = Segments(dim, tuple((s, whole) for s in segments))
            return fused, REPLICATE, "the reference cuts it there", [shards]
    return shards, REPLICATE, "shapes", []


def _fits(own: Input, other: Input, mesh: Mesh, target: Mesh) -> bool:
    """Whether `other` may hold `own`, or parts of it, by their types."""
    try:
        _layout(own, other, mesh, target, Cuts())
    except Unfit:
        return False
    except Ambiguous:
        pass
    return True


def _cut_otherwise(spec: Spec, own: Input, other: Input, cuts: Cuts) -> list[Spec]:
    """Fused segments as the implementation cuts a tensor that is thought to be plain shards.

    Never the layout to be proved: it keeps a difference from being called a refutation.
    """
    if isinstance(spec, Segments) or len(spec.steps) != 1 or own.value.type.dtype.kind != "real":
        return []
    (step,) = spec.steps
    assert isinstance(step, Step)
    dim = step.args[0]
    segments = cuts.of(other.name, dim)
    parts = own.value.type.shape[dim] // other.value.type.shape[dim]
    whole = Layout(None, (step,))
    return [Segments(dim, tuple((s * parts, whole) for s in segments))] if segments and parts > 1 else []


def _per_rank(shape: tuple[int, ...], mesh: Mesh) -> Spec:
    """A tensor of which every rank has its own: the whole is the ranks' tensors side by side on dim 0."""
    if not shape:
        return REPLICATE
    names = tuple(name for name, size in mesh.axes if size > 1)
    return Layout(None, (Step("shard", (0, *names) if len(names) > 1 else (0,)),))


def _both_divided(
    own: Input, other: Input, mesh: Mesh, target: Mesh, cuts: Cuts
) -> tuple[Spec, Spec, str, list[Spec]]:
    """Both programs distributed over different numbers of ranks: equal or divided all the way."""
    a, b = own.value.type.shape, other.value.type.shape
    if a == b:
        return REPLICATE, REPLICATE, "equal shapes", []
    if len(mesh.axes) != 1 or len(target.axes) != 1:
        raise Ambiguous("two distributed programs on several mesh axes: declare the layouts")
    divided = [d for d in range(len(a)) if len(a) == len(b) and a[d] != b[d]]
    if len(divided) != 1 or a[divided[0]] * mesh.size != b[divided[0]] * target.size:
        raise Unfit(
            f"{list(a)} on {mesh.size} ranks and {list(b)} on {target.size} are no shards of one tensor"
        )
    dim = divided[0]
    shard = Layout(None, (Step("shard", (dim,)),))
    segments = cuts.of(own.name, dim) if own.value.type.dtype.kind == "real" else []
    if segments and all(s * mesh.size % target.size == 0 for s in segments):
        fused = Segments(dim, tuple((s * mesh.size, shard) for s in segments))
        return fused, fused, "the reference cuts it there", [shard]
    return shard, shard, "shapes", []


def _output(a: tuple[int, ...], b: tuple[int, ...], mesh: Mesh, target: Mesh) -> tuple[Spec, Spec]:
    if mesh.size == 1:
        return natural(a, b, target), REPLICATE
    if mesh.size == target.size:
        if a != b:
            raise Unfit("programs on as many ranks differ in the shape of an output")
        return REPLICATE, PER_RANK
    if a == b:
        return REPLICATE, REPLICATE
    if len(mesh.axes) != 1 or len(target.axes) != 1 or len(a) != len(b):
        raise Ambiguous("two distributed programs on several mesh axes: declare the placement")
    divided = [d for d in range(len(a)) if a[d] != b[d]]
    if len(divided) != 1 or a[divided[0]] * mesh.size != b[divided[0]] * target.size:
        raise Unfit(
            f"{list(a)} on {mesh.size} ranks and {list(b)} on {target.size} are no shards of one tensor"
        )
    shard = Layout(None, (Step("shard", (divided[0],)),))
    return shard, shard


class Cuts:
    """Where the reference cuts the dims of its inputs: slices that tile what a dim becomes."""

    def __init__(self, module: Module | None = None) -> None:
        self.users: dict[str, list[Op]] = {}
        for op in module.ops if module is not None else ():
            for v in op.operands:
                self.users.setdefault(v.name, []).append(op)

    def of(self, name: str, dim: int) -> list[int]:
        """The extents of the segments along `dim` of input `name`, or nothing."""
        found = {
            tuple(n * scale for n in sizes)
            for edges, extent, scale in self._places(name, dim)
            if (sizes := _tiling(sorted(edges), extent))
        }
        return list(next(iter(found))) if len(found) == 1 else []

    def edges(self, name: str, dim: int) -> tuple[set[tuple[int, int]], int]:
        """The slices (start, limit) that cut what `dim` of input `name` becomes, and its extent."""
        for edges, extent, _ in self._places(name, dim):
            if edges:
                return edges, extent
        return set(), 0

    def _places(self, name: str, dim: int) -> Iterator[tuple[set[tuple[int, int]], int, int]]:
        """(slices, extent, scale) at every value that holds `dim` of input `name` in order."""
        seen: set[tuple[str, int, int]] = set()
        stack = [(name, dim, 1)]
        while stack:
            value, d, scale = stack.pop()
            if (value, d, scale) in seen:
                continue
            seen.add((value, d, scale))
            edges: set[tuple[int, int]] = set()
            extent = 0
            for op in self.users.get(value, ()):
                if op.opcode == "slice":
                    a, b, s = (op.attrs[k][d] for k in ("starts", "limits", "strides"))
                    extent = op.operands[0].type.shape[d]
                    if s == 1 and (a, b) != (0, extent):
                        edges.add((a, b))
                    continue
                stack += [(op.result.name, to, scale * k) for to, k in _follow(op, value, d)]
            yield edges, extent, scale


def _tiling(edges: list[tuple[int, int]], extent: int) -> list[int]:
    at = 0
    for a, b in edges:
        if a != at:
            return []
        at = b
    return [b - a for a, b in edges] if edges and at == extent and len(edges) > 1 else []


def _follow(op: Op, value: str, dim: int) -> Iterator[tuple[int, int]]:
    """(dim of the result, scale) that dim `dim` of an operand leads to, contents in order."""
    which = [n for n, v in enumerate(op.operands) if v.name == value]
    x = op.operands[which[0]].type
    if op.opcode in ELEMENTWISE and op.result.type.shape == x.shape:
        yield dim, 1
    elif op.opcode == "reduce" and value == op.operands[0].name and dim not in op.attrs["dims"]:
        yield dim - sum(d < dim for d in op.attrs["dims"]), 1
    elif op.opcode == "transpose":
        yield op.attrs["permutation"].index(dim), 1
    elif op.opcode == "broadcast_in_dim" and op.result.type.shape[op.attrs["dims"][dim]] == x.shape[dim]:
        yield op.attrs["dims"][dim], 1
    elif op.opcode == "dot_general" and len(which) == 1:
        yield from _through_dot(op, which[0], dim)
    elif op.opcode == "reshape":
        yield from _through_reshape(x.shape, op.result.type.shape, dim)


def _through_dot(op: Op, which: int, dim: int) -> Iterator[tuple[int, int]]:
    a = op.attrs
    batch = a["lhs_batch"], a["rhs_batch"]
    used = [(*batch[k], *(a["lhs_contracting"], a["rhs_contracting"])[k]) for k in (0, 1)]
    free = [[d for d in range(len(op.operands[k].type.shape)) if d not in used[k]] for k in (0, 1)]
    if dim in free[which]:
        yield len(batch[0]) + (len(free[0]) if which else 0) + free[which].index(dim), 1


def _through_reshape(before: tuple[int, ...], after: tuple[int, ...], dim: int) -> Iterator[tuple[int, int]]:
    """To a dim of the same extent at the same place, or to the leading one of those it is split into."""
    low, high = 1, 1
    for n in before[:dim]:
        low *= n
    for to, n in enumerate(after):
        if high == low and n > 1:
            rest = before[dim] // n
            if before[dim] % n == 0:
                inner = 1
                for m in after[to + 1 :]:
                    if inner == rest:
                        break
                    inner *= m
                if inner == rest:
                    yield to, rest
            return
        high *= n

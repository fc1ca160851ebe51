"""Layouts that a capture knows: placements of DTensors, and those of ranks that stand side by side."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from shardproof.ir.module import Module
from shardproof.solver.captured import Captured
from shardproof.solver.relations.relation import REPLICATE, Relation
from shardproof.solver.relations.relation_file import Declared
from shardproof.solver.relations.steps import Layout, Step

SIDE_BY_SIDE: Final = "ranks side by side: the parts of all fill the reference's tensor"
"""The evidence for the inputs of several ranks in a program of one."""

PARTLY: Final = "placements of DTensors over some axes of the mesh"
"""The evidence for inputs of which nothing is stated over the other axes."""

Shape = tuple[int, ...]


class Named(Protocol):
    """An input or a result of a program."""

    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=Named)


def aligned(reference: Module, implementation: Module) -> Module:
    """The implementation with inputs and results in the order of the reference's of the same names.

    Positions then mean the same as names. A name `n@RANK` counts as `n`. Others take, in their order, the
    places that are left.
    """
    taken = _ordered([i.name for i in reference.inputs], implementation.inputs)
    given = _ordered([o.name for o in reference.outputs], implementation.outputs)
    numbers = [i.number for i in reference.inputs]
    more = count(max(numbers, default=-1) + 1)
    return replace(
        implementation,
        inputs=tuple(
            replace(i, number=numbers[k] if k < len(numbers) else next(more)) for k, i in enumerate(taken)
        ),
        outputs=tuple(given),
    )


def _ordered(names: Sequence[str], items: Sequence[Item]) -> list[Item]:
    """The items by the place of their name among `names`; those of other names fill the gaps, then follow."""
    places = {name: at for at, name in enumerate(names)}
    own = {item.name: item for item in items if item.name in places}
    if len({item.name for item in items}) < len(items) or any(of_rank(i.name)[1] is not None for i in items):
        last = len(names)
        return sorted(items, key=lambda i: places.get(i.name, places.get(of_rank(i.name)[0], last)))
    others = [item for item in items if item.name not in places]
    gaps = [name for name in names if name not in own]
    own |= dict(zip(gaps, others, strict=False))
    return [*(own[name] for name in names if name in own), *others[len(gaps) :]]


def of_rank(name: str) -> tuple[str, int | None]:
    """`n` and 3 for the name `n@3`; the name and None for others."""
    base, mark, rank = name.rpartition("@")
    return (base, int(rank)) if mark and rank.isascii() and rank.isdecimal() else (name, None)


def with_placements(
    declared: Declared, reference: tuple[Module, object], implementation: tuple[Module, object]
) -> Declared:
    """`declared`, and for names that it leaves out the layouts that DTensors of a capture state.

    Of two distributed programs only names count whose layout both state.
    """
    (whole, own), (module, other) = reference, implementation
    if not isinstance(other, Captured):
        return declared
    inputs, outputs = other.inputs(), other.outputs()
    theirs: tuple[Mapping[str, str], Mapping[str, str]] = {}, {}
    if whole.mesh.size > 1:
        theirs = (own.inputs(), own.outputs()) if isinstance(own, Captured) else theirs
        theirs = _whole(theirs[0]), _whole(theirs[1])
        inputs = {n: p for n, p in inputs.items() if n in theirs[0]}
        outputs = {n: p for n, p in outputs.items() if n in theirs[1]}
    numbers = {i.name: i.number for i in module.inputs}
    places = {o.name: k for k, o in enumerate(module.outputs)}
    inputs = {n: p for n, p in inputs.items() if not _told(declared.inputs, n, f"p{numbers.get(n)}")}
    outputs = {n: p for n, p in outputs.items() if not _told(declared.outputs, n, f"o{places.get(n)}")}
    return replace(
        declared,
        inputs={**declared.inputs, **inputs},
        outputs={**declared.outputs, **outputs},
        reference={**{n: p for n, p in theirs[0].items() if n in inputs}, **declared.reference},
        reference_outputs={
            **{n: p for n, p in theirs[1].items() if n in outputs},
            **declared.reference_outputs,
        },
    )


def _whole(placements: Mapping[str, str]) -> dict[str, str]:
    return {n: p for n, p in placements.items() if "partial" not in p}


def _told(table: Collection[str] | Mapping[str, Any], name: str, number: str) -> bool:
    """Whether a key of the user's file may stand for the name."""
    return any(key == number or fnmatchcase(name, re.sub(r"\{[^}]*\}", "*", key)) for key in table)


def told_partly(relation: Relation, captured: Captured | None, declared: Declared) -> Relation:
    """`relation`, in which layouts that placements state over some axes only are inferred ones."""
    if captured is None:
        return relation
    names = (n for n in captured.partly() if n in relation.inputs)
    found = [n for n in names if not _told(declared.inputs, n, n)]
    return replace(relation, inferred={**relation.inferred, **dict.fromkeys(found, PARTLY)})


def side_by_side(relation: Relation, reference: Module, implementation: Module) -> Relation:
    """`relation`, and layouts for the inputs and results `n@RANK` that it leaves out.

    One of the shape of the reference's `n` is `n` itself; those that together fill it along one dim are its
    parts in rank order. Results of other names, as many on each rank as in the reference, go by position.
    """
    wanted = {i.name: i.value.type.shape for i in reference.inputs}
    shapes = {i.name: i.value.type.shape for i in implementation.inputs if i.name not in relation.inputs}
    found = _parts({n: of_rank(n) for n in shapes}, shapes, wanted)
    results = {o.name: o.value.type.shape for o in reference.outputs}
    given = {o.name: o.value.type.shape for o in implementation.outputs if o.name not in relation.outputs}
    returned = _parts(_origins([o.name for o in implementation.outputs], [*results]), given, results)
    return replace(
        relation,
        inputs={**relation.inputs, **{n: layout for n, (_, layout) in found.items()}},
        outputs={**relation.outputs, **{n: layout for n, (_, layout) in returned.items()}},
        sources={
            **relation.sources,
            **{n: source for n, (source, _) in found.items()},
            **{f"output {n}": source for n, (source, _) in returned.items()},
        },
        inferred={**relation.inferred, **dict.fromkeys(found, SIDE_BY_SIDE)},
    )


def _origins(given: Sequence[str], wanted: Sequence[str]) -> dict[str, tuple[str, int | None]]:
    """The reference's result and the rank that each result is of; results are in rank order."""
    origins = {n: of_rank(n) for n in given}
    count = len(wanted)
    if not count or len(given) % count or any(b in wanted or r is None for b, r in origins.values()):
        return origins
    return {n: (wanted[at % count], at // count) for at, n in enumerate(given)}


def _parts(
    origins: Mapping[str, tuple[str, int | None]], given: Mapping[str, Shape], wanted: Mapping[str, Shape]
) -> dict[str, tuple[str, Layout]]:
    """For tensors of which every rank has one, the reference's tensor and how each is made of it."""
    held: dict[str, list[tuple[int, str]]] = {}
    for name in given:
        base, rank = origins[name]
        if rank is not None and base in wanted:
            held.setdefault(base, []).append((rank, name))
    found = {}
    for base, members in held.items():
        for place, (_, name) in enumerate(sorted(members)):
            layout = _cut(wanted[base], given[name], place, len(members))
            if layout is not None:
                found[name] = base, layout
    return found


def _cut(whole: Shape, part: Shape, place: int, count: int) -> Layout | None:
    if whole == part:
        return REPLICATE
    if len(whole) != len(part):
        return None
    dims = [d for d, (n, m) in enumerate(zip(whole, part, strict=True)) if n != m]
    if len(dims) != 1 or whole[dims[0]] != count * part[dims[0]]:
        return None
    size = part[dims[0]]
    return Layout(None, (Step("slice", (dims[0], place * size, (place + 1) * size)),))

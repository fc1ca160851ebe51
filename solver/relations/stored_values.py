"""Stored tensors of two files related by what they hold, not by their names alone.

Optimisers rename, transpose, cut, merge and fold weights (`stored_matching`). Of a layout, inferred or
declared, it is checked that the files obey it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardproof.frontends.formats import ONNX, PT2
from shardproof.frontends.fx.stored import stored_tensors
from shardproof.frontends.source import Source
from shardproof.frontends.weights import Weight, read
from shardproof.ir.module import Module
from shardproof.ir.types import Mesh
from shardproof.solver.relations.relation import REPLICATE, Relation, Spec
from shardproof.solver.relations.relation_check import Failure, compare
from shardproof.solver.relations.steps import Layout, Step
from shardproof.solver.relations.stored_matching import Matching, Related
from shardproof.solver.relations.weight_entries import Entry, mentioned


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored tensors of the reference, and of each rank of the implementation, by name."""

    whole: Mapping[str, Weight]
    ranks: tuple[Mapping[str, Weight], ...]

    def only(self, names: Collection[str]) -> Stored:
        """Without tensors of the implementation of other names."""
        ranks = tuple({n: w for n, w in held.items() if n in names} for held in self.ranks)
        return Stored(self.whole, ranks)


def read_stored(reference: object, implementation: object) -> Stored | None:
    """What both programs store; None unless one is an ONNX file, and all such a file or an exported program
    of PyTorch. Raises ModuleError."""
    ranks = implementation if isinstance(implementation, list) else [implementation]
    programs = (reference, *ranks)
    if not any(isinstance(p, str | Path) and ONNX.recognises(Source(Path(p))) for p in programs):
        return None
    stored = [_stored(p) for p in programs]
    held = [s for s in stored if s is not None]
    return Stored(held[0], tuple(held[1:])) if len(held) == len(programs) else None


def _stored(program: object) -> Mapping[str, Weight] | None:
    if not isinstance(program, str | Path):
        return stored_tensors(program)
    source = Source(Path(program))
    if ONNX.recognises(source):
        from shardproof.frontends.onnx import stored

        return stored.stored_tensors(source.data, source.path.parent)
    return read(Path(program)) if PT2.recognises(source) else None


def contradictions(stored: Stored, relation: Relation, mesh: Mesh) -> tuple[Failure, ...]:
    """Where stored tensors of the implementation do not hold what their layouts make of the reference's.

    A single file for several ranks holds whole tensors.
    """
    listed = []
    whole = len(stored.ranks) < mesh.size
    for name, spec in relation.inputs.items():
        if whole and not _shards(spec):
            continue
        spec = REPLICATE if whole else spec
        entry = Entry(name, name, spec, relation.sources.get(name, name))
        if all(name in held for held in stored.ranks) and stored.whole.keys() >= {*mentioned(entry)}:
            listed.append(entry)
    return compare(Mesh() if whole else mesh, stored.whole, stored.ranks, listed)


def _shards(spec: Spec) -> bool:
    """Whether a layout only cuts shards."""
    return isinstance(spec, Layout) and all(isinstance(s, Step) and s.name == "shard" for s in spec.steps)


def difference(failure: Failure) -> str:
    """The first difference in words."""
    if failure.element is None or failure.values is None:
        return f"found {failure.found}"
    at = ",".join(map(str, failure.element))
    wanted, found = failure.values
    return f"{failure.differing} elements differ, [{at}] is {found} and should be {wanted}"


def related(
    reference: Module,
    implementation: Module,
    own: Mapping[str, Weight],
    theirs: Mapping[str, Weight],
    declared: Collection[str] = (),
) -> Related:
    """Two programs of one rank each, with the stored tensors of their files.

    Implementation inputs that are `declared` are left as they are. Nothing changes where all that both files
    store is of equal names and contents.
    """
    work = Matching(
        _held(reference, own), _held(implementation, theirs, declared), reference, complete=not declared
    )
    work.pair()
    return work.result(reference, implementation)


def _held(
    module: Module, weights: Mapping[str, Weight], declared: Collection[str] = ()
) -> dict[str, Weight]:
    """The weights that are inputs of the module, of its types."""
    updated = {o.updates for o in module.outputs}
    return {
        i.name: w
        for i in module.inputs
        if i.name not in declared
        and i.name not in updated
        and (w := weights.get(i.name)) is not None
        and w.shape == i.value.type.shape
        and w.element.dtype is i.value.type.dtype
    }

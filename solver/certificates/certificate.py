"""Certificates: a proof as data that `solver.recheck` checks without any search.

A certificate names both programs by their digests and holds the relation as programs, the flags of the
sweep, the lemma instances in order, and every assumption. `solver.certificate_file` writes and reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from shardproof import __version__
from shardproof.ir.digest import digest
from shardproof.ir.module import Module, Value
from shardproof.ir.types import Mesh
from shardproof.solver.certificates.install import Instance
from shardproof.solver.sweep import Layouts

Range = tuple[str, int, int]
"""The values of an integer base tensor: its name, the least value, the end (exclusive)."""


class CertificateError(ValueError):
    """A certificate that cannot be read or does not hold; the message is one line."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What the sweep may do: see `solver.prove.Attempt`."""

    folding: bool = False
    lenient: bool = False
    reading: bool = False
    algebra: bool = False
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """A lemma that instances name: the digest of its text, its status, and how its left side is rebuilt."""

    name: str
    digest: str
    status: str
    plain: bool = True


REMARKS: Final = frozenset({"inferred_relation", "reference_layout"})
"""Kinds of assumption that say where the relation comes from."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What is shown: under these assumptions the compared outputs are the expected ones.

    `reference` and `implementation` are digests on the meshes `meshes`. `layouts` and `expected` are the
    relation as programs, `assumed` makes values that are taken to be right, `ranges` are the declared
    ranges of integer base tensors. `even` are outputs on which the ranks of a distributed reference agree.
    An output is (implementation, reference, its placement in words, which are the writer's).
    """

    reference: str
    implementation: str
    meshes: tuple[Mesh, Mesh]
    layouts: Layouts = field(compare=False)
    expected: Module = field(compare=False)
    assumed: Module | None = field(compare=False)
    ranges: tuple[Range, ...]
    even: tuple[str, ...]
    outputs: tuple[tuple[str, str, str], ...]
    assumptions: tuple[tuple[str, str], ...]

    @property
    def modules(self) -> tuple[Module, ...]:
        """Reference inputs, implementation inputs, compared, expected, and assumed values if any."""
        own = self.layouts
        given = (own.reference, own.implementation, own.compared, self.expected)
        return given if self.assumed is None else (*given, self.assumed)

    @property
    def digest(self) -> str:
        """64 hex digits that stand for the whole claim.

        That a layout was inferred is a remark about the relation, which the claim states in full.
        """
        axes = [[list(axis) for axis in mesh.axes] for mesh in self.meshes]
        parts = [
            self.reference,
            self.implementation,
            axes,
            [digest(m) for m in self.modules],
            self.ranges,
            self.even,
            self.outputs,
            [a for a in self.assumptions if a[0] not in REMARKS],
        ]
        return sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A claim and what shows it.

    `bounds` are ranges that were assumed. The last instances name no class and are used after the sweep:
    `rounds` says for which output, and how many.
    """

    claim: Claim
    flags: Flags
    bounds: tuple[Range, ...] = ()
    lemmas: tuple[Use, ...] = ()
    instances: tuple[Instance, ...] = ()
    rounds: tuple[tuple[str, int], ...] = ()
    version: str = __version__
    stated: str = ""
    """The digest of the claim as written; `recheck` compares it."""


def bare(module: Module) -> Module:
    """The module without the places where its values were written."""
    values: dict[str, Value] = {}

    def own(v: Value) -> Value:
        return values.setdefault(v.name, replace(v, location=None))

    return replace(
        module,
        inputs=tuple(replace(i, value=own(i.value), sharding=None) for i in module.inputs),
        ops=tuple(
            replace(op, operands=tuple(map(own, op.operands)), results=tuple(map(own, op.results)))
            for op in module.ops
        ),
        outputs=tuple(replace(o, value=own(o.value), updates=None) for o in module.outputs),
        warnings=(),
    )

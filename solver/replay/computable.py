"""The outputs of a check that can be computed: what an unknown operator leads to is left out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from shardproof.ir.module import Module, Op
from shardproof.ir.named_functions import is_named
from shardproof.ir.ops import TABLE
from shardproof.solver.replay.replay import output_read

KNOWN = frozenset({"AwsNeuronRmsNorm"})
"""Custom calls that have a NumPy meaning."""


def computable(
    reference: Module, implementation: Module, expected: Module
) -> tuple[Module, Module, Module]:
    """The modules with the outputs that can be computed; all of them where none can.

    The implementation may draw integers, which is how memory that was never written is modelled.
    """
    lost = _lost(reference, (), lambda op: not _known(op))
    read = {i.name for i in expected.inputs if output_read(i.name) in lost}
    lacking = _lost(expected, read, lambda op: not _known(op))
    lacking |= _lost(implementation, (), lambda op: not _known(op) and op.opcode != "rng")
    names = {o.name for o in expected.outputs} - lacking
    if not names or not lacking:
        return reference, implementation, expected
    own = replace(reference, outputs=tuple(o for o in reference.outputs if o.name not in lost))
    second, third = (
        replace(m, outputs=tuple(o for o in m.outputs if o.name in names)) for m in (implementation, expected)
    )
    return own, second, third


def _known(op: Op) -> bool:
    if op.opcode == "custom_call":
        return op.attrs["target"] in KNOWN
    if op.opcode == "opaque":
        return is_named(op)
    row = TABLE.get(op.opcode)
    return op.opcode == "rank_id" or (
        row is not None and (row.numpy is not None or "collective" in row.traits)
    )


def _lost(module: Module, inputs: Collection[str], unknown: Callable[[Op], bool]) -> set[str]:
    """The outputs that depend on some inputs or on an operator that is not known."""
    tainted = {i.value for i in module.inputs if i.name in inputs}
    for op in module.ops:
        if unknown(op) or any(v in tainted for v in op.operands):
            tainted.update(op.results)
    return {o.name for o in module.outputs if o.value in tainted}

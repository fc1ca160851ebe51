"""Mutants of a captured dump. The interpreter judges a shrunk copy, with the layout written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from mutant_verdicts import judged

from shardproof.frontends.load import load
from shardproof.ir.interpret import run
from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.types import Array, DType, TensorType
from shardproof.solver.meaning import meant
from shardproof.solver.replay.draws import counter_inputs, whole
from shardproof.solver.replay.shrink import shrink
from shardproof.tools.mutation import EQUIVALENT_KINDS, Mutant, mutants

CAPTURED = Path(__file__).resolve().parents[3] / "shared" / "real" / "hlo"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAPTURED.is_dir(), reason="the captured dumps are not beside the repository"),
]

KINDS = (
    "dropped_all_reduce",
    "doubled_all_reduce",
    "halved_groups",
    "transposed_weight",
    "moved_slice",
    "scaled_by_2",
    "swapped_subtract",
    "swapped_add",
    "identity_transposes",
)
DEGREE = 4
QUIET = 2.0**-6
"""Of reals so small that the epsilon of a norm matters."""


@cache
def dump(stem: str) -> Module:
    return load(CAPTURED / f"{stem}.hlo.pb.gz")


@cache
def mutants_of(stem: str) -> tuple[Mutant, ...]:
    return tuple(mutants(dump(stem)))


class Shards:
    """Operators that cut this rank's part out of whole tensors."""

    def __init__(self, prefix: str, ranks: int) -> None:
        self.prefix, self.ranks = prefix, ranks
        self.ops: list[Op] = []

    def value(self, dtype: DType, shape: Sequence[int]) -> Value:
        return Value(f"{self.prefix}{len(self.ops)}", TensorType(dtype, tuple(shape)))

    def emit(self, opcode: str, operands: Sequence[Value], result: Value, **attrs: object) -> Value:
        self.ops.append(Op(opcode, tuple(operands), (result,), attrs))
        return result

    def scalar(self, number: int) -> Value:
        return self.emit("constant", (), self.value(DType.U32, ()), value=np.array(number, np.uint32))

    def shard(self, x: Value, dim: int) -> Value:
        sizes = [n // self.ranks if d == dim else n for d, n in enumerate(x.type.shape)]
        rank = self.emit("rank_id", (), self.value(DType.U32, ()))
        start = self.emit("multiply", (rank, self.scalar(sizes[dim])), self.value(DType.U32, ()))
        zero = self.scalar(0)
        starts = [start if d == dim else zero for d in range(len(sizes))]
        result = self.value(x.type.dtype, sizes)
        return self.emit("dynamic_slice", (x, *starts), result, sizes=tuple(sizes))

    def cut(self, x: Value, dim: int, start: int, limit: int) -> Value:
        shape = x.type.shape
        starts = tuple(start if d == dim else 0 for d in range(len(shape)))
        limits = tuple(limit if d == dim else n for d, n in enumerate(shape))
        sizes = tuple(b - a for a, b in zip(starts, limits, strict=True))
        strides = (1,) * len(shape)
        result = self.value(x.type.dtype, sizes)
        return self.emit("slice", (x,), result, starts=starts, limits=limits, strides=strides)

    def part(self, x: Value, local: tuple[int, ...]) -> Value:
        """x itself, or this rank's part of the one dim in which the shapes differ."""
        differing = [d for d, (n, m) in enumerate(zip(x.type.shape, local, strict=True)) if n != m]
        return self.shard(x, differing[0]) if differing else x

    def fused(self, x: Value) -> Value:
        """This rank's query, key and value columns (4 : 1 : 1) side by side."""
        unit = x.type.shape[1] // 6
        cuts = ((0, 4 * unit), (4 * unit, 5 * unit), (5 * unit, 6 * unit))
        parts = [self.shard(self.cut(x, 1, *c), 1) for c in cuts]
        shape = (x.type.shape[0], sum(p.type.shape[1] for p in parts))
        return self.emit("concatenate", parts, self.value(x.type.dtype, shape), dim=1)


def over_whole_inputs(reference: Module, implementation: Module) -> Module:
    """The implementation as a function of the reference's inputs."""
    shards = Shards("shard", implementation.mesh.size)
    inputs: list[Input] = []
    renamed: dict[Value, Value] = {}
    layers = (len(implementation.inputs) - 8) // 9
    fused = {6 + 2 * layers + 7 * n + 1 for n in range(layers)}
    for theirs, ours in zip(reference.inputs, implementation.inputs, strict=True):
        assert theirs.number == ours.number
        source = Value(theirs.name, theirs.value.type)
        inputs.append(Input(source, theirs.number))
        renamed[ours.value] = (
            shards.fused(source) if ours.number in fused else shards.part(source, ours.value.type.shape)
        )
    body = tuple(
        Op(op.opcode, tuple(renamed.get(v, v) for v in op.operands), op.results, op.attrs)
        for op in implementation.ops
    )
    outputs = tuple(Output(o.name, o.value) for o in implementation.outputs)
    return Module("over_whole", implementation.mesh, tuple(inputs), (*shards.ops, *body), outputs)


def expected_outputs(reference: Module, implementation: Module) -> Module:
    shards = Shards("expect", implementation.mesh.size)
    inputs: list[Input] = []
    outputs: list[Output] = []
    for number, (theirs, ours) in enumerate(zip(reference.outputs, implementation.outputs, strict=True)):
        source = Value(theirs.name, theirs.value.type)
        inputs.append(Input(source, number))
        outputs.append(Output(ours.name, shards.part(source, ours.value.type.shape)))
    return Module("expected", implementation.mesh, tuple(inputs), tuple(shards.ops), tuple(outputs))


def open_window(reference: Module) -> dict[str, Array]:
    """Positions in order, no padding, the last token: so that the mask hides as little as it can."""
    names = {i.number: i.name for i in reference.inputs}
    (sequence,), (batch,) = (reference.inputs[n].value.type.shape for n in (1, 2))
    return {
        names[1]: np.arange(sequence, dtype=np.int32),
        names[2]: np.zeros(batch, dtype=np.int32),
        names[3]: np.array([sequence - 1], dtype=np.int32),
    }


def differs(reference: Module, implementation: Module) -> bool:
    reference, implementation = (m.module for m in meant((reference, implementation)))
    plain = replace(reference, outputs=tuple(Output(o.name, o.value) for o in reference.outputs))
    small = shrink(
        plain, over_whole_inputs(reference, implementation), expected_outputs(reference, implementation)
    )
    assert not isinstance(small, str), small
    for seed, scale in ((1, 1.0), (2, 1.0), (3, QUIET)):
        draw = counter_inputs(small.reference.inputs, seed)
        whole_inputs = {i.name: draw(i.name, whole(i.value.type.shape)) for i in small.reference.inputs}
        whole_inputs = {n: x * scale if x.dtype.kind == "f" else x for n, x in whole_inputs.items()}
        whole_inputs |= open_window(small.reference)
        sequential = {name: ranks[0] for name, ranks in run(small.reference, whole_inputs).items()}
        expected = run(small.expected, sequential)
        found = run(small.implementation, whole_inputs)
        for name, ranks in expected.items():
            for e, f in zip(ranks, found[name], strict=True):
                if not np.allclose(f, e, rtol=1e-9, atol=1e-11):
                    return True
    return False


def test_the_unchanged_dump_does_not_differ() -> None:
    assert not differs(dump("tp1_layer1"), dump(f"tp{DEGREE}_layer1"))
    assert differs(dump("tp1_layer1"), dump("tp2_layer1.broken"))


@pytest.mark.parametrize("kind", KINDS)
def test_captured_mutant_verdicts(kind: str) -> None:
    reference = dump("tp1_layer1")
    selected = [m for m in mutants_of(f"tp{DEGREE}_layer1") if m.kind == kind]
    found = judged(reference, selected, lambda mutant: differs(reference, mutant.module))
    assert found
    assert any(found) == (kind not in EQUIVALENT_KINDS)

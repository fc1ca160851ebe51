"""Serialised programs with fields changed at random: an answer or one error, and never a wrong `verified`."""

from __future__ import annotations

import gzip
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hlo_programs import PROGRAMS
from hlo_writer import pb, to_bytes
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mutated_protos import mutate, mutate_alike

from shardproof.frontends.load import load
from shardproof.ir.interpret import run
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.numpy_meaning import InterpretError
from shardproof.passes.mesh_axes import mesh_axes
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import compose
from shardproof.solver.relations.relation_file import Declared, resolve
from shardproof.solver.replay.replay import Replay, base_inputs, compare, draw, output_read
from shardproof.solver.verify import verify

DUMPS = Path(__file__).resolve().parents[2] / "examples" / "neuron_llama" / "dumps"
PAIRS = (
    ("tp1_layer1", "tp4_layer1"),
    ("tp1_layer1.square", "tp4_layer1.square"),
    ("tp1_layer1.mean", "dp2_tp4_layer1.mean"),
    ("tp1_layer1", "tp4_layer1.sequence_parallel"),
    ("dp2_tp4_layer1.mean", "dp2_tp4_layer1.mean"),
)
SEEDS = (21, 22)

changes = st.lists(st.integers(0, 2**32), min_size=1, max_size=3)


@cache
def dump(stem: str) -> bytes:
    return gzip.decompress((DUMPS / f"{stem}.hlo.pb.gz").read_bytes())


@cache
def program(name: str) -> bytes:
    data: bytes = to_bytes(PROGRAMS[name].text)
    return data


def used(module: Module) -> Module:
    """The module without operators that no output needs: one may have no NumPy meaning."""
    needed = {o.value for o in module.outputs}
    kept = []
    for op in reversed(module.ops):
        if needed.intersection(op.results):
            needed.update(op.operands)
            kept.append(op)
    return replace(module, ops=tuple(reversed(kept)))


def agreement(reference: Module, implementation: Module, *, unmasked: bool = False) -> str:
    """`equal`, what differs, or why nothing can be compared, by the interpreter at the files' own shapes.

    `unmasked` draws no integer but 0, with which sequences start at once and no row is fully masked.
    """
    first, second = mesh_axes(reference, None), mesh_axes(implementation, None)
    relation = infer(first, second, resolve(Declared(), first, second)).relation
    both = compose(first, second, relation)
    both = replace(both, reference=used(both.reference), implementation=used(both.implementation))
    inputs = base_inputs(both.reference, both.implementation)
    integers = [i.name for i in inputs if i.value.type.dtype.kind in ("int", "uint")]
    ranges = dict.fromkeys(integers, (0, 1)) if unmasked else None
    seen = compare(
        both.reference, both.implementation, both.expected, seed=SEEDS[0], trials=len(SEEDS), ranges=ranges
    )
    if isinstance(seen, Replay) and seen.differences:
        return f"differs: {seen.differences[0]}"
    try:
        for seed in SEEDS:
            drawn = draw(inputs, seed, ranges)
            made = run(both.reference, drawn)
            many = both.reference.mesh.size > 1
            fed = {
                i.name: np.stack(made[output_read(i.name)]) if many else made[output_read(i.name)][0]
                for i in both.expected.inputs
            }
            goal, got = run(both.expected, fed), run(both.implementation, drawn)
            for name, ranks in goal.items():
                for rank, (a, b) in enumerate(zip(ranks, got[name], strict=True)):
                    if not np.allclose(a, b, rtol=1e-6, atol=1e-8, equal_nan=True):
                        return f"output {name} differs on rank {rank} with seed {seed}"
    except InterpretError as error:
        return str(error)
    return "equal"


def check(path: Path, reference: bytes, implementation: bytes, seeds: list[int], alike: int = 0) -> None:
    """Change both programs `alike` times, then the implementation; judge the answer by the interpreter.

    What holds only where no row is fully masked is judged by draws that mask none.
    """
    whole: Any = pb.HloModuleProto.FromString(reference)
    message: Any = pb.HloModuleProto.FromString(implementation)
    what = [mutate_alike(whole, message, Random(seed)) for seed in seeds[:alike]]
    what += [mutate(message, Random(seed)) for seed in seeds[alike:]]
    files = path / "reference.pb", path / "mutated.pb"
    files[0].write_bytes(whole.SerializeToString())
    files[1].write_bytes(message.SerializeToString())
    try:
        first, second = map(load, files)
        result = verify(first, second)
    except ModuleError as error:
        assert "\n" not in str(error) and "without its own message" not in str(error), what
        return
    if result.verdict != "verified":
        return
    live = any(a.kind == "row_not_fully_masked" for a in result.assumptions)
    seen = agreement(first, second, unmasked=live)
    opaque = any(a.kind in ("opaque_function", "opaque_batched") for a in result.assumptions)
    if "must be distinct" in seen and any(a.kind == "distinct_indices" for a in result.assumptions):
        return
    unknown = "no NumPy meaning" in seen or seen.startswith("custom_call can't be interpreted")
    assert seen == "equal" or (opaque and unknown), (what, seen)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(PROGRAMS)), changes)
def test_small_programs(folder: Path, name: str, seeds: list[int]) -> None:
    check(folder, program(name), program(name), seeds)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(PAIRS), changes)
def test_dumps(folder: Path, pair: tuple[str, str], seeds: list[int]) -> None:
    check(folder, dump(pair[0]), dump(pair[1]), seeds)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PAIRS), changes)
@example(("dp2_tp4_layer1.mean", "dp2_tp4_layer1.mean"), [10080])
def test_both_programs_changed_alike(folder: Path, pair: tuple[str, str], seeds: list[int]) -> None:
    check(folder, dump(pair[0]), dump(pair[1]), seeds, alike=max(1, len(seeds) - 1))


def test_a_wrong_answer_would_be_seen(tmp_path: Path) -> None:
    """The judge tells the right pairs from the wrong ones."""
    for wrong in ("wrong_slice", "missing_all_reduce"):
        pair = [load(DUMPS / f"{s}.hlo.pb.gz") for s in ("tp1_layer1", f"tp4_layer1.{wrong}")]
        assert agreement(*pair).startswith("differs")
    wrong = [load(DUMPS / f"{s}.hlo.pb.gz") for s in ("tp1_layer1", "tp4_layer1.wrong_slice")]
    assert agreement(*wrong, unmasked=True).startswith("differs")
    for right in PAIRS:
        assert agreement(*(load(DUMPS / f"{s}.hlo.pb.gz") for s in right)) == "equal"

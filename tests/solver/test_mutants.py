"""Mutants of the example's dumps: the interpreter judges each, then `verify` must not be fooled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutant_verdicts import judged

from shardproof.frontends.load import load
from shardproof.ir.interpret import run
from shardproof.ir.module import Module
from shardproof.ir.verify import verify as check_module
from shardproof.tools.mutation import EQUIVALENT_KINDS, Mutant, mutants

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "neuron_llama"
sys.path.insert(0, str(EXAMPLE))

import make_dumps  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import weights  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

PAIRS = (
    ("tp1_layer1", "tp4_layer1"),
    ("tp1_layer1.square", "tp4_layer1.square"),
    ("tp1_layer1.mean", "dp2_tp4_layer1.mean"),
    ("tp1_layer1", "tp4_layer1.sequence_parallel"),
)
KINDS = (
    "dropped_all_reduce",
    "doubled_all_reduce",
    "halved_groups",
    "other_groups",
    "moved_slice",
    "transposed_weight",
    "scaled_by_2",
    "swapped_subtract",
    "swapped_add",
    "identity_transposes",
)
FEW = 4
"""How many mutants of a kind, spread over the program, the fast tests judge; the slow ones judge all."""
ONLY_IN = {
    "other_groups": {"dp2_tp4_layer1.mean"},
    "transposed_weight": {"tp4_layer1.square"},
}

Arrays = list[list[Any]]


@cache
def module_of(stem: str) -> Module:
    return load(EXAMPLE / "dumps" / f"{stem}.hlo.pb.gz")


@cache
def mutants_of(stem: str) -> tuple[Mutant, ...]:
    return tuple(mutants(module_of(stem)))


def outputs_of(module: Module, parameters: Arrays) -> Arrays:
    found = run(module, {i.name: parameters[i.number] for i in module.inputs})
    return [found[o.name] for o in module.outputs]


@cache
def judged_inputs(reference: str, implementation: str, seed: int) -> tuple[Arrays, Arrays]:
    """Every rank's parameters, and the outputs that every rank must return for them."""
    decoders = make_dumps.programs()
    decoder, config = decoders[implementation], decoders[reference].config
    whole = weights.whole_inputs(config, seed)
    sequential = outputs_of(module_of(reference), [[x] for x in whole])
    expected = weights.rank_outputs(decoder, [ranks[0] for ranks in sequential], config)
    return weights.rank_inputs(decoder, whole, config), expected


def differs(mutant: Mutant, reference: str, implementation: str) -> bool:
    for seed in (1, 2):
        parameters, expected = judged_inputs(reference, implementation, seed)
        found = outputs_of(mutant.module, parameters)
        for found_ranks, expected_ranks in zip(found, expected, strict=True):
            for f, e in zip(found_ranks, expected_ranks, strict=True):
                if not np.allclose(f, e, rtol=1e-9, atol=1e-11):
                    return True
    return False


def cases() -> Iterator[Any]:
    for reference, implementation in PAIRS:
        for kind in KINDS:
            if implementation in ONLY_IN.get(kind, {implementation}):
                yield pytest.param(reference, implementation, kind, id=f"{implementation}-{kind}")


def test_mutants_are_the_same_each_time() -> None:
    once, again = mutants(module_of("tp4_layer1")), mutants(module_of("tp4_layer1"))
    assert [m.name for m in once] == [m.name for m in again]


@pytest.mark.parametrize("stem", [implementation for _, implementation in PAIRS])
def test_mutants_are_well_formed_and_do_not_touch_the_original(stem: str) -> None:
    module = module_of(stem)
    before = [(op.opcode, op.operands, op.results, dict(op.attrs)) for op in module.ops]
    made = mutants_of(stem)
    assert len({m.name for m in made}) == len(made)
    for mutant in made:
        check_module(mutant.module)
        defined = {v.name for op in mutant.module.ops for v in op.results}
        assert mutant.value in defined
    assert [(op.opcode, op.operands, op.results, dict(op.attrs)) for op in module.ops] == before


@pytest.mark.parametrize(("reference", "implementation", "kind"), list(cases()))
def test_mutant_verdicts(reference: str, implementation: str, kind: str) -> None:
    every = [m for m in mutants_of(implementation) if m.kind == kind]
    if not every:
        assert kind in ("dropped_all_reduce", "doubled_all_reduce", "halved_groups")
        pytest.skip(f"{implementation} has no all-reduce")
    found = judge(reference, implementation, every[:: -(-len(every) // FEW)])
    assert any(found) == (kind not in EQUIVALENT_KINDS), "the interpreter sees no mutant as it should"


@pytest.mark.slow
@pytest.mark.parametrize(("reference", "implementation", "kind"), list(cases()))
def test_verdicts_of_all_mutants(reference: str, implementation: str, kind: str) -> None:
    judge(reference, implementation, [m for m in mutants_of(implementation) if m.kind == kind])


def judge(reference: str, implementation: str, selected: list[Mutant]) -> list[bool]:
    return judged(
        module_of(reference), selected, lambda mutant: differs(mutant, reference, implementation)
    )

"""Every operator row: its samples type as stated, and NumPy computes values of those types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import RANKS, SAMPLES, Sample

from shardproof.ir.interpret import Unsupported, element_type, run
from shardproof.ir.module import Input, Module, ModuleError, Output
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Mesh, TensorType
from shardproof.ir.verify import verify

TRAITS = {"elementwise", "commutative", "collective", "random", "closed", "effect"}
NO_MEANING = {"rng", "rng_bit_generator"}
LOCK_STEP = {"rank_id", "scan"}


def module_of(sample: Sample) -> Module:
    op = sample.op()
    inputs = tuple(Input(v, i) for i, v in enumerate(op.operands))
    outputs = tuple(Output(v.name, v) for v in op.results)
    return Module("sample", Mesh((("x", 2), ("y", 2))), inputs, (op,), outputs)


def has_meaning(sample: Sample) -> bool:
    known = sample.attrs.get("target") != "Unknown" and sample.attrs.get("name") != "f"
    return sample.opcode not in NO_MEANING and known


def test_every_row_has_a_sample() -> None:
    assert {sample.opcode for sample in SAMPLES} == set(TABLE)


@pytest.mark.parametrize("row", TABLE.values(), ids=str)
def test_row_is_consistent(row: Any) -> None:
    assert row.traits <= TRAITS
    assert len(set(row.attrs)) == len(row.attrs)
    lock_step = "collective" in row.traits or row.name in LOCK_STEP
    assert (row.numpy is None) == (lock_step or row.name in NO_MEANING)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_type_rule_gives_the_stated_types(sample: Sample) -> None:
    verify(module_of(sample))


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_type_rule_rejects_other_results(sample: Sample) -> None:
    """No rule lets a result of another rank pass, unless the declared type is all there is."""
    declared_only = {"opaque", "custom_call", "constant", "iota", "reshape", "rng"}
    if sample.opcode in declared_only or sample.opcode == "broadcast_in_dim":
        return
    wrong = tuple(TensorType(r.dtype, (*r.shape, 7)) for r in sample.results)
    with pytest.raises(ModuleError, match=sample.opcode):
        verify(module_of(Sample(sample.opcode, sample.operands, wrong, sample.attrs)))


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_type_rule_rejects_a_missing_operand_and_attribute(sample: Sample) -> None:
    if sample.operands and sample.opcode not in ("concatenate", "sort", "opaque"):
        fewer = Sample(sample.opcode, sample.operands[:-1], sample.results, sample.attrs)
        if sample.attrs.get("target") != "Unknown":
            with pytest.raises(ModuleError, match=sample.opcode):
                verify(module_of(fewer))
    for name in sample.attrs:
        attrs = {n: v for n, v in sample.attrs.items() if n != name}
        with pytest.raises(ModuleError, match=name):
            verify(module_of(Sample(sample.opcode, sample.operands, sample.results, attrs)))
        with pytest.raises(ModuleError, match=name):
            wrong = dict(sample.attrs) | {name: 1.5}
            verify(module_of(Sample(sample.opcode, sample.operands, sample.results, wrong)))


@pytest.mark.parametrize("sample", [s for s in SAMPLES if has_meaning(s)], ids=str)
def test_numpy_computes_the_stated_types(sample: Sample) -> None:
    arrays = sample.arrays(1)
    before = [np.array(a) for a in arrays]
    outputs = run(module_of(sample), {f"x{i}": a for i, a in enumerate(arrays)})
    for i, type_ in enumerate(sample.results):
        assert len(outputs[f"y{i}"]) == RANKS
        for array in outputs[f"y{i}"]:
            assert isinstance(array, np.ndarray)
            assert array.shape == type_.shape
            assert array.dtype == element_type(type_.dtype)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if not has_meaning(s)], ids=str)
def test_without_meaning_is_unsupported(sample: Sample) -> None:
    with pytest.raises(Unsupported) as error:
        run(module_of(sample), {f"x{i}": a for i, a in enumerate(sample.arrays(1))})
    assert error.value.opcode == sample.opcode

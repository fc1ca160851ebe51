"""Each small program, read as text and in the serialised form, computes what NumPy says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hlo_programs import PROGRAMS
from hlo_writer import to_bytes, to_proto

from shardproof.frontends.hlo.instruction import HloInstruction, HloModule
from shardproof.frontends.hlo.read_proto import read_proto
from shardproof.frontends.hlo.read_text import read_text
from shardproof.frontends.locate import Locator
from shardproof.ir.interpret import run
from shardproof.ir.module import Module


def _check(module: Module, name: str) -> None:
    program = PROGRAMS[name]
    rng = np.random.default_rng(5)
    given = [rng.normal(size=shape) for shape in program.inputs]
    inputs = sorted(module.inputs, key=lambda i: i.number)
    found = run(module, {i.name: x for i, x in zip(inputs, given, strict=True)})
    expected = program.meaning(*given)
    assert len(module.outputs) == len(expected)
    for output, value in zip(module.outputs, expected, strict=True):
        np.testing.assert_allclose(found[output.name][0], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_computes(name: str, load_text: Callable[..., Module]) -> None:
    _check(load_text(PROGRAMS[name].text), name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_serialised_computes(name: str, load_text: Callable[..., Module]) -> None:
    _check(load_text(to_bytes(PROGRAMS[name].text)), name)


def _comparable(module: HloModule) -> list[tuple[str, list[tuple[Any, ...]]]]:
    described = []
    for body in module.computations.values():
        names = {key: op.name for key, op in body.instructions.items()}
        callees = {key: other.name for key, other in module.computations.items()}
        rows = [_row(op, names, callees) for op in body.instructions.values()]
        described.append((body.name, [*rows, (names[body.root],)]))
    return described


def _row(op: HloInstruction, names: dict[Any, str], callees: dict[Any, str]) -> tuple[Any, ...]:
    row: list[Any] = []
    for field in fields(op):
        value = getattr(op, field.name)
        if field.name == "key":
            continue
        if field.name == "operands":
            value = [names[k] for k in value]
        elif field.name == "called":
            value = [callees[k] for k in value]
        elif isinstance(value, np.ndarray):
            value = (value.dtype.str, value.shape, value.tobytes())
        row.append(value)
    return tuple(row)


@pytest.mark.parametrize("name", PROGRAMS)
def test_readers_agree(name: str) -> None:
    text = PROGRAMS[name].text
    assert _comparable(read_text(text, Locator())) == _comparable(read_proto(to_proto(text), Locator()))

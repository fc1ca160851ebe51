"""Damaged files: a verified module or one line, never another exception."""

from __future__ import annotations

import contextlib

import pytest
from hlo_programs import PROGRAMS
from hlo_writer import to_bytes, to_proto
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.frontends.load import interpret
from shardproof.frontends.source import Source
from shardproof.ir.module import ModuleError

TEXTS = [program.text.encode() for program in PROGRAMS.values()]
SERIALISED = [to_bytes(program.text) for program in PROGRAMS.values()]

Edits = list[tuple[int, int, bytes]]
edits = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 6), st.binary(max_size=5)), min_size=1, max_size=4
)
words = st.sampled_from(
    [
        b"{",
        b"}",
        b"(",
        b")",
        b"[",
        b"]",
        b",",
        b"=",
        b"-1",
        b"99999999999",
        b"x",
        b"f32[]",
        b'"',
        b" ",
        b"\n",
        b"ROOT ",
    ]
)
text_edits = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 6), words), min_size=1, max_size=4)


def _damage(data: bytes, changes: Edits) -> bytes:
    for position, removed, added in changes:
        at = position % (len(data) + 1)
        data = data[:at] + added + data[at + removed :]
    return data


def _read(data: bytes) -> None:
    with contextlib.suppress(ModuleError):
        interpret(Source("fuzz", data=data, wrapper_files=()))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SERIALISED), edits)
def test_damaged_bytes(data: bytes, changes: Edits) -> None:
    _read(_damage(data, changes))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(TEXTS), text_edits)
def test_damaged_text(data: bytes, changes: Edits) -> None:
    _read(_damage(data, changes))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_noise(data: bytes) -> None:
    _read(data)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(PROGRAMS)), st.data())
def test_damaged_fields(name: str, data: st.DataObject) -> None:
    """Well-formed messages with numbers and lists changed at random places."""
    message = to_proto(PROGRAMS[name].text)
    for _ in range(data.draw(st.integers(1, 3))):
        body = data.draw(st.sampled_from(list(message.computations)))
        op = data.draw(st.sampled_from(list(body.instructions)))
        other = data.draw(st.sampled_from(list(body.instructions)))
        kind = data.draw(
            st.sampled_from(["swap", "opcode", "operands", "dims", "shape", "called", "number", "attrs"])
        )
        number = data.draw(st.sampled_from([-1, 0, 1, 2, 3, 7, 1 << 20, -(1 << 63), (1 << 63) - 1]))
        if kind == "opcode":
            op.opcode = other.opcode
        elif kind == "operands":
            del op.operand_ids[:1]
            op.operand_ids.append(other.id)
        elif kind == "dims":
            op.dimensions.append(number)
        elif kind == "shape":
            if op.shape.dimensions:
                op.shape.dimensions[0] = number
            else:
                op.shape.dimensions.append(number)
        elif kind == "called":
            op.called_computation_ids.append(data.draw(st.sampled_from([1, 2, 3])))
        elif kind == "number":
            op.parameter_number = number
            op.tuple_index = number
        elif kind == "attrs":
            op.ClearField(data.draw(st.sampled_from([f.name for f, _ in op.ListFields()])))
        else:
            op.shape.CopyFrom(other.shape)
    _read(message.SerializeToString())


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_truncation(name: str) -> None:
    for data in (to_bytes(PROGRAMS[name].text), PROGRAMS[name].text.encode()):
        for end in range(0, len(data), 7):
            _read(data[:end])

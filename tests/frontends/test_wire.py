"""Telling messages apart by their wire format."""

from __future__ import annotations

import pytest
from hlo_programs import PROGRAMS
from hlo_writer import pb, to_bytes, to_proto

from shardproof.frontends import wire
from shardproof.frontends.formats import HLO, ONNX
from shardproof.frontends.source import Source

TEXT = PROGRAMS["elementwise"].text


def test_fields() -> None:
    data = b"\x08\x96\x01\x12\x03abc\x1d\x00\x00\x00\x00\x12\x01x"
    found = wire.fields(data)
    assert (found[1], wire.text(found, 2), set(found)) == (150, "abc", {1, 2, 3})
    assert wire.fields(data, 1) == {1: 150}
    assert wire.message(found, 2) == {} and wire.message(found, 9) == {} and wire.text(found, 1) == ""


@pytest.mark.parametrize(
    "data",
    [b"\x08", b"\x12\x05abc", b"\x1d\x00", b"\x0b", b"\x00\x01", b"\x08" + b"\xff" * 11, b"\x08\x01\x12"],
)
def test_what_is_no_whole_message_has_none(data: bytes) -> None:
    assert wire.fields(data) == {}


@pytest.mark.parametrize(
    ("data", "is_hlo"),
    [
        (to_bytes(TEXT), True),
        (pb.HloProto(hlo_module=to_proto(TEXT)).SerializeToString(), True),
        (to_bytes(TEXT)[:-1], False),
        (pb.HloModuleProto(name="no computation").SerializeToString(), False),
        (b"\x0a\x01a\x1a\x06\x0a\x01b\x12\x01c", False),
    ],
)
def test_hlo_is_recognised_by_its_first_opcode(data: bytes, is_hlo: bool) -> None:
    assert HLO.recognises(Source("m", data=data)) is is_hlo
    assert not ONNX.recognises(Source("m", data=data))


def test_onnx_is_recognised_by_version_graph_and_opset() -> None:
    graph, opset = b"\x3a\x03\x12\x01g", b"\x42\x02\x10\x12"
    assert ONNX.recognises(Source("m", data=b"\x08\x0a" + graph + opset))
    assert not ONNX.recognises(Source("m", data=b"\x08\x0a" + graph))
    assert not ONNX.recognises(Source("m", data=b"\x08\x0a" + opset))

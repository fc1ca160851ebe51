"""hlo_pb2.py comes from the oldest supported compiler and from today's hlo.proto."""

from __future__ import annotations

import re
from pathlib import Path

from shardproof.frontends.hlo import generate, hlo_pb2

FOLDER = Path(generate.__file__).parent


def test_generated_by_the_oldest_compiler() -> None:
    text = (FOLDER / "hlo_pb2.py").read_text()
    assert f"Protobuf Python Version: {generate.OLDEST_RUNTIME}." in text
    assert "ValidateProtobufRuntimeVersion" not in text


def test_generated_from_this_proto() -> None:
    declared: dict[str, dict[str, int]] = {}
    message = ""
    for line in (FOLDER / "hlo.proto").read_text().splitlines():
        start = re.match(r"message (\w+) \{", line)
        field = re.match(r"  (?:repeated )?[\w<>, ]+ (\w+) = (\d+);", line)
        if start is not None:
            message = start[1]
            declared[message] = {}
        elif field is not None:
            declared[message][field[1]] = int(field[2])
    found = {
        name: {field.name: field.number for field in descriptor.fields}
        for name, descriptor in hlo_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    assert found == declared

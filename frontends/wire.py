"""The wire format of protocol buffers, as far as telling what kind of message bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Found = int | bytes | memoryview
Fields = Mapping[int, Found]


_INSIDE: Final = 16
"""Values that are looked at of a message inside another."""


def fields(data: bytes | memoryview, most: int | None = None) -> Fields:
    """The first value of each field of the message, by number: a varint as an int, other ones as bytes.

    Empty when `data` is no whole message; with `most`, only so many values are looked at.
    """
    view = memoryview(data)
    found: dict[int, Found] = {}
    at = count = 0
    try:
        while at < len(view) and count != most:
            count += 1
            tag, at = _varint(view, at)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                return {}
            if kind == 0:
                value, at = _varint(view, at)
                found.setdefault(number, value)
                continue
            length = {1: 8, 5: 4}.get(kind, -1)
            if kind == 2:
                length, at = _varint(view, at)
            if not 0 <= length <= len(view) - at:
                return {}
            found.setdefault(number, view[at : at + length])
            at += length
    except IndexError:
        return {}
    return found


def message(fields_: Fields, number: int) -> Fields:
    """The fields of the message that field `number` holds; empty without one."""
    found = fields_.get(number)
    return fields(found, _INSIDE) if isinstance(found, bytes | memoryview) else {}


def text(fields_: Fields, number: int) -> str:
    """The ASCII text of field `number`; "" without one."""
    found = fields_.get(number)
    data = bytes(found) if isinstance(found, bytes | memoryview) else b""
    return data.decode("ascii") if data.isascii() else ""


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise IndexError(at)

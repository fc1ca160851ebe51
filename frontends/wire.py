"""The wire format of protocol buffers, as far as telling what kind of message bytes are."""

from __future__ import annotations

from collections.abc import Mapping

Found = int | bytes | memoryview
Fields = Mapping[int, Found]


def fields(data: bytes | memoryview) -> Fields:
    """The first value of each field of the message, by number: a varint as an int, other ones as bytes.

    Empty when `data` is no whole message.
    """
    view = memoryview(data)
    found: dict[int, Found] = {}
    at = 0
    try:
        while at < len(view):
            tag, at = _varint(view, at)
            number, kind = tag >> 3, tag & 7
            if kind == 0:
                value, at = _varint(view, at)
                found.setdefault(number, value)
                continue
            length = {1: 8, 5: 4}.get(kind, -1)
            if kind == 2:
                length, at = _varint(view, at)
            if number == 0 or not 0 <= length <= len(view) - at:
                return {}
            found.setdefault(number, view[at : at + length])
            at += length
    except IndexError:
        return {}
    return found


def message(fields_: Fields, number: int) -> Fields:
    """The fields of the message that field `number` holds; empty without one."""
    found = fields_.get(number)
    return fields(found) if isinstance(found, bytes | memoryview) else {}


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

"""Refuses what hlo.proto doesn't declare: a field that is skipped could change what the program means."""

from __future__ import annotations

from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from shardproof.ir.module import ModuleError


def has_unknown_fields(message: Any) -> bool:
    """Whether `message` has an undeclared field at any depth; it loses them."""
    before = message.ByteSize()
    message.DiscardUnknownFields()
    return bool(message.ByteSize() != before)


def refuse_unknown_fields(message: Any) -> None:
    """Raise `ModuleError` naming the first undeclared field in `message`, at any depth.

    Fields that can't change a result are declared in hlo.proto and marked "not read".
    """
    number, where = _first(message, type(message).__name__)
    if number:
        raise ModuleError(f"field {number} of {where} is not known, and skipping it could change the meaning")


def _first(message: Any, where: str) -> tuple[int, str]:
    name = getattr(message, "name", None)
    if isinstance(name, str) and name:
        where = f"{type(message).__name__} `{name}`"
    elif type(message).__name__ not in where:
        where = f"{type(message).__name__} in {where}"
    unknown: Any = UnknownFieldSet(message)
    for field in unknown:
        return field.field_number, where
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for child in [value] if hasattr(value, "ListFields") else value:
            number, inside = _first(child, where)
            if number:
                return number, inside
    return 0, where

"""Whether a use of an operator is the one that a `define` gives a meaning (L9 of the soundness rules)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite
from typing import Any, Final

from shardproof.ir.types import TensorType
from shardproof.lemmas.printer import show_number
from shardproof.lemmas.terms import Attribute, Define, OpaqueDefine

BATCH: Final = "..."


class Unmatched(ValueError):
    """The define does not describe this use; the message says what does not fit."""


@dataclass(frozen=True, slots=True)
class Use:
    """How a use fits a define: extents by index, the indices of each operand and result, attribute values.

    The batch dims `...` are the indices `...0`, `...1` and so on, which no name of a define can be.
    """

    sizes: Mapping[str, int]
    parameters: tuple[tuple[str, ...], ...]
    results: Mapping[str, tuple[str, ...]]
    numbers: Mapping[str, Fraction]


@dataclass(slots=True)
class Dims:
    """The extents of the dims told so far, and how many dims `...` stands for."""

    sizes: dict[str, int] = field(default_factory=dict)
    batch: int | None = None

    def rank(self, dims: tuple[str, ...]) -> int | None:
        """Number of dims of a tensor, None while that of `...` is not known."""
        if BATCH not in dims:
            return len(dims)
        return None if self.batch is None else len(dims) - 1 + self.batch

    def fit(self, what: str, dims: tuple[str, ...], type: TensorType) -> tuple[str, ...]:
        """The index of each dim of a tensor; extents that were told before must agree."""
        rank = len(type.shape)
        if BATCH in dims and self.batch is None and rank >= len(dims) - 1:
            self.batch = rank - (len(dims) - 1)
        if self.rank(dims) != rank:
            raise Unmatched(f"{what} is {type}, dims [{', '.join(dims)}] are needed")
        names: list[str] = []
        for dim in dims:
            names += [f"{BATCH}{i}" for i in range(self.batch or 0)] if dim == BATCH else [dim]
        for name, size in zip(names, type.shape, strict=True):
            if self.sizes.setdefault(name, size) != size:
                raise Unmatched(f"{what} is {type}, {self.sizes[name]} is needed along {name}")
        return tuple(names)


def match(
    define: Define,
    operands: Sequence[TensorType],
    attrs: Mapping[str, Any],
    results: Sequence[TensorType],
) -> Use:
    """How the use fits, else `Unmatched`; results are in the order of `define.outputs`."""
    if len(operands) != len(define.parameters):
        raise Unmatched(f"{len(operands)} operands found, {len(define.parameters)} needed")
    if len(results) != len(define.outputs):
        raise Unmatched(f"{len(results)} results found, {len(define.outputs)} needed")
    numbers = match_attributes(define, attrs)
    dims = Dims()
    fitted: dict[str, tuple[str, ...]] = {}
    pairs = list(zip(define.parameters, operands, strict=True))
    for parameter, type in pairs:
        if parameter.dims is not None:
            fitted[parameter.name] = dims.fit(f"operand {parameter.name}", parameter.dims, type)
    for parameter, type in pairs:
        if parameter.dims is None:
            told = _told(define.indices, dims, type)
            fitted[parameter.name] = dims.fit(f"operand {parameter.name}", told, type)
    known = set(dims.sizes)
    by_name = {r.name: r.dims or () for r in define.results}
    placed = {
        name: dims.fit(f"result {name}".rstrip(), by_name[name], type)
        for name, type in zip(define.outputs, results, strict=True)
    }
    for name in dims.sizes.keys() - known:
        raise Unmatched(f"no operand has the dim {name} of a result")
    for index in define.indices:
        if index not in known:
            raise Unmatched(f"no operand has the dim {index}")
    if 0 in dims.sizes.values():
        raise Unmatched("an operand has a dim of size 0, which has no meaning here")
    return Use(dims.sizes, tuple(fitted[p.name] for p in define.parameters), placed, numbers)


def _told(indices: tuple[str, ...], dims: Dims, type: TensorType) -> tuple[str, ...]:
    """The dims of a parameter that lists none: all of them, none, or the explicit ones, by its rank."""
    whole = (BATCH, *indices)
    rank = len(type.shape)
    if dims.batch is None or rank == dims.rank(whole):
        return whole
    return indices if rank == len(indices) else ()


def match_attributes(define: Define | OpaqueDefine, attrs: Mapping[str, Any]) -> dict[str, Fraction]:
    """The values of the attributes that a define uses as numbers; an `opaque` one may have any value."""
    given = {k: v for k, v in attrs.items() if not (k == "config" and v == "")}
    if "target" in given and given.pop("target") != define.name:
        raise Unmatched(f"target {attrs['target']!r} is not `{define.name}`")
    numbers: dict[str, Fraction] = {}
    for attribute in define.attributes:
        if attribute.name not in given:
            raise Unmatched(f"attribute {attribute.name} is missing")
        value = given.pop(attribute.name)
        if attribute.value is not None:
            if not _holds(attribute, value):
                wanted = attribute.value
                text = show_number(wanted) if isinstance(wanted, Fraction) else repr(wanted)
                raise Unmatched(f"attribute {attribute.name} is {value!r}, {text} is needed")
        elif isinstance(define, Define):
            number = _number(value)
            if number is None:
                raise Unmatched(f"attribute {attribute.name} is {value!r}, a finite number is needed")
            numbers[attribute.name] = number
    if given:
        raise Unmatched(f"attribute {min(given)} is not named by the define")
    return numbers


def _number(value: Any) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        return None
    return Fraction(value) if isfinite(value) else None


def _holds(attribute: Attribute, value: Any) -> bool:
    """Whether a use's value is the one that the define asks for; a numeral in a string is its number."""
    wanted = attribute.value
    if isinstance(wanted, Fraction):
        if isinstance(value, str):
            return re.fullmatch(r"-?[0-9]{1,18}", value, re.ASCII) is not None and Fraction(value) == wanted
        return _number(value) == wanted
    return type(value) is type(wanted) and bool(value == wanted)

"""Calls matched to the parameters of their operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from shardproof.frontends.fx.lowering.state import Lowering, Rule

PLACEMENT: Final = frozenset({"device", "pin_memory", "non_blocking", "memory_format", "layout"})
"""Keywords that say where and in which order elements are stored, which no value depends on."""
REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule and the parameters of its operator in order, as `name` or `name=default`.

    `name:other` is a parameter that the rule knows as `other`.
    """

    parameters: str
    rule: Rule


Table = dict[str, Entry]


@cache
def _inner(parameters: str) -> Mapping[str, str]:
    """The names that a rule uses of parameters with other names."""
    words = [word.partition("=")[0].partition(":") for word in parameters.split()]
    return {name: inner for name, _, inner in words if inner}


@cache
def parsed(parameters: str) -> Mapping[str, Any]:
    """Parameter names with their defaults, or REQUIRED."""
    found: dict[str, Any] = {}
    constants = {"None": None, "True": True, "False": False}
    for word in parameters.split():
        name, equals, text = word.partition("=")
        name = name.partition(":")[0]
        if not equals:
            found[name] = REQUIRED
        elif text in constants:
            found[name] = constants[text]
        elif text.startswith("("):
            found[name] = tuple(int(number) for number in text.strip("()").split(",") if number)
        elif text.lstrip("-").isdigit():
            found[name] = int(text)
        else:
            found[name] = text if text.isalpha() else float(text)
    return found


def bind(state: Lowering, parameters: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name with defaults; an argument that the operator does not have is refused."""
    known = parsed(parameters)
    bound = dict(known)
    names = list(known)
    if len(args) > len(names):
        state.fail(f"has {len(args)} arguments, at most {len(names)} are known")
    bound |= zip(names, args, strict=False)
    for name, value in kwargs.items():
        if name in known:
            bound[name] = value
        elif name not in PLACEMENT:
            state.fail(f"has the argument {name}, which is not known")
        elif name == "layout" and value not in (None, "strided", "torch.strided"):
            state.fail(f"has the layout {value}, only strided tensors are supported")
    for name, value in bound.items():
        if value is REQUIRED:
            state.fail(f"lacks the argument {name}")
    for name, inner in _inner(parameters).items():
        bound[inner] = bound.pop(name)
    return bound


def entries(parameters: str, rule: Rule, *names: str) -> Table:
    """One rule for several operators: `aten.add.Tensor`, or `aten.mm` for the overload `default`."""
    entry = Entry(parameters, rule)
    return {name if name.count(".") == 2 else f"{name}.default": entry for name in names}


def overloads(parameters: str, rule: Callable[..., Any], name: str, *found: str) -> Table:
    """One rule for several overloads of an operator."""
    return entries(parameters, rule, *(f"{name}.{overload}" for overload in found))

"""Sums of products by index letters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType

_TERM: Final = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")

Labelled = tuple[Value, tuple[str, ...]]
"""A value and the label of each of its dims; `...k` is the k-th last dim of an ellipsis."""


def _einsum(s: Lowering, n: Node) -> Value:
    operands = [v for v in n.inputs if v is not None]
    sides = n.attrs["equation"].replace(" ", "").split("->")
    terms = sides[0].split(",")
    if len(sides) > 2 or len(terms) != len(operands):
        s.fail(f"has the equation {n.attrs['equation']!r} for {len(operands)} operands")
    read = [(x, _labels(s, term, len(x.type.shape))) for x, term in zip(operands, terms, strict=True)]
    given = [name for _, labels in read for name in labels]
    result = _result(s, sides[1], given) if len(sides) == 2 else _implied(given)
    if len(set(result)) != len(result) or not set(result) <= set(given):
        s.fail(f"has the equation {n.attrs['equation']!r}, whose result names an index twice or a new one")
    parts = _broadcast(s, [_diagonal(s, *part) for part in read])
    found = parts[0]
    for at, part in enumerate(parts[1:], 1):
        later = {name for _, labels in parts[at + 1 :] for name in labels}
        found = _product(s, found, part, later | set(result))
    x, labels = _summed(s, found, set(result))
    return s.transpose(x, [labels.index(name) for name in result])


def _split(s: Lowering, term: str) -> tuple[str, bool, str]:
    match = _TERM.fullmatch(term)
    if match is None:
        s.fail(f"has the index term {term!r}, letters and at most one ellipsis are known")
    before, dots, after = match.groups()
    return before, dots is not None, after


def _labels(s: Lowering, term: str, rank: int) -> tuple[str, ...]:
    before, dots, after = _split(s, term)
    rest = rank - len(before) - len(after)
    if rest < 0 or (rest and not dots):
        s.fail(f"has the index term {term!r} for an operand with {rank} dims")
    return (*before, *_ellipsis(rest), *after)


def _ellipsis(count: int) -> list[str]:
    return [f"...{k}" for k in reversed(range(count))]


def _widest(given: Sequence[str]) -> list[str]:
    """The dims of the broadcast ellipsis."""
    return _ellipsis(len({name for name in given if len(name) > 1}))


def _result(s: Lowering, term: str, given: Sequence[str]) -> tuple[str, ...]:
    before, dots, after = _split(s, term)
    if not dots and _widest(given):
        s.fail("leaves the dims of an ellipsis out of its result, which is not supported")
    return (*before, *(_widest(given) if dots else ()), *after)


def _implied(given: Sequence[str]) -> tuple[str, ...]:
    """Without an arrow: the ellipsis, then the letters that occur once."""
    letters = [name for name in given if len(name) == 1]
    return (*_widest(given), *sorted(name for name in letters if letters.count(name) == 1))


def _diagonal(s: Lowering, x: Value, labels: tuple[str, ...]) -> Labelled:
    """Each label once: of dims with one label, only elements at equal positions count."""
    while (second := next((d for d, name in enumerate(labels) if name in labels[:d]), None)) is not None:
        first, shape = labels.index(labels[second]), x.type.shape
        if shape[first] != shape[second]:
            s.fail(f"names dims of {shape[first]} and {shape[second]} elements `{labels[second]}`")
        at = [s.iota(DType.S64, shape, d) for d in (first, second)]
        x = s.reduce(s.select(s.compare("EQ", *at), x, s.like(x, 0)), (second,), "sum")
        labels = (*labels[:second], *labels[second + 1 :])
    return x, labels


def _broadcast(s: Lowering, parts: Sequence[Labelled]) -> list[Labelled]:
    """Operands without the dims of extent 1 that others have at a larger extent."""
    extents: dict[str, int] = {}
    for x, labels in parts:
        for name, size in zip(labels, x.type.shape, strict=True):
            if extents.setdefault(name, size) == 1:
                extents[name] = size
            elif size not in (1, extents[name]):
                s.fail(f"names dims of {extents[name]} and {size} elements `{name}`")
    found = []
    for x, labels in parts:
        kept = [d for d, name in enumerate(labels) if x.type.shape[d] == extents[name]]
        shape = [x.type.shape[d] for d in kept]
        found.append((s.reshape(x, shape), tuple(labels[d] for d in kept)))
    return found


def _summed(s: Lowering, part: Labelled, kept: AbstractSet[str]) -> Labelled:
    x, labels = part
    gone = [d for d, name in enumerate(labels) if name not in kept]
    return (s.reduce(x, gone, "sum") if gone else x), tuple(name for name in labels if name in kept)


def _product(s: Lowering, left: Labelled, right: Labelled, kept: AbstractSet[str]) -> Labelled:
    """The product, summed over the labels that are not in `kept`."""
    x, a = _summed(s, left, kept | set(right[1]))
    y, b = _summed(s, right, kept | set(left[1]))
    batch = [name for name in a if name in b and name in kept]
    inner = [name for name in a if name in b and name not in kept]
    found = s.emit(
        "dot_general",
        x,
        y,
        type=TensorType(x.type.dtype, ()),
        lhs_contracting=tuple(a.index(name) for name in inner),
        rhs_contracting=tuple(b.index(name) for name in inner),
        lhs_batch=tuple(a.index(name) for name in batch),
        rhs_batch=tuple(b.index(name) for name in batch),
    )
    free = [name for name in a if name not in b] + [name for name in b if name not in a]
    return found, (*batch, *free)


RULES: Final[Mapping[str, Rule]] = {"Einsum": _einsum}

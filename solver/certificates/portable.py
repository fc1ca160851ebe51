"""Terms as plain data: classes by number, indices by position in a list, atoms written out.

A certificate holds terms in this form. Reading one back goes through the constructors of expressions, which
put any input into canonical form, and rejects numbers that mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from shardproof.passes.access import Digit, Expr, index, scale
from shardproof.passes.arithmetic import simplest
from shardproof.passes.classes import Store, Term

Data = Any
"""Lists, strings and integers."""
DEPTH: Final = 40
"""Deepest nesting of atoms that is read."""


class Malformed(ValueError):
    """Data that is no term of the store; the message says why."""


def written(store: Store, t: Term, number: Mapping[int, int]) -> Data:
    """The term; `number` gives the number of each index it reads."""
    access = [_written_expr(store, e, number) for e in t.access]
    coef = Fraction(t.coef)
    return [str(coef), t.cls, access]


def _written_expr(store: Store, e: Expr, number: Mapping[int, int]) -> Data:
    return [e[0], [[_written_atom(store, t, number), s] for t, s in e[1]]]


def _written_atom(store: Store, t: int, number: Mapping[int, int]) -> Data:
    if t > 0:
        return number[t]
    atom = store.atom(t)
    if isinstance(atom, Digit):
        return ["digit", _written_expr(store, atom.expr, number), atom.div, atom.mod]
    return ["element", atom.cls, [_written_expr(store, e, number) for e in atom.access]]


def read_term(store: Store, data: Data, indices: Sequence[int]) -> Term:
    """The term of `data` over `indices`. Raises Malformed."""
    coef, cls, access = _fields(data, 3)
    c = _class(store, cls)
    parts = [_expr(store, e, indices, DEPTH) for e in _list(access)]
    if len(parts) != len(store.classes[c].extents):
        raise Malformed(f"class {c} has {len(store.classes[c].extents)} slots, not {len(parts)}")
    _inside(store, c, parts)
    value = _fraction(coef)
    if store.classes[c].kind != "real" and value != 1:
        raise Malformed("only a real class has a coefficient")
    return Term(simplest(value), c, tuple(parts))


def _inside(store: Store, cls: int, access: Sequence[Expr]) -> None:
    """Every position is in range for every value of its indices (soundness N3)."""
    for e, extent in zip(access, store.classes[cls].extents, strict=True):
        if extent is not None and not store.within(e, 0, extent):
            raise Malformed(f"class {cls} is read out of range")


def _expr(store: Store, data: Data, indices: Sequence[int], depth: int) -> Expr:
    offset, terms = _fields(data, 2)
    total: Expr = (_int(offset), ())
    for item in _list(terms):
        t, stride = _fields(item, 2)
        total = store.add(total, scale(_atom(store, t, indices, depth), _int(stride)))
    return total


def _atom(store: Store, data: Data, indices: Sequence[int], depth: int) -> Expr:
    if depth == 0:
        raise Malformed("an expression is nested too deeply")
    if isinstance(data, int) and not isinstance(data, bool):
        if not 0 <= data < len(indices):
            raise Malformed(f"there is no index {data}")
        return index(indices[data])
    if not isinstance(data, list) or not data:
        raise Malformed("an atom is an index, a digit or an element")
    if data[0] == "digit":
        _, e, div, mod = _fields(data, 4)
        if _int(div) < 1 or _int(mod) < 1:
            raise Malformed("a digit has a positive divisor and modulus")
        return store.digit(_expr(store, e, indices, depth - 1), _int(div), _int(mod))
    if data[0] != "element":
        raise Malformed("an atom is an index, a digit or an element")
    _, cls, access = _fields(data, 3)
    c = _class(store, cls)
    parts = [_expr(store, e, indices, depth - 1) for e in _list(access)]
    if store.classes[c].kind not in ("int", "uint") or len(parts) != len(store.classes[c].extents):
        raise Malformed(f"class {c} is no integer function of {len(parts)} positions")
    _inside(store, c, parts)
    return store.element(c, tuple(parts))


def _class(store: Store, cls: Data) -> int:
    c = _int(cls)
    if not 0 <= c < len(store.classes):
        raise Malformed(f"there is no class {c}")
    return c


def _int(x: Data) -> int:
    if not isinstance(x, int) or isinstance(x, bool):
        raise Malformed("an integer is expected")
    return x


def _list(x: Data) -> list[Data]:
    if not isinstance(x, list):
        raise Malformed("a list is expected")
    return x


def _fields(x: Data, count: int) -> list[Data]:
    if len(_list(x)) != count:
        raise Malformed(f"{count} fields are expected")
    return _list(x)


def _fraction(x: Data) -> Fraction:
    if not isinstance(x, str) or len(x) > 10_000:
        raise Malformed("a coefficient is a fraction in a string")
    try:
        return Fraction(x)
    except (ValueError, ZeroDivisionError):
        raise Malformed("a coefficient is a fraction in a string") from None

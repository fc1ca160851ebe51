"""The terms, conditions and statements of the lemma language (docs/lemmas.md).

A term denotes a function of named indices. `Variable` is a metavariable: any function of the lemma's
indices, less those that a condition excludes, and of any further ones. Operators carry the names of
the operator table, so a lemma, an imported program and its views speak of one set of functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

Kind = Literal["real", "int", "bool"]
ReduceKind = Literal["sum", "prod", "max", "min", "and", "or"]
Direction = Literal["EQ", "NE", "LT", "LE", "GT", "GE"]


@dataclass(frozen=True, slots=True)
class Number:
    """An exact rational constant."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Variable:
    """A metavariable, or in a `define` a parameter, an attribute or an earlier result."""

    name: str


@dataclass(frozen=True, slots=True)
class Position:
    """An index used as a value: its position, an integer from 0."""

    index: str


@dataclass(frozen=True, slots=True)
class Extent:
    """`|k|`: the number of values of an index."""

    index: str


@dataclass(frozen=True, slots=True)
class Apply:
    """A pointwise operator of the operator table (`add`, `exponential`, `select`, ...)."""

    op: str
    operands: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two values of one kind."""

    direction: Direction
    left: Term
    right: Term


@dataclass(frozen=True, slots=True)
class Reduce:
    """`sum[i, j](body)` and the other commutative monoids."""

    kind: ReduceKind
    indices: tuple[str, ...]
    body: Term


@dataclass(frozen=True, slots=True)
class Take:
    """`take[i, j](body, position)`: the body where (i, j) are the row-major digits of the position.

    The position is evaluated outside the binder; out of range the value is fixed but unknown.
    """

    indices: tuple[str, ...]
    body: Term
    position: Term


@dataclass(frozen=True, slots=True)
class Opaque:
    """`name[i, j -> o](x, ...)`: an unknown function of the arrays over ordered `inputs`, at `outputs`."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operands: tuple[Term, ...]


Term = Number | Variable | Position | Extent | Apply | Compare | Reduce | Take | Opaque


@dataclass(frozen=True, slots=True)
class NotIn:
    """`k not in x`: the function is constant along the index."""

    index: str
    variable: str


@dataclass(frozen=True, slots=True)
class Fact:
    """`x finite`, or `ids distinct[k]`: no two positions of the indices share a value."""

    kind: Literal["finite", "distinct"]
    term: Term
    indices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Relation:
    """`x > 0`, `0 <= ids` or a relation of extents; it holds everywhere. A chain is several relations."""

    direction: Direction
    left: Term
    right: Term


Condition = NotIn | Fact | Relation


@dataclass(frozen=True, slots=True)
class Span:
    """Where a statement stands."""

    file: str
    line: int
    column: int = 1


@dataclass(frozen=True, slots=True)
class Lemma:
    """`left => right` (or both ways) for all functions for which the conditions hold.

    `assumed` marks an `assume`: no theorem over the reals, so each verdict that used it says so.
    `claims` are the kinds of assumption that an `assume` stands for, if it says so.
    `triggers` only limit the search: `late` keeps a lemma out of the first attempt.
    `variables` are the kinds of the metavariables, `indices` all index variables by first occurrence.
    """

    name: str
    doc: str
    left: Term
    right: Term
    both: bool = False
    assumed: bool = False
    conditions: tuple[Condition, ...] = ()
    triggers: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    theme: str = ""
    span: Span | None = field(default=None, compare=False)
    variables: tuple[tuple[str, Kind], ...] = ()
    indices: tuple[str, ...] = ()

    def excluded(self, variable: str) -> frozenset[str]:
        """The indices along which a metavariable is constant."""
        return frozenset(
            c.index for c in self.conditions if isinstance(c, NotIn) and c.variable == variable
        )

    def reads(self, variable: str) -> tuple[str, ...]:
        """The lemma's indices that a metavariable may read, in order."""
        excluded = self.excluded(variable)
        return tuple(i for i in self.indices if i not in excluded)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor argument: one index per dim, `...` for the batch dims; None: told by its shape."""

    name: str
    dims: tuple[str, ...] | None
    mutated: bool = False


@dataclass(frozen=True, slots=True)
class Attribute:
    """A keyword attribute: a number used in the body, or a value that the use must have."""

    name: str
    value: Fraction | str | bool | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A result (or the new value of a mutated parameter): its name, dims and term.

    The term may use the names of earlier results.
    """

    name: str
    dims: tuple[str, ...] | None
    term: Term


@dataclass(frozen=True, slots=True)
class Define:
    """The meaning of a custom operator: a macro over its dims. `indices` are the explicit ones.

    `results` stand in the order of their assignments: a name that was assigned before means the new
    value. `outputs` names them in the operator's order: the declared results, then the mutated parameters.
    """

    name: str
    doc: str
    parameters: tuple[Parameter, ...]
    attributes: tuple[Attribute, ...]
    indices: tuple[str, ...]
    results: tuple[Result, ...]
    outputs: tuple[str, ...]
    theme: str = ""
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class OpaqueDefine:
    """A custom operator whose inside is unknown, and the dims along which it works slice by slice."""

    name: str
    doc: str
    parameters: tuple[Parameter, ...]
    attributes: tuple[Attribute, ...]
    results: tuple[tuple[str, tuple[str, ...] | None], ...]
    batched: tuple[str, ...]
    theme: str = ""
    span: Span | None = field(default=None, compare=False)


Statement = Lemma | Define | OpaqueDefine


def children(term: Term) -> tuple[Term, ...]:
    """The terms directly inside a term."""
    match term:
        case Apply(_, operands) | Opaque(_, _, _, operands):
            return operands
        case Compare(_, a, b):
            return (a, b)
        case Reduce(_, _, body):
            return (body,)
        case Take(_, body, position):
            return (body, position)
        case _:
            return ()


def walk(term: Term) -> Iterator[Term]:
    """The term and every term inside it, outermost first."""
    yield term
    for child in children(term):
        yield from walk(child)

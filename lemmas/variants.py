"""Lemmas that follow from one lemma by form alone, under names that say how.

`NAME.reverse` is a lemma that holds both ways, read from right to left, and `NAME.back` any lemma used as an
equation from right to left, which an instance may since it binds all variables. `NAME.within` puts both sides
of an equation of reals into one linear context, `NAME.among` their addends among others, `NAME.below` both
sides into one maximum and `NAME.beside` both sides of an equation of booleans into one conjunction. A name
in the language has no dots, so these hide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from shardproof.lemmas.kinds import kind_of
from shardproof.lemmas.terms import Apply, Fact, Kind, Lemma, Reduce, Term, Variable

FACTOR: Final = "within.c"
OTHER: Final = "within.w"
BOUND: Final = "within.k"
"""Names of the context's own variables and index."""
TURNED: Final = frozenset({"reverse", "back"})


def resolve(lemmas: Mapping[str, Lemma], name: str) -> Lemma | None:
    """The lemma of a name, which may be that of a variant; None if there is none."""
    base, *ways = name.split(".")
    lemma = lemmas.get(base)
    if len(ways) > 2 or (len(ways) == 2 and ways[0] not in TURNED):
        return None
    for how in ways:
        if lemma is None or how not in VARIANTS or (how in TURNED and how != ways[0]):
            return None
        lemma = VARIANTS[how](lemma)
    return lemma


def reverse(lemma: Lemma) -> Lemma | None:
    """The lemma from right to left, if it holds both ways."""
    if not lemma.both:
        return None
    return replace(
        lemma, name=f"{lemma.name}.reverse", left=lemma.right, right=lemma.left, both=False
    )


def back(lemma: Lemma) -> Lemma:
    """The equation from right to left. No pattern: variables may stand on its right side alone."""
    return replace(lemma, name=f"{lemma.name}.back", left=lemma.right, right=lemma.left, both=False)


def within(lemma: Lemma) -> Lemma | None:
    """`sum[k](c*left) + w => sum[k](c*right) + w`: equal reals have equal linear contexts."""
    if kind(lemma) != "real":
        return None

    def around(side: Term) -> Term:
        total = Reduce("sum", (BOUND,), Apply("multiply", (Variable(FACTOR), side)))
        return Apply("add", (total, Variable(OTHER)))

    return replace(
        lemma,
        name=f"{lemma.name}.within",
        left=around(lemma.left),
        right=around(lemma.right),
        both=False,
        variables=(*lemma.variables, (FACTOR, "real"), (OTHER, "real")),
        indices=(*lemma.indices, BOUND),
    )


def among(lemma: Lemma) -> Lemma | None:
    """`c*l1 + (c*l2 + ... + w) => c*r1 + (c*r2 + ... + w)`, where `l1 + l2 + ...` is the left side."""
    if kind(lemma) != "real":
        return None
    return replace(
        lemma,
        name=f"{lemma.name}.among",
        left=_spread(lemma.left, Variable(OTHER)),
        right=_spread(lemma.right, Variable(OTHER)),
        both=False,
        conditions=(*lemma.conditions, Fact("finite", Variable(FACTOR))),
        variables=(*lemma.variables, (FACTOR, "real"), (OTHER, "real")),
    )


def _spread(side: Term, rest: Term) -> Term:
    """`c*side + rest`, addend by addend."""
    match side:
        case Apply("add", (a, b)):
            return _spread(a, _spread(b, rest))
        case Apply("subtract", (a, b)):
            return _spread(a, _spread(Apply("negate", (b,)), rest))
        case _:
            return Apply("add", (Apply("multiply", (Variable(FACTOR), side)), rest))


def below(lemma: Lemma) -> Lemma | None:
    """`max(left, w) => max(right, w)`."""
    return _beside(lemma, "real", "maximum", "below")


def beside(lemma: Lemma) -> Lemma | None:
    """`left and w => right and w`."""
    return _beside(lemma, "bool", "and", "beside")


def _beside(lemma: Lemma, needed: Kind, op: str, how: str) -> Lemma | None:
    if kind(lemma) != needed:
        return None
    other = Variable(OTHER)
    return replace(
        lemma,
        name=f"{lemma.name}.{how}",
        left=Apply(op, (lemma.left, other)),
        right=Apply(op, (lemma.right, other)),
        both=False,
        variables=(*lemma.variables, (OTHER, needed)),
    )


def kind(lemma: Lemma) -> Kind:
    """The kind of both sides of a checked lemma."""
    kinds = dict(lemma.variables)
    return kind_of(lemma.left, kinds) or kind_of(lemma.right, kinds) or "real"


VARIANTS: Final[Mapping[str, Callable[[Lemma], Lemma | None]]] = {
    "reverse": reverse,
    "back": back,
    "within": within,
    "among": among,
    "below": below,
    "beside": beside,
}

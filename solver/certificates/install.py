"""Instances of lemmas installed in a store: what a verdict by lemmas rests on.

An instance says that a class equals another term. `install` derives the conditions from the terms, builds the
left side and compares it with the class, and builds the right side; `oriented` does so for an instance that
names no class. The search and the certificate checker call them alike and differ only in where instances
come from. Instances are plain data that name classes by number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from shardproof.lemmas.terms import Lemma
from shardproof.passes.arithmetic import add, maximum, multiply, scaled, simplest
from shardproof.passes.classes import Rewritten, Store, Term
from shardproof.passes.logic import conjunction
from shardproof.passes.pieces import read
from shardproof.solver.certificates.instance import Binding, NoInstance, admit, left, right
from shardproof.solver.certificates.portable import Data, Malformed, read_term

JOINED: Final = {"add": add, "multiply": multiply, "maximum": maximum, "and": conjunction}
"""Operators whose operands are a multiset."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Class `cls` is `lead` times the lemma's left side, joined with the terms of `rest`.

    Indices are numbered: first the slots of the class, then fresh ones of the extents `fresh`. `indices` and
    `variables` bind the lemma; a variable is one term, or several joined by an operator. `under` are
    the lemmas whose left sides were being rebuilt when it was used.
    """

    cls: int
    lemma: str
    fresh: tuple[int, ...]
    indices: Mapping[str, tuple[int, ...]]
    variables: Mapping[str, tuple[str, tuple[Data, ...]]]
    lead: str = "1"
    rest: tuple[Data, ...] = ()
    under: tuple[str, ...] = ()

    def data(self) -> Data:
        """As lists, strings and integers."""
        return [
            self.cls,
            self.lemma,
            list(self.fresh),
            {k: list(v) for k, v in self.indices.items()},
            {k: [op, list(terms)] for k, (op, terms) in self.variables.items()},
            self.lead,
            list(self.rest),
            list(self.under),
        ]

    @classmethod
    def read(cls, data: Data) -> Instance:
        """The instance written as `data`. Raises Malformed."""
        try:
            number, lemma, fresh, indices, variables, lead, rest, under = data
            return cls(
                number,
                lemma,
                tuple(fresh),
                {k: tuple(v) for k, v in indices.items()},
                {k: (op, tuple(terms)) for k, (op, terms) in variables.items()},
                lead,
                tuple(rest),
                tuple(under),
            )
        except (AttributeError, TypeError, ValueError):
            raise Malformed("an instance has eight fields") from None


def install(
    store: Store, lemma: Lemma, instance: Instance, under: list[str], *, plain: bool
) -> Rewritten:
    """What the class is rewritten to. Raises NoInstance or Malformed when the instance does not hold.

    `plain` rebuilds the left side without any rewriting; otherwise other lemmas rewrite it as they
    rewrote the class.
    """
    c = store.classes[instance.cls]
    if any(n is None for n in c.extents):
        raise NoInstance("a class of all integers is not rewritten")
    slots = tuple(store.fresh(n or 0) for n in c.extents)
    numbers = (*slots, *_fresh(store, instance))
    binding = _binding(store, instance, numbers)
    _only_its_own(store, lemma, binding, slots)
    admit(store, lemma, binding)
    rest = [read_term(store, t, numbers) for t in instance.rest]
    try:
        lead = simplest(Fraction(instance.lead))
    except (ValueError, ZeroDivisionError, TypeError):
        raise Malformed("a coefficient is a fraction in a string") from None
    if not store.term_indices(Term(1, 0, tuple(e for t in rest for e in t.access))) <= set(slots):
        raise NoInstance("an operand reads an index that the class has not")
    new = right(store, lemma, binding)
    rewrite, rewritten = store.rewrite, store.rewritten
    store.rewritten = {}
    under.append(lemma.name)
    try:
        if plain:
            store.rewrite = None
        old = left(store, lemma, binding)
        if rest or lead != 1:
            store.rewrite = None
            old = _join(store, c.op, [scaled(old, lead), *rest]) if rest else scaled(old, lead)
    finally:
        under.pop()
        store.rewrite, store.rewritten = rewrite, rewritten
    if read(store, old) != store.whole(instance.cls, slots):
        raise NoInstance("the left side is another class")
    result = _join(store, c.op, [scaled(new, lead), *rest]) if rest else scaled(new, lead)
    if not store.term_indices(result) <= set(slots):
        raise NoInstance("the right side reads an index that the class has not")
    if result.cls == instance.cls:
        raise NoInstance("both sides are one class")
    return Rewritten(slots, result)


def oriented(store: Store, lemma: Lemma, instance: Instance) -> tuple[int, Rewritten] | None:
    """The class of the left side of an instance that names no class, and the right side as what it becomes.

    None when both sides are one. Raises NoInstance or Malformed when the instance does not hold, or when its
    left side is no class read at whole indices of which the right side reads no other (soundness S1).
    """
    numbers = _fresh(store, instance)
    binding = _binding(store, instance, numbers)
    own = {i for digits in binding.indices.values() for i in digits}
    _only_its_own(store, lemma, binding, [i for i in numbers if i not in own])
    admit(store, lemma, binding)
    a, b = read(store, left(store, lemma, binding)), read(store, right(store, lemma, binding))
    if a == b:
        return None
    rewritten = _whole(store, a, b)
    if rewritten is None:
        raise NoInstance("the left side is no class read at whole indices")
    return a.cls, rewritten


def _whole(store: Store, t: Term, by: Term) -> Rewritten | None:
    """`t`'s class as `by`, if `t` reads it at one whole index per slot and `by` reads no other."""
    slots = []
    for e, extent in zip(t.access, store.classes[t.cls].extents, strict=True):
        plain = e[0] == 0 and len(e[1]) == 1 and e[1][0][1] == 1 and e[1][0][0] > 0
        if not plain or store.sizes[e[1][0][0]] != extent:
            return None
        slots.append(e[1][0][0])
    if len(set(slots)) != len(slots) or not store.term_indices(by) <= set(slots) or not t.coef:
        return None
    return Rewritten(tuple(slots), scaled(by, t.coef, inverse=True) if t.coef != 1 else by)


def _fresh(store: Store, instance: Instance) -> tuple[int, ...]:
    if any(not isinstance(n, int) or n < 2 for n in instance.fresh):
        raise Malformed("an index has at least two values")
    return tuple(store.fresh(n) for n in instance.fresh)


def _binding(store: Store, instance: Instance, numbers: Sequence[int]) -> Binding:
    variables = {}
    for name, (op, terms) in instance.variables.items():
        parts = [read_term(store, t, numbers) for t in terms]
        variables[name] = parts[0] if op == "" and len(parts) == 1 else _join(store, op, parts)
    indices = {k: tuple(_at(numbers, i) for i in own) for k, own in instance.indices.items()}
    return Binding(variables, indices)


def _join(store: Store, op: str, terms: Sequence[Term]) -> Term:
    if op not in JOINED or not terms:
        raise Malformed(f"operands are not joined by `{op}`")
    if len({store.kind(t) for t in terms}) > 1 or (store.kind(terms[0]) == "bool") != (op == "and"):
        raise Malformed(f"operands of these kinds are not joined by `{op}`")
    return JOINED[op](store, terms)


def _at(numbers: Sequence[int], i: int) -> int:
    if not isinstance(i, int) or not 0 <= i < len(numbers):
        raise Malformed(f"there is no index {i}")
    return numbers[i]


def _only_its_own(store: Store, lemma: Lemma, binding: Binding, slots: Sequence[int]) -> None:
    """A metavariable reads the slots, and fresh indices only as index variables it may read (L2)."""
    for name, t in binding.variables.items():
        own = {i for k in lemma.reads(name) for i in binding.indices[k]}
        if not store.term_indices(t) <= own | set(slots):
            raise NoInstance(f"`{name}` reads an index that is no index of the lemma")

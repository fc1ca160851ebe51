"""What a proof lacks, as a lemma to complete: the two terms that did not meet, as small as they get.

The text is a lemma file: `shardproof lemma check` says whether the goal is a theorem, and what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from shardproof.lemmas.check_numbers import Unsupported
from shardproof.lemmas.check_samples import search, unneeded
from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.functions import RESERVED
from shardproof.lemmas.printer import show
from shardproof.lemmas.terms import (
    Apply,
    Compare,
    Condition,
    Fact,
    Kind,
    Lemma,
    NotIn,
    Number,
    Position,
    Reduce,
    Relation,
    Variable,
    walk,
)
from shardproof.lemmas.terms import Term as Written
from shardproof.lemmas.typing import check
from shardproof.passes.access import index
from shardproof.passes.classes import NONNEGATIVE, POSITIVE, Store, Term
from shardproof.passes.evaluate import EvaluationError
from shardproof.passes.sampling import TooLarge, difference
from shardproof.solver.certificates.stepping import plain, undone
from shardproof.solver.locate.descent import inside
from shardproof.solver.search.region import Region, region, weight

SAMPLES: Final = 80
"""Random functions on which conditions are tried."""
LETTERS: Final = "kjirvnmhdtgsluabpq"
ATOMS: Final = "xyzwuvabcdefgh"
LARGEST: Final = 300
"""Most operators, numbers and variables of a goal; beyond, only the outermost `FEW` operators are shown."""
FEW: Final = 12
DEEPEST: Final = 60
"""Most operators that are peeled off."""


def goal(store: Store, wanted: Term, found: Term, name: str, place: str = "") -> str:
    """The equality of two terms of a store as a lemma; the store is left as it was.

    `name` is the program's value, `place` where it stands. The sides are the smallest terms that would make
    the two equal; the conditions are those that random functions show to be needed, if there is no
    counterexample, else all that the terms fulfil.
    """
    with plain(store), undone(store):
        a, b = peeled(store, wanted, found)
        own = region(store, a, b)
        if weight(own.left, own.right) > LARGEST:
            own = region(store, a, b, limit=FEW)
        left, right, atoms, names = _named(store, own)
        doc = f"`{name}`{f' at {place}' if place else ''}: what was found, and what is expected."
        variables = tuple((atoms[x], _kind(store, t)) for x, t in own.atoms.items() if x in atoms)
        base = Lemma(
            f"goal_{_identifier(name)}",
            doc.replace('"', "'"),
            _spelt(right),
            _spelt(left),
            variables=variables,
        )
        conditions = tuple(_conditions(store, own, atoms, names, base))
    lemma = replace(base, conditions=conditions)
    for turned in (lemma, replace(lemma, left=lemma.right, right=lemma.left)):
        try:
            checked = check(turned)
        except LemmaError as e:
            reason = e.message
            continue
        if isinstance(checked, Lemma):
            return f"{show(_needed(checked))}\n"
    note = f"# Not a lemma yet: {reason}."
    return f"{note}\n{show(lemma)}\n"


# the smallest terms


def peeled(store: Store, a: Term, b: Term) -> tuple[Term, Term]:
    """Equal operators taken off both, as long as what is left still makes the terms equal."""
    possible = _alike(store, a, b) is not False
    for _ in range(DEEPEST):
        inner = inside(store, a, b, agree=lambda x, y: bool(_alike(store, x, y)))
        if inner is None or (possible and _alike(store, *inner) is False):
            return a, b
        a, b = inner
    return a, b


def _alike(store: Store, a: Term, b: Term) -> bool | None:
    """Whether two terms agree on random inputs; None when that cannot be told."""
    with undone(store):
        try:
            return difference(store, a, b, ()) is None
        except (TooLarge, EvaluationError, RecursionError):
            return None


# names


def _named(store: Store, own: Region) -> tuple[Written, Written, dict[str, str], dict[str, str]]:
    """Both sides with names for people, those of atoms, and those of indices."""
    same, joined = _shared(store, own)
    sides = [_renamed(t, same, joined) for t in (own.left, own.right)]
    atoms = [x for t in sides for y in walk(t) if isinstance(y, Variable) for x in (y.name,)]
    indices = [k for t in sides for y in walk(t) for k in _indices(y)]
    taken: set[str] = set()
    names = {}
    for k in dict.fromkeys(indices):
        names[k] = next(n for n in (*LETTERS, *(f"k{m}" for m in range(1000))) if n not in taken)
        taken.add(names[k])
    own_names = {}
    for x in dict.fromkeys(atoms):
        own_names[x] = _fresh(_readable(store, own.atoms[x]), taken)
    left, right = (_renamed(t, own_names, names) for t in sides)
    for k, i in joined.items():
        names.setdefault(k, names.get(i, i))
    return left, right, own_names, names


def _shared(store: Store, own: Region) -> tuple[dict[str, str], dict[str, str]]:
    """Atoms that are others read at another index, and bound indices as the ones that stand for them.

    A bound index may have the name of an index outside that its body does not read.
    """
    same: dict[str, str] = {}
    joined: dict[str, str] = {}
    names = list(own.indices)
    for k in names:
        if k in own.free or k in joined:
            continue
        for i in names:
            if i == k or i in joined or store.sizes[own.indices[i]] != store.sizes[own.indices[k]]:
                continue
            if i not in own.free and names.index(i) > names.index(k):
                continue
            if any(_captures(store, own, t, k, i) for t in (own.left, own.right)):
                continue
            by = {own.indices[k]: index(own.indices[i])}
            met = {}
            for x, t in own.atoms.items():
                if x not in same and own.indices[k] in store.term_indices(t):
                    moved = store.substitute_term(t, by)
                    twin = next((y for y, u in own.atoms.items() if u == moved and y != x), None)
                    if twin is not None:
                        met[x] = same.get(twin, twin)
            if met:
                same |= met
                joined[k] = i
                break
    return same, joined


def _captures(store: Store, own: Region, t: Written, k: str, i: str) -> bool:
    """Whether a body that binds `k` reads or binds `i` as well."""
    for y in walk(t):
        if isinstance(y, Reduce) and k in y.indices:
            for z in walk(y.body):
                if isinstance(z, Variable) and i in own.reads(store, z.name):
                    return True
                if i in _indices(z):
                    return True
            if i in y.indices:
                return True
    return False


def _indices(t: Written) -> tuple[str, ...]:
    return t.indices if isinstance(t, Reduce) else (t.index,) if isinstance(t, Position) else ()


def _renamed(t: Written, atoms: Mapping[str, str], names: Mapping[str, str]) -> Written:
    match t:
        case Variable(x):
            return Variable(atoms.get(x, x))
        case Position(k):
            return Position(names.get(k, k))
        case Reduce(kind, indices, body):
            return Reduce(kind, tuple(names.get(k, k) for k in indices), _renamed(body, atoms, names))
        case Apply(op, operands):
            return Apply(op, tuple(_renamed(x, atoms, names) for x in operands))
        case Compare(direction, a, b):
            return Compare(direction, _renamed(a, atoms, names), _renamed(b, atoms, names))
        case _:
            return t


def _readable(store: Store, t: Term) -> str:
    """A short name after the input that an atom is, or a letter."""
    c = store.classes[t.cls]
    if c.op != "input" or not c.attrs:
        return ""
    word = re.split(r"[./:@\s]+", str(c.attrs[0]).strip())[-1]
    return re.sub(r"[^A-Za-z_]", "", word).strip("_").lower()[:12]


def _fresh(word: str, taken: set[str]) -> str:
    choices: Iterator[str]
    if word and word not in RESERVED:
        choices = (word if n == 0 else f"{word}{n}" for n in range(1000))
    else:
        choices = (letter if n == 0 else f"{letter}{n}" for n in range(1000) for letter in ATOMS)
    name = next(n for n in choices if n not in taken and n not in RESERVED)
    taken.add(name)
    return name


def _identifier(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"


def _kind(store: Store, t: Term) -> Kind:
    kind = store.kind(t)
    return "int" if kind == "uint" else kind  # type: ignore[return-value]


# conditions


def _conditions(
    store: Store, own: Region, atoms: Mapping[str, str], names: Mapping[str, str], lemma: Lemma
) -> Iterator[Condition]:
    """All that the atoms fulfil."""
    used = {k for t in (lemma.left, lemma.right) for y in walk(t) for k in _indices(y)}
    zero = Number(Fraction(0))
    for x, name in atoms.items():
        reads = {names.get(k, k) for k in own.reads(store, x)}
        yield from (NotIn(k, name) for k in sorted(used - reads))
    for x, name in atoms.items():
        t = own.atoms[x]
        if store.kind(t) != "real":
            continue
        sign = store.sign(t)
        if sign >= NONNEGATIVE:
            yield Relation("GT" if sign == POSITIVE else "GE", Variable(name), zero)
        if not store.special(t):
            yield Fact("finite", Variable(name))


def _needed(lemma: Lemma) -> Lemma:
    """The lemma without the conditions that it does not need; as it is when it is false."""
    try:
        for infinite in (False, True):
            if search(lemma, lemma.conditions, SAMPLES, infinite=infinite).counterexample is not None:
                return lemma
        while True:
            idle = unneeded(lemma, SAMPLES)
            if not idle:
                return lemma
            kept = tuple(c for c in lemma.conditions if c is not idle[-1])
            lemma = replace(lemma, conditions=kept)
    except (Unsupported, LemmaError):
        return lemma


# spelling


def _spelt(t: Written) -> Written:
    """Sums as differences, and powers as quotients and roots, where these read better."""
    match t:
        case Apply("add", _):
            return _sum([_spelt(x) for x in _flat("add", t)])
        case Apply("multiply", _):
            return _product([_spelt(x) for x in _flat("multiply", t)])
        case Apply("power", (x, Number(exponent))):
            return _power(_spelt(x), exponent)
        case Apply(op, operands):
            return Apply(op, tuple(map(_spelt, operands)))
        case Compare(direction, a, b):
            return Compare(direction, _spelt(a), _spelt(b))
        case Reduce(kind, indices, body):
            return Reduce(kind, indices, _spelt(body))
        case _:
            return t


def _flat(op: str, t: Written) -> list[Written]:
    if isinstance(t, Apply) and t.op == op:
        return [y for x in t.operands for y in _flat(op, x)]
    return [t]


def _sum(parts: Sequence[Written]) -> Written:
    above = [t for t in parts if not _is_negative(t)]
    done = above[0] if above else parts[0]
    for t in parts:
        if t is not done:
            done = Apply("subtract", (done, _opposite(t))) if _is_negative(t) else Apply("add", (done, t))
    return done


def _is_negative(t: Written) -> bool:
    return (isinstance(t, Apply) and t.op == "negate") or (isinstance(t, Number) and t.value < 0)


def _opposite(t: Written) -> Written:
    return Number(-t.value) if isinstance(t, Number) else t.operands[0]  # type: ignore[union-attr]


def _product(factors: Sequence[Written]) -> Written:
    coef = Fraction(1)
    above: list[Written] = []
    below: list[Written] = []
    for t in factors:
        match t:
            case Number(value):
                coef *= value
            case Apply("divide", (Number(value), x)):
                coef *= value
                below.append(x)
            case _:
                above.append(t)
    size = abs(coef)
    if size.numerator != 1 or not above:
        above.insert(0, Number(Fraction(size.numerator)))
    if size.denominator != 1:
        below.insert(0, Number(Fraction(size.denominator)))
    done = _chain(above)
    done = Apply("divide", (done, _chain(below))) if below else done
    return Apply("negate", (done,)) if coef < 0 else done


def _chain(factors: Sequence[Written]) -> Written:
    done = factors[0]
    for t in factors[1:]:
        done = Apply("multiply", (done, t))
    return done


def _power(x: Written, exponent: Fraction) -> Written:
    if exponent == Fraction(1, 2):
        return Apply("sqrt", (x,))
    if exponent == Fraction(-1, 2):
        return Apply("rsqrt", (x,))
    if exponent < 0:
        whole = x if exponent == -1 else Apply("power", (x, Number(-exponent)))
        return Apply("divide", (Number(Fraction(1)), whole))
    return Apply("power", (x, Number(exponent)))

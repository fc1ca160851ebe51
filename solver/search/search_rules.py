"""The rules of the search as egglog text: what the normal form knows, and the lemmas.

A rule logs its ground instances over names, terms of a mirrored sort that are never made equal. What a rule
proves is checked afterwards in the store, so nothing here is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Any, Final

from shardproof.lemmas.terms import (
    Condition,
    Extent,
    Fact,
    Lemma,
    NotIn,
    Number,
    Relation,
    Variable,
    children,
)
from shardproof.lemmas.terms import Term as Written
from shardproof.solver.search.core_terms import OPERATORS, Core, Reader, Unknown

SORTS: Final = {"q": "BigRat", "i": "i64", "s": "String"}


def rational(value: Fraction) -> str:
    """An exact number in egglog."""
    return f'(bigrat (from-string "{value.numerator}") (from-string "{value.denominator}"))'


ZERO: Final = rational(Fraction(0))
ONE: Final = rational(Fraction(1))

STRUCTURE: Final = """
add_swap: (Add x y) => (Add y x)
add_group: (Add (Add x y) z) => (Add x (Add y z))
add_zero: (Add (Num 0) x) => x
add_numbers: (Add (Num a) (Num b)) => (Num (+ a b))
mul_swap: (Mul x y) => (Mul y x)
mul_group: (Mul (Mul x y) z) => (Mul x (Mul y z))
mul_one: (Mul (Num 1) x) => x
mul_zero: (Mul (Num 0) x) => (Num 0) when (Finite x)
mul_numbers: (Mul (Num a) (Num b)) => (Num (* a b))
spread: (Mul (Num a) (Add x y)) => (Add (Mul (Num a) x) (Mul (Num a) y))
gather: (Add (Mul (Num a) x) (Mul (Num a) y)) => (Mul (Num a) (Add x y))
like_same: (Add x x) => (Mul (Num 2) x) when (Finite x)
like_one: (Add x (Mul (Num a) x)) => (Mul (Num (+ a 1)) x) when (Finite x)
like: (Add (Mul (Num a) x) (Mul (Num b) x)) => (Mul (Num (+ a b)) x) when (Finite x)
pow_one: (Pow x 1) => x
pow_two: (Pow x 2) => (Mul x x)
pow_zero: (Pow x 0) => (Num 1)
pow_number: (Pow (Num a) -1) => (Num (/ 1 a)) when (!= a 0)
pow_scaled: (Pow (Mul (Num a) x) -1) => (Mul (Num (/ 1 a)) (Pow x -1)) when (!= a 0)
pow_spread: (Pow (Mul x y) a) => (Mul (Pow x a) (Pow y a)) when (Positive x) (Positive y)
pow_gather: (Mul (Pow x a) (Pow y a)) => (Pow (Mul x y) a) when (Positive x) (Positive y)
pow_pow: (Pow (Pow x a) b) => (Pow x (* a b)) when (Positive x)
pow_join: (Mul (Pow x a) (Pow x b)) => (Pow x (+ a b)) when (Positive x) (Finite x)
pow_raise: (Mul x (Pow x a)) => (Pow x (+ a 1)) when (Positive x) (Finite x)
pow_cancel: (Mul x (Pow x -1)) => (Num 1) when (NonZero x) (Finite x)
exp_scaled: (Fn "exponential" (Mul (Num a) x)) => (Pow (Fn "exponential" x) a) when (Finite x)
exp_raised: (Pow (Fn "exponential" x) a) => (Fn "exponential" (Mul (Num a) x)) when (Finite x)
exp_zero: (Fn "exponential" (Num 0)) => (Num 1)
max_swap: (Max x y) => (Max y x)
max_group: (Max (Max x y) z) => (Max x (Max y z))
max_same: (Max x x) => x
max_spread: (Mul (Num a) (Max x y)) => (Max (Mul (Num a) x) (Mul (Num a) y)) when (> a 0)
max_gather: (Max (Mul (Num a) x) (Mul (Num a) y)) => (Mul (Num a) (Max x y)) when (> a 0)
and_swap: (And x y) => (And y x)
and_group: (And (And x y) z) => (And x (And y z))
and_same: (And x x) => x
and_true: (And (True) x) => x
and_false: (And (False) x) => (False)
not_not: (Not (Not x)) => x
xor_swap: (Xor x y) => (Xor y x)
eq_swap: (Eq x y) => (Eq y x)
sel_not: (Sel (Not p) x y) => (Sel p y x)
sel_same: (Sel p x x) => x
sel_mask: (Sel p x (Num 0)) => (Mul (Ind p) x) when (Finite x)
sel_masked: (Sel p (Num 0) x) => (Mul (Ind (Not p)) x) when (Finite x)
sel_spread: (Mul (Num a) (Sel p x y)) => (Sel p (Mul (Num a) x) (Mul (Num a) y))
ind_and: (Ind (And p q)) => (Mul (Ind p) (Ind q))
ind_both: (Mul (Ind p) (Ind q)) => (Ind (And p q))
sum_swap: (Sum i (Sum j x)) => (Sum j (Sum i x)) when (!= i j)
sum_still: (Sum i x) => (Mul (Num (ext i)) x) when (NotIn i x)
sum_scaled: (Sum i (Mul x y)) => (Mul x (Sum i y)) when (NotIn i x) (Finite x) (Finite y)
sum_scale: (Mul x (Sum i y)) => (Sum i (Mul x y)) when (NotIn i x) (Finite x) (Finite y)
sum_moved: (Sum i (Add x y)) => (Add (Mul (Num (ext i)) x) (Sum i y)) when (NotIn i x)
top_swap: (Top i (Top j x)) => (Top j (Top i x)) when (!= i j)
top_still: (Top i x) => x when (NotIn i x)
top_scaled: (Top i (Mul (Num a) x)) => (Mul (Num a) (Top i x)) when (> a 0)
top_scale: (Mul (Num a) (Top i x)) => (Top i (Mul (Num a) x)) when (> a 0)
prod_swap: (Prod i (Prod j x)) => (Prod j (Prod i x)) when (!= i j)
all_swap: (All i (All j x)) => (All j (All i x)) when (!= i j)
all_still: (All i x) => x when (NotIn i x)
iadd_swap: (IAdd x y) => (IAdd y x)
iadd_group: (IAdd (IAdd x y) z) => (IAdd x (IAdd y z))
ieq_swap: (IEq x y) => (IEq y x)
"""
"""Identities that the normal form of the store has: `name: left => right when facts`."""

FACTS: Final = """
(= t (Num q)) (Place k) => (NotIn k t) (Finite t)
(= t (INum q)) (Place k) => (NotIn k t)
(= t (True)) (Place k) => (NotIn k t)
(= t (False)) (Place k) => (NotIn k t)
(= t (IPos j)) (Place k) (!= j k) => (NotIn k t)
(= t (Num q)) (> q 0) => (Positive t)
(= t (Num q)) (>= q 0) => (NonNeg t)
(Positive t) => (NonZero t) (NonNeg t)
(= t (Fn "exponential" x)) (Finite x) => (Positive t)
(= t (Fn "logistic" x)) (Finite x) => (Positive t)
(= t (Fn "exponential" x)) => (NonNeg t)
(= t (Fn "logistic" x)) => (NonNeg t)
(= t (Fn "abs" x)) => (NonNeg t)
(= t (Ind p)) => (NonNeg t) (Finite t)
(= t (Real p)) => (Finite t)
(= t (Mul x x)) => (NonNeg t)
(= t (Mul x y)) (Positive x) (Positive y) => (Positive t)
(= t (Mul x y)) (NonNeg x) (NonNeg y) => (NonNeg t)
(= t (Mul (Num q) x)) (NonZero x) (!= q 0) => (NonZero t)
(= t (Add x y)) (Positive x) (NonNeg y) => (Positive t)
(= t (Add x y)) (NonNeg x) (NonNeg y) => (NonNeg t)
(= t (Pow x q)) (Positive x) => (Positive t)
(= t (Max x y)) (Positive x) => (Positive t)
(= t (Max x y)) (NonNeg x) => (NonNeg t)
(= t (Sel p x y)) (Positive x) (Positive y) => (Positive t)
(= t (Sel p x y)) (NonNeg x) (NonNeg y) => (NonNeg t)
(= t (Sum k x)) (Positive x) => (Positive t)
(= t (Sum k x)) (NonNeg x) => (NonNeg t)
(= t (Prod k x)) (Positive x) => (Positive t)
(= t (Top k x)) (Positive x) => (Positive t)
(= t (Top k x)) (NonNeg x) => (NonNeg t)
(= (Num a) (Num b)) (!= a b) => (Inconsistent)
(= (INum a) (INum b)) (!= a b) => (Inconsistent)
(= (True) (False)) => (Inconsistent)
"""
"""What is known of terms: where they are constant, which values they may have."""

Pattern = Any
"""A core term with metavariables `("Var", name)` and names of indices and numbers as strings."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`left => right` where the facts of `guards` hold; a lemma's rules have its name."""

    name: str
    left: Pattern
    right: Pattern
    guards: tuple[str, ...] = ()
    late: bool = False

    @property
    def needs(self) -> frozenset[str]:
        """The operators of the left side."""
        return operators(self.left)


@dataclass(slots=True)
class Rules:
    """All rules, and per lemma why it has none."""

    rules: list[Rule] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def relevant(self, *terms: Core, further: bool) -> frozenset[str]:
        """The operators that the terms have or, if `further`, that rules may make from them."""
        have = {"Num"}.union(*map(operators, terms))
        left = self.rules if further else []
        while True:
            fitting = [r for r in left if r.needs <= have]
            if not fitting:
                return frozenset(have)
            have = have.union(*(operators(r.right) for r in fitting))
            left = [r for r in left if r not in fitting]

    def text(self, have: frozenset[str]) -> str:
        """The program that declares everything, and the rules over these operators."""
        lines = [*_declarations(), *_facts(have)]
        lines += [_rule(r) for r in self.rules if r.needs <= have]
        return "\n".join(lines)


def operators(t: Pattern) -> frozenset[str]:
    """The operators of a term or pattern; functions by name."""
    found = set()
    for x in every_pattern(t):
        if x[0] != "Var":
            found.add(f"Fn {x[1]}" if x[0] == "Fn" else x[0])
    return frozenset(found)


def rules_of(lemmas: Iterable[Lemma]) -> Rules:
    """The rules of these lemmas, both ways where they hold both ways, and of the normal form."""
    made = Rules([_structure(line) for line in STRUCTURE.strip().splitlines()])
    for lemma in lemmas:
        ways = [(lemma.name, lemma.left, lemma.right)]
        if lemma.both:
            ways.append((f"{lemma.name}.reverse", lemma.right, lemma.left))
        for name, left, right in ways:
            try:
                rule = _lemma(lemma, name, left, right)
            except Unknown as e:
                made.skipped[name] = str(e)
                continue
            if rule is None:
                made.skipped[name] = "both sides are one term here"
            else:
                made.rules.append(rule)
    return made


# declarations


def _declarations() -> list[str]:
    lines = ["(sort T)", "(sort N)"]
    for op, sorts in OPERATORS.items():
        lines.append(f"(constructor {op} ({' '.join(SORTS.get(s, s) for s in sorts)}) T)")
        lines.append(f"(constructor n{op} ({' '.join(SORTS.get(s, 'N') for s in sorts)}) N)")
    return [
        *lines,
        "(function ext (i64) BigRat :merge old)",
        "(function side (i64) T :merge old)",
        "(function nm (T) N :merge old)",
        "(relation Log (String N N))",
        "(relation Place (i64))",
        "(relation NotIn (i64 T))",
        *(f"(relation {f} (T))" for f in ("Finite", "Positive", "NonNeg", "NonZero")),
        "(relation Inconsistent ())",
        "(ruleset facts) (ruleset main) (ruleset late)",
    ]


def _facts(have: frozenset[str]) -> list[str]:
    """The rules that derive facts of terms, and that name terms."""
    kinds = {op.partition(" ")[0] for op in have} | {"At"}
    lines = []
    for line in FACTS.strip().splitlines():
        body, _, head = line.partition(" => ")
        named = re.findall(r'\((Fn "\w+"|[A-Z]\w*)', body)
        if all((n not in OPERATORS and not n.startswith("Fn")) or n.replace('"', "") in have for n in named):
            lines.append(f"(rule ({_numbers(body)}) ({_numbers(head)}) :ruleset facts)")
    for op, sorts in OPERATORS.items():
        if op not in kinds:
            continue
        names = [f"a{n}" for n in range(len(sorts))]
        inner = [a for a, s in zip(names, sorts, strict=True) if s == "T"]
        call = f"(= t ({' '.join((op, *names))}))"
        if inner:
            same = " ".join(f"(NotIn k {a})" for a in inner)
            lines.append(f"(rule ({call} {same}) ((NotIn k t)) :ruleset facts)")
            finite = " ".join(f"(Finite {a})" for a in inner)
            if op in ("Add", "Mul", "Pow", "PowOf", "Max", "Fn", "Sum", "Prod", "Top"):
                lines.append(f"(rule ({call} {finite}) ((Finite t)) :ruleset facts)")
            if op == "Sel":
                lines.append(f"(rule ({call} (Finite a1) (Finite a2)) ((Finite t)) :ruleset facts)")
        if op in ("Sum", "Prod", "Top", "All"):
            lines.append(f"(rule ({call}) ((NotIn a0 t)) :ruleset facts)")
        known = " ".join(f"(= n{a} (nm {a}))" for a in inner)
        made = [f"n{a}" if a in inner else a for a in names]
        name = f"({' '.join((f'n{op}', *made))})"
        lines.append(f"(rule ({call} {known}) ((set (nm t) {name})) :ruleset facts)")
    return lines


def _numbers(text: str) -> str:
    """Numbers in comparisons of rationals as egglog's."""
    return re.sub(
        r"\((>|>=|!=) (\w+) (0|1)\)", lambda m: f"({m[1]} {m[2]} {rational(Fraction(m[3]))})", text
    )


# rules


class _Sides:
    """Egglog text of the two sides of a rule; numbers are computed in its body."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.body: list[str] = []
        self.numbers: dict[str, str] = {}
        self.extents: set[str] = set()

    def number(self, text: str) -> str:
        known = self.numbers.get(text)
        if known is None:
            known = self.numbers[text] = f"{self.prefix}q_{len(self.numbers)}"
            self.body.append(f"(= {known} {text})")
        return known

    def pattern(self, t: Pattern, mirror: str = "") -> str:
        """A term as egglog text; `mirror` is the prefix of names."""
        if t[0] == "Var":
            return f"n_{t[1]}" if mirror else f"v_{t[1]}"
        arguments = [
            self.pattern(x, mirror) if s == "T" else self.argument(x, s)
            for x, s in zip(t[1:], OPERATORS[t[0]], strict=True)
        ]
        return f"({' '.join((mirror + t[0], *arguments))})"

    def argument(self, x: Any, sort: str) -> str:
        if sort == "s":
            return f'"{x}"'
        if sort == "i":
            return x if isinstance(x, str) else str(x)
        return self.number(self.rational(x)) if not isinstance(x, str) else x

    def rational(self, x: Any) -> str:
        """A computed number: a fraction, a name, or an operator of these."""
        if isinstance(x, Fraction):
            return rational(x)
        if isinstance(x, str):
            return x
        if x[0] == "ext":
            name = f"{self.prefix}e_{x[1]}"
            if name not in self.extents:
                self.extents.add(name)
                self.body.append(f"(= {name} (ext {x[1]}))")
            return name
        return f"({x[0]} {' '.join(self.rational(y) for y in x[1:])})"


def _rule(rule: Rule) -> str:
    sides = _Sides()
    left, right = sides.pattern(rule.left), sides.pattern(rule.right)
    names = [f"(= n_{v} (nm v_{v}))" for v in dict.fromkeys(_variables(rule.left))]
    body = " ".join((f"(= root {left})", *names, *sides.body, *rule.guards))
    log = f'(Log "{rule.name}" {sides.pattern(rule.left, "n")} {sides.pattern(rule.right, "n")})'
    ruleset = "late" if rule.late else "main"
    return f'(rule ({body}) ((union root {right}) {log}) :ruleset {ruleset} :name "{rule.name}")'


def _variables(t: Pattern) -> list[str]:
    if t[0] == "Var":
        return [t[1]]
    inner = [x for x, s in zip(t[1:], OPERATORS[t[0]], strict=True) if s == "T"]
    return [v for x in inner for v in _variables(x)]


def _places(t: Pattern) -> set[str]:
    """The names of indices in a pattern."""
    if t[0] == "Var":
        return set()
    found: set[str] = set()
    for x, s in zip(t[1:], OPERATORS[t[0]], strict=True):
        if s == "T":
            found |= _places(x)
        elif s == "i" and isinstance(x, str):
            found.add(x)
    return found


# rules of the normal form


def _structure(line: str) -> Rule:
    name, _, rest = line.partition(": ")
    both, _, guards = rest.partition(" when ")
    left, _, right = both.partition(" => ")
    facts = re.sub(r"\b(Finite|Positive|NonNeg|NonZero) (\w+)", r"\1 v_\2", _numbers(guards))
    facts = re.sub(r"\bNotIn (\w+) (\w+)", r"NotIn \1 v_\2", facts)
    return Rule(f"~{name}", _read(left), _read(right), (facts,) if facts else ())


def _read(text: str) -> Pattern:
    return _parsed(iter(re.findall(r'[()]|"[^"]*"|[^\s()]+', text)), "T")


def _parsed(words: Any, sort: str) -> Pattern:
    word = next(words)
    if word != "(":
        if sort == "T":
            return ("Var", word)
        if sort == "s":
            return word.strip('"')
        return Fraction(word) if sort == "q" and re.fullmatch(r"-?\d+", word) else word
    op = next(words)
    if sort == "q":
        found = [op]
        while (x := _parsed_number(words)) is not None:
            found.append(x)
        return tuple(found)
    made = (op, *(_parsed(words, s) for s in OPERATORS[op]))
    next(words)
    return made


def _parsed_number(words: Any) -> Any:
    word = next(words)
    if word == ")":
        return None
    return Fraction(word) if re.fullmatch(r"-?\d+", word) else word


# rules of lemmas


def _lemma(lemma: Lemma, name: str, left: Written, right: Written) -> Rule | None:
    kinds = dict(lemma.variables)
    reader = Reader(kinds, lambda v: ("Var", v), lambda k: f"k_{k}", lambda k: ("Ext", f"k_{k}"))
    kind = reader.kind(left) or reader.kind(right) or "real"
    if kind == "int":
        raise Unknown("an equation of integers")
    a, b = _folded(reader.read(left, kind)), _folded(reader.read(right, kind))
    if a == b:
        return None
    if a[0] in ("Var", "Num"):
        raise Unknown("its left side is a single variable or a number")
    if not _places(b) <= _places(a) or not set(_variables(b)) <= set(_variables(a)):
        raise Unknown("the right side has a name of its own")
    guards = [_guard(reader, c, n) for n, c in enumerate(lemma.conditions)]
    if not _extents(b) | {k for g in guards for k in re.findall(r"\bk_\w+", g)} <= _places(a):
        raise Unknown("a condition on an index that the left side does not bind")
    guards += [f"(!= {j} {k})" for j, k in combinations(sorted(_places(a)), 2)]
    return Rule(name, a, b, tuple(guards), "late" in lemma.triggers)


def _folded(t: Pattern) -> Pattern:
    """Numbers computed from extents as one number each."""
    if t[0] == "Ext":
        return ("Num", ("ext", t[1]))
    if t[0] == "Var":
        return t
    x = tuple(
        _folded(y) if s == "T" else y for y, s in zip(t[1:], OPERATORS[t[0]], strict=True)
    )
    if t[0] in ("Add", "Mul") and x[0][0] == x[1][0] == "Num":
        return ("Num", ("+" if t[0] == "Add" else "*", x[0][1], x[1][1]))
    if t[0] == "Pow" and x[0][0] == "Num" and x[1] == -1:
        return ("Num", ("/", Fraction(1), x[0][1]))
    return (t[0], *x)


def _extents(t: Pattern) -> set[str]:
    found: set[str] = set()
    for x in every_pattern(t):
        if x[0] == "Num":
            found |= set(re.findall(r"\bk_\w+", str(x[1])))
    return found


def every_pattern(t: Pattern) -> Sequence[Pattern]:
    """The pattern and all patterns inside it."""
    if t[0] == "Var":
        return [t]
    inner = [x for x, s in zip(t[1:], OPERATORS[t[0]], strict=True) if s == "T"]
    return [t, *(y for x in inner for y in every_pattern(x))]


def _guard(reader: Reader, condition: Condition, n: int) -> str:
    """The facts of one condition. Raises Unknown."""
    match condition:
        case NotIn(k, variable):
            return f"(NotIn k_{k} v_{variable})"
        case Fact("finite", term):
            return _about(reader, "Finite", term, n)
        case Relation(direction, left, right):
            return _relation(reader, direction, left, right, n)
        case _:
            raise Unknown("a condition that the search does not know")


def _about(reader: Reader, fact: str, term: Written, n: int) -> str:
    sides = _Sides(f"c{n}_")
    x = _folded(reader.read(term, "real"))
    text = sides.pattern(x)
    if x[0] == "Var":
        return f"({fact} {text})"
    return " ".join((*sides.body, f"(= f_{n} {text}) ({fact} f_{n})"))


def _relation(reader: Reader, direction: str, left: Written, right: Written, n: int) -> str:
    a, b = _measure(left), _measure(right)
    if a is not None and b is not None:
        sign = {"EQ": "=", "NE": "!=", "LE": "<=", "LT": "<", "GE": ">=", "GT": ">"}[direction]
        sides = _Sides(f"c{n}_")
        x, y = sides.rational(a), sides.rational(b)
        return f"{' '.join(sides.body)} ({sign} {x} {y})"
    if a is not None:
        turned = {"LE": "GE", "LT": "GT", "GE": "LE", "GT": "LT"}
        return _relation(reader, turned.get(direction, direction), right, left, n)
    kind = reader.kind(left) or reader.kind(right)
    if kind != "real":
        raise Unknown("a condition on integers")
    if b is None:
        if direction != "EQ":
            raise Unknown("a condition on two terms")
        sides = _Sides(f"c{n}_")
        x, y = (sides.pattern(_folded(reader.read(t, "real"))) for t in (left, right))
        return " ".join((f"(= {x} {y})", *sides.body))
    if b == 0 and direction in ("GT", "GE", "NE"):
        return _about(reader, {"GT": "Positive", "GE": "NonNeg", "NE": "NonZero"}[direction], left, n)
    if isinstance(b, Fraction) and isinstance(left, Variable):
        sign = {"EQ": "=", "NE": "!=", "LE": "<=", "LT": "<", "GE": ">=", "GT": ">"}[direction]
        return f"(= v_{left.name} (Num c_{n})) ({sign} c_{n} {rational(b)})"
    raise Unknown("a condition that the search does not know")


def _measure(term: Written) -> Any:
    """A closed term of numbers and extents as a computed number, else None."""
    match term:
        case Number(value):
            return value
        case Extent(k):
            return ("ext", f"k_{k}")
    inner = [_measure(x) for x in children(term)]
    sign = {"add": "+", "multiply": "*", "subtract": "-"}.get(getattr(term, "op", ""))
    if sign is None or len(inner) != 2 or any(x is None for x in inner):
        return None
    return (sign, *inner)

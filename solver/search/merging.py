"""Steps of the search as instances that make one term into another in the store.

What is proved rests on `stepping.proved` alone, that is on conditions and the normal form; the steps of the
search only say what to try.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardproof.lemmas import terms as language
from shardproof.lemmas.terms import Apply, Lemma, Reduce, Variable, walk
from shardproof.lemmas.variants import BOUND, FACTOR, OTHER, resolve
from shardproof.passes.arithmetic import scaled
from shardproof.passes.classes import Store, Term
from shardproof.passes.normalise import same
from shardproof.passes.views import Unsupported
from shardproof.solver.certificates.install import JOINED, Instance
from shardproof.solver.certificates.instance import NoInstance
from shardproof.solver.certificates.portable import Data, Malformed
from shardproof.solver.certificates.portable import written as written_term
from shardproof.solver.certificates.stepping import plain, proved, stepped, undone
from shardproof.solver.search.closure import Hole, Step
from shardproof.solver.search.core_terms import BINDERS, OPERATORS, Core, parts, written
from shardproof.solver.search.region import Region, build
from shardproof.solver.search.search_rules import Rule


@dataclass(frozen=True, slots=True)
class Use:
    """A lemma with its metavariables as terms of the language and its indices as names of a region."""

    lemma: str
    variables: tuple[tuple[str, language.Term], ...]
    indices: tuple[tuple[str, tuple[str, ...]], ...]


# uses of lemmas


class Explained:
    """The steps of an explanation as uses of lemmas, travelled from its first term."""

    def __init__(
        self, lemmas: Mapping[str, Lemma], rules: Mapping[str, Rule], terms: Sequence[Core]
    ) -> None:
        self.lemmas = lemmas
        self.rules = rules
        self.terms = terms
        self.nested = next((x for x in map(nesting, lemmas.values()) if x is not None), None)

    def uses(self, step: Step) -> list[Use]:
        """What may justify a step: its lemma, in its context, or that nested sums are one."""
        rule = self.rules[step.equation.rule]
        found: dict[Use, None] = {}
        if not rule.name.startswith("~"):
            variables: dict[str, Core] = {}
            indices: dict[str, int] = {}
            if _matched(rule.left, self.terms[step.equation.left], variables, indices):
                name = self._directed(rule.name, step.forward)
                own = {name: _in_language(t) for name, t in variables.items()}
                at = {k.removeprefix("k_"): (_name(i),) for k, i in indices.items()}
                found[_use(name, own, at)] = None
                for how, more, bound in _contexts(step.context, self.terms, set(indices.values())):
                    inside = {**at, BOUND: bound} if how == "within" else at
                    found[_use(f"{name}.{how}", {**own, **more}, inside)] = None
        if self.nested is not None:
            for use in self._flattened(step):
                found[use] = None
        return list(found)

    def target(self, step: Step) -> Core:
        """The whole term after a step."""
        t = self.terms[step.equation.right if step.forward else step.equation.left]
        for hole in reversed(step.context):
            sorts = OPERATORS[hole.op]
            inner = [
                t if n == hole.at else self.terms[x] if s == "T" else x
                for n, (x, s) in enumerate(zip(hole.arguments, sorts, strict=True))
            ]
            t = (hole.op, *inner)
        return t

    def _directed(self, rule: str, forward: bool) -> str:
        """The name of the lemma from the side that is left to the side that is reached."""
        base, _, turned = rule.partition(".")
        if bool(turned) != forward:
            return base
        return f"{base}.reverse" if self.lemmas[base].both else f"{base}.back"

    def _flattened(self, step: Step) -> Iterator[Use]:
        """Sums within sums around and in a step as sums over both."""
        assert self.nested is not None
        name, outer, inner, factor, body = self.nested
        sides = (step.equation.left, step.equation.right)
        for side in sides if step.forward else reversed(sides):
            factors: list[Core] = []
            t = self.terms[side]
            while t[0] == "Mul":
                t, other = (t[2], t[1]) if t[2][0] in ("Sum", "Mul") else (t[1], t[2])
                factors.append(other)
            bound: list[int] = []
            while t[0] == "Sum":
                bound.append(t[1])
                t = t[2]
            if not bound:
                continue
            around: list[int] = []
            for hole in reversed(step.context):
                if hole.op == "Mul":
                    factors.append(self.terms[_other(hole)])
                elif hole.op == "Sum":
                    around.append(hole.arguments[0])
                else:
                    break
            if not around or set(around) & set(bound):
                continue
            c = _joined("Mul", factors) if factors else ("Num", Fraction(1))
            use = _use(
                name,
                {factor: _in_language(c), body: _in_language(t)},
                {outer: tuple(map(_name, around)), inner: tuple(map(_name, bound))},
            )
            yield use
            yield replace(use, lemma=f"{name}.back")


def nesting(lemma: Lemma) -> tuple[str, str, str, str, str] | None:
    """(name, k, r, x, y) of a lemma `sum[k](x*sum[r](y)) => sum[k, r](x*y)`."""
    match lemma.left, lemma.right:
        case (
            Reduce("sum", (k,), Apply("multiply", (Variable(x), Reduce("sum", (r,), Variable(y))))),
            Reduce("sum", (j, i), Apply("multiply", (Variable(v), Variable(w)))),
        ) if (k, r, x, y) == (j, i, v, w):
            return lemma.name, k, r, x, y
    return None


def _use(name: str, variables: Mapping[str, language.Term], indices: Mapping[str, tuple[str, ...]]) -> Use:
    return Use(name, tuple(sorted(variables.items(), key=lambda x: x[0])), tuple(sorted(indices.items())))


def _name(i: int) -> str:
    return f"#{i}"


def _atom(i: int) -> str:
    return f"@{i}"


def _in_language(t: Core) -> language.Term:
    return written(t, _atom, _name)


def _matched(pattern: Any, t: Core, variables: dict[str, Core], indices: dict[str, int]) -> bool:
    if pattern[0] == "Var":
        return variables.setdefault(pattern[1], t) == t
    if pattern[0] != t[0]:
        return False
    for x, y, sort in zip(pattern[1:], t[1:], OPERATORS[t[0]], strict=True):
        if sort == "T":
            if not _matched(x, y, variables, indices):
                return False
        elif sort == "i" and isinstance(x, str):
            if indices.setdefault(x, y) != y:
                return False
        elif sort in "is" and x != y:
            return False
    return True


def _contexts(
    context: Sequence[Hole], terms: Sequence[Core], taken: set[int]
) -> Iterator[tuple[str, dict[str, language.Term], tuple[str, ...]]]:
    """The contexts around a term that its normal form melts into."""
    inner = list(reversed(context))
    if inner and inner[0].op in ("Max", "And"):
        op = inner[0].op
        others = []
        for hole in inner:
            if hole.op != op:
                break
            others.append(terms[_other(hole)])
        yield ("below" if op == "Max" else "beside"), {OTHER: _in_language(_joined(op, others))}, ()
        return
    factors: list[Core] = []
    bound: list[int] = []
    addends: list[Core] = []
    changed = False
    for hole in inner:
        if hole.op == "Sum" and not addends:
            if hole.arguments[0] in taken or hole.arguments[0] in bound:
                break
            bound.append(hole.arguments[0])
            changed = True
            continue
        if hole.op not in ("Mul", "Add"):
            break
        other = terms[_other(hole)]
        if not _names(other).isdisjoint(bound):
            break
        if hole.op == "Mul":
            if addends and other[0] != "Num":
                break
            factors.append(other)
            addends = [("Mul", other, w) for w in addends]
            changed = True
        else:
            if changed:
                yield from _linear(factors, bound, addends)
            addends.append(other)
            changed = True
    if changed:
        yield from _linear(factors, bound, addends)


def _linear(
    factors: Sequence[Core], bound: Sequence[int], addends: Sequence[Core]
) -> Iterator[tuple[str, dict[str, language.Term], tuple[str, ...]]]:
    c = _in_language(_joined("Mul", factors) if factors else ("Num", Fraction(1)))
    w = _in_language(_joined("Add", addends) if addends else ("Num", Fraction(0)))
    yield "within", {FACTOR: c, OTHER: w}, tuple(_name(i) for i in bound)
    if addends and not bound:
        yield "among", {FACTOR: c, OTHER: w}, ()


def _other(hole: Hole) -> int:
    found = hole.arguments[1 - hole.at]
    assert isinstance(found, int)
    return found


def _joined(op: str, terms: Sequence[Core]) -> Core:
    done = terms[-1]
    for t in reversed(terms[:-1]):
        done = (op, t, done)
    return done


def _names(t: Core) -> set[int]:
    """The numbers of the indices that a term may read besides those of its atoms, bound ones included."""
    found = {t[1]} if t[0] in BINDERS or t[0] == "IPos" else set()
    for x in parts(t):
        found |= _names(x)
    return found


# instances


def instances_of(
    store: Store, explained: Explained, region: Region, steps: Sequence[Step], a: Term, b: Term
) -> list[Instance] | None:
    """Instances that make `a` into `b` one after the other, none of which can be left out.

    None if the steps do not hold in the store, which is left as it was.
    """
    lemmas = explained.lemmas
    with plain(store):
        for apart in (False, True):
            instances = _followed(store, explained, region, steps, a, b, apart)
            if instances is not None:
                break
        else:
            return None
        for n in range(len(instances) - 1, -1, -1):
            fewer = [*instances[:n], *instances[n + 1 :]]
            with undone(store):
                try:
                    if proved(store, lemmas, fewer, a, b):
                        instances = fewer
                except (NoInstance, Malformed, Unsupported):
                    continue
    return instances


def _followed(
    store: Store, explained: Explained, region: Region, steps: Sequence[Step], a: Term, b: Term, apart: bool
) -> list[Instance] | None:
    """The instances of the steps; `apart` also takes sums apart that the normal form keeps factored."""
    instances: list[Instance] = []
    with undone(store):
        for step in steps:
            if step.equation.rule.startswith("~") and not step.equation.rule.startswith("~sum_"):
                continue
            chosen = _chosen(store, explained, region, step, a, apart)
            if chosen is None:
                continue
            lemma, instance = chosen
            a = stepped(store, lemma, instance, a)
            instances.append(instance)
        return instances if same(store, a, b) else None


def _chosen(
    store: Store, explained: Explained, region: Region, step: Step, t: Term, apart: bool
) -> tuple[Lemma, Instance] | None:
    """The first instance of a step that leads where it should, else one that changes the term."""
    other: tuple[Lemma, Instance] | None = None
    lemma_step = not step.equation.rule.startswith("~")
    count = len(store.classes)
    with undone(store):
        try:
            target: Term | None = built(store, region, _in_language(explained.target(step)))
        except (NoInstance, Unsupported):
            target = None
        if t == target and not (apart and lemma_step):
            return None
        for use in explained.uses(step):
            if t == target and not use.lemma.endswith(".among"):
                continue
            lemma = resolve(explained.lemmas, use.lemma)
            if lemma is None:
                continue
            with undone(store):
                instance = _instance(store, lemma, region, use, count)
                if instance is None:
                    continue
                try:
                    new = stepped(store, lemma, instance, t)
                except (NoInstance, Malformed, Unsupported):
                    continue
                if new == target != t:
                    return lemma, instance
                if new != t and other is None and lemma_step:
                    other = lemma, instance
    return other


def _instance(
    store: Store, lemma: Lemma, region: Region, use: Use, count: int
) -> Instance | None:
    """The use as plain data over the first `count` classes; None when it needs others."""
    numbers: dict[int, int] = {}
    fresh: list[int] = []

    def number(i: int) -> int:
        if i not in numbers:
            numbers[i] = len(fresh)
            fresh.append(store.sizes[i])
        return numbers[i]

    at = {k: [region.indices[_region_name(region, n)] for n in names] for k, names in use.indices}
    indices = {k: tuple(number(i) for i in own) for k, own in at.items()}
    variables: dict[str, tuple[str, tuple[Data, ...]]] = {}
    with undone(store):
        for name, term in use.variables:
            try:
                t = built(store, region, term)
            except (NoInstance, Unsupported):
                return None
            recipe = _recipe(store, t, count)
            if recipe is None:
                return None
            op, terms = recipe
            for x in terms:
                for i in sorted(store.term_indices(x)):
                    number(i)
            variables[name] = (op, tuple(written_term(store, x, numbers) for x in terms))
    if set(variables) != {name for name, _ in lemma.variables} or set(indices) != set(lemma.indices):
        return None
    return Instance(-1, lemma.name, tuple(fresh), indices, variables)


def _recipe(store: Store, t: Term, count: int) -> tuple[str, tuple[Term, ...]] | None:
    """A term as one, or as several joined, of the first `count` classes."""
    if _known(store, t, count):
        return "", (t,)
    op = store.classes[t.cls].op
    if op not in JOINED or store.kind(t) not in ("real", "bool"):
        return None
    terms, _ = store.expand(t)
    if op == "multiply":
        terms = [scaled(terms[0], t.coef), *terms[1:]]
    elif op != "and":
        if op == "maximum" and t.coef < 0:
            return None
        terms = [scaled(x, t.coef) for x in terms]
    return (op, tuple(terms)) if all(_known(store, x, count) for x in terms) else None


def _known(store: Store, t: Term, count: int) -> bool:
    return t.cls < count and all(_known_expr(store, e, count) for e in t.access)


def _known_expr(store: Store, e: Any, count: int) -> bool:
    for u, _ in e[1]:
        if u < 0:
            atom = store.atom(u)
            if getattr(atom, "cls", 0) >= count:
                return False
            if not all(_known_expr(store, x, count) for x in store.inner(u)):
                return False
    return True


def built(store: Store, region: Region, term: language.Term) -> Term:
    """The term of a use in the store. Raises NoInstance."""
    atoms = {t.name: region.atoms[f"x{t.name[1:]}"] for t in walk(term) if isinstance(t, Variable)}
    indices = {_name(n): (i,) for n, i in enumerate(region.indices.values())}
    return build(store, term, atoms, indices)


def _region_name(region: Region, name: str) -> str:
    return list(region.indices)[int(name[1:])]

"""Equality of two terms by lemmas that the search finds: queries, their memo, and instances."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from shardproof.lemmas.terms import Lemma
from shardproof.lemmas.variants import resolve
from shardproof.passes.access import index
from shardproof.passes.classes import NONNEGATIVE, POSITIVE, Store, Term
from shardproof.passes.normalise import same
from shardproof.solver.certificates.install import Instance
from shardproof.solver.certificates.stepping import plain, proved, stepped, undone
from shardproof.solver.locate.descent import levels
from shardproof.solver.search.closure import Closure, Equation, Node
from shardproof.solver.search.core_terms import BINDERS, OPERATORS, Core, Reader, Unknown, every
from shardproof.solver.search.merging import Explained, instances_of
from shardproof.solver.search.region import Region, region, weight
from shardproof.solver.search.saturate import Answer, Query, Worker
from shardproof.solver.search.search_rules import Rules, operators, rational, rules_of

NODES: Final = 6_000
SECONDS: Final = 5.0
FURTHER: Final = (0, 1, 3)
"""How far regions grow beyond the classes that both sides share."""
DIFFERENCES: Final = 16
"""Most differences of two terms that are made equal one after the other."""
TERMS: Final = 250
"""Most operators, numbers and atoms of one side of a query, repeated ones counted again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Instances that make the first term into the second (`stepping.proved`), or None and the reason.

    The reason is `proved`, `open` (nothing found), `time` (the search was ended), `failed` (no search),
    `inconsistent` (two literals were found equal) or `unchecked` (what was found did not hold in the store).
    `fired` and `needed` count the matches and the instances of each lemma. `turned`: the instances make the
    second term into the first instead.
    """

    instances: tuple[Instance, ...] | None
    reason: str
    fired: Mapping[str, int] = field(default_factory=dict)
    needed: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 0
    seconds: float = 0.0
    turned: bool = False


@dataclass(slots=True)
class Asked:
    """How many queries were asked, and how many of these were answered from the memo."""

    queries: int = 0
    remembered: int = 0


@dataclass(slots=True)
class _Tally:
    """What the queries of one proof came to."""

    start: float
    fired: dict[str, int] = field(default_factory=dict)
    nodes: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        self.nodes += answer.nodes
        self.reasons.append(answer.status)
        for rule, n in answer.fired.items():
            if n and not rule.startswith("~"):
                name = rule.partition(".")[0]
                self.fired[name] = self.fired.get(name, 0) + n

    def ended(self) -> bool:
        """Whether no further query makes sense."""
        return bool(self.reasons) and self.reasons[-1] in ("inconsistent", "time", "failed")

    def reason(self) -> str:
        """Why there is no proof."""
        if self.ended():
            return self.reasons[-1]
        return "unchecked" if "equal" in self.reasons else "open"

    def outcome(
        self, instances: Sequence[Instance] | None, reason: str, turned: bool = False
    ) -> Outcome:
        needed: dict[str, int] = {}
        for i in instances or ():
            name = i.lemma.partition(".")[0]
            needed[name] = needed.get(name, 0) + 1
        found = None if instances is None else tuple(instances)
        spent = time.monotonic() - self.start
        return Outcome(found, reason, self.fired, needed, self.nodes, spent, turned)


class Saturation:
    """The search over a set of lemmas; a context manager that ends its process."""

    def __init__(self, lemmas: Iterable[Lemma], *, nodes: int = NODES, seconds: float = SECONDS) -> None:
        self.lemmas = {lemma.name: lemma for lemma in lemmas}
        self.nodes = nodes
        self.seconds = seconds
        self.asked = Asked()
        self._rules: Rules | None = None
        self._worker: Worker | None = None
        self._memo: dict[Query, Answer] = {}
        self._programs: dict[str, str] = {}
        self._relevant: dict[tuple[frozenset[str], bool], str] = {}

    def __enter__(self) -> Saturation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, if there is one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    @property
    def process(self) -> subprocess.Popen[str] | None:
        """The process, once a query needed it."""
        return None if self._worker is None else self._worker.process

    @property
    def rules(self) -> Rules:
        """The rules of the lemmas."""
        if self._rules is None:
            self._rules = rules_of(self.lemmas.values())
        return self._rules

    def prove_equal(self, store: Store, a: Term, b: Term) -> Outcome:
        """Instances that make the terms one. The store is left as it was."""
        tally = _Tally(time.monotonic())
        with plain(store):
            with undone(store):
                found = self._led(store, a, b, tally)
            if found is not None:
                instances, turned = found
                ends = (b, a) if turned else (a, b)
                with undone(store):
                    if proved(store, self.lemmas, instances, *ends):
                        return tally.outcome(instances, "proved", turned)
                tally.reasons.append("equal")
        return tally.outcome(None, tally.reason())

    def _led(
        self, store: Store, a: Term, b: Term, tally: _Tally
    ) -> tuple[list[Instance], bool] | None:
        """Instances that lead from one term to the other, found from the innermost difference outward."""
        done: list[Instance] = []
        for _ in range(DIFFERENCES):
            if same(store, a, b):
                return done, False
            for x, y in levels(store, a, b):
                with undone(store):
                    found = self._searched(store, x, y, tally)
                if tally.ended():
                    return None
                if found is None:
                    continue
                instances, turned = found
                if turned:
                    if not done and (x, y) == (a, b):
                        return found
                    continue
                new = a
                for instance in instances:
                    lemma = resolve(self.lemmas, instance.lemma)
                    new = new if lemma is None else stepped(store, lemma, instance, new)
                if new != a:
                    a = new
                    done += instances
                    break
            else:
                return None
        return None

    def _searched(
        self, store: Store, a: Term, b: Term, tally: _Tally
    ) -> tuple[list[Instance], bool] | None:
        """Instances that make two terms one, in regions that grow, by rules that reach further."""
        seen: set[Query] = set()
        for beyond in FURTHER:
            own = region(store, a, b, beyond=beyond)
            if max(weight(own.left), weight(own.right)) > TERMS:
                continue
            try:
                left, right = _cores(store, own)
            except Unknown:
                continue
            lines = tuple(_lines(store, own, left, right))
            for further in (False, True):
                query = Query(lines, self.nodes, self._program(left, right, further))
                if query in seen:
                    continue
                seen.add(query)
                answer = self._ask(query, self.seconds - (time.monotonic() - tally.start))
                tally.add(answer)
                if tally.ended():
                    return None
                if answer.status == "equal":
                    found = self._instances(store, own, answer, left, right, a, b)
                    if found is not None:
                        return found
        return None

    def _program(self, left: Core, right: Core, further: bool) -> str:
        """The name of the rules that may be of use for two terms, or `further` for what becomes of them."""
        used = operators(left) | operators(right), further
        name = self._relevant.get(used)
        if name is None:
            have = self.rules.relevant(left, right, further=further)
            name = self._relevant[used] = ",".join(sorted(have))
            if name not in self._programs:
                self._programs[name] = self.rules.text(have)
        return name

    def _ask(self, query: Query, seconds: float) -> Answer:
        self.asked.queries += 1
        if seconds <= 0:
            return Answer("time")
        known = self._memo.get(query)
        if known is not None:
            self.asked.remembered += 1
            return known
        if self._worker is None:
            self._worker = Worker(self._programs)
        answer = self._worker.ask(query, seconds)
        if answer.status not in ("time", "failed"):
            self._memo[query] = answer
        return answer

    def _instances(
        self, store: Store, own: Region, answer: Answer, left: Core, right: Core, a: Term, b: Term
    ) -> tuple[list[Instance], bool] | None:
        """The instances of an answer, and whether they lead from the second term to the first."""
        numbering = _Numbering(answer.terms)
        x, y = numbering.number(left), numbering.number(right)
        closure = Closure(numbering.nodes)
        equations = [Equation(*entry) for entry in answer.log]
        for e in equations:
            if e.rule.startswith("~"):
                closure.add(e)
        terms = numbering.terms
        rest = [e for e in equations if not e.rule.startswith("~")]
        rest.sort(key=lambda e: (_size(terms[e.left]) + _size(terms[e.right]), e.rule, e.left, e.right))
        for e in rest:
            if closure.same(x, y):
                break
            closure.add(e)
        if not closure.same(x, y):
            return None
        explained = Explained(self.lemmas, {r.name: r for r in self.rules.rules}, terms)
        for turned in (False, True):
            steps = closure.explain(y, x) if turned else closure.explain(x, y)
            if steps is None:
                return None
            ends = (b, a) if turned else (a, b)
            found = instances_of(store, explained, own, steps, *ends)
            if found is not None:
                return found, turned
        return None


class _Numbering:
    """Core terms as numbered nodes, those of an answer first."""

    def __init__(self, given: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        self.nodes: list[Node] = []
        self.terms: list[Core] = []
        self.known: dict[Node, int] = {}
        for op, arguments in given:
            sorts = OPERATORS[op]
            own = tuple(Fraction(x) if s == "q" else x for x, s in zip(arguments, sorts, strict=True))
            self._add(Node(op, own))

    def number(self, t: Core) -> int:
        """The node of a core term."""
        own = tuple(
            self.number(x) if s == "T" else x for x, s in zip(t[1:], OPERATORS[t[0]], strict=True)
        )
        node = Node(t[0], own)
        return self.known[node] if node in self.known else self._add(node)

    def _add(self, node: Node) -> int:
        self.known[node] = len(self.nodes)
        self.nodes.append(node)
        sorts = OPERATORS[node.op]
        inner = (self.terms[x] if s == "T" else x for x, s in zip(node.arguments, sorts, strict=True))
        self.terms.append((node.op, *inner))
        return len(self.nodes) - 1


def _size(t: Core) -> int:
    return 1 + sum(_size(x) for x, s in zip(t[1:], OPERATORS[t[0]], strict=True) if s == "T")


def _cores(store: Store, own: Region) -> tuple[Core, Core]:
    names = {k: n for n, k in enumerate(own.indices)}
    kinds = {name: "int" if (kind := store.kind(t)) == "uint" else kind for name, t in own.atoms.items()}
    reader = Reader(
        kinds,
        lambda name: ("At", int(name[1:])),
        lambda k: names[k],
        lambda k: ("Num", Fraction(store.sizes[own.indices[k]])),
    )
    return reader.read(own.left, "real"), reader.read(own.right, "real")


def _lines(store: Store, own: Region, left: Core, right: Core) -> list[str]:
    """The query: indices and their extents, what is known of each atom (soundness S2), the two sides."""
    lines = []
    for n, i in enumerate(own.indices.values()):
        lines.append(f"(Place {n}) (set (ext {n}) {rational(Fraction(store.sizes[i]))})")
    for name, t in own.atoms.items():
        x = f"(At {name[1:]})"
        reads = own.reads(store, name)
        facts = [f"(NotIn {n} {x})" for n, k in enumerate(own.indices) if k not in reads]
        if store.kind(t) == "real":
            if not store.special(t):
                facts.append(f"(Finite {x})")
            sign = store.sign(t)
            if sign == POSITIVE:
                facts.append(f"(Positive {x})")
            if sign >= NONNEGATIVE:
                facts.append(f"(NonNeg {x})")
        lines.append(" ".join((x, *facts, f"; {store.kind(t)}")))
    lines.append(f"(set (side 0) {text(left)})")
    lines.append(f"(set (side 1) {text(right)})")
    for one, other in dict.fromkeys(_renamings(store, own, (left, right))):
        log = f'(Log "~renamed" {text(one, "n")} {text(other, "n")})'
        lines.append(f"(union {text(one)} {text(other)}) {log}")
    return lines


def _renamings(store: Store, own: Region, sides: Sequence[Core]) -> Iterator[tuple[Core, Core]]:
    """Reductions of the sides, and the same ones over another index that nothing inside reads."""
    places = list(own.indices.values())
    numbers = {t: int(name[1:]) for name, t in own.atoms.items()}
    atoms = {n: t for t, n in numbers.items()}

    def moved(t: Core, k: int, j: int) -> Core | None:
        if t[0] == "At":
            reads = store.term_indices(atoms[t[1]])
            if places[j] in reads:
                return None
            if places[k] not in reads:
                return t
            at = store.substitute_term(atoms[t[1]], {places[k]: index(places[j])})
            return ("At", numbers[at]) if at in numbers else None
        if (t[0] in BINDERS or t[0] == "IPos") and t[1] in (k, j):
            return ("IPos", j) if t == ("IPos", k) else None
        x = [moved(y, k, j) if s == "T" else y for y, s in zip(t[1:], OPERATORS[t[0]], strict=True)]
        return None if any(y is None for y in x) else (t[0], *x)

    for side in sides:
        for t in every(side):
            if t[0] in BINDERS:
                for j, i in enumerate(places):
                    if j != t[1] and store.sizes[i] == store.sizes[places[t[1]]]:
                        body = moved(t[2], t[1], j)
                        if body is not None:
                            yield t, (t[0], j, body)


def text(t: Core, prefix: str = "") -> str:
    """A ground core term as egglog text, each operator with a prefix."""
    arguments = []
    for x, sort in zip(t[1:], OPERATORS[t[0]], strict=True):
        match sort:
            case "T":
                arguments.append(text(x, prefix))
            case "q":
                arguments.append(rational(x))
            case "s":
                arguments.append(f'"{x}"')
            case _:
                arguments.append(str(x))
    return f"({' '.join((prefix + t[0], *arguments))})"

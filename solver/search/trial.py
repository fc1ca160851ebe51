"""A lemma tried on a pair of programs: where it fires, or how close it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import Location
from shardproof.lemmas.terms import Lemma
from shardproof.solver.attempts import BUDGET, theory_of
from shardproof.solver.meaning import CUSTOM, meant, target_of
from shardproof.solver.pair import read_pair
from shardproof.solver.programs import Program, mesh_of
from shardproof.solver.prove import Attempt, Clock, Proof, prove
from shardproof.solver.randomness import with_draws
from shardproof.solver.relations import relation_file
from shardproof.solver.relations.capture_relation import side_by_side
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import BASE, compose
from shardproof.solver.search.closest import Closest, called, closest, rules_of, where_used
from shardproof.solver.search.pattern import Pattern
from shardproof.solver.search.theory import level_of

SHOWN: Final = 8
"""How many places are listed."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A value of a program, and where it was written."""

    program: str
    value: str
    op: str
    place: str | None

    def __str__(self) -> str:
        where = "" if self.place is None else f" ({self.place})"
        return f"{self.program}: `{self.value}` ({self.op}){where}"


@dataclass(frozen=True, slots=True)
class Tried:
    """What a trial found. `closest` is given when the lemma did not fire: where, and what fails."""

    name: str
    use: str
    fired: int = 0
    places: tuple[Spot, ...] = ()
    closest: Spot | None = None
    matched: int = 0
    total: int = 0
    reason: str | None = None
    proved: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """The report for people."""
        if self.fired:
            lines = [f"{self.name} fires {'once' if self.fired == 1 else f'{self.fired} times'}"]
            lines += [f"  at       {spot}" for spot in self.places]
            if self.proved is not None:
                done = "complete" if self.proved else "still open: another step needs another lemma"
                lines.append(f"  proof    {done}")
        else:
            lines = [f"{self.name} does not fire"]
            if self.closest is not None:
                lines.append(f"  closest  {self.closest}")
            if self.total:
                lines.append(f"  matches  {self.matched} of {self.total} parts of its left side")
            if self.reason is not None:
                lines.append(f"  because  {self.reason}")
        lines.append(f"  use      {self.use}")
        return "\n".join(lines) + "\n"


def attempt(
    name: str,
    reference: Program,
    implementation: Program | Sequence[Program],
    *,
    relation: str | Path | None = None,
    mesh: str | Mapping[str, int] | None = None,
    lemmas: Sequence[str | Path] = (),
) -> Tried:
    """Try the lemma or definition of this name, which the library or `lemmas` has.

    Raises ModuleError for programs that cannot be read or whose layout is not known, LemmaError.
    """
    declared = relation_file.read(relation) if relation is not None else relation_file.Declared()
    pair = read_pair(
        reference, implementation, declared, (declared.reference_mesh, mesh_of(mesh) or declared.mesh)
    )
    first, second = pair.reference, pair.implementation
    theory = theory_of(lemmas)
    lemma = theory.statements.lemmas.get(name)
    if lemma is None:
        return _define(name, {"reference": first, "implementation": second}, lemmas)
    use, rules = where_used(theory, lemma), rules_of(theory, lemma)
    if rules is None:
        return Tried(name, use)
    first, second = (with_draws(m.module) for m in meant((first, second), lemmas))
    relations = relation_file.resolve(pair.declared, first, second)
    if pair.side_by_side:
        relations = side_by_side(relations, first, second)
    inferred = infer(first, second, relations, pair.captured.data if pair.captured is not None else ())
    if inferred.gaps:
        gap = inferred.gaps[0]
        raise ModuleError(f"no layout is known for `{gap.name}`: {gap.reason}; declare it with --relation")
    composed = compose(first, second, inferred.relation)
    tried = Attempt(folding=True, lenient=lemma.assumed, reading=lemma.assumed, lemmas=level_of(lemma))
    return _tried(lemma, rules.lemmas[name], use, prove(composed, Clock(2 * BUDGET), tried, rules=rules))


def _tried(lemma: Lemma, pattern: Pattern, use: str, proof: Proof) -> Tried:
    fired = [i for i in proof.instances if i.lemma == lemma.name]
    if fired:
        spots = dict.fromkeys(s for i in fired if (s := spot_of(proof, i.cls)) is not None)
        return Tried(lemma.name, use, len(fired), tuple(spots)[:SHOWN], proved=proof.complete)
    found: Closest | None = closest(proof, pattern, range(len(proof.store.classes)))
    if found is None:
        outermost = called(pattern.head, pattern.root.attrs)
        reason = f"neither program has {outermost}, the outermost operator of its left side"
        return Tried(lemma.name, use, reason=reason, proved=proof.complete)
    spot = spot_of(proof, found.cls)
    return Tried(
        lemma.name, use, 0, (), spot, found.matched, found.total, found.reason, proved=proof.complete
    )


def spot_of(proof: Proof, cls: int) -> Spot | None:
    """The first value of either program that was made when or after the class was, or that is equal to it."""
    composed = proof.composed
    rewritten = proof.store.rewritten.get(cls)
    same = cls if rewritten is None else rewritten.term.cls
    for role, module, views in (
        ("reference", composed.reference, proof.reference.views),
        ("implementation", composed.implementation, proof.implementation.views),
    ):
        for op in module.ops:
            for value in op.results:
                made = views[value.name].term.cls
                if not value.name.startswith(BASE) and (made >= cls or made == same):
                    return Spot(role, value.name, op.opcode, _place(value.location))
    return None


def _place(location: Location | None) -> str | None:
    return None if location is None else f"{location.file}:{location.line}"


def _define(name: str, modules: Mapping[str, Module], lemmas: Sequence[str | Path]) -> Tried:
    """How a definition fits the uses of its operator."""
    use = "it replaces the operator of its name before anything else"
    fired = 0
    places: list[Spot] = []
    reasons: list[str] = []
    for role, module in modules.items():
        uses = [op for op in module.ops if op.opcode in CUSTOM and target_of(op) == name]
        (found,) = meant([module], lemmas)
        left = {id(op) for op in found.module.ops}
        for op in uses:
            if id(op) not in left:
                fired += 1
                places.append(Spot(role, op.result.name, name, _place(op.location)))
        reasons += [w for w in found.module.warnings if f"({name}" in w and "does not fit" in w]
    if not fired and not reasons:
        reasons = [f"neither program uses an operator `{name}`"]
    return Tried(
        name, use, fired, tuple(places[:SHOWN]), reason=reasons[0] if reasons and not fired else None
    )

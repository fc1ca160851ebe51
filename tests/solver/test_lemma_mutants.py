"""Mutants of the pairs that need lemmas: none that computes something else may be verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from lemma_cases import CASES, draw, layout, parts, stated

import shardproof
from shardproof.frontends.load import load
from shardproof.ir.interpret import InterpretError, run
from shardproof.ir.module import Module, ModuleError, Op, Value
from shardproof.ir.types import Array
from shardproof.ir.verify import verify as check_module
from shardproof.solver.attempts import BUDGET, BY_LEMMAS
from shardproof.solver.meaning import meant
from shardproof.solver.prove import Clock, TimeUp, prove
from shardproof.solver.relations import relation_file
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import compose
from shardproof.solver.relations.steps import RelationError
from shardproof.solver.search.theory import theory
from shardproof.solver.verdict import Verdict
from shardproof.tools.mutation import mutants

EQUAL = [name for name, case in CASES.items() if case.equal]
FEW, MANY = 1, 8
"""How many mutants of a case the fast tests judge, and the slow ones."""
SEEDS, MORE = range(2), range(2, 40)
"""Inputs that judge every mutant, and those that judge one again that is refuted against them."""
ATTEMPTS = [a for a in BY_LEMMAS if not a.lenient]
DIFFERENT = 1e-6
"""Relative difference beyond which two programs are different; less than `SAME` and they are equal."""
SAME = 1e-10

OPCODES = {
    "add": ("subtract", "multiply", "maximum"),
    "subtract": ("add",),
    "multiply": ("add", "maximum"),
    "divide": ("multiply",),
    "maximum": ("minimum", "add"),
    "minimum": ("maximum",),
    "exponential": ("logistic", "negate"),
    "logistic": ("tanh", "exponential"),
    "tanh": ("logistic",),
    "log": ("negate",),
    "sqrt": ("rsqrt", "abs"),
    "rsqrt": ("sqrt",),
    "and": ("or",),
    "or": ("and",),
}
KINDS = {"sum": ("max",), "max": ("sum", "min"), "and": ("or",), "or": ("and",)}
DIRECTIONS = {
    "LT": ("LE", "GE"),
    "LE": ("LT", "GT"),
    "GT": ("GE", "LT"),
    "GE": ("GT", "LE"),
    "EQ": ("NE",),
    "NE": ("EQ",),
}


@cache
def modules(name: str) -> tuple[Module, Module]:
    case = CASES[name]
    return load(case.reference), load(case.implementation)


def changed_ops(module: Module) -> Iterator[tuple[str, Module]]:
    """Every single change of one operator: another operator, kind, direction, order, operand or constant."""
    for n, op in enumerate(module.ops):
        for how, new in _changes(module, n, op):
            made = replace(module, ops=(*module.ops[:n], new, *module.ops[n + 1 :]))
            try:
                check_module(made)
            except ModuleError:
                continue
            yield f"{how}:{op.result.name}", made


def _changes(module: Module, n: int, op: Op) -> Iterator[tuple[str, Op]]:
    for other in OPCODES.get(op.opcode, ()):
        yield other, replace(op, opcode=other)
    if "kind" in op.attrs and op.opcode in ("reduce", "all_reduce", "reduce_scatter"):
        for kind in KINDS.get(op.attrs["kind"], ()):
            yield kind, replace(op, attrs={**op.attrs, "kind": kind})
    if "direction" in op.attrs:
        for direction in DIRECTIONS[op.attrs["direction"]]:
            yield direction, replace(op, attrs={**op.attrs, "direction": direction})
    if op.opcode in ("divide", "dot_general") and op.operands[0].type == op.operands[1].type:
        yield "swapped", replace(op, operands=op.operands[::-1])
    if op.opcode == "select":
        p, a, b = op.operands
        yield "swapped", replace(op, operands=(p, b, a))
    if op.opcode == "constant" and op.result.type.dtype.kind in ("real", "int"):
        value = op.attrs["value"]
        if np.isfinite(value.astype(np.float64)).all():
            yield "nudged", replace(op, attrs={**op.attrs, "value": (value + 1).astype(value.dtype)})
    earlier: list[Value] = [i.value for i in module.inputs]
    earlier += [v for o in module.ops[:n] for v in o.results]
    chance = Random(n)
    for k, v in enumerate(op.operands):
        fit = [w for w in earlier if w.type == v.type and w.name != v.name]
        for w in chance.sample(fit, min(2, len(fit))):
            yield f"reads_{w.name}", replace(op, operands=(*op.operands[:k], w, *op.operands[k + 1 :]))


@cache
def every_mutant(name: str) -> tuple[tuple[str, Module], ...]:
    module = modules(name)[1]
    return (*((m.name, m.module) for m in mutants(module)), *changed_ops(module))


@cache
def judged_inputs(name: str, seed: int) -> tuple[dict[str, Any], dict[str, list[Array]]]:
    """What every rank is given, and what it must return."""
    case = CASES[name]
    reference, implementation = modules(name)
    relation = stated(case)
    rng, ranks = np.random.default_rng(seed), implementation.mesh.size
    whole = {i.number: draw(i, relation.get("ranges", {}), rng) for i in reference.inputs}
    held = {
        i.name: parts(whole[i.number], layout(relation.get("inputs", {}), i.name, f"p{i.number}"), ranks)
        for i in implementation.inputs
    }
    goal = list(run(reference, {i.name: whole[i.number] for i in reference.inputs}).values())
    wanted = {
        o.name: parts(goal[n][0], layout(relation.get("outputs", {}), o.name, f"o{n}"), ranks)
        for n, o in enumerate(implementation.outputs)
    }
    return held, wanted


def difference(name: str, mutant: Module, seeds: Iterable[int] = SEEDS) -> float:
    """The largest relative difference of an output on any rank; nan where numbers can't tell.

    What overflows tells nothing: real numbers don't.
    """
    worst = 0.0
    for seed in seeds:
        held, wanted = judged_inputs(name, seed)
        try:
            with np.errstate(all="ignore"):
                found = run(mutant, held)
        except InterpretError:
            return float("nan")
        for output, values in wanted.items():
            size = max(float(np.abs(x).max()) for x in values)
            for x, y in zip(values, found[output], strict=True):
                if x.shape != y.shape or not np.isfinite(y.astype(np.float64)).all():
                    return float("nan")
                worst = max(worst, float(np.abs(np.subtract(x, y)).max()) / size)
    return worst


def proved(name: str, mutant: Module) -> bool:
    """Whether lemmas prove the mutant, which `verify` does not ask where a run shows a difference."""
    reference, case = modules(name)[0], CASES[name]
    declared = relation_file.read(case.relation) if case.relation is not None else relation_file.Declared()
    first, second = (m.module for m in meant((reference, mutant), ()))
    try:
        inferred = infer(first, second, relation_file.resolve(declared, first, second))
    except RelationError:
        return False
    if inferred.gaps:
        return False
    composed = compose(first, second, inferred.relation)
    for attempt in ATTEMPTS:
        try:
            proof = prove(
                composed, Clock(BUDGET), attempt, rules=theory().rules(attempt.lemmas), seconds={}
            )
        except TimeUp:
            continue
        if proof.complete:
            return True
    return False


def judge(name: str, selected: list[tuple[str, Module]]) -> tuple[int, int]:
    """How many mutants differ, and how many of these are refuted."""
    wrong: list[str] = []
    differ = refuted = 0
    for label, mutant in selected:
        gap = difference(name, mutant)
        try:
            verdict = shardproof.verify(modules(name)[0], mutant, relation=CASES[name].relation).verdict
        except RelationError:
            continue
        if gap > DIFFERENT:
            differ += 1
            refuted += verdict is Verdict.REFUTED
            if verdict is Verdict.VERIFIED or proved(name, mutant):
                wrong.append(f"{label} differs by {gap} but is proved")
        elif gap < SAME and verdict is Verdict.REFUTED and difference(name, mutant, MORE) < SAME:
            wrong.append(f"{label} is equal but is refuted")
    assert not wrong, "\n".join(wrong)
    return differ, refuted


@pytest.mark.parametrize("name", [n for n in EQUAL if "traced" not in n])
def test_a_few_mutants(name: str) -> None:
    every = every_mutant(name)
    judge(name, Random(name).sample(every, min(FEW, len(every))))


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_many_mutants(name: str) -> None:
    every = every_mutant(name)
    differ, refuted = judge(name, Random(name).sample(every, min(MANY, len(every))))
    assert refuted == differ

"""Mutants of the pairs that need lemmas: none that computes something else may be verified."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from test_lemma_pairs import CASES, Case, draw, layout, parts

import shardproof
from shardproof.frontends.load import load
from shardproof.ir.interpret import InterpretError, run
from shardproof.ir.module import Module, ModuleError, Op, Value
from shardproof.ir.types import Array
from shardproof.ir.verify import verify as check_module
from shardproof.solver.verdict import Verdict
from shardproof.tools.mutation import mutants

EQUAL = [name for name, case in CASES.items() if case.equal]
FEW = 2
"""How many mutants of a case the fast tests judge; the slow ones judge all."""
SEEDS = (0, 1)
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
    "LT": ("LE", "GE"), "LE": ("LT", "GT"), "GT": ("GE", "LT"), "GE": ("GT", "LE"), "EQ": ("NE",), "NE": ("EQ",)
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
    text = case.relation.read_text(encoding="utf-8") if case.relation else ""
    relation = tomllib.loads(text)
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


def difference(name: str, mutant: Module) -> float:
    """The largest relative difference of an output on any rank; infinite where only one is finite."""
    worst = 0.0
    for seed in SEEDS:
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
                    return float("inf")
                worst = max(worst, float(np.abs(x - y).max()) / size)
    return worst


def judge(name: str, selected: list[tuple[str, Module]]) -> tuple[int, int]:
    """How many mutants differ, and how many of these are refuted."""
    case: Case = CASES[name]
    wrong: list[str] = []
    differ = refuted = 0
    for label, mutant in selected:
        gap = difference(name, mutant)
        result = shardproof.verify(modules(name)[0], mutant, relation=case.relation)
        if gap > DIFFERENT:
            differ += 1
            refuted += result.verdict is Verdict.REFUTED
            if result.verdict is Verdict.VERIFIED:
                wrong.append(f"{label} differs by {gap} but is verified")
        elif gap < SAME and result.verdict is Verdict.REFUTED:
            wrong.append(f"{label} is equal but is refuted")
    assert not wrong, "\n".join(wrong)
    return differ, refuted


@pytest.mark.parametrize("name", EQUAL)
def test_a_few_mutants(name: str) -> None:
    every = every_mutant(name)
    judge(name, Random(name).sample(every, min(FEW, len(every))))


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_all_mutants(name: str) -> None:
    differ, refuted = judge(name, list(every_mutant(name)))
    assert refuted >= differ // 2

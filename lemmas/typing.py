"""Well-formedness of statements: the rules L1 to L13 of the soundness rules that need no values.

Each rule is named where it is enforced. What is left to the checker (the statement is true, its
conditions are necessary) and to the matcher (names are fresh, extents fit) is not looked at here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.functions import ARITY, RESERVED
from shardproof.lemmas.kinds import Inference
from shardproof.lemmas.printer import show_condition, show_term
from shardproof.lemmas.terms import (
    Apply,
    Condition,
    Define,
    Extent,
    Fact,
    Lemma,
    NotIn,
    Opaque,
    OpaqueDefine,
    Parameter,
    Position,
    Reduce,
    Statement,
    Take,
    Term,
    Variable,
    children,
)

TRIGGERS: Final = frozenset({"late"})
"""`late` keeps a lemma out of the first attempt (L13: triggers only remove instances)."""
CLAIMS: Final = frozenset({"mask_value", "row_not_fully_masked"})
"""Kinds of assumption that an `assume` may be listed as."""


def check(statement: Statement) -> Statement:
    """The statement with kinds and indices filled in; `LemmaError` says which rule it breaks."""
    match statement:
        case Lemma():
            return _lemma(statement)
        case Define():
            return _define(statement)
        case OpaqueDefine():
            _opaque(statement)
            return statement


@dataclass(slots=True)
class _Side:
    """What one side of a lemma, or a condition, names, in order of first occurrence.

    `reads` holds per bound occurrence the metavariables in the scope of each binder; `free` the
    indices used as values outside of their binder.
    """

    variables: dict[str, None]
    indices: dict[str, None]
    bound: dict[str, dict[str, None]]
    free: dict[str, None]
    opaque: dict[Opaque, None]
    infinite: bool = False


def _fail(statement: Statement, message: str) -> NoReturn:
    raise LemmaError(f"`{statement.name}`: {message}", statement.span)


def _read(statement: Statement, *terms: Term) -> _Side:
    side = _Side({}, {}, {}, {}, {})
    for term in terms:
        _collect(statement, term, (), side)
    return side


def _collect(statement: Statement, term: Term, scope: tuple[str, ...], side: _Side) -> None:
    """Adds a term inside the binders of `scope` (L1: binders name distinct indices)."""
    inside = scope
    match term:
        case Variable(name):
            side.variables[name] = None
            for index in scope:
                side.bound[index][name] = None
            return
        case Extent(index):
            side.indices[index] = None
            return
        case Position(index):
            side.indices[index] = None
            if index not in scope:
                side.free[index] = None
            return
        case Apply(op, operands):
            side.infinite |= op == "infinity"
            if ARITY.get(op) != len(operands):
                _fail(statement, f"found the operator `{op}` of {len(operands)} operands, which is none")
        case Take(indices, body, position):
            _collect(statement, body, _bind(statement, indices, scope, side), side)
            _collect(statement, position, scope, side)
            return
        case Reduce(_, indices, _):
            inside = _bind(statement, indices, scope, side)
        case Opaque(name, inputs, outputs, _):
            if name in RESERVED:
                _fail(statement, f"found the opaque binder `{name}`, a word of the language")
            side.opaque[term] = None
            inside = _bind(statement, inputs, scope, side)
            if len(set(outputs)) != len(outputs):
                _fail(statement, f"found `{show_term(term)}`, output indices must be distinct")
            for index in outputs:
                side.indices[index] = None
                if index not in scope:
                    side.free[index] = None
        case _:
            pass
    for child in children(term):
        _collect(statement, child, inside, side)


def _bind(
    statement: Statement, indices: tuple[str, ...], scope: tuple[str, ...], side: _Side
) -> tuple[str, ...]:
    for position, index in enumerate(indices):
        if index in indices[:position]:
            _fail(statement, f"found `{index}` twice in one binder, indices must be distinct")
        side.indices[index] = None
        side.bound.setdefault(index, {})
    return (*scope, *(i for i in indices if i not in scope))


def _lemma(lemma: Lemma) -> Lemma:
    left, right = _read(lemma, lemma.left), _read(lemma, lemma.right)
    _names(lemma, left, right)
    _direction(lemma, left, right, "right")
    if lemma.both:
        _direction(lemma, right, left, "left")
    if left.opaque.keys() != right.opaque.keys():
        odd = next(iter(left.opaque.keys() ^ right.opaque.keys()))
        needed = "an opaque binder must stand on both sides alike, no lemma moves through it"
        _fail(lemma, f"found `{show_term(odd)}` on one side, {needed}")
    _conditions(lemma, left, right)
    if (left.infinite or right.infinite) and not lemma.assumed:
        _fail(lemma, "found `inf`, which only an `assume` may use")
    if lemma.left == lemma.right or show_term(lemma.left) == show_term(lemma.right):
        _fail(lemma, f"found the same term `{show_term(lemma.left)}` on both sides, they must differ")
    for trigger in lemma.triggers:
        if trigger not in TRIGGERS:
            _fail(lemma, f"found the trigger `{trigger}`, one of {', '.join(sorted(TRIGGERS))} is needed")
    for claim in lemma.claims:
        if claim not in CLAIMS:
            _fail(lemma, f"found the claim `{claim}`, one of {', '.join(sorted(CLAIMS))} is needed")
    if lemma.claims and not lemma.assumed:
        _fail(lemma, "found a claim, which only an `assume` makes")
    inference = Inference(lemma.span)
    inference.same(lemma.left, lemma.right)
    for condition in lemma.conditions:
        inference.condition(condition)
    return replace(lemma, variables=inference.kinds(), indices=tuple({**left.indices, **right.indices}))


def _names(lemma: Lemma, *sides: _Side) -> None:
    """No name is an index and a metavariable, in the sides and the conditions."""
    indices = {i for side in sides for i in side.indices}
    indices |= {i for c in lemma.conditions for i in _condition_indices(c)}
    variables = {v for side in sides for v in side.variables}
    variables |= {c.variable for c in lemma.conditions if isinstance(c, NotIn)}
    clash = sorted(indices & variables)
    if clash:
        _fail(lemma, f"found `{clash[0]}` as an index and as a metavariable, use two names")


def _condition_indices(condition: Condition) -> Iterable[str]:
    match condition:
        case NotIn(index, _):
            return (index,)
        case Fact(_, _, indices):
            return indices
        case _:
            return ()


def _direction(lemma: Lemma, source: _Side, target: _Side, where: str) -> None:
    """The target side can be built from a match of the source side (L5, L6)."""
    for name in target.variables:
        if name not in source.variables:
            _fail(lemma, f"found `{name}` only on the {where} side, a match would not tell its value")
    for index in target.indices:
        if index not in source.indices:
            _fail(
                lemma,
                f"found the index `{index}` only on the {where} side, a match would not tell its extent",
            )
    for index in target.free:
        if index not in source.free:
            _fail(lemma, f"found the position `{index}` outside of a binder only on the {where} side")
    for index, variables in target.bound.items():
        if index in source.bound:
            continue
        for name in variables:
            if index not in lemma.excluded(name):
                needed = f"the condition `{index} not in {name}` is needed"
                _fail(lemma, f"found a binder of `{index}` over `{name}` only on the {where} side, {needed}")


def _conditions(lemma: Lemma, *sides: _Side) -> None:
    """Conditions speak of what the sides name (L3: in forms that hold on each slice)."""
    variables = {v for side in sides for v in side.variables}
    indices = {i for side in sides for i in side.indices}
    for condition in lemma.conditions:
        text = show_condition(condition)
        terms: tuple[Term, ...] = ()
        match condition:
            case NotIn(_, variable):
                terms = (Variable(variable),)
            case Fact(_, term, over):
                terms = (term,)
                if len(set(over)) != len(over):
                    _fail(lemma, f"found the condition `{text}`, indices must be distinct")
            case relation:
                terms = (relation.left, relation.right)
        side = _read(lemma, *terms)
        if side.infinite or not side.opaque.keys() <= sides[0].opaque.keys():
            _fail(
                lemma,
                f"found the condition `{text}`, `inf` and new opaque binders say nothing in a condition",
            )
        for name in side.variables:
            if name not in variables:
                _fail(lemma, f"found `{name}` only in the condition `{text}`, it must be used in a side")
        for index in (*side.indices, *_condition_indices(condition)):
            if index not in indices:
                _fail(
                    lemma,
                    f"found the index `{index}` only in the condition `{text}`, it must be used in a side",
                )


def _define(define: Define) -> Define:
    """L9: a macro over its dims that reads nothing else."""
    _dims(define, define.parameters, [(r.name, r.dims) for r in define.results])
    told = any(p.dims is None for p in define.parameters)
    listed = {d for p in define.parameters for d in p.dims or ()}
    for result in define.results:
        if result.dims is None:
            _fail(define, f"found the result `{result.name}` without dims, write `{result.name}[dims]`")
        for dim in result.dims:
            if dim not in listed and not told:
                _fail(define, f"found the dim `{dim}` of a result, which no parameter has")
    explicit = [*(d for p in define.parameters for d in p.dims or ())]
    explicit += [d for r in define.results for d in r.dims or ()]
    indices = tuple(dict.fromkeys(d for d in explicit if d != "..."))
    _outputs(define)
    numbers = {a.name for a in define.attributes if a.value is None}
    known = {p.name for p in define.parameters} | numbers
    clash = sorted((known | {r.name for r in define.results}) & set(indices))
    if clash:
        _fail(define, f"found `{clash[0]}` as a dim and as a parameter or result, use two names")
    used: set[str] = set()
    inference = Inference(define.span)
    for name in numbers:
        inference.known(name, "real")
    for result in define.results:
        side = _read(define, result.term)
        _body(define, side, known, set(indices))
        used |= side.variables.keys()
        inference.assign(result.name, result.term)
        known = known | {result.name}
    inference.kinds()
    for name in (*(p.name for p in define.parameters if not p.mutated), *sorted(numbers)):
        if name not in used:
            _fail(define, f"found `{name}` nowhere in the body, a meaning that ignores it is none")
    return replace(define, indices=indices)


def _outputs(define: Define) -> None:
    """Each output is assigned once."""
    assigned = [r.name for r in define.results]
    mutated = [p.name for p in define.parameters if p.mutated]
    if sorted(assigned) != sorted(define.outputs) or len(set(assigned)) != len(assigned) or not assigned:
        _fail(define, "found outputs that are not what the body assigns, once each")
    if mutated != list(define.outputs[len(define.outputs) - len(mutated) :]):
        _fail(define, "found outputs that do not end with the mutated parameters")
    for name in (p.name for p in define.parameters if not p.mutated):
        if name in assigned:
            _fail(define, f"found an assignment to the parameter `{name}`, mark it with `!`")
    for attribute in define.attributes:
        if attribute.name in assigned:
            _fail(define, f"found an assignment to the attribute `{attribute.name}`, use another name")


def _body(define: Define, side: _Side, known: set[str], indices: set[str]) -> None:
    for call in side.opaque:
        why = (
            "a define is not recursive" if call.name == define.name else "a define is made of known operators"
        )
        _fail(define, f"found `{show_term(call)}` in the body, {why}")
    guards = {a.name for a in define.attributes if a.value is not None}
    for name in side.variables:
        if name in guards:
            _fail(define, f"found the attribute `{name}` in the body, it has one value: write that")
        if name not in known:
            _fail(define, f"found `{name}` in the body, which is no parameter, attribute or earlier result")
    for index in side.indices:
        if index not in indices:
            _fail(define, f"found the index `{index}` in the body, which is no dim of a parameter or result")


def _dims(
    statement: Define | OpaqueDefine,
    parameters: tuple[Parameter, ...],
    results: list[tuple[str, tuple[str, ...] | None]],
) -> None:
    """Names are distinct, and so are the dims of each tensor."""
    names = [p.name for p in parameters] + [a.name for a in statement.attributes]
    for name in names:
        if names.count(name) > 1:
            _fail(statement, f"found the name `{name}` twice, parameters and attributes have distinct names")
    for name, dims in (*((p.name, p.dims) for p in parameters), *results):
        for dim in dims or ():
            if (dims or ()).count(dim) > 1:
                _fail(
                    statement, f"found the dim `{dim}` twice in `{name}`, dims of one tensor must be distinct"
                )


def _opaque(opaque: OpaqueDefine) -> None:
    """L10 and K3: an opaque operator is cut only along dims that it is said to work on slice by slice."""
    _dims(opaque, opaque.parameters, list(opaque.results))
    names = [name for name, _ in opaque.results]
    if not names or len(set(names)) != len(names):
        _fail(opaque, "found no result or one result twice, distinct results are needed")
    if len(set(opaque.batched)) != len(opaque.batched):
        _fail(opaque, "found a dim twice after `batched over`")
    for dim in opaque.batched:
        if not any(dim in (p.dims or ()) for p in opaque.parameters):
            _fail(opaque, f"found `batched over {dim}`, which is no dim of a parameter")
        for name, dims in opaque.results:
            if dim not in (dims or ()):
                _fail(opaque, f"found `batched over {dim}`, which is no dim of the result `{name}`")

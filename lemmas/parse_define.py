"""`define` and `opaque` statements of a parsed lemma file."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import PurePath

from shardproof.lemmas.functions import RESERVED
from shardproof.lemmas.parse_terms import (
    DEEPEST,
    LARGEST_BODY,
    Node,
    Scope,
    fits,
    leaf,
    ratio,
    reject,
    span_of,
    text_of,
    tokens,
    trees,
)
from shardproof.lemmas.terms import Attribute, Define, OpaqueDefine, Parameter, Result, Term

Dims = tuple[str, ...] | None


def read_define(node: Node, file: str) -> Define:
    """A `define`: results that have no name of their own are one result named ""."""
    parts = {str(tree.data): tree for tree in trees(node)}
    parameters, attributes = _signature(parts["signature"], file)
    declared: list[tuple[str, Dims]] = []
    if "shorthand" in parts:
        shorthand = tuple(str(t) for tree in trees(parts["shorthand"]) for t in tokens(tree))
        declared = [("", ("...", *shorthand))]
    elif "results" in parts:
        declared = _results(parts["results"], file)
    explicit = [*(d for p in parameters for d in p.dims or ()), *(d for _, ds in declared for d in ds or ())]
    indices = tuple(dict.fromkeys(d for d in explicit if d != "..."))
    names = {p.name for p in parameters} | {a.name for a in attributes}
    for name, _ in declared:
        if name in names:
            needed = "a result has a name of its own, a changed parameter is marked with `!`"
            reject(f"found the result `{name}`, also a parameter or attribute", needed, node, file)
    if "assignments" in parts:
        names |= set(map(str, tokens(parts["assignments"])))
    scope = Scope(file, frozenset(indices) | _bound(node), frozenset(names))
    if "single" in parts:
        results = _single(parts["single"], scope, declared, parameters)
    else:
        results = _assigned(parts["assignments"], scope, declared, parameters, {a.name for a in attributes})
    return Define(
        name=_operator(parts["operator"], file),
        doc=text_of(parts["doc"], file),
        parameters=parameters,
        attributes=attributes,
        indices=indices,
        results=results,
        outputs=tuple([name for name, _ in declared] or [""] * ("single" in parts))
        + tuple(p.name for p in parameters if p.mutated),
        theme=PurePath(file).stem,
        span=span_of(node, file),
    )


def read_opaque(node: Node, file: str) -> OpaqueDefine:
    """An `opaque` operator; mutated parameters are results after the declared ones."""
    parts = {str(tree.data): tree for tree in trees(node)}
    parameters, attributes = _signature(parts["signature"], file)
    results = _results(parts["results"], file) if "results" in parts else []
    results += [(p.name, p.dims) for p in parameters if p.mutated]
    if not results:
        reject("found an opaque operator without a result", "write `-> name[dims]`", node, file)
    batched = tuple(map(str, trees(parts["batched"])[0].children)) if "batched" in parts else ()
    return OpaqueDefine(
        name=_operator(parts["operator"], file),
        doc=text_of(parts["doc"], file),
        parameters=parameters,
        attributes=attributes,
        results=tuple(results),
        batched=batched,
        theme=PurePath(file).stem,
        span=span_of(node, file),
    )


def _operator(node: Node, file: str) -> str:
    token = tokens(node)[0]
    return text_of(token, file) if token.type == "STRING" else str(token)


def _bound(node: Node) -> frozenset[str]:
    """The names that binders and extents inside the body use."""
    found: set[str] = set()
    stack = [tree for tree in trees(node) if tree.data in ("single", "assignments")]
    while stack:
        tree = stack.pop()
        stack += trees(tree)
        if tree.data in ("names", "inputs", "outputs"):
            found |= set(map(str, tokens(tree)))
        elif tree.data == "extent":
            found.add(leaf(tree).strip("| \t"))
    return frozenset(found)


def _signature(node: Node, file: str) -> tuple[tuple[Parameter, ...], tuple[Attribute, ...]]:
    parameters: list[Parameter] = []
    attributes: list[Attribute] = []
    seen: set[str] = set()
    for group in trees(node):
        for entry in trees(group):
            token = tokens(entry)[0]
            name = str(token)
            if name in seen:
                reject(
                    f"found a second `{name}`", "parameters and attributes have distinct names", token, file
                )
            seen.add(name)
            if group.data == "attributes":
                value = _value(trees(entry)[0], file) if trees(entry) else None
                attributes.append(Attribute(name, value))
            else:
                mutated = any(t.type == "MUTATED" for t in tokens(entry))
                parameters.append(Parameter(name, _dims(trees(entry), file), mutated))
    return tuple(parameters), tuple(attributes)


def _dims(brackets: list[Node], file: str) -> Dims:
    if not brackets:
        return None
    dims: list[str] = []
    for token in (t for tree in trees(brackets[0]) for t in tokens(tree)):
        if token in RESERVED:
            reject(f"found `{token}` as a dim", "it is a word of the language, choose another", token, file)
        dims.append(str(token))
    return tuple(dims)


def _value(node: Node, file: str) -> Fraction | str | bool:
    last = tokens(node)[-1]
    match last.type:
        case "TRUE" | "FALSE":
            return last.type == "TRUE"
        case "STRING":
            return text_of(last, file)
        case _:
            return ratio(node, file)


def _results(node: Node, file: str) -> list[tuple[str, Dims]]:
    found: list[tuple[str, Dims]] = []
    for entry in trees(node):
        token = tokens(entry)[0]
        name = str(token)
        if name in (other for other, _ in found):
            reject(f"found a second result `{name}`", "results have distinct names", token, file)
        found.append((name, _dims(trees(entry), file)))
    return found


def _single(
    node: Node, scope: Scope, declared: list[tuple[str, Dims]], parameters: tuple[Parameter, ...]
) -> tuple[Result, ...]:
    """The result of a body that is one term."""
    if len(declared) > 1 or any(p.mutated for p in parameters):
        reject(
            "found one term as the body", "an assignment `name = term` per result is needed", node, scope.file
        )
    name, dims = declared[0] if declared else ("", ("...",))
    return (Result(name, dims, scope.term(trees(node)[0])),)


def _assigned(
    node: Node,
    scope: Scope,
    declared: list[tuple[str, Dims]],
    parameters: tuple[Parameter, ...],
    attributes: set[str],
) -> tuple[Result, ...]:
    """The results of a body of assignments, in their order; assignments of other names are written out."""
    wanted = dict(declared)
    dims = {p.name: p.dims for p in parameters}
    mutated = {p.name for p in parameters if p.mutated}
    taken = (dims.keys() - mutated) | scope.indices | attributes
    if "" in wanted:
        reject(
            "found assignments after `[indices]`",
            "one term or results `-> name[dims]` are needed",
            node,
            scope.file,
        )
    results: list[Result] = []
    named: dict[str, Term] = {}
    assigned: set[str] = set()
    for token, body in zip(tokens(node), trees(node), strict=True):
        name = str(token)
        if name in assigned or name in taken:
            needed = "a new name, a result or a parameter marked with `!` is needed, once"
            reject(f"found an assignment to `{name}`", needed, token, scope.file)
        assigned.add(name)
        term = replace(scope, written_out=named).term(body)
        if not fits(term):
            needed = f"at most {LARGEST_BODY} operators, {DEEPEST} levels deep, are read"
            reject(f"found a term too large for `{name}`", needed, token, scope.file)
        if name in wanted or name in mutated:
            results.append(Result(name, wanted[name] if name in wanted else dims[name], term))
        else:
            named[name] = term
    if not (wanted or mutated):
        reject(
            "found assignments without results",
            "write `-> name[dims]` before the doc string",
            node,
            scope.file,
        )
    for name in (*wanted, *sorted(mutated)):
        if name not in assigned:
            reject(f"found no assignment to `{name}`", "each result needs one", node, scope.file)
    return tuple(results)

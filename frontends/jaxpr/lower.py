"""`ClosedJaxpr` to the project's IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardproof.frontends.jaxpr.sharded import ShardMap, cut, mesh_in, words
from shardproof.frontends.jaxpr.state import Lowering, type_of
from shardproof.frontends.jaxpr.walk import constants, evaluate, opened
from shardproof.frontends.locate import WRAPPER_FILES
from shardproof.ir.module import Input, Module, Output, Value
from shardproof.ir.types import Mesh


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program, and the layouts of inputs and outputs that it states, by name, as relation files say them.

    Without layouts every rank takes whole inputs and gives whole outputs.
    """

    module: Module
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


def lower(
    closed: Any,
    *,
    name: str = "program",
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    wrapper_files: Sequence[str] = WRAPPER_FILES,
) -> Lowered:
    """The IR of a `ClosedJaxpr`, whose inputs and outputs get the names given.

    A program that is one `shard_map` becomes that of each rank, its specs the layouts; in any other the
    ranks hold all that is outside of `shard_map`s whole. Raises ModuleError: which equation, where, why.
    """
    state = Lowering(mesh_in(closed) or Mesh(), wrapper_files)
    jaxpr, consts = opened(closed)
    taken = list(inputs) if inputs is not None else [f"in{k}" for k in range(len(jaxpr.invars))]
    given = list(outputs) if outputs is not None else [f"out{k}" for k in range(len(jaxpr.outvars))]
    state.claim(taken)
    call = _only_call(jaxpr)
    if call is None:
        values = [Value(n, type_of(v.aval)) for n, v in zip(taken, jaxpr.invars, strict=True)]
        parameters = [Input(v, k) for k, v in enumerate(values)]
        return Lowered(_module(state, name, parameters, evaluate(state, closed, values), given))
    mapped = ShardMap.of(call)
    state.manual = mapped.manual
    body, _ = opened(mapped.body)
    places = {v: k for k, v in enumerate(call.invars) if not hasattr(v, "val")}
    types = [body.invars[places[v]].aval if v in places else v.aval for v in jaxpr.invars]
    values = [Value(n, type_of(aval)) for n, aval in zip(taken, types, strict=True)]
    bound = dict(zip(jaxpr.invars, values, strict=True))
    bound.update(zip(jaxpr.constvars, constants(state, consts), strict=True))
    results = evaluate(state, mapped.body, [bound[v] for v in call.invars])
    specs = [mapped.inputs[places[v]] if v in places else None for v in jaxpr.invars]
    parameters = [
        Input(x, k, None if spec is None else cut(spec, len(x.type.shape), state.mesh))
        for k, (x, spec) in enumerate(zip(values, specs, strict=True))
    ]
    return Lowered(
        _module(state, name, parameters, results, given),
        {n: words(spec) for n, spec in zip(taken, specs, strict=True) if spec is not None},
        {n: words(spec) for n, spec in zip(given, mapped.outputs, strict=True)},
    )


def _only_call(jaxpr: Any) -> Any | None:
    """The `shard_map` over all axes that is the program, its arguments inputs or constants, each once."""
    if len(jaxpr.eqns) != 1 or jaxpr.eqns[0].primitive.name != "shard_map":
        return None
    (eqn,) = jaxpr.eqns
    known = {*jaxpr.invars, *jaxpr.constvars}
    plain = all(not hasattr(v, "val") and v in known for v in eqn.invars)
    if not plain or len(set(eqn.invars)) < len(eqn.invars) or list(eqn.outvars) != list(jaxpr.outvars):
        return None
    mapped = ShardMap.of(eqn)
    whole = all(not mapped.inputs[k] for k, v in enumerate(eqn.invars) if v in jaxpr.constvars)
    return eqn if whole and mapped.manual == {name for name, _ in mapped.mesh.axes} else None


def _module(
    state: Lowering, name: str, inputs: Sequence[Input], results: Sequence[Value], names: Sequence[str]
) -> Module:
    return Module(
        name,
        state.mesh,
        tuple(inputs),
        tuple(state.ops),
        tuple(Output(n, v) for n, v in zip(names, results, strict=True)),
        warnings=tuple(dict.fromkeys(state.warnings)),
    )

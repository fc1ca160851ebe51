"""Random draws: as inputs of their program, and which draw of two programs is which (soundness E1).

A draw becomes an input of standard values, so that proof, replay and certificate treat an alignment of the
draws of two programs like any layout. It is listed as an assumption; a draw without a counterpart is an
input that is free, on every rank another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from shardproof.ir.module import Input, Module, Op, Value
from shardproof.ir.types import TensorType
from shardproof.solver.names import DRAW, distribution, drawn, is_draw
from shardproof.solver.verdict import Assumption


def with_draws(module: Module) -> Module:
    """The program with each draw of reals as a further input of standard values."""
    ops: list[Op] = []
    inputs = list(module.inputs)
    number = 1 + max((i.number for i in inputs), default=-1)
    literals: dict[str, np.ndarray] = {}
    for op in module.ops:
        if op.opcode == "constant":
            literals[op.result.name] = op.attrs["value"]
        if op.opcode != "rng" or op.result.type.dtype.kind != "real":
            ops.append(op)
            continue
        kind, result = op.attrs["distribution"], op.result
        own = Value(f"{DRAW}{kind} {result.name}", result.type, result.location)
        inputs.append(Input(own, number))
        number += 1
        ops += _scaled(op, own, [literals.get(x.name) for x in op.operands])
    if len(inputs) == len(module.inputs):
        return module
    return replace(module, inputs=tuple(inputs), ops=tuple(ops))


def _scaled(op: Op, own: Value, bounds: Sequence[np.ndarray | None]) -> list[Op]:
    """The drawn values from standard ones: `low + (high - low) * u`, or `mean + deviation * z`."""
    low, high = bounds
    if low is not None and high is not None and low == 0 and high == 1:
        return [Op("reshape", (own,), op.results, {})]
    made: list[Op] = []
    result = op.result

    def new(opcode: str, operands: tuple[Value, ...], type: TensorType, **attrs: object) -> Value:
        value = Value(f"{own.name}.{len(made)}", type, result.location)
        made.append(Op(opcode, operands, (value,), attrs))
        return value

    a, b = op.operands
    width = new("subtract", (b, a), a.type) if op.attrs["distribution"] == "uniform" else b
    wide = new("broadcast_in_dim", (width,), result.type, dims=())
    start = new("broadcast_in_dim", (a,), result.type, dims=())
    scaled = new("multiply", (own, wide), result.type)
    return [*made, Op("add", (scaled, start), op.results, {})]


def pairs(reference: Sequence[Input], implementation: Sequence[Input]) -> list[tuple[Input, Input]]:
    """(draw of the reference, draw of the implementation) in corresponding places.

    As many draws correspond in order; else those for values of one name do, if that keeps the order. A pair
    draws from one distribution in one element type.
    """
    if len(reference) == len(implementation):
        found = list(zip(reference, implementation, strict=True))
    else:
        place = {i.name: n for n, i in enumerate(reference)}
        named = [i for i in implementation if i.name in place]
        found = [(reference[place[i.name]], i) for i in named]
        places = [place[i.name] for i in named]
        if places != sorted(places):
            return []
    return [
        (a, b)
        for a, b in found
        if distribution(a.name) == distribution(b.name) and a.value.type.dtype is b.value.type.dtype
    ]


def alignment(sources: Mapping[str, str]) -> tuple[Assumption, ...]:
    """The assumption of each draw of the implementation that is made of one of the reference."""
    return tuple(
        Assumption(
            "rng_aligned",
            f"`{drawn(name)}` draws, as it is laid out over the ranks, "
            f"what `{drawn(source)}` of the reference draws",
            drawn(name),
        )
        for name, source in sources.items()
        if is_draw(name)
    )

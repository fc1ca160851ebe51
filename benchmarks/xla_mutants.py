"""Partitioned programs with one instruction changed, and whether the change matters.

Besides the changes of `shardproof.tools.mutation` those that fit what a partitioner writes: other neighbours
of a permute, another order of ranks or pieces, another dim, edges of masks and pads moved by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import permutations, zip_longest
from typing import Any, Final

import numpy as np

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, ModuleError, Op
from shardproof.ir.verify import verify as verify_module
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import compose
from shardproof.solver.relations.relation_file import resolve
from shardproof.solver.xla import Partitioned
from shardproof.tools.mutation import EQUIVALENT_KINDS, Mutant, mutants

Change = Callable[[Op], Op | None]
TRIALS: Final = 16
TOLERANCE: Final = 1e-6
QUIET: Final = 1e-3
"""Factor of the reals of one trial, so that the epsilon of a norm counts."""


def _attrs(op: Op, **attrs: Any) -> Op:
    return replace(op, attrs={**op.attrs, **attrs})


def _other_neighbours(op: Op) -> Op | None:
    """Every rank receives from the rank after the one that it should receive from."""
    pairs = op.attrs["pairs"]
    sources = [s for s, _ in pairs]
    if len(pairs) < 2:
        return None
    turned = tuple((s, t) for s, (_, t) in zip([*sources[1:], sources[0]], pairs, strict=True))
    return _attrs(op, pairs=turned)


def _lost_pair(op: Op) -> Op | None:
    return _attrs(op, pairs=op.attrs["pairs"][:-1])


def _other_order(op: Op) -> Op | None:
    groups = op.attrs["groups"]
    return _attrs(op, groups=tuple((*g[1:], g[0]) for g in groups)) if len(groups[0]) > 1 else None


def _other_dims(op: Op) -> Op | None:
    """Split and joined along each other's dim, where the shape stays."""
    split, joined = op.attrs["split_dim"], op.attrs["concat_dim"]
    same = op.operands[0].type.shape == op.result.type.shape
    return _attrs(op, split_dim=joined, concat_dim=split) if split != joined and same else None


def _other_direction(op: Op) -> Op | None:
    other = {"GE": "GT", "GT": "GE", "LE": "LT", "LT": "LE", "EQ": "NE", "NE": "EQ"}
    return _attrs(op, direction=other[op.attrs["direction"]])


def _other_pieces(op: Op) -> Op | None:
    """The first two operands in the other order, where both have one shape."""
    if len(op.operands) < 2:
        return None
    first, second, *rest = op.operands
    if first is second or first.type != second.type:
        return None
    return replace(op, operands=(second, first, *rest))


def _other_cases(op: Op) -> Op | None:
    p, a, b = op.operands
    return None if a is b else replace(op, operands=(p, b, a))


def _moved_window(op: Op) -> Op | None:
    return _moved(op, "pad_low", "pad_high")


def _moved_pad(op: Op) -> Op | None:
    return _moved(op, "low", "high")


def _moved(op: Op, first: str, second: str) -> Op | None:
    """What is put in front of the first dim that has any made shorter, behind it longer, or the reverse."""
    low, high = op.attrs[first], op.attrs[second]
    for d, (x, y) in enumerate(zip(low, high, strict=True)):
        if x or y:
            step = 1 if x > 0 else -1
            changed = {
                first: (*low[:d], x - step, *low[d + 1 :]),
                second: (*high[:d], y + step, *high[d + 1 :]),
            }
            return _attrs(op, **changed)
    return None


def _other_table(op: Op) -> Op | None:
    """A small table of integers with its first two elements exchanged, as of offsets by rank."""
    value = np.asarray(op.attrs["value"])
    if value.ndim != 1 or value.dtype.kind not in "iu" or len(value) < 2 or value[0] == value[1]:
        return None
    other = value.copy()
    other[:2] = value[1], value[0]
    return _attrs(op, value=other)


def _other_kind(op: Op) -> Op | None:
    other = {"sum": "max", "max": "min", "min": "max"}.get(op.attrs["kind"])
    return None if other is None else _attrs(op, kind=other)


def _other_turn(op: Op) -> Op | None:
    """Another order of the dims that gives the same shape."""
    shape, wanted = op.operands[0].type.shape, op.result.type.shape
    for order in permutations(range(len(shape))):
        if order != op.attrs["permutation"] and tuple(shape[d] for d in order) == wanted:
            return _attrs(op, permutation=order)
    return None


def _other_function(op: Op) -> Op | None:
    other = {
        "add": "subtract",
        "exponential": "tanh",
        "maximum": "minimum",
        "multiply": "add",
        "subtract": "add",
    }
    return replace(op, opcode=other[op.opcode])


CHANGES: Final[Mapping[str, tuple[Change, ...]]] = {
    "add": (_other_function,),
    "all_gather": (_other_order,),
    "all_reduce": (_other_kind,),
    "all_to_all": (_other_order, _other_dims),
    "collective_permute": (_other_neighbours, _lost_pair),
    "compare": (_other_direction,),
    "concatenate": (_other_pieces,),
    "constant": (_other_table,),
    "convolution": (_moved_window,),
    "exponential": (_other_function,),
    "maximum": (_other_function,),
    "multiply": (_other_function,),
    "pad": (_moved_pad,),
    "reduce": (_other_kind,),
    "reduce_window": (_moved_window, _other_kind),
    "select": (_other_cases,),
    "subtract": (_other_function,),
    "transpose": (_other_turn,),
}


def changed(module: Module) -> Iterator[Mutant]:
    """Every change of `CHANGES` that gives a well-formed module."""
    for at, op in enumerate(module.ops):
        for change in CHANGES.get(op.opcode, ()):
            new = change(op)
            if new is None:
                continue
            ops = (*module.ops[:at], new, *module.ops[at + 1 :])
            mutant = replace(module, ops=ops)
            try:
                verify_module(mutant)
            except ModuleError:
                continue
            kind = change.__name__.strip("_<>")
            yield Mutant(f"{kind}:{op.result.name}", kind, mutant, op.result.name)


def chosen(module: Module, count: int) -> list[Mutant]:
    """At most `count` mutants, spread over the kinds of changes and over the program."""
    kinds: dict[str, list[Mutant]] = {}
    for m in (*changed(module), *mutants(module)):
        if m.kind not in EQUIVALENT_KINDS:
            kinds.setdefault(m.kind, []).append(m)
    turns = zip_longest(*(own[len(own) // 2 :] + own[: len(own) // 2] for own in kinds.values()))
    return [m for turn in turns for m in turn if m is not None][:count]


class Judge:
    """Runs a partitioned program and its mutants on the same random inputs, on all ranks."""

    def __init__(self, programs: Partitioned) -> None:
        declared, reference = programs.declared, programs.reference
        own = programs.implementation
        relation = infer(reference, own, resolve(declared, reference, own)).relation
        self.layout = compose(reference, own, relation).layouts.implementation
        self.ranges = declared.ranges
        whole = all(i.value.type.dtype.kind == "real" for i in self.layout.inputs)
        self.inputs = [self._inputs(seed) for seed in range(2 if whole else TRIALS)]
        self.expected = [run(own, given) for given in self.inputs]

    def _inputs(self, seed: int) -> dict[str, list[Any]]:
        rng = np.random.default_rng(seed)
        bases: dict[str, Any] = {}
        for i in self.layout.inputs:
            type_, name = i.value.type, i.name.removeprefix("base ")
            low, high = self.ranges.get(name, (0, 4))
            if type_.dtype.kind == "real":
                bases[i.name] = np.asarray(rng.normal(size=type_.shape)) * (QUIET if seed == 1 else 1.0)
                continue
            drawn = np.asarray(rng.integers(low, high, size=type_.shape))
            drawn.flat[0] = low + seed % (high - low)
            bases[i.name] = drawn
        return run(self.layout, bases)

    def differs(self, mutant: Module) -> bool:
        """Whether some output differs on some rank, by more than rounding."""
        for given, wanted in zip(self.inputs, self.expected, strict=True):
            found = run(mutant, given)
            for name, arrays in wanted.items():
                for a, b in zip(arrays, found[name], strict=True):
                    scale = np.max(np.abs(a[np.isfinite(a)]), initial=1e-3) if a.dtype.kind == "f" else 1
                    if not np.allclose(a, b, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
                        return True
        return False

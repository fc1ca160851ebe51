"""Random programs with loops, their mutants, and the values that loops carry, computed round by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, product
from random import Random
from typing import Any

import numpy as np
from random_graphs import MESHES, Graph
from random_operators import MAKERS, _collective, _local

from shardproof.ir.interpret import InterpretError, run
from shardproof.ir.module import Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.passes.classes import Store
from shardproof.passes.evaluate import Evaluation
from shardproof.passes.unroll import unrolled

CARRIED = ((), (2,), (3,), (4,), (2, 2), (6,))
FOLDS = ("add", "add", "multiply", "maximum", "minimum", "and", "or")


class Round(Graph):
    """The body of a loop in the making; what wants an input gets a constant."""

    def input(self, dtype: DType, shape: tuple[int, ...]) -> Value:
        found = self.constant(np.ones(shape), dtype)
        assert found is not None
        return found


def scan(
    body: Module, operands: tuple[Value, ...], consts: int, carries: int, length: int, reverse: bool = False
) -> Op:
    """A loop whose results are called `loop0`, `loop1`, ..."""
    attrs = {"body": body, "consts": consts, "carries": carries, "length": length, "reverse": reverse}
    types = TABLE["scan"].type([v.type for v in operands], attrs, ())
    return Op("scan", operands, tuple(Value(f"loop{k}", t) for k, t in enumerate(types)), attrs)


def random_body(
    draw: Random,
    mesh: Mesh,
    given: list[tuple[Value, list[Any]]],
    consts: int,
    carries: int,
    depth: int,
    prefix: str,
) -> tuple[Module, list[Value]]:
    """A round: (module, results that are stacked). `given` are its inputs with sample values per rank."""
    g = Round(draw, mesh)
    for k, (v, arrays) in enumerate(given):
        g.inputs.append(Input(v, k))
        g.values[v.name] = arrays
        g.pool.append(v)
    makers = [*MAKERS] + ([_collective] * 10 if mesh.size > 1 else [])
    favoured = [draw.choice(makers) for _ in range(3)]
    for _ in range(draw.randint(1, 6)):
        draw.choice(favoured if draw.random() < 0.5 else makers)(g)
    if depth and draw.random() < 0.3:
        add_loop(g, depth - 1, prefix)
    outputs = [_carried_on(g, v) for v, _ in given[consts : consts + carries]]
    stacked = [v for v in (g.pick() for _ in range(draw.randint(0, 2))) if v and v.type.size <= 12]
    if draw.random() < 0.25:
        stacked.append(given[consts][0])
    results = tuple(Output(f"r{k}", v) for k, v in enumerate([*outputs, *stacked]))
    renamed = _renamed(Module("round", mesh, tuple(g.inputs), tuple(g.ops), results), prefix)
    return renamed, stacked


def _carried_on(g: Graph, v: Value) -> Value:
    """What a carried value becomes: a fold, a count, itself, another of its type, or something computed."""
    draw, dtype = g.draw, v.type.dtype
    style = draw.randrange(10)
    if style <= 3:
        w = _other(g, v)
        opcode = draw.choice(FOLDS if dtype.kind != "real" else FOLDS[:5])
        found = g.add(opcode, (v, w) if draw.random() < 0.5 else (w, v)) if w is not None else None
        if found is not None and draw.random() < 0.2 and (w := _other(g, v)) is not None:
            found = g.add(opcode, (found, w)) or found
        return found or v
    if style == 4 and dtype.kind in ("int", "uint"):
        c = g.scalar(v, draw.choice([1, 1, 2, -1 if dtype.kind == "int" else 3]))
        b = g.add("broadcast_in_dim", (c,), v.type, dims=()) if c and v.type.shape else c
        return (g.add("add", (v, b) if draw.random() < 0.7 else (b, v)) if b else None) or v
    if style == 5:
        return draw.choice([v, g.like(v) or v])
    fit = [w for w in g.pool if w.type == v.type and not any(w is i.value for i in g.inputs)]
    if fit:
        return draw.choice(fit)
    unary = {"real": ["tanh", "negate", "abs"], "bool": ["not"], "int": ["negate", "not"], "uint": ["not"]}
    changed = g.add(draw.choice(unary[dtype.kind]), (v,))
    w = _other(g, v)
    if changed is None or w is None or draw.random() < 0.3:
        return changed or v
    return g.add(draw.choice(FOLDS[:5]), (changed, w)) or changed


def _other(g: Graph, v: Value) -> Value | None:
    """Another value of the type of `v`, made of a scalar if there is none."""
    found = [w for w in g.pool if w.type == v.type and w is not v]
    if found and g.draw.random() < 0.9:
        return g.draw.choice(found)
    w = g.pick(v.type.dtype.kind, rank=0)
    if w is None or w.type.dtype is not v.type.dtype or not v.type.shape:
        return None
    return g.add("broadcast_in_dim", (w,), v.type, dims=())


def _renamed(m: Module, prefix: str) -> Module:
    """The module with other value names, as nested modules of one program have them."""
    new: dict[str, Value] = {}

    def of(v: Value) -> Value:
        return new.setdefault(v.name, Value(prefix + v.name, v.type))

    inputs = tuple(Input(of(i.value), i.number) for i in m.inputs)
    ops = tuple(
        Op(op.opcode, tuple(map(of, op.operands)), tuple(map(of, op.results)), op.attrs) for op in m.ops
    )
    return replace(m, inputs=inputs, ops=ops, outputs=tuple(Output(o.name, of(o.value)) for o in m.outputs))


def add_loop(g: Graph, depth: int, prefix: str = "b") -> Op | None:
    """A random loop over values of `g`; None where it does not run or stay small."""
    draw = g.draw
    small = [v for v in g.pool if v.type.size <= 12 and v.type.dtype is not DType.S8]
    rows = [v for v in small if v.type.shape and v.type.shape[0] > 0]
    length = draw.choice([1, 2, 3, 3, 4])
    stacked = [v for v in rows if v.type.shape[0] == length]
    stacked = draw.sample(stacked, min(len(stacked), draw.randint(0, 2)))
    carried = [draw.choice(small) for _ in range(draw.randint(1, 3))]
    fixed = [draw.choice(small) for _ in range(draw.randint(0, 2))]
    given: list[tuple[Value, list[Any]]] = []
    for k, v in enumerate([*fixed, *carried]):
        given.append((Value(f"i{k}", v.type), g.values[v.name]))
    for v in stacked:
        row = Value(f"i{len(given)}", TensorType(v.type.dtype, v.type.shape[1:]))
        given.append((row, [a[0] for a in g.values[v.name]]))
    body, _ = random_body(draw, g.mesh, given, len(fixed), len(carried), depth, prefix + "b")
    operands = (*fixed, *carried, *stacked)
    op = scan(body, operands, len(fixed), len(carried), length, draw.random() < 0.3)
    return accept(g, op)


def accept(g: Graph, op: Op) -> Op | None:
    """Append a loop that runs exactly; its results get their values."""
    results = tuple(Value(f"v{len(g.ops)}l{k}", v.type) for k, v in enumerate(op.results))
    op = replace(op, results=results)
    reads = {v.name: v for v in op.operands}
    one = Module("step", g.mesh, tuple(Input(v, k) for k, v in enumerate(reads.values())), (op,), ())
    one = replace(one, outputs=tuple(Output(v.name, v) for v in results))
    try:
        long = unrolled(one, 3000)
        found = run(long, {n: g.values[n] for n in reads}, values=True)
    except (InterpretError, ModuleError):
        return None
    if any(not g._exact(a) for arrays in found.values() for a in arrays) or _overflows(long, found):
        return None
    if any(v.type.size > 96 for v in results):
        return None
    outputs = {o.name: found[o.value.name] for o in long.outputs}
    g.values |= {v.name: outputs[v.name] for v in results}
    g.rounded |= {v.name for v in results}
    g.ops.append(op)
    g.pool += results
    return op


def _overflows(module: Module, values: Mapping[str, Any]) -> bool:
    """Whether a division by zero or a narrow integer may make rounds differ from exact arithmetic."""
    for op in module.ops:
        kinds = {v.type.dtype for v in (*op.operands, *op.results)}
        if DType.S8 in kinds or (op.opcode == "convert" and op.results[0].type.dtype.kind in ("int", "uint")):
            return True
    return False


def random_loops(draw: Random) -> Graph:
    """A program with one or two loops."""
    g = Graph(draw, draw.choice(MESHES[:4]))
    n = draw.choice([2, 3, 4])
    g.input(DType.F32, (n, *draw.choice(CARRIED[:4])))
    g.input(draw.choice([DType.F32, DType.S32]), (n, *draw.choice(CARRIED[:3])))
    g.input(draw.choice([DType.F32, DType.F32, DType.S32, DType.BOOL, DType.U8]), draw.choice(CARRIED))
    g.input(DType.F32, draw.choice(CARRIED))
    g.input(DType.S32, ())
    if g.mesh.size > 1:
        _local(g, g.input(DType.F32, (g.mesh.size, *draw.choice(CARRIED))))
    for _ in range(draw.randint(0, 3)):
        draw.choice(MAKERS)(g)
    for k in range(6):
        if add_loop(g, 1, f"{k}b") is not None and draw.random() < 0.6:
            break
    for _ in range(draw.randint(0, 2)):
        draw.choice(MAKERS)(g)
    return g


# mutants


def mutant(draw: Random, module: Module) -> Module | None:
    """The module with one thing of one loop changed; None where that is no program."""
    loops = [k for k, op in enumerate(module.ops) if op.opcode == "scan"]
    if not loops:
        return None
    at = draw.choice(loops)
    changed = _changed_loop(draw, module.ops[at], {v.name: v for v in _before(module, at)})
    if changed is None:
        return None
    return replace(module, ops=(*module.ops[:at], changed, *module.ops[at + 1 :]))


def _before(module: Module, at: int) -> Iterator[Value]:
    yield from (i.value for i in module.inputs)
    for op in module.ops[:at]:
        yield from op.results


def _changed_loop(draw: Random, op: Op, others: Mapping[str, Value]) -> Op | None:
    attrs = dict(op.attrs)
    carries = attrs["carries"]
    operands = list(op.operands)
    style = draw.randrange(7)
    if style == 0:
        attrs["reverse"] = not attrs["reverse"]
    elif style == 1:
        k = draw.randrange(len(operands))
        fit = [v for v in others.values() if v.type == operands[k].type and v is not operands[k]]
        if not fit:
            return None
        operands[k] = draw.choice(fit)
    elif style == 2 and carries > 1:
        outputs = list(attrs["body"].outputs)
        a, b = draw.sample(range(carries), 2)
        outputs[a], outputs[b] = outputs[b], outputs[a]
        attrs["body"] = replace(attrs["body"], outputs=tuple(outputs))
    else:
        body = _changed_body(draw, attrs["body"])
        if body is None:
            return None
        attrs["body"] = body
    try:
        types = TABLE["scan"].type([v.type for v in operands], attrs, ())
    except ModuleError:
        return None
    if list(types) != [v.type for v in op.results]:
        return None
    return Op("scan", tuple(operands), op.results, attrs)


SWAPPED = {
    "add": "subtract",
    "subtract": "add",
    "maximum": "minimum",
    "minimum": "maximum",
    "multiply": "add",
    "and": "or",
    "or": "and",
}


def _changed_body(draw: Random, body: Module) -> Module | None:
    choice = draw.randrange(4)
    if choice == 0:
        k = draw.randrange(len(body.outputs))
        before = [i.value for i in body.inputs] + [v for op in body.ops for v in op.results]
        own = body.outputs[k].value
        fit = [v for v in before if v.type == own.type and v is not own]
        if not fit:
            return None
        outputs = list(body.outputs)
        outputs[k] = replace(outputs[k], value=draw.choice(fit))
        return replace(body, outputs=tuple(outputs))
    if not body.ops:
        return None
    k = draw.randrange(len(body.ops))
    op = body.ops[k]
    attrs, operands, opcode = dict(op.attrs), list(op.operands), op.opcode
    if opcode == "scan" and choice < 3:
        seen = {v.name: v for v in _before(body, k)}
        changed = _changed_loop(draw, op, seen)
        if changed is None:
            return None
        return replace(body, ops=(*body.ops[:k], changed, *body.ops[k + 1 :]))
    if choice == 1 and opcode in SWAPPED:
        opcode = SWAPPED[opcode]
    elif choice == 2 and "kind" in attrs:
        attrs["kind"] = draw.choice([x for x in ("sum", "max", "min") if x != attrs["kind"]])
    elif choice == 2 and "value" in attrs and attrs["value"].dtype.kind in "if":
        attrs["value"] = attrs["value"] + attrs["value"].dtype.type(1)
    elif operands:
        n = draw.randrange(len(operands))
        fit = [v for v in _before(body, k) if v.type == operands[n].type and v is not operands[n]]
        if not fit:
            return None
        operands[n] = draw.choice(fit)
    try:
        types = TABLE[opcode].type([v.type for v in operands], attrs, [v.type for v in op.results])
    except (ModuleError, KeyError):
        return None
    if list(types) != [v.type for v in op.results]:
        return None
    new = Op(opcode, tuple(operands), op.results, attrs)
    return replace(body, ops=(*body.ops[:k], new, *body.ops[k + 1 :]))


def redrawn(draw: Random, g: Graph) -> dict[str, Any]:
    """Other values of the inputs, real ones with a fraction."""
    found = {}
    for i in g.inputs:
        old = g.values[i.name][0]
        low, high = (0, 2) if old.dtype.kind == "b" else (0, 4) if old.dtype.kind == "u" else (-3, 4)
        if old.dtype.kind == "f":
            array = np.array([draw.uniform(-2, 2) for _ in range(old.size)]).reshape(old.shape)
        else:
            array = np.array([draw.randrange(low, high) for _ in range(old.size)]).reshape(old.shape)
        found[i.name] = array.astype(old.dtype)
    return found


# values that loops carry


def evaluation(store: Store, inputs: Mapping[str, Any]) -> Evaluation:
    """Values of classes where those that loops carry are what the rounds make of the initial ones."""
    own: list[tuple[Any, int, int]] = []
    for loop in store.loops:
        for k, v in enumerate(loop.carried):
            if v is None or any(cls == v.term.cls for _, _, cls in own):
                continue
            made = store.classes[v.term.cls]
            if made.op == "draw" and made.attrs[0] == f"carried {k}":
                own.append((loop, k, v.term.cls))
    kinds = {"real": np.float64, "int": np.int64, "bool": np.bool_, "complex": np.complex128}
    tables = {
        cls: np.zeros([n or 0 for n in store.classes[cls].extents], kinds[store.classes[cls].kind])
        for _, _, cls in own
    }
    for _ in range(40):
        before = {cls: t.copy() for cls, t in tables.items()}
        e = Evaluation(store, inputs, before)
        for loop, k, cls in own:
            _fill(store, e, loop, k, tables[cls])
        if all(np.array_equal(tables[c], before[c], equal_nan=tables[c].dtype.kind in "fc") for c in tables):
            break
    return Evaluation(store, inputs, tables)


def _fill(store: Store, e: Evaluation, loop: Any, k: int, table: Any) -> None:
    """One more round of every row of the table of a carried value."""
    term = loop.carried[k].term
    indices = [x[1][0][0] for x in term.access]
    own = {i for d in loop.carried[k].dims for i in d}
    outer = [i for i in indices if i not in own and i != loop.step]
    order = list(range(loop.length))
    if loop.reverse:
        order.reverse()
    for at in product(*(range(store.sizes[i]) for i in outer)):
        known = dict(zip(outer, at, strict=True))

        def put(step: int, view: Any, where: dict[int, int], known: dict[int, int] = known) -> None:
            place = tuple({**known, loop.step: step}.get(i, slice(None)) for i in indices)
            value = e.view(view, where)
            mine = [i for d in loop.carried[k].dims for i in d]
            table[place] = value.reshape([store.sizes[i] for i in mine])

        missing = {i: 0 for i in loop.within if i not in known}
        put(order[0], loop.initial[k], {**missing, **known})
        for step, then in pairwise(order):
            put(then, loop.after[k], {**missing, **known, loop.step: step})

"""Random small programs, run while they are made so that every value stays exactly computable."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from shardproof.ir.interpret import InterpretError, run
from shardproof.ir.module import Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, Mesh, TensorType

MESHES = (
    Mesh(),
    Mesh((("tp", 2),)),
    Mesh((("tp", 3),)),
    Mesh((("dp", 2), ("tp", 2))),
    Mesh((("dp", 2), ("tp", 3))),
)
SHAPES = (
    (),
    (2,),
    (3,),
    (4,),
    (6,),
    (5,),
    (8,),
    (2, 3),
    (3, 2),
    (4, 3),
    (4, 4),
    (1, 4),
    (2, 2, 3),
    (6, 2),
    (2, 6),
    (12,),
)
LARGEST = 2**20
LARGEST_INTEGER = 2**10
ROUNDING = frozenset(("exponential", "tanh", "logistic", "divide", "sqrt", "rsqrt", "power"))
JUMPING = frozenset(("compare", "floor", "sign", "convert", "sort", "argreduce", "top_k", "clamp"))
UNCHANGING = frozenset(
    (
        "convert",
        "compare",
        "select",
        "reshape",
        "transpose",
        "slice",
        "reverse",
        "concatenate",
        "broadcast_in_dim",
    )
)


class Graph:
    """A program under construction, with the values that every rank has for one choice of inputs."""

    def __init__(self, draw: Random, mesh: Mesh, *, special: bool = False) -> None:
        self.draw = draw
        self.mesh = mesh
        self.special = special
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self.values: dict[str, list[Any]] = {}
        self.pool: list[Value] = []
        self.rounded: set[str] = set()

    def module(self) -> Module:
        outputs = tuple(Output(v.name, v) for v in self.pool)
        return Module("graph", self.mesh, tuple(self.inputs), tuple(self.ops), outputs)

    def input(self, dtype: DType, shape: tuple[int, ...]) -> Value:
        """An input that is the same on every rank."""
        value = Value(f"x{len(self.inputs)}", TensorType(dtype, shape))
        self.inputs.append(Input(value, len(self.inputs)))
        count = int(np.prod(shape))
        low = 0 if dtype.kind in ("uint", "bool") else -4
        high = 1 if dtype.kind == "bool" else 5
        array = np.array([self.draw.randint(low, high) for _ in range(count)]).reshape(shape)
        self.values[value.name] = [
            array.astype(np.float64 if dtype.kind == "real" else dtype.storage)
        ] * self.mesh.size
        self.pool.append(value)
        return value

    def add(
        self, opcode: str, operands: tuple[Value, ...], *declared: TensorType, **attrs: Any
    ) -> Value | None:
        """The operator's first result; None if it does not type, run or stay small, or if rounding shows."""
        rounded = any(v.name in self.rounded for v in operands)
        if rounded and opcode in JUMPING:
            return None
        if (
            opcode == "divide"
            and operands[1].type.dtype.kind == "real"
            and not self._finite(operands[1], zero=False)
        ):
            return None
        if opcode in ("sort", "argreduce", "top_k", "convolution") and not all(
            self._finite(v) for v in operands
        ):
            return None
        try:
            types = TABLE[opcode].type([v.type for v in operands], attrs, declared)
        except ModuleError:
            return None
        if any(t.size > 96 for t in types) or self._may_overflow(
            opcode, operands, types[0], attrs.get("kind")
        ):
            return None
        names = [f"v{len(self.ops)}{'abc'[n]}" for n in range(len(types))]
        results = tuple(Value(n, t) for n, t in zip(names, types, strict=True))
        op = Op(opcode, operands, results, attrs)
        reads = {v.name: v for v in operands}
        one = Module("step", self.mesh, tuple(Input(v, k) for k, v in enumerate(reads.values())), (op,), ())
        try:
            found = run(one, {n: self.values[n] for n in reads}, values=True)
        except InterpretError:
            return None
        for r in results:
            if any(not self._exact(a) for a in found[r.name]):
                return None
        self.values |= {r.name: found[r.name] for r in results}
        if rounded or opcode in ROUNDING:
            self.rounded |= {r.name for r in results}
        self.ops.append(op)
        self.pool += results
        return results[0]

    def _finite(self, v: Value, *, zero: bool = True) -> bool:
        return all(np.isfinite(a).all() and (zero or a.all()) for a in self.values[v.name])

    def _exact(self, a: Any) -> bool:
        if a.dtype.kind == "f":
            if not self.special and not np.isfinite(a).all():
                return False
            a = a[np.isfinite(a)]
        largest = LARGEST if a.dtype.kind == "f" else LARGEST_INTEGER
        return a.dtype.kind in "bc" or not a.size or bool(np.abs(a.astype(np.float64)).max() <= largest)

    def _may_overflow(self, opcode: str, operands: tuple[Value, ...], type_: TensorType, kind: Any) -> bool:
        """Overflow of signed integers is assumed away, so it must not happen here."""
        if opcode not in ("reduce", "all_reduce", "reduce_scatter"):
            narrow = any(v.type.dtype is DType.S8 for v in operands)
            return (
                narrow and opcode not in UNCHANGING and (opcode != "dot_general" or type_.dtype is DType.S8)
            )
        if operands[0].type.dtype is DType.S8:
            return True
        if kind != "prod" or operands[0].type.dtype.kind != "int":
            return False
        sizes = [np.maximum(np.abs(a.astype(np.float64)), 1) for v in operands for a in self.values[v.name]]
        return sum(float(np.log2(a).sum()) for a in sizes) > 30

    # choices

    def pick(self, *kinds: str, rank: int | None = None, least: int = 0) -> Value | None:
        """A random value, later ones more often."""
        fit = [
            v
            for v in self.pool
            if (not kinds or v.type.dtype.kind in kinds)
            and len(v.type.shape) >= least
            and (rank is None or len(v.type.shape) == rank)
        ]
        if not fit:
            return None
        return fit[-1 - min(self.draw.randrange(len(fit)), self.draw.randrange(len(fit)))]

    def like(self, v: Value, *kinds: str, same: bool = True) -> Value | None:
        fit = [
            w
            for w in self.pool
            if w.type.shape == v.type.shape
            and (w.type.dtype is v.type.dtype if same else w.type.dtype.kind in kinds)
        ]
        return self.draw.choice(fit) if fit else None

    def constant(self, array: Any, dtype: DType) -> Value | None:
        a = np.asarray(array).astype(dtype.storage)
        return self.add("constant", (), TensorType(dtype, a.shape), value=a)

    def scalar(self, v: Value, value: float) -> Value | None:
        return self.constant(np.asarray(value), v.type.dtype)

    def groups(self) -> tuple[tuple[int, ...], ...]:
        n = self.mesh.size
        style = self.draw.randrange(4)
        ranks = list(range(n))
        if style == 3:
            self.draw.shuffle(ranks)
        size = self.draw.choice([k for k in range(1, n + 1) if n % k == 0])
        if style == 1 and n == 4:
            return ((0, 2), (1, 3))
        if style == 1 and n == 6:
            return self.draw.choice(
                [((0, 3), (1, 4), (2, 5)), ((0, 1, 2), (3, 4, 5)), ((0, 5), (1, 4), (2, 3))]
            )
        return tuple(tuple(ranks[k : k + size]) for k in range(0, n, size))

    def start(self) -> Value | None:
        """A scalar position: constant, rank, or computed."""
        style = self.draw.randrange(4)
        if style == 0:
            return self.constant(self.draw.randint(-1, 4), DType.S32)
        if style == 1:
            r = self.add("rank_id", (), TensorType(DType.S32, ()))
            c = self.constant(self.draw.randint(-1, 2), DType.S32)
            return self.add(self.draw.choice(["multiply", "add", "subtract"]), (r, c)) if r and c else None
        return self.pick("int", rank=0)

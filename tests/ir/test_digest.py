"""The digest of a module: any change of meaning changes it, the text form keeps it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.load import load
from shardproof.ir.digest import digest
from shardproof.ir.module import Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.text import parse, to_text
from shardproof.ir.types import DType, Location, Mesh, TensorType

PAIRS = Path(__file__).parents[1] / "solver" / "lemma_pairs"
PROGRAMS = sorted(PAIRS.glob("*/*.spf"))
DUMPS = sorted((Path(__file__).parents[2] / "examples" / "neuron_llama" / "dumps").glob("*.gz"))


def other(value: object) -> object:
    """A value of the same kind that is not the same."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return np.nextafter(value, 1e9).item() if value == value else 0.0
        case str():
            return value + "'"
        case None:
            return 0
        case tuple():
            return (*value[:-1], other(value[-1])) if value else (0,)
        case np.ndarray():
            octets = bytearray(np.ascontiguousarray(value).tobytes())
            octets[-1] ^= 1
            return np.frombuffer(bytes(octets), value.dtype).reshape(value.shape)
        case _:
            raise AssertionError(type(value))


def wider(v: Value) -> Value:
    dtype = DType.F64 if v.type.dtype is not DType.F64 else DType.F32
    return replace(v, type=TensorType(dtype, v.type.shape))


def changes(m: Module) -> Iterator[tuple[str, Module]]:
    """Modules that differ from `m` in one place, not all of them well formed."""
    axes = m.mesh.axes
    yield "mesh size", replace(m, mesh=Mesh((*axes, ("more", 2))))
    if axes:
        yield "axis name", replace(m, mesh=Mesh((("other", axes[0][1]), *axes[1:])))
    yield "rank", replace(m, rank=0)
    yield "output left out", replace(m, outputs=m.outputs[:-1])
    yield "output name", replace(m, outputs=(replace(m.outputs[0], name="other"), *m.outputs[1:]))
    yield "update", replace(m, outputs=(replace(m.outputs[0], updates=m.inputs[0].name), *m.outputs[1:]))
    yield "output value", replace(m, outputs=(replace(m.outputs[0], value=m.inputs[0].value), *m.outputs[1:]))
    first = m.inputs[0]
    yield "input number", replace(m, inputs=(replace(first, number=99), *m.inputs[1:]))
    yield "sharding", replace(m, inputs=(replace(first, sharding=(7,)), *m.inputs[1:]))
    yield "input type", replace(m, inputs=(replace(first, value=wider(first.value)), *m.inputs[1:]))
    yield "input left out", replace(m, inputs=m.inputs[1:])
    if len(m.inputs) > 1:
        yield "input order", replace(m, inputs=(m.inputs[1], m.inputs[0], *m.inputs[2:]))
    for n, op in enumerate(m.ops):
        ways: list[tuple[str, Op]] = [("opcode", replace(op, opcode="other"))]
        ways.append(("result", replace(op, results=(wider(op.result), *op.results[1:]))))
        ways.append(("result name", replace(op, results=(replace(op.result, name="new"), *op.results[1:]))))
        if op.operands:
            ways.append(
                ("operand", replace(op, operands=(Value("another", op.operands[0].type), *op.operands[1:])))
            )
            ways.append(("operand left out", replace(op, operands=op.operands[1:])))
        ways.append(("attribute", replace(op, attrs={**op.attrs, "more": 1})))
        for name, value in op.attrs.items():
            ways.append((name, replace(op, attrs={**op.attrs, name: other(value)})))
            ways.append((f"no {name}", replace(op, attrs={k: v for k, v in op.attrs.items() if k != name})))
        for what, changed in ways:
            yield f"{op.opcode} {what}", replace(m, ops=(*m.ops[:n], changed, *m.ops[n + 1 :]))
        yield f"{op.opcode} left out", replace(m, ops=(*m.ops[:n], *m.ops[n + 1 :]))
        if n:
            yield f"{op.opcode} before", replace(m, ops=(*m.ops[: n - 1], op, m.ops[n - 1], *m.ops[n + 1 :]))


@pytest.mark.parametrize("path", PROGRAMS[::4], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_any_change_changes_it(path: Path) -> None:
    module = load(path)
    seen = {digest(module): "nothing"}
    for what, changed in changes(module):
        own = digest(changed)
        assert own not in seen, f"{what} is as {seen[own]}"
        seen[own] = what
    assert len(seen) > 15


@pytest.mark.parametrize("path", [*PROGRAMS[1::4], *DUMPS[:2]], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_text_and_places_do_not_change_it(path: Path) -> None:
    module = load(path)
    assert digest(parse(to_text(module), source="text")) == digest(module)
    placed = replace(
        module,
        name="other",
        warnings=("one",),
        inputs=tuple(replace(i, value=replace(i.value, location=Location("a.py", 3))) for i in module.inputs),
    )
    assert digest(placed) == digest(module)


def constant(value: object) -> Module:
    array = np.asarray(value)
    v = Value("c", TensorType(DType.F32, array.shape))
    return Module("m", Mesh(), (), (Op("constant", (), (v,), {"value": array}),), (Output("o", v),))


def test_arrays_count_by_their_bits() -> None:
    one = np.ones((3, 4), np.float32)
    assert digest(constant(one)) == digest(constant(np.broadcast_to(np.float32(1), (3, 4))))
    assert digest(constant(one)) == digest(constant(one.T.copy().T)) == digest(constant(one.astype(">f4")))
    different = [
        one,
        one.astype(np.float64),
        one.astype(np.int32),
        one.reshape(4, 3),
        one.reshape(12),
        np.where(np.eye(3, 4, dtype=bool), np.float32(1), np.float32(0)),
        np.float32(0.0),
        np.float32(-0.0),
        np.zeros((1,), np.float32),
        np.zeros((0, 3), np.float32),
        np.zeros((3, 0), np.float32),
        np.arange(100, dtype=np.float32),
        np.array([0x7FC00001], np.uint32).view(np.float32),
        np.array([0x7FC00002], np.uint32).view(np.float32),
    ]
    assert len({digest(constant(x)) for x in different}) == len(different)


@pytest.mark.parametrize(
    "values",
    [
        (1, True, 1.0, "1", (1,), ((1,),), None, "None", (), ("1",), -1, ((1,), ()), ((), (1,))),
        ("a", "a', 'b", ("a", "b"), ("a', 'b",), ("ab", ""), ("", "ab"), ("a", "b", "")),
        (0.0, -0.0, float("inf"), float("nan"), 5e-324),
    ],
)
def test_attributes_of_any_kind_differ(values: tuple[object, ...]) -> None:
    made = {
        digest(replace(m, ops=(replace(m.ops[0], attrs={"value": v}),)))
        for m in [constant(0)]
        for v in values
    }
    assert len(made) == len(values)


def test_a_nested_module_counts() -> None:
    def around(inner: Module) -> Module:
        m = constant(0)
        return replace(m, ops=(replace(m.ops[0], attrs={"body": inner}),))

    assert digest(around(constant(1))) != digest(around(constant(2)))
    assert digest(around(constant(1))) == digest(around(constant(1)))


def test_what_has_no_meaning_is_an_error() -> None:
    m = constant(0)
    with pytest.raises(ModuleError, match="no digest"):
        digest(replace(m, ops=(replace(m.ops[0], attrs={"value": object()}),)))


def test_names_do_not_run_together() -> None:
    def named(*names: str) -> Module:
        values = [Value(n, TensorType(DType.F32, ())) for n in names]
        return Module("m", Mesh(), tuple(Input(v, n) for n, v in enumerate(values)), (), ())

    assert len({digest(named(*x)) for x in (("a", "b"), ("ab",), ("a,b",), ("a', 'b",), ("b", "a"))}) == 5


def test_it_is_fast() -> None:
    module = load(max(DUMPS, key=lambda p: p.stat().st_size))
    best = min(_seconds(module) for _ in range(5))
    assert best / len(module.ops) < 50e-6


def _seconds(module: Module) -> float:
    start = time.perf_counter()
    digest(module)
    return time.perf_counter() - start

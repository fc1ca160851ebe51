"""The text form: exact round trips, readable output, and one-line errors."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import SAMPLES

from shardproof.ir.module import Guess, Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.text import parse, to_text
from shardproof.ir.types import DType, Frame, Location, Mesh, TensorType
from shardproof.ir.verify import verify


def facts(item: Any) -> Any:
    """Everything a module says, comparable: arrays as bytes, values as name, type and location."""
    if isinstance(item, np.ndarray):
        return ("array", str(item.dtype), item.shape, item.tobytes())
    if isinstance(item, float):
        return ("float", np.float64(item).tobytes() if item == item else "nan")
    if isinstance(item, Value):
        return (item.name, item.type, facts(item.location))
    if isinstance(item, Op):
        attrs = {name: facts(value) for name, value in item.attrs.items()}
        return (item.opcode, facts(item.operands), facts(item.results), attrs)
    if isinstance(item, Input):
        return (facts(item.value), item.number, item.sharding)
    if isinstance(item, Output):
        return (item.name, facts(item.value), item.updates)
    if isinstance(item, Location):
        return (item.file, item.line, tuple((f.file, f.line, f.function) for f in item.stack))
    if isinstance(item, Module):
        parts = (item.inputs, item.ops, item.outputs)
        return (item.name, item.mesh.axes, tuple(map(facts, parts)), item.rank, item.warnings, item.guesses)
    if isinstance(item, tuple):
        return ("tuple", *map(facts, item))
    return (type(item).__name__, item)


def round_trip(module: Module) -> Module:
    text = to_text(module)
    again = parse(text, source="test")
    assert facts(again) == facts(module)
    assert to_text(again) == text
    return again


words = st.text(max_size=8) | st.sampled_from(["x", "add.1", "a b", '"', "\\", "\n", "%", "input", "é\u2028"])
frames = st.builds(Frame, words, st.integers(-1, 10**6), st.none() | words)
locations = st.none() | st.builds(
    Location, words, st.integers(0, 10**6), st.lists(frames, max_size=3).map(tuple)
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | words
    | st.sampled_from([0.0, -0.0, 1e16, 5e-324])
)
literals = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
STORAGE = [d for d in DType if d.kind != "token" and d.bits != 4]


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(STORAGE)).storage
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    if dtype == np.bool_:
        return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool).reshape(shape)
    data = draw(st.binary(min_size=size, max_size=size))
    if draw(st.booleans()):
        data = data[: dtype.itemsize] * (size // dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape)


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """Sample operators on inputs of their own, with odd names, locations and attributes."""
    chosen = draw(st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=4))
    names: set[str] = set()
    inputs: list[Input] = []
    ops: list[Op] = []

    def value(type_: TensorType) -> Value:
        name = draw(words.filter(lambda w: w not in names))
        names.add(name)
        return Value(name, type_, draw(locations))

    for sample in chosen:
        operands = []
        for type_ in sample.operands:
            sharding = draw(st.none() | st.just(tuple(1 for _ in type_.shape)))
            inputs.append(Input(value(type_), len(inputs), sharding))
            operands.append(inputs[-1].value)
        ops.append(Op(sample.opcode, tuple(operands), tuple(map(value, sample.results)), sample.attrs))
    results = [v for op in ops for v in op.results]
    outputs = tuple(Output(name, draw(st.sampled_from(results))) for name in draw(st.sets(words, max_size=3)))
    axes = draw(st.sampled_from([(("x", 4),), (("x", 2), ("odd name", 2)), (("x", 4), ("y", 1))]))
    rank = draw(st.none() | st.integers(0, 3))
    warnings = tuple(draw(st.lists(words, max_size=2)))
    return Module(draw(words), Mesh(axes), tuple(inputs), tuple(ops), outputs, rank, warnings)


@given(modules())
@settings(max_examples=150, deadline=None)
def test_modules_round_trip(module: Module) -> None:
    verify(module)
    verify(round_trip(module))


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True), literals | arrays(), max_size=4))
@settings(max_examples=300, deadline=None)
def test_attributes_round_trip(attrs: dict[str, Any]) -> None:
    op = Op("op", (), (Value("y", TensorType(DType.F32, ())),), attrs)
    round_trip(Module("m", Mesh(), (), (op,), ()))


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_samples_round_trip(sample: Any) -> None:
    op = sample.op()
    inputs = tuple(Input(v, i) for i, v in enumerate(op.operands))
    round_trip(Module("m", Mesh((("x", 4),)), inputs, (op,), ()))


X = Value("x", TensorType(DType.F32, (4, 8)))
Y = Value("y", X.type, Location("model.py", 12, (Frame("train.py", 3, "main"), Frame("model.py", 12))))
READABLE = Module(
    "llama",
    Mesh((("tp", 2),)),
    (Input(X, 0, (1, 2)),),
    (
        Op("all_reduce", (X,), (Y,), {"kind": "sum", "groups": ((0, 1),)}),
        Op(
            "constant",
            (),
            (Value("c", TensorType(DType.BF16, (3,))),),
            {"value": np.array([0.1, -np.inf, 2], np.float32)},
        ),
        Op(
            "constant",
            (),
            (Value("d", TensorType(DType.S32, (64, 64))),),
            {"value": np.full((64, 64), 7, np.int32)},
        ),
    ),
    (Output("logits", Y, "x"),),
    warnings=("custom call f is opaque",),
    guesses=(Guess("ids_in_range", 'the "ids" are in range', "x"),),
)
TEXT = """\
module "llama" mesh(tp=2) {
  warning "custom call f is opaque"
  guess ids_in_range "the \\"ids\\" are in range" "x"
  frame 0 = "train.py":3 in "main"
  frame 1 = "model.py":12
  %x = input(0) sharding=(1, 2) : f32[4,8]
  %y = all_reduce(%x) {kind="sum", groups=((0, 1),)} : f32[4,8] at "model.py":12 via (0, 1)
  %c = constant() {value=f32[3](0.1, -inf, 2.0)} : bf16[3]
  %d = constant() {value=s32[64,64] splat (7)} : s32[64,64]
  output "logits" = %y updates %x
}
"""


def test_the_text_is_readable() -> None:
    assert to_text(READABLE) == TEXT
    assert facts(parse(TEXT, source="test")) == facts(READABLE)


def test_comments_and_layout_are_free() -> None:
    loose = TEXT.replace("\n", '\n\n  # a comment with "quotes" and %x\n').replace(", ", " ,  ")
    assert facts(parse(loose, source="test")) == facts(READABLE)


@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        (
            "(0, 1),)} : f32[4,8] at",
            "(0, 1),) : f32[4,8] at",
            ': f32[4,8] at "m',
            r"found ':', expected .*'\}'",
        ),
        ("all_reduce(%x)", "all_reduce(%z)", "%z", "value %z is used but not defined before"),
        ("all_reduce(%x)", "all_reduce(%d)", "%d", "value %d is used but not defined before"),
        ("%d =", "%c =", "%c = constant() {value=s", "value %c is defined twice"),
        ("= %y updates", "= %q updates", "%q", "value %q is used but not defined"),
        ("bf16[3]", "bf17[3]", "bf17", r"bf17\[3\] is not a type"),
        ("via (0, 1)", "via (0, 2)", "(0, 2)", "frame 2 is not defined"),
        ("-inf, 2.0", "-inf", "f32[3]", r"f32\[3\] does not have the 2 elements given"),
        ("-inf", "1 2", "(0.1", "a list of numbers is needed"),
        ("-inf", "true", "f32[3]", "True is not an element of f32"),
        ("(7)", "(7.5)", "s32", "7.5 is not an element of s32"),
        ("(7)", "(99999999999)", "s32", "an element does not fit in s32"),
        ("s32[64,64] splat", "s32[999999999999,999999999999] splat", "s32", r"s32\S* does not have"),
        ("splat (7)", 'base64 "AAAA"', '"AAAA"', "3 bytes found"),
        ("splat (7)", 'base64 "?"', '"?"', "the string is not base64"),
        ('kind="sum"', 'kind="\\q"', '"\\q"', "is not a JSON string"),
        ('kind="sum"', 'kind="sum", kind="max"', 'kind="max"', "attribute kind is given twice"),
        ("%y = all", "%y, %y2 = all", "all_reduce", "2 values are given 1 types"),
        ("%x = input", "%x, %x2 = input", "0) sharding", "2 values are one input"),
        ("mesh(tp=2)", f"mesh(tp={'9' * 5000})", "999", "the integer has too many digits"),
        ("mesh(tp=2)", "", "{", r"found '\{', expected 'mesh'"),
        ("module", "@", "@", "found '@', expected 'module'"),
        (" at ", " \x00at ", "\x00", r"found '\\x00'"),
    ],
)
def test_errors_name_the_place(old: str, new: str, at: str, message: str) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new, 1)
    before = text[: text.index(at)]
    place = f"{before.count(chr(10)) + 1}:{len(before) - (before.rfind(chr(10)) + 1) + 1}"
    with pytest.raises(ModuleError, match=f"^bad.spf:{place}: .*{message}") as error:
        parse(text, source="bad.spf")
    assert "\n" not in str(error.value)


@given(st.integers(0, len(TEXT)), st.integers(0, 12), st.text("%(){}=,:\"' 0x[]-.#\\\nat", max_size=3))
@settings(max_examples=400, deadline=None)
def test_damaged_text_never_crashes(at: int, cut: int, extra: str) -> None:
    damaged = TEXT[:at] + extra + TEXT[at + cut :]
    try:
        module = parse(damaged, source="bad.spf")
    except ModuleError as error:
        assert str(error).startswith("bad.spf:")
    else:
        round_trip(module)


@pytest.mark.parametrize("end", [0, 10, 100, len(TEXT) - 3])
def test_truncated_text_says_so(end: int) -> None:
    with pytest.raises(ModuleError, match=r"bad.spf:\d+:\d+: found"):
        parse(TEXT[:end], source="bad.spf")


def test_a_value_without_text_form_is_an_error() -> None:
    op = Op("op", (), (Y,), {"a": object()})
    with pytest.raises(ModuleError, match="no text form"):
        to_text(replace(READABLE, ops=(op,), outputs=()))


def test_a_thousand_operators_parse_fast() -> None:
    last, ops = X, []
    for i in range(1000):
        value = Value(f"all-reduce.{i}", X.type, Y.location)
        groups = tuple((2 * r, 2 * r + 1) for r in range(8))
        ops.append(Op("all_reduce", (last,), (value,), {"kind": "sum", "groups": groups}))
        last = value
    module = Module("m", Mesh((("tp", 16),)), (Input(X, 0),), tuple(ops), (Output("y", last),))
    text = to_text(module)
    start = time.process_time()
    again = parse(text, source="test")
    assert time.process_time() - start < 2
    assert facts(again.ops[-1]) == facts(module.ops[-1])


def test_large_constants_round_trip() -> None:
    value = np.random.default_rng(0).normal(size=(300, 301)).astype(np.float32)
    flat = Value("c", TensorType(DType.F32, value.shape))
    for array in (value, np.broadcast_to(np.float32(0.1), value.shape), np.asfortranarray(value)):
        again = round_trip(Module("m", Mesh(), (), (Op("constant", (), (flat,), {"value": array}),), ()))
        verify(again)


def test_bodies_of_loops_round_trip() -> None:
    at = Location("loop.py", 3, (Frame("main.py", 9, "main"),))
    x, row = Value("x", TensorType(DType.F32, (3, 2)), at), Value("x", TensorType(DType.F32, (2,)), at)
    y = Value("y", row.type, Location("loop.py", 4, (Frame("other.py", 1),)))
    inner = Module("round", Mesh(), (Input(row, 0),), (Op("tanh", (row,), (y,)),), (Output("0", y),))
    settings = {"consts": 0, "carries": 0, "length": 3, "reverse": True}
    z = Value("z", x.type, at)
    loop = Op("scan", (x,), (z,), {"body": inner, **settings})
    outer = Module("looped", Mesh(), (Input(x, 0),), (loop,), (Output("z", z),))
    verify(round_trip(outer))
    w = Value("w", TensorType(DType.F32, (4, 3, 2)))
    body = replace(outer, outputs=(Output("0", z),))
    nest = Op("scan", (w,), (Value("v", w.type),), {"body": body, **settings, "length": 4})
    again = round_trip(Module("nest", Mesh(), (Input(w, 0),), (nest,), ()))
    verify(again)
    with pytest.raises(ModuleError, match=r"test:\d+:\d+: value %q is used but not defined before"):
        parse(to_text(outer).replace("tanh(%x)", "tanh(%q)"), source="test")

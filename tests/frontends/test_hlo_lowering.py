"""Names, outputs, aliases, opaque operators and metadata of imported HLO."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hlo_programs import ADD, PROGRAMS

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, ModuleError


def _entry(body: str, header: str = "", computations: str = "") -> str:
    return f"HloModule m{header}\n{computations}\nENTRY e {{\n  x = f32[4] parameter(0)\n{body}\n}}\n"


def test_outputs_are_named_by_the_operands_of_the_root(load_text: Callable[..., Module]) -> None:
    module = load_text(
        _entry(
            "  y = f32[4] negate(x)\n  z = f32[4] copy(y)\n  p = (f32[4], f32[4]) tuple(x, y)\n"
            "  ROOT t = (f32[4], f32[4], f32[4], (f32[4], f32[4])) tuple(y, z, y, p)"
        )
    )
    assert [(o.name, o.value.name) for o in module.outputs] == [
        ("y", "y"),
        ("z", "y"),
        ("y#1", "y"),
        ("x", "x"),
        ("y#2", "y"),
    ]


def test_aliases_are_updates(load_text: Callable[..., Module]) -> None:
    body = "  c = f32[4] parameter(1)\n  n = f32[4] add(x, c)\n  ROOT t = (f32[4], f32[4]) tuple(x, n)"
    module = load_text(_entry(body, ", input_output_alias={ {1}: (1, {}, must-alias) }"))
    assert [(o.name, o.updates) for o in module.outputs] == [("x", None), ("n", "c")]
    for wrong, message in (("{2}: (1, {})", "doesn't have"), ("{1}: (5, {})", "parameter 5 of 2")):
        with pytest.raises(ModuleError, match=message):
            load_text(_entry(body, f", input_output_alias={{ {wrong} }}"))


def test_a_tuple_parameter_is_several_inputs(load_text: Callable[..., Module]) -> None:
    text = (
        "HloModule m, input_output_alias={ {}: (0, {1}, may-alias) }\nENTRY e {\n"
        "  p = (f32[2], f32[3]) parameter(0)\n"
        "  ROOT b = f32[3] get-tuple-element(p), index=1\n}\n"
    )
    module = load_text(text)
    assert [(i.name, i.number) for i in module.inputs] == [("p#0", 0), ("p#1", 1)]
    assert [(o.name, o.value.name, o.updates) for o in module.outputs] == [("b", "p#1", "p#1")]


def test_inlined_twice_gets_two_names(load_text: Callable[..., Module]) -> None:
    module = load_text(PROGRAMS["call_and_fusion"].text)
    names = [op.result.name for op in module.ops]
    assert names == ["twice", "c2/twice", "n", "m", "r"]
    loop = load_text(PROGRAMS["counted_loop"].text)
    assert [op.result.name for op in loop.ops if op.opcode == "add" and op.result.type.shape] == [
        "grown",
        "w/1/grown",
        "w/2/grown",
    ]


def test_an_entry_name_is_never_given_away(load_text: Callable[..., Module]) -> None:
    text = (
        "HloModule m\nf {\n  a = f32[4] parameter(0)\n  y = f32[4] negate(a)\n  ROOT b = f32[4] tanh(y)\n}\n"
        "ENTRY e {\n  x = f32[4] parameter(0)\n  c = f32[4] call(x), to_apply=f\n  y = f32[4] add(c, x)\n"
        "  ROOT z = f32[4] sine(y)\n}\n"
    )
    module = load_text(text)
    assert [op.result.name for op in module.ops] == ["c/y", "b", "y", "z"]


def _opaque_name(load: Callable[..., Module], reducer: str) -> str:
    text = _entry(
        "  z = f32[] constant(0)\n  ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=f", "", reducer
    )
    module = load(text)
    (op,) = (op for op in module.ops if op.opcode == "opaque")
    assert module.warnings == ("reduce `r` is kept opaque",)
    name: str = op.attrs["name"]
    return name


def test_opaque_names_are_structural(load_text: Callable[..., Module]) -> None:
    def reducer(a: str, b: str, extra: str, opcode: str) -> str:
        return (
            f"f {{\n  {a} = f32[] parameter(0)\n  {b} = f32[] parameter(1)\n{extra}"
            f"  n = f32[] {opcode}({a})\n  ROOT q = f32[] subtract(n, {b})\n}}\n"
        )

    name = _opaque_name(load_text, reducer("a", "b", "", "negate"))
    assert name == _opaque_name(load_text, reducer("u", "v", "  dead = f32[] sine(v)\n", "negate"))
    assert name != _opaque_name(load_text, reducer("a", "b", "", "tanh"))
    assert "%a" not in name and " u" not in name


def test_an_opaque_reduction_keeps_its_other_dims(load_text: Callable[..., Module]) -> None:
    text = _entry(
        "  m = f32[2,4,3] broadcast(x), dimensions={1}\n  z = f32[] constant(0)\n"
        "  ROOT r = f32[2,3] reduce(m, z), dimensions={1}, to_apply=add",
        "",
        ADD.replace(" add(a, b)", " power(a, b)"),
    )
    (op,) = (op for op in load_text(text).ops if op.opcode == "opaque")
    assert op.attrs["free"] == (((0, -1), (0,)), ((2, -1), (1,)))


@pytest.mark.parametrize(
    ("kind", "opcode", "expected"),
    [
        ("f32", "add", "sum"),
        ("f32", "multiply", "prod"),
        ("f32", "maximum", "max"),
        ("s32", "minimum", "min"),
        ("s32", "and", "and"),
        ("pred", "add", "or"),
        ("pred", "multiply", "and"),
        ("pred", "maximum", "or"),
        ("pred", "minimum", "and"),
        ("pred", "or", "or"),
        ("f32", "power", None),
        ("s32", "xor", None),
    ],
)
def test_reducers(kind: str, opcode: str, expected: str | None, load_text: Callable[..., Module]) -> None:
    text = (
        f"HloModule m\nf {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n"
        f"  ROOT r = {kind}[] {opcode}(b, a)\n}}\nENTRY e {{\n  x = {kind}[4] parameter(0)\n"
        f"  z = {kind}[] parameter(1)\n  ROOT r.1 = {kind}[] reduce(x, z), dimensions={{0}}, to_apply=f\n}}\n"
    )
    (op,) = load_text(text).ops
    assert (op.attrs["kind"] if op.opcode == "reduce" else None) == expected


def test_a_reducer_of_another_type_is_no_monoid(load_text: Callable[..., Module]) -> None:
    text = (
        "HloModule m\nf {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n"
        "  ROOT r = s32[] add(a, b)\n}\nENTRY e {\n  x = pred[4] parameter(0)\n"
        "  z = pred[] parameter(1)\n  ROOT r.1 = pred[] reduce(x, z), dimensions={0}, to_apply=f\n}\n"
    )
    assert [op.opcode for op in load_text(text).ops] == ["opaque"]


def test_the_same_operand_twice_is_no_monoid(load_text: Callable[..., Module]) -> None:
    text = _entry(
        "  z = f32[] constant(0)\n  ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=add",
        "",
        ADD.replace(" add(a, b)", " add(a, a)"),
    )
    assert load_text(text).ops[-1].opcode == "opaque"


@pytest.mark.parametrize("tie", ["LT", "GT"])
def test_arg_reduction_needs_the_first_index(tie: str, load_text: Callable[..., Module]) -> None:
    text = PROGRAMS["argmax"].text.replace(
        "compare(i0, i1), direction=LT", f"compare(i0, i1), direction={tie}"
    )
    opcodes = [op.opcode for op in load_text(text).ops]
    assert ("argreduce" in opcodes) == (tie == "LT")
    assert ("opaque" in opcodes) == (tie == "GT")


def test_arg_reduction_needs_its_initial_values(load_text: Callable[..., Module]) -> None:
    text = PROGRAMS["argmax"].text.replace("low = f32[] constant(-inf)", "low = f32[] constant(0)")
    assert "argreduce" not in [op.opcode for op in load_text(text).ops]
    text = PROGRAMS["argmax"].text.replace("iota_dimension=1", "iota_dimension=0")
    assert "argreduce" not in [op.opcode for op in load_text(text).ops]


@pytest.mark.parametrize("start", ["-inf", "0", "1"])
@pytest.mark.parametrize("first", [0, 5])
def test_an_extremum_keeps_the_least_of_other_labels(
    start: str, first: int, load_text: Callable[..., Module]
) -> None:
    """Positions that begin elsewhere, as in a shard, or are in another order; the initial pair counts."""
    text = PROGRAMS["argmax"].text.replace("constant(-inf)", f"constant({start})")
    text = text.replace("iota_dimension=1", "iota_dimension=0")
    text = text.replace("s32[] constant(0)", f"s32[] constant({first})")
    module = load_text(text)
    assert "opaque" not in [op.opcode for op in module.ops]
    (x,) = module.inputs
    rows, columns = x.value.type.shape
    for seed in range(20):
        values = np.random.default_rng(seed).integers(-2, 2, size=(rows, columns)).astype(float)
        found = [own[0] for own in run(module, {x.name: values}).values()]
        pairs = [[(float(start), first), *((v, r) for v in own)] for r, own in enumerate(values)]
        best = [min(own, key=lambda pair: (-pair[0], pair[1])) for own in pairs]
        index = next(y for y in found if y.dtype.kind == "i")
        np.testing.assert_array_equal(index.reshape(-1), [label for _, label in best])


@pytest.mark.parametrize(
    ("compare", "expected"),
    [
        ("compare(c, d), direction=GT", "gt:1"),
        ("compare(d, c), direction=GT", "lt:1"),
        ("compare(a, b), direction=LT", "lt:0"),
        ("compare(b, a), direction=LT, type=TOTALORDER", "gt:0"),
    ],
)
def test_comparators(compare: str, expected: str, load_text: Callable[..., Module]) -> None:
    text = PROGRAMS["sort"].text.replace("compare(c, d), direction=GT, type=TOTALORDER", compare)
    (op,) = (op for op in load_text(text).ops if op.opcode == "sort")
    assert op.attrs["comparator"] == expected


@pytest.mark.parametrize(
    "compare", ["compare(a, d), direction=GT", "compare(a, b), direction=LE", "compare(a, a), direction=LT"]
)
def test_other_comparators_stay_text(compare: str, load_text: Callable[..., Module]) -> None:
    text = PROGRAMS["sort"].text.replace("compare(c, d), direction=GT, type=TOTALORDER", compare)
    (op,) = (op for op in load_text(text).ops if op.opcode == "sort")
    assert ":" in op.attrs["comparator"] and op.attrs["comparator"][:3] not in ("lt:", "gt:")


def test_a_loop_without_known_end_is_opaque(load_text: Callable[..., Module]) -> None:
    text = PROGRAMS["counted_loop"].text.replace("constant(6)", "constant(2000000000)")
    module = load_text(text)
    assert [op.opcode for op in module.ops] == ["constant", "opaque"]
    assert module.warnings == ("while `w` is kept opaque",)
    other = load_text(text.replace("add(v, v)", "multiply(v, v)"))
    assert module.ops[1].attrs["name"] != other.ops[1].attrs["name"]


def test_a_loop_that_never_runs_is_gone(load_text: Callable[..., Module]) -> None:
    module = load_text(PROGRAMS["counted_loop"].text.replace("constant(6)", "constant(0)"))
    assert [(o.name, o.value.name) for o in module.outputs] == [("r", "x")]


def test_custom_calls(load_text: Callable[..., Module]) -> None:
    body = (
        '  t = f32[4] custom-call(x), custom_call_target="AwsNeuronTransferWithStaticRing"\n'
        "  w = f32[4] parameter(1)\n  e = f32[] constant(1e-05)\n"
        '  n = f32[4] custom-call(t, w, e), custom_call_target="AwsNeuronRmsNorm", backend_config="0"\n'
        '  ROOT u = f32[4] custom-call(n), custom_call_target="mystery", backend_config="a=\\"b\\""'
    )
    module = load_text(_entry(body))
    calls = [
        (op.result.name, op.operands[0].name, dict(op.attrs))
        for op in module.ops
        if op.opcode == "custom_call"
    ]
    assert calls == [
        ("n", "x", {"target": "AwsNeuronRmsNorm", "config": "0"}),
        ("u", "n", {"target": "mystery", "config": 'a="b"'}),
    ]
    assert module.warnings == ("custom call 'mystery' (u) has no known meaning: kept opaque",)
    with pytest.raises(ModuleError, match="dump it after the SPMD partitioner"):
        load_text(_entry('  ROOT t = f32[2] custom-call(x), custom_call_target="SPMDFullToShardShape"'))


def test_sharding_is_the_identity_before_partitioning(load_text: Callable[..., Module]) -> None:
    body = (
        '  s = f32[4] custom-call(x), custom_call_target="Sharding", sharding={devices=[2]<=[2]}\n'
        "  ROOT r = f32[4] negate(s)"
    )
    module = load_text(_entry(body, ", num_partitions=2"))
    assert [op.opcode for op in module.ops] == ["negate"] and module.mesh.size == 1
    assert "not partitioned yet" in module.warnings[0]


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("{replicated}", (1, 1)),
        ("{devices=[2,4]<=[8]}", (2, 4)),
        ("{devices=[8,1]0,1,2,3,4,5,6,7}", (8, 1)),
        ("{devices=[1,1,8]<=[8] last_tile_dim_replicate}", (1, 1)),
        ("{devices=[2,4]<=[4,2]T(1,0)}", None),
        ("{devices=[8,1]1,0,2,3,4,5,6,7}", None),
        ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", None),
        ("{maximal device=0}", None),
        ("{manual}", None),
    ],
)
def test_sharding_of_parameters(
    sharding: str, expected: tuple[int, ...] | None, load_text: Callable[..., Module]
) -> None:
    text = (
        f"HloModule m, num_partitions=8\nENTRY e {{\n  x = f32[8,8] parameter(0), sharding={sharding}\n"
        "  ROOT r = f32[8,8] negate(x)\n}\n"
    )
    assert load_text(text).inputs[0].sharding == expected


@pytest.mark.parametrize(
    ("type", "written", "expected"),
    [
        ("f32[2]", "{0.1, -3e38}", np.array([0.1, -3e38], np.float32)),
        ("f32[3]", "{inf, -inf, nan}", np.array([np.inf, -np.inf, np.nan], np.float32)),
        ("f64[]", "0.1", np.array(0.1)),
        ("f16[2]", "{0.1, 65504}", np.array([0.1, 65504], np.float16).astype(np.float32)),
        (
            "bf16[3]",
            "{0.1, 3.141, -1e30}",
            np.array([0x3DCD0000, 0x40490000, 0xF14A0000], np.uint32).view(np.float32),
        ),
        ("f8e4m3fn[3]", "{0.1, 448, -0.5}", np.array([0.1015625, 448, -0.5], np.float32)),
        ("f8e5m2[2]", "{57344, -inf}", np.array([57344, -np.inf], np.float32)),
        ("s4[3]", "{-8, 7, -1}", np.array([-8, 7, -1], np.int8)),
        ("u4[2]", "{15, 0}", np.array([15, 0], np.uint8)),
        ("s64[1]", "{-9223372036854775808}", np.array([-(2**63)], np.int64)),
        ("u64[1]", "{18446744073709551615}", np.array([2**64 - 1], np.uint64)),
        ("u32[2,2]", "{ { 1, 2 }, { 3, 4294967295 } }", np.array([[1, 2], [3, 2**32 - 1]], np.uint32)),
        ("u16[1]", "{65535}", np.array([65535], np.uint16)),
        ("s16[1]", "{-32768}", np.array([-32768], np.int16)),
        ("pred[3]", "{1, 0, 1}", np.array([True, False, True])),
        ("pred[]", "true", np.array(True)),
        ("c64[2]", "{(1, 2), (-3, inf)}", np.array([1 + 2j, complex(-3, np.inf)], np.complex64)),
        ("f32[0]", "{}", np.zeros(0, np.float32)),
        ("f32[2,3]{0,1}", "{{1,2,3},{4,5,6}}", np.array([[1, 2, 3], [4, 5, 6]], np.float32)),
    ],
)
def test_literals(type: str, written: str, expected: np.ndarray, load_text: Callable[..., Module]) -> None:
    from hlo_writer import to_bytes

    text = f"HloModule m\nENTRY e {{\n  ROOT c = {type} constant({written})\n}}\n"
    for content in (text, to_bytes(text)):
        value = load_text(content).ops[0].attrs["value"]
        assert value.dtype == expected.dtype and value.shape == expected.shape
        np.testing.assert_array_equal(value, expected)


def test_reduce_precision_is_a_cast_there_and_back(load_text: Callable[..., Module]) -> None:
    module = load_text(_entry("  ROOT r = f32[4] reduce-precision(x), exponent_bits=8, mantissa_bits=7"))
    assert [(op.opcode, str(op.result.type)) for op in module.ops] == [
        ("convert", "bf16[4]"),
        ("convert", "f32[4]"),
    ]
    module = load_text(_entry("  ROOT r = f32[4] reduce-precision(x), exponent_bits=6, mantissa_bits=7"))
    assert [(op.opcode, op.attrs["free"]) for op in module.ops] == [("opaque", (((0,), (0,)),))]

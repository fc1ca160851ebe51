"""Lowering of PyTorch graphs: what it emits, what it keeps opaque, what it refuses and what it guesses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardproof.frontends.fx.graph import Argument, Graph, Node, Operator, Ref, Symbol, Tensor
from shardproof.frontends.fx.lowering.lower import Lowered, lower, lower_ranks
from shardproof.frontends.fx.lowering.sizes import size_of
from shardproof.ir.interpret import run
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import DType, Location
from shardproof.ir.verify import verify
from shardproof.passes.fold_ranks import fold_ranks

F32, F16, S64, BOOL = DType.F32, DType.F16, DType.S64, DType.BOOL
REAL = Path(__file__).resolve().parents[2].parent / "shared" / "real" / "py"
DUMPS = sorted({p.parent / p.name.split(".r")[0] for p in REAL.rglob("*.py.gz")}) if REAL.is_dir() else []


class Program:
    """A graph in the making."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def input(self, name: str, *shape: int | str, dtype: DType = F32) -> Ref:
        self.nodes.append(Node(name, "placeholder", name, meta=Tensor(dtype, shape)))
        return Ref(name)

    def call(self, name: str, target: str, *args: Argument, meta: Any = None, **kwargs: Argument) -> Ref:
        at = Location("model.py", len(self.nodes))
        self.nodes.append(Node(name, "call_function", target, args, kwargs, meta, at))
        return Ref(name)

    def item(self, name: str, source: Ref, index: int, meta: Any = None) -> Ref:
        return self.call(name, "getitem", source, index, meta=meta)

    def constant(self, name: str, *shape: int, dtype: DType = F32) -> Ref:
        self.nodes.append(Node(name, "get_attr", name, meta=Tensor(dtype, shape)))
        return Ref(name)

    def graph(self, *outputs: Argument, rank: int | None = None, **fields: Any) -> Graph:
        nodes = (*self.nodes, Node("output", "output", "output", (outputs,)))
        constants = {n.target: None for n in self.nodes if n.op == "get_attr"}
        return Graph("g", nodes, outputs, "g.py", rank, **{"constants": constants, **fields})


def lowered(graph: Graph, **options: Any) -> Lowered:
    found = lower(graph, **options)
    verify(found.module)
    return found


def opcodes(module: Module) -> list[str]:
    return [op.opcode for op in module.ops]


def refused(graph: Graph, text: str, **options: Any) -> None:
    with pytest.raises(ModuleError) as error:
        lower(graph, **options)
    assert text in str(error.value) and "\n" not in str(error.value)


def test_values_have_the_names_and_places_of_their_nodes() -> None:
    p = Program()
    x, w = p.input("x", 2, 3), p.input("w", 4, 3)
    t = p.call("t", "aten.t.default", w)
    y = p.call("mm", "aten.mm.default", x, t, meta=Tensor(F32, (2, 4)))
    module = lowered(p.graph(p.call("add", "aten.add.Tensor", y, 1.5))).module
    assert [i.name for i in module.inputs] == ["x", "w"] and [i.number for i in module.inputs] == [0, 1]
    assert [v.name for op in module.ops for v in op.results] == ["t", "mm", "add.1", "add.2", "add"]
    assert str(module.ops[1].location) == "model.py:3"
    assert [o.name for o in module.outputs] == ["add"]


def test_parts_have_the_names_of_the_nodes_that_take_them() -> None:
    p = Program()
    x = p.input("x", 2, 3)
    both = p.call("max_1", "aten.max.dim", x, 1)
    value, _ = p.item("getitem_7", both, 0), p.item("getitem_8", both, 1)
    module = lowered(p.graph(value, value)).module
    assert [v.name for v in module.ops[-1].results] == ["getitem_7", "getitem_8"]
    assert [o.name for o in module.outputs] == ["getitem_7", "getitem_7#1"]


def test_copies_and_waits_are_the_value_itself() -> None:
    p = Program()
    x = p.input("x", 2)
    for name in ("clone", "detach", "lift_fresh_copy"):
        x = p.call(name, f"aten.{name}.default", x)
    module = lowered(p.graph(x)).module
    assert not module.ops and module.outputs[0].name == "lift_fresh_copy"
    assert module.outputs[0].value.name == "x"


def test_a_recorded_type_must_agree() -> None:
    p = Program()
    x = p.input("x", 2, 3)
    refused(p.graph(p.call("y", "aten.neg.default", x, meta=Tensor(F32, (3, 2)))), "is recorded as f32[3,2]")
    p = Program()
    x = p.input("x", 2, dtype=S64)
    y = p.call("y", "aten.div.Tensor", x, 2, meta=Tensor(S64, (2,)))
    refused(p.graph(y), "`y` (aten.div.Tensor at model.py:1): is recorded as s64[2], but gives f32[2]")


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "text"),
    [
        ("aten.add.Tensor", (1, 2, 3), {}, "has 4 arguments"),
        ("aten.add.Tensor", (1,), {"weight": 2}, "has the argument weight, which is not known"),
        ("aten.as_strided.default", ((2,), (1,)), {}, "by strides"),
        ("aten.view.default", ((4, 2),), {}, "which has another number of elements"),
        ("aten.zeros_like.default", (), {"layout": "sparse_coo"}, "layout sparse_coo"),
        ("aten.rand_like.default", (), {"generator": "g"}, "generator"),
        ("aten.multinomial.default", (3,), {}, "draws random"),
        ("aten.resize_.default", ((2,),), {}, "changes the shape or the memory"),
        ("aten.cholesky_.default", (), {}, "in-place operator that is not known"),
        ("aten.diagonal.out", (1,), {"out": Ref("x")}, "writes to an argument"),
        ("mine.fill_.default", (), {}, "writes to an argument"),
        ("mine.effect.default", (), {}, "unknown what it does"),
        ("aten.gelu.default", (), {"approximate": "fast"}, "approximates by 'fast'"),
        ("aten.topk.default", (1, -1, True, False), {}, "in no order"),
        ("aten.nonzero.default", (), {}, "depends on the data"),
        ("aten.index.Tensor", ((Ref("m"),),), {}, "by a mask"),
        ("aten.add.Tensor", (Ref("y"),), {}, "do not broadcast"),
        ("aten.sum.dim_IntList", ((5,),), {}, "names dim 5"),
    ],
)
def test_what_is_not_known_is_refused(
    target: str, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], text: str
) -> None:
    p = Program()
    x, _, _ = p.input("x", 5), p.input("m", 5, dtype=BOOL), p.input("y", 3)
    refused(p.graph(p.call("z", target, x, *args, **kwargs)), text)


def test_an_unknown_operator_is_a_call_by_name_with_every_argument() -> None:
    p = Program()
    x = p.input("x", 2)
    y = p.call("y", "mine.mix.fast", (x, x), 0.25, True, None, meta=Tensor(F32, (3,)), mode="a")
    found = lowered(p.graph(y)).module
    (op,) = found.ops
    assert (op.opcode, op.attrs["target"], len(op.operands)) == ("custom_call", "mine::mix.fast", 2)
    assert json.loads(op.attrs["config"]) == {
        "arg0": ["tensor", "tensor"],
        "arg1": 0.25,
        "arg2": True,
        "arg3": None,
        "mode": "a",
    }
    assert any("mine.mix.fast" in w and "opaque" in w for w in found.warnings)


def _defined(module: Module) -> list[str]:
    """The targets of calls of a module, each of which the library's definitions must fit."""
    from shardproof.lemmas.load import defines_for
    from shardproof.lemmas.lower_opaque import lower_opaque
    from shardproof.lemmas.match_define import match

    calls = [op for op in module.ops if op.opcode == "custom_call"]
    library = defines_for({op.attrs["target"] for op in calls}, [])
    for op in calls:
        target, attrs = op.attrs["target"], json.loads(op.attrs["config"] or "{}")
        if target in library.opaques:
            lower_opaque(library.opaques[target], op.operands, attrs, op.results)
        else:
            types = [[v.type for v in values] for values in (op.operands, op.results)]
            match(library.defines[target][0], types[0], attrs, types[1])
    return [op.attrs["target"] for op in calls]


def test_custom_operators_fit_their_definitions() -> None:
    p = Program()
    x, w, b = p.input("x", 2, 3, 4, dtype=F16), p.input("w", 4, dtype=F16), p.input("b", 4, dtype=F16)
    forward = p.call("fwd", "apex.fused_layer_norm_affine_fwd.default", x, w, b, (4,), 1e-5)
    y = p.item("y", forward, 0, Tensor(F16, (2, 3, 4)))
    mean, inverse = (p.item(n, forward, k, Tensor(F32, (6,))) for k, n in ((1, "m"), (2, "i")))
    args = (y, mean, inverse, x, (4,), w, b, 1e-5)
    backward = p.call("bwd", "apex.fused_layer_norm_affine_bwd.default", *args)
    grads = [p.item(f"g{k}", backward, k) for k in range(3)]
    module = lowered(p.graph(*grads)).module
    shapes = [o.value.type.shape for o in module.outputs]
    assert shapes == [(2, 3, 4), (4,), (4,)]
    assert len(_defined(module)) == 2


def functionalized(p: Program, name: str, callee: str, **kwargs: Argument) -> Ref:
    return p.call(name, "higher_order.auto_functionalized", Operator(callee), **kwargs)


def test_overwritten_arguments_of_custom_operators_are_results() -> None:
    p = Program()
    x, r, w = p.input("x", 5, 4), p.input("r", 5, 4), p.input("w", 4)
    raw = p.call("raw", "aten.empty_like.default", x)
    norm = functionalized(p, "n", "_C.rms_norm.default", result=raw, input=x, weight=w, epsilon=1e-6)
    add = functionalized(p, "f", "_C.fused_add_rms_norm.default", input=x, residual=r, weight=w, epsilon=1e-6)
    wide, half = p.input("g", 5, 6), p.call("e", "aten.empty.memory_format", (5, 3))
    act = functionalized(p, "a", "_C.silu_and_mul.default", out=half, input=wide)
    outputs = [p.item("o1", norm, 1), p.item("o2", add, 1), p.item("o3", add, 2), p.item("o4", act, 1)]
    found = lowered(p.graph(*outputs))
    module = found.module
    assert len(_defined(module)) == 3
    raw_reads = [op for op in module.ops if any(v.name in ("raw", "e") for v in op.operands)]
    assert raw_reads == [] and [g.kind for g in found.guesses] == ["opaque_batched"] * 2


def test_rotary_and_attention_of_vllm_fit_their_definitions() -> None:
    p = Program()
    at, q, k = p.input("at", 5, dtype=S64), p.input("q", 5, 512), p.input("k", 5, 256)
    cache, raw = p.input("c", 9, 128), p.call("raw", "aten.empty.memory_format", (5, 4, 128))
    turned = functionalized(
        p,
        "rotary",
        "_C.rotary_embedding.default",
        positions=at,
        query=q,
        key=k,
        head_size=128,
        cos_sin_cache=cache,
        is_neox=True,
    )
    heads = [p.call(f"h{n}", "aten.view.default", p.item(f"t{n}", turned, n), (5, -1, 128)) for n in (1, 2)]
    out = functionalized(
        p,
        "attention",
        "vllm.unified_attention_with_output.default",
        query=heads[0],
        key=heads[1],
        value=heads[1],
        output=raw,
        layer_name="layers.0",
    )
    module = lowered(p.graph(p.item("o", out, 1))).module
    assert len(_defined(module)) == 2
    assert module.outputs[0].value.type.shape == (5, 4, 128)


def test_the_second_form_of_functionalized_calls_reads_its_bases() -> None:
    p = Program()
    x = p.input("x", 3)
    call = p.call(
        "v2",
        "higher_order.auto_functionalized_v2",
        Operator("tg.inplace_log_tensor.default"),
        s="weight",
        _t_base_index=0,
        _all_bases=(x,),
    )
    (op,) = lowered(p.graph(p.item("y", call, 1))).module.ops
    assert op.attrs["target"] == "tg::inplace_log_tensor.default" and op.attrs["config"] == ""
    p = Program()
    x = p.input("x", 3)
    call = p.call(
        "v2",
        "higher_order.auto_functionalized_v2",
        Operator("_C.silu_and_mul.default"),
        _out_base_index=0,
        _out_slice_dim=0,
        _all_bases=(x,),
    )
    refused(p.graph(call), "overwrites a part of a tensor")


def test_masked_writes_are_selections() -> None:
    p = Program()
    ids = p.input("ids", 2, 3, dtype=S64)
    low = p.call("lt", "aten.lt.Scalar", ids, 4)
    zero = p.constant("zero", dtype=S64)
    put = p.call("put", "aten.index_put.default", ids, (low,), zero)
    found = lowered(p.graph(put), constants={"ze*": 0})
    assert "scatter" not in opcodes(found.module) and found.guesses == ()
    (result,) = run(found.module, {"ids": np.array([[1, 4, 9], [0, 5, 3]])})["put"]
    assert result.tolist() == [[0, 4, 9], [0, 5, 0]]


def test_a_write_to_one_element_of_each_row_is_a_selection() -> None:
    p = Program()
    x, at, v = p.input("x", 4, 5), p.input("at", 4, dtype=S64), p.input("v", 4)
    rows = p.call("rows", "aten.arange.start", 0, 4)
    put = p.call("put", "aten.index_put.default", x, (rows, at), v)
    read = p.call("read", "aten.index.Tensor", put, (rows, at))
    module = lowered(p.graph(read)).module
    assert "scatter" not in opcodes(module)
    gather = next(op for op in module.ops if op.opcode == "gather")
    assert gather.attrs["operand_batching_dims"] == (0,)
    values = np.arange(4.0)
    inputs = {"x": np.zeros((4, 5)), "at": np.array([0, 4, -1, 2]), "v": values}
    assert run(module, inputs)["read"][0].tolist() == values.tolist()


def test_truth_values_of_counted_positions_do_not_count() -> None:
    p = Program()
    x = p.input("x", 3)
    some = p.call("some", "aten.to.dtype", p.call("c", "aten.arange.default", 3), BOOL)
    at = p.call("at", "aten.to.dtype", some, S64)
    module = lowered(p.graph(p.call("y", "aten.index.Tensor", x, (at,)))).module
    assert run(module, {"x": np.arange(3.0)})["y"][0].tolist() == [0.0, 1.0, 1.0]


def test_a_write_to_leading_positions_is_an_update_of_a_block() -> None:
    p = Program()
    x, v = p.input("x", 2, 6), p.input("v", 2, 4)
    rows = p.call("rows", "aten.arange.default", 4)
    put = p.call("put", "aten.index_put.default", x, (None, rows), v)
    copied = p.call("copied", "aten.index_copy.default", x, 1, rows, v)
    found = lowered(p.graph(put, copied))
    assert "scatter" not in opcodes(found.module) and found.guesses == ()
    values = run(found.module, {"x": np.zeros((2, 6)), "v": np.ones((2, 4))})
    assert values["put"][0].tolist() == values["copied"][0].tolist() == [[1, 1, 1, 1, 0, 0]] * 2


def test_positions_out_of_range_are_listed_unless_known() -> None:
    p = Program()
    w, at = p.input("w", 4, 2), p.input("at", 3, dtype=S64)
    counted = p.call("c", "aten.arange.default", 3)
    y, z = (p.call(n, "aten.embedding.default", w, i) for n, i in (("y", at), ("z", counted)))
    found = lowered(p.graph(y, z))
    assert [(g.kind, g.value) for g in found.guesses] == [("ids_in_range", "y")]
    assert "at least 0 and less than 4" in found.guesses[0].text


def test_negative_positions_wrap_in_an_index_only() -> None:
    p = Program()
    w, at = p.input("w", 4), p.input("at", 2, dtype=S64)
    y = p.call("y", "aten.index.Tensor", w, (at,))
    z = p.call("z", "aten.embedding.default", p.call("r", "aten.view.default", w, (4, 1)), at)
    module = lowered(p.graph(y, z)).module
    found = run(module, {"w": np.arange(4.0), "at": np.array([-1, 2])})
    assert found["y"][0].tolist() == [3.0, 2.0] and found["z"][0].tolist() == [[0.0], [2.0]]


def test_uninitialised_memory_and_draws_are_fresh() -> None:
    p = Program()
    x = p.input("x", 2)
    both = [p.call(n, "aten.empty_like.default", x) for n in ("a", "b")]
    drop = [p.call(n, "aten.native_dropout.default", x, 0.25, True) for n in ("c", "d")]
    module = lowered(p.graph(*both, *(p.item(f"{d.name}0", d, 0) for d in drop))).module
    assert Counter(opcodes(module))["rng"] == 4
    assert Counter(opcodes(module))["bitcast_convert"] == 2
    scale = [op.attrs["value"] for op in module.ops if op.opcode == "constant"]
    assert any(np.isclose(v, 1 / 0.75) for v in scale)


def test_a_product_with_beta_zero_does_not_read_its_input() -> None:
    p = Program()
    raw, x, y = (
        p.call("e", "aten.empty.memory_format", (1, 2, 2)),
        p.input("x", 1, 2, 3),
        p.input("y", 1, 3, 2),
    )
    module = lowered(p.graph(p.call("b", "aten.baddbmm.default", raw, x, y, beta=0.0, alpha=0.5))).module
    assert not any(v.name == "e" for op in module.ops for v in op.operands)


def test_unknown_constants_are_one_value_and_listed() -> None:
    p = Program()
    c = p.constant("_tensor_constant0", dtype=S64)
    graph = p.graph(p.call("y", "aten.add.Tensor", c, 1))
    found = lowered(graph)
    assert [(g.kind, g.value) for g in found.guesses] == [("constant_guess", "_tensor_constant0")]
    assert found.module.ops[0].opcode == "opaque"
    given = lowered(graph, constants={"_tensor_constant*": 5})
    assert given.guesses == () and run(given.module, {})["y"][0] == 6


def test_symbolic_sizes_need_a_value() -> None:
    p = Program()
    x = p.input("x", "s0", 3)
    n = p.call("n", "aten.sym_size.int", x, 0, meta=Symbol("s0"))
    twice = p.call("twice", "mul", n, 3)
    graph = p.graph(p.call("y", "aten.view.default", x, (twice,), meta=Tensor(F32, ("3*s0",))))
    refused(graph, "the size s0 is symbolic: give the value of each symbol in [constants]")
    module = lowered(graph, constants={"s0": 4}).module
    assert module.outputs[0].value.type.shape == (12,)
    assert module.warnings == ("the size s0 is 4 as told: nothing is shown of other sizes",)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2*s0 + 1", 9),
        ("(s0 - 1)//2", 1),
        ("Max(1, s0 % 3)", 1),
        ("-s0 + 2*u1", 10),
        ("s0/2", None),
        ("s1", None),
        ("s0.real", None),
        ("__import__(s0)", None),
        ("2**s0", None),
        ("True", None),
        ("(" * 300 + "s0" + ")" * 300, None),
    ],
)
def test_symbolic_expressions_are_arithmetic_only(expression: str, value: int | None) -> None:
    assert size_of(expression, {"s0": 4, "u1": 7}) == value


def test_a_recorded_size_must_agree_with_the_value_of_its_symbol() -> None:
    p = Program()
    x = p.input("x", "s0", 3)
    graph = p.graph(p.call("y", "aten.view.default", x, (12,), meta=Tensor(F32, ("2*s0",))))
    refused(graph, "is recorded as", constants={"s0": 4})


def test_the_positions_of_a_mask_that_holds_everywhere_are_known() -> None:
    p = Program()
    x = p.input("x", 6, 1)
    at = p.item("at", p.call("max_1", "aten.max.dim", x, 1), 1, Tensor(S64, (6,)))
    chosen = p.call("eq", "aten.eq.Scalar", at, 0)
    places = p.call("nonzero", "aten.nonzero.default", chosen, meta=Tensor(S64, ("u0", 1)))
    read = p.call("read", "aten.index.Tensor", x, (places,), meta=Tensor(F32, ("u0", 1, 1)))
    found = lowered(p.graph(read))
    assert found.module.outputs[0].value.type.shape == (6, 1, 1) and found.guesses == ()
    assert opcodes(found.module)[-1] == "reshape"


# collectives


def collective(target: str, *args: Argument, shape: tuple[int, ...] = (4, 3), wait: bool = True) -> Graph:
    p = Program()
    y = p.call("c", target, p.input("x", *shape), *args)
    if wait:
        y = p.call("w", "_c10d_functional.wait_tensor.default", y)
    return p.graph(p.call("y", "aten.neg.default", y))


BOTH = {"tp": ((0, 1),)}


@pytest.mark.parametrize(
    ("target", "args", "opcode", "attrs"),
    [
        ("all_reduce", ("sum", "tp"), "all_reduce", {"kind": "sum"}),
        ("all_reduce", ("max", "tp"), "all_reduce", {"kind": "max"}),
        ("all_reduce", ("product", "tp"), "all_reduce", {"kind": "prod"}),
        ("all_gather_into_tensor", (2, "tp"), "all_gather", {"dim": 0}),
        ("reduce_scatter_tensor", ("sum", 2, "tp"), "reduce_scatter", {"dim": 0, "kind": "sum"}),
        ("all_to_all_single", ((2, 2), (2, 2), "tp"), "all_to_all", {"split_dim": 0, "concat_dim": 0}),
        ("broadcast", (1, "tp"), "collective_broadcast", {"groups": ((1, 0),)}),
    ],
)
def test_collectives(target: str, args: tuple[Argument, ...], opcode: str, attrs: dict[str, Any]) -> None:
    module = lowered(collective(f"_c10d_functional.{target}.default", *args), ranks=2, groups=BOTH).module
    op = module.ops[0]
    assert op.opcode == opcode and op.result.name == "c"
    assert op.attrs == {"groups": ((0, 1),), **attrs}


def test_an_average_divides_the_sum() -> None:
    graph = collective("_c10d_functional.all_reduce.default", "avg", "tp")
    module = lowered(graph, ranks=2, groups=BOTH).module
    x = np.stack([np.ones((4, 3)), 3 * np.ones((4, 3))])
    assert np.all(run(module, {"x": list(x)})["y"][1] == -2)


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (collective("_c10d_functional.all_reduce.default", "sum", "tp", wait=False), "before its wait"),
        (collective("_c10d_functional.all_reduce.default", "premul_sum", "tp"), "which is not known"),
        (collective("_c10d_functional.all_gather_into_tensor.default", 4, "tp"), "a group of 4 ranks"),
        (collective("_c10d_functional.reduce_scatter_tensor.default", "sum", 2, "tp", shape=(3,)), "2 parts"),
        (collective("_c10d_functional.all_to_all_single.default", (1, 3), (3, 1), "tp"), "equal ones"),
        (collective("_c10d_functional.broadcast.default", 2, "tp"), "position 2 of a group of 2"),
    ],
)
def test_collectives_that_are_refused(graph: Graph, text: str) -> None:
    refused(graph, text, ranks=2, groups=BOTH)


def test_an_output_that_was_not_waited_for_is_refused() -> None:
    p = Program()
    y = p.call("c", "_c10d_functional.all_reduce.default", p.input("x", 2), "sum", "tp")
    refused(p.graph(y), "uses the result of `c` before its wait", ranks=2, groups=BOTH)


def test_an_in_place_collective_hides_its_tensor_until_the_wait() -> None:
    def program(*, early: bool) -> Graph:
        p = Program()
        x = p.input("x", 2)
        y = p.call("c", "_c10d_functional.all_reduce_.default", x, "sum", "tp")
        if early:
            p.call("n", "aten.neg.default", x)
        p.call("w", "_c10d_functional.wait_tensor.default", y)
        return p.graph(p.call("z", "aten.neg.default", x))

    refused(program(early=True), "uses the result of `c` before its wait", ranks=2, groups=BOTH)
    module = lowered(program(early=False), ranks=2, groups=BOTH).module
    found = run(module, {"x": [np.array([1.0, 2.0]), np.array([10.0, 20.0])]})
    assert found["z"][0].tolist() == [-11.0, -22.0]
    assert [(o.name, o.updates) for o in module.outputs] == [("z", None), ("x", "x")]


def test_groups_that_the_graph_only_names() -> None:
    reduce = collective("_c10d_functional.all_reduce.default", "sum", "7")
    alone = lowered(reduce)
    assert opcodes(alone.module) == ["negate"]
    assert [(g.kind, g.value) for g in alone.guesses] == [("group_guess", "7")]
    both = lower_ranks([reduce, reduce])
    assert both[0].module.ops[0].attrs["groups"] == ((0, 1),)
    assert [(g.kind, g.value) for g in both[0].guesses] == [("group_guess", "7")]
    other = collective("_c10d_functional.all_reduce.default", "sum", "8")
    unknown = lower_ranks([reduce, other])
    assert "all_reduce" not in opcodes(unknown[0].module) and "rng" in opcodes(unknown[0].module)
    assert "name them in [groups]" in unknown[0].module.warnings[0]
    one = collective("_c10d_functional.all_gather_into_tensor.default", 1, "8")
    assert opcodes(lower(one, ranks=2).module) == ["negate"] and lower(one, ranks=2).guesses == ()
    refused(
        collective("_c10d_functional.all_gather_into_tensor.default", 2, "7"), "give the files of all ranks"
    )


def test_recorded_groups_of_all_ranks_are_put_together() -> None:
    graphs = []
    for rank in range(4):
        p = Program()
        name = f"tp{rank // 2}"
        y = p.call("c", "_c10d_functional.all_reduce.default", p.input("x", 2), "sum", name)
        w = p.call("w", "_c10d_functional.wait_tensor.default", y)
        first = rank // 2 * 2
        graphs.append(p.graph(w, rank=rank, groups={name: (first, first + 1)}))
    modules = [x.module for x in lower_ranks(graphs)]
    assert all(m.ops[0].attrs["groups"] == ((0, 1), (2, 3)) for m in modules)
    folded = fold_ranks(modules)
    verify(folded)
    assert folded.mesh.size == 4


def test_ranks_that_differ_in_numbers_have_the_same_operators() -> None:
    graphs = []
    for rank in range(2):
        p = Program()
        ids = p.input("ids", 4, dtype=S64)
        x = p.input("x", 8, 2)
        own = p.call("own", "aten.slice.Tensor", x, 0, 4 * rank, 4 * rank + 4)
        moved = p.call("sub", "aten.sub.Tensor", ids, 4 * rank)
        at = p.call("at", "aten.arange.start", 4 * rank, 4 * rank + 4)
        put = p.call("put", "aten.slice_scatter.default", x, own, 0, 4 * rank, 4 * rank + 4)
        graphs.append(p.graph(own, moved, at, put, rank=rank))
    folded = fold_ranks([x.module for x in lower_ranks(graphs)])
    verify(folded)
    x = np.arange(16.0).reshape(8, 2)
    found = run(folded, {"ids": np.arange(4), "x": x})
    assert found["at"][1].tolist() == [4, 5, 6, 7] and found["sub"][1].tolist() == [-4, -3, -2, -1]
    assert np.array_equal(found["own"][1], x[4:]) and np.array_equal(found["put"][1], x)


# writes in place


def test_mutated_inputs_are_outputs() -> None:
    p = Program()
    cache, new = p.input("cache", 4, 2), p.input("new", 1, 2)
    row = p.call("row", "aten.slice.Tensor", cache, 0, 1, 2)
    p.call("copy_", "aten.copy_.default", row, new)
    y = p.call("y", "aten.mul.Tensor", cache, 2)
    module = lowered(p.graph(y)).module
    assert [(o.name, o.updates) for o in module.outputs] == [("y", None), ("cache", "cache")]
    found = run(module, {"cache": np.zeros((4, 2)), "new": np.ones((1, 2))})
    assert found["cache"][0][:, 0].tolist() == [0, 1, 0, 0] and found["y"][0][:, 0].tolist() == [0, 2, 0, 0]


def test_recorded_updates_are_kept() -> None:
    p = Program()
    x = p.input("x", 2)
    y = p.call("y", "aten.add.Tensor", x, 1)
    (output,) = lowered(p.graph(y, updates={0: "x"})).module.outputs
    assert (output.name, output.updates) == ("y", "x")


def test_a_write_in_doubt_is_refused() -> None:
    p = Program()
    x = p.input("x", 2, 3)
    y = p.call("y", "aten.reshape.default", x, (6,))
    p.call("w", "aten.add_.Tensor", y, 1)
    refused(
        p.graph(p.call("z", "aten.neg.default", x)), "reads `x`, which `w` overwrote if it shares its memory"
    )


def test_an_unknown_operator_may_give_a_view() -> None:
    p = Program()
    x = p.input("x", 2, 2)
    y = p.call("y", "aten.diagonal.default", x, meta=Tensor(F32, (2,)))
    p.call("w", "aten.add_.Tensor", x, 1)
    refused(p.graph(p.call("z", "aten.neg.default", y)), "reads `y`, which `w` overwrote if it shares")


def test_a_list_of_views_is_outdated_by_a_write() -> None:
    p = Program()
    x = p.input("x", 4)
    both = p.call("both", "aten.split.Tensor", x, 2)
    left = p.item("left", both, 0)
    p.call("w", "aten.add_.Tensor", x, 1)
    refused(p.graph(p.call("c", "aten.cat.default", both)), "reads the list `both`")
    p.nodes.pop()
    module = lowered(p.graph(left, p.item("right", both, 1))).module
    found = run(module, {"x": np.zeros(4)})
    assert found["left"][0].tolist() == [1, 1] and found["right"][0].tolist() == [1, 1]


def test_a_custom_operator_overwrites_its_argument() -> None:
    p = Program()
    x, w, out = p.input("x", 2, 4), p.input("w", 4), p.input("out", 2, 4)
    p.call("n", "_C.rms_norm.default", out, x, w, 1e-6)
    module = lowered(p.graph(p.call("y", "aten.neg.default", out))).module
    assert module.ops[-1].operands[0] in module.ops[-2].results
    assert [o.updates for o in module.outputs] == [None, "out"]


def test_a_result_that_is_written_to_another_tensor() -> None:
    p = Program()
    x, held = p.input("x", 2, 3), p.input("held", 6)
    place = p.call("place", "aten.view.default", held, (2, 3))
    p.call("w", "aten.add.out", x, x, out=place)
    after = p.call("y", "aten.neg.default", held)
    module = lowered(p.graph(after)).module
    found = run(module, {"x": np.ones((2, 3)), "held": np.zeros(6)})
    assert found["y"][0].tolist() == [-2] * 6 and found["held"][0].tolist() == [2] * 6


@pytest.mark.parametrize(("target", "shape"), [("aten.add.out", (3, 2)), ("aten.diagonal.out", (2, 3))])
def test_a_result_that_is_unknown_or_of_another_shape_is_refused(
    target: str, shape: tuple[int, int]
) -> None:
    p = Program()
    x, held = p.input("x", 2, 3), p.input("held", *shape)
    p.call("w", target, x, x, out=held)
    refused(p.graph(held), "writes ")


CUSTOM = {
    "apex::fused_layer_norm_affine_fwd.default",
    "apex::fused_layer_norm_affine_bwd.default",
    "tg::log_tensor.default",
    "tg::inplace_log_tensor.default",
    "megatron::sinkhorn.default",
    "_C::rms_norm.default",
    "_C::fused_add_rms_norm.default",
    "_C::rotary_embedding.default",
    "_C::silu_and_mul.default",
    "vllm::unified_attention_with_output.default",
}
"""What the captured dumps call by name; none is an operator of PyTorch."""


@pytest.mark.skipif(not DUMPS, reason="the captured dumps (../shared/real/py) are not here")
@pytest.mark.parametrize("start", DUMPS, ids=lambda p: f"{p.parent.parent.name}-{p.parent.name}-{p.name}")
def test_captured_dumps_lower(start: Path) -> None:
    from shardproof.frontends.fx.code.ranks import read_ranks

    graphs = read_ranks(sorted(start.parent.glob(f"{start.name}.r*.gz")))
    known = {"1": tuple((r,) for r in range(len(graphs))), "3": tuple((r,) for r in range(len(graphs)))}
    for graph, found in zip(graphs, lower_ranks(graphs, groups=known), strict=True):
        verify(found.module)
        calls = {op.attrs["target"] for op in found.module.ops if op.opcode == "custom_call"}
        assert calls <= CUSTOM
        names = {v.name for op in found.module.ops for v in op.results} | {
            i.name for i in found.module.inputs
        }
        assert {o.value.name for o in found.module.outputs} <= names
        assert len(found.module.inputs) == len(graph.placeholders)
        assert not any("ranks are not known" in w for w in found.module.warnings)

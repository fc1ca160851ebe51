"""A lowered define computes what its text says, and only for uses that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from shardproof.ir.interpret import run
from shardproof.ir.module import Input, Module, Output, Value
from shardproof.ir.types import Array, DType, Mesh, TensorType
from shardproof.ir.verify import verify
from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.lower import Unmatched, lower
from shardproof.lemmas.lower_opaque import lower_opaque
from shardproof.lemmas.lower_take import has_open_reads
from shardproof.lemmas.parse import parse
from shardproof.lemmas.terms import Define, OpaqueDefine
from shardproof.lemmas.typing import check

RMS_NORM = """
define AwsNeuronRmsNorm(x[k, ...], w[k], eps[]; config = 0) -> y[k, ...]
  "Root-mean-square normalisation over the first dim."
  y = x * rsqrt(sum[k](x * x) / |k| + eps) * w
"""
LAST_DIM = 'define norm(x, w, eps)[k] "d" x * rsqrt(sum[k](x * x) / |k| + eps) * w'
FUSED = """
define _C::fused_add_rms_norm.default(input![..., k], residual![..., k], weight[k]; epsilon)
  "Adds the residual, then normalises."
  residual = input + residual
  input = residual * rsqrt(sum[k](residual * residual) / |k| + epsilon) * weight
"""
RNG = np.random.default_rng(7)
F32, BF16, S32, BOOL = DType.F32, DType.BF16, DType.S32, DType.BOOL


def define(text: str) -> Define:
    (found,) = parse(text, "a.lemma")
    checked = check(found)
    assert isinstance(checked, Define)
    return checked


def values(letter: str, types: list[TensorType]) -> list[Value]:
    return [Value(f"{letter}{i}", t) for i, t in enumerate(types)]


def evaluated(
    found: Define,
    arrays: list[Any],
    types: list[TensorType],
    attrs: Mapping[str, Any],
    results: list[TensorType],
) -> list[Array]:
    """The results of the lowered define, in a module that the verifier accepts."""
    operands, outputs = values("x", types), values("y", results)
    ops = lower(found, operands, attrs, outputs)
    module = Module(
        "m",
        Mesh(),
        tuple(Input(v, i) for i, v in enumerate(operands)),
        tuple(ops),
        tuple(Output(v.name, v) for v in outputs),
    )
    verify(module)
    inputs = {v.name: np.asarray(a) for v, a in zip(operands, arrays, strict=True)}
    got = run(module, inputs)
    return [got[v.name][0] for v in outputs]


def t(dtype: DType, *shape: int) -> TensorType:
    return TensorType(dtype, shape)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape)


def test_rms_norm_over_the_first_dim() -> None:
    x, w, eps = normal(5, 3, 2), normal(5), np.float64(0.1)
    types = [t(BF16, 5, 3, 2), t(F32, 5), t(F32)]
    attrs = {"target": "AwsNeuronRmsNorm", "config": "0"}
    (y,) = evaluated(define(RMS_NORM), [x, w, eps], types, attrs, [t(BF16, 5, 3, 2)])
    close(y, x / np.sqrt((x * x).mean(0) + 0.1) * w[:, None, None])


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_shorthand_is_over_the_last_dim(shape: tuple[int, ...]) -> None:
    x, w = normal(*shape), normal(5)
    types = [t(F32, *shape), t(F32, 5), t(F32)]
    (y,) = evaluated(define(LAST_DIM), [x, w, 0.1], types, {}, [t(F32, *shape)])
    close(y, x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.1) * w)


def test_a_parameter_of_full_rank_has_all_dims() -> None:
    x, w = normal(3, 5), normal(3, 5)
    (y,) = evaluated(define('define f(x, w)[k] "d" x*w'), [x, w], [t(F32, 3, 5)] * 2, {}, [t(F32, 3, 5)])
    close(y, x * w)


def test_mutated_parameters_come_in_the_order_of_the_parameters() -> None:
    x, r, w = normal(4, 5), normal(4, 5), normal(5)
    types = [t(BF16, 4, 5), t(BF16, 4, 5), t(BF16, 5)]
    new_x, new_r = evaluated(define(FUSED), [x, r, w], types, {"epsilon": 1e-6}, types[:2])
    s = x + r
    close(new_r, s)
    close(new_x, s / np.sqrt((s * s).mean(-1, keepdims=True) + 1e-6) * w)


def test_a_result_may_use_the_old_and_the_new_value() -> None:
    text = 'define swap(a![k], b![k]) "d" old = a + 0*b a = b b = old'
    a, b = normal(4), normal(4)
    new_a, new_b = evaluated(define(text), [a, b], [t(F32, 4)] * 2, {}, [t(F32, 4)] * 2)
    close(new_a, b)
    close(new_b, b)


HALVES = 'define halves(y![..., h], x[..., g]) "d" y = take[g](x, h)*take[g](x, h + |h|)'
TURNED = """
define turned(x![t, q], table[m, c], at[t]) "d"
  other = take[q](x, q - rem(q, 4) + rem(q + 2, 4))
  x = where(|c| == 2,
    x*take[m](take[c](table, rem(q, 2)), at) + where(rem(q, 4) < 2, -other, other), take[q](x, -1))
"""


def test_reads_in_steps_are_slices() -> None:
    x = normal(3, 8)
    types = [t(F32, 3, 4), t(F32, 3, 8)]
    found = define(HALVES)
    (y,) = evaluated(found, [normal(3, 4), x], types, {}, types[:1])
    close(y, x[:, :4] * x[:, 4:])
    operands, results = values("x", types), values("y", types[:1])
    assert {op.opcode for op in lower(found, operands, {}, results)} == {"slice", "multiply", "convert"}
    assert not has_open_reads(found)


def test_reads_at_computed_positions_are_gathers() -> None:
    x, table, at = normal(3, 8), normal(5, 2), np.array([4, 0, 2])
    types = [t(F32, 3, 8), t(F32, 5, 2), t(S32, 3)]
    found = define(TURNED)
    (y,) = evaluated(found, [x, table, at], types, {}, types[:1])
    heads = x.reshape(3, 2, 2, 2)
    other = np.stack([-heads[:, :, 1], heads[:, :, 0]], 2).reshape(3, 8)
    close(y, x * np.tile(table[at], 4) + other)
    assert has_open_reads(found)
    with pytest.raises(Unmatched, match="out of the range of q"):
        lower(found, values("x", [types[0], t(F32, 5, 3), types[2]]), {}, values("y", types[:1]))
    with pytest.raises(Unmatched, match="out of the range of q"):
        narrow = t(F32, 3, 6)
        lower(found, values("x", [narrow, *types[1:]]), {}, values("y", [narrow]))


def test_a_gather_keeps_the_indices_that_both_have() -> None:
    x, at = normal(3, 2, 5), np.array([4, 0, 2])
    types = [t(F32, 3, 2, 5), t(S32, 3)]
    text = 'define pick(x[b, c, k], at[b]) -> y[b, c] "d" y = take[k](x, at)'
    (y,) = evaluated(define(text), [x, at], types, {}, [t(F32, 3, 2)])
    close(y, x[np.arange(3), :, at])


def test_several_results_and_earlier_ones() -> None:
    text = """
    define layer_norm(x[..., k], w[k], b[k]; eps) -> y[..., k], mean[...], rstd[...] "d"
      mean = sum[k](x)/|k|
      rstd = (sum[k]((x - mean)^2)/|k| + eps)^(-1/2)
      y = (x - mean)*rstd*w + b
    """
    x, w, b = normal(2, 3, 5), normal(5), normal(5)
    types = [t(F32, 2, 3, 5), t(F32, 5), t(F32, 5)]
    results = [t(F32, 2, 3, 5), t(F32, 2, 3), t(F32, 2, 3)]
    y, mean, rstd = evaluated(define(text), [x, w, b], types, {"eps": 1}, results)
    close(mean, x.mean(-1))
    close(rstd, 1 / np.sqrt(x.var(-1) + 1))
    close(y, (x - x.mean(-1, keepdims=True)) * rstd[..., None] * w + b)


def test_dims_are_matched_by_name_not_by_place() -> None:
    text = 'define f(x[i, j], y[j, i]) -> z[j, i], s[i] "d" z = x - 2*y s = sum[j](x*y)'
    x, y = normal(2, 3), normal(3, 2)
    z, s = evaluated(define(text), [x, y], [t(F32, 2, 3), t(F32, 3, 2)], {}, [t(F32, 3, 2), t(F32, 2)])
    close(z, x.T - 2 * y)
    close(s, (x * y.T).sum(1))


def test_positions_kinds_and_every_monoid() -> None:
    text = """
    define f(n[], x[i, j], m[i]) -> a[i, j], b[], c[], d[i], e[i], g[]
      "d"
      a = where(i >= j and j + 1 < |j|, x, -inf)
      b = sum[i, j](real(i*2 + j)*x)
      c = prod[i](2)*real(n)
      d = max[j](x) - min[j](clamp(x, -1, 1/2))
      e = all[j](x < 3) and not m
      g = any[i](m)
    """
    x, m = normal(2, 3), np.array([True, False])
    i, j = np.arange(2)[:, None], np.arange(3)
    types = [t(S32), t(F32, 2, 3), t(BOOL, 2)]
    results = [t(F32, 2, 3), t(F32), t(F32), t(F32, 2), t(BOOL, 2), t(BOOL)]
    a, b, c, d, e, g = evaluated(define(text), [np.int32(5), x, m], types, {}, results)
    np.testing.assert_array_equal(a, np.where((i >= j) & (j + 1 < 3), x, -np.inf))
    close(b, ((2 * i + j) * x).sum())
    close(c, 20)
    close(d, x.max(1) - np.clip(x, -1, 0.5).min(1))
    np.testing.assert_array_equal(e, ~m)
    assert g


def test_a_sum_over_an_index_that_is_not_read_counts_it() -> None:
    text = 'define f(x[i], y[j]) -> z[i] "d" z = sum[j](x) + 0*sum[j](y)'
    x = normal(2)
    (z,) = evaluated(define(text), [x, normal(3)], [t(F32, 2), t(F32, 3)], {}, [t(F32, 2)])
    close(z, 3 * x)


def test_a_polymorphic_define_is_taken_at_the_kind_of_its_operands() -> None:
    found = define('define double(x) "d" x + x')
    (z,) = evaluated(found, [np.array([1, 2], np.int32)], [t(S32, 2)], {}, [t(S32, 2)])
    np.testing.assert_array_equal(z, [2, 4])
    with pytest.raises(Unmatched, match="bool"):
        lower(found, values("x", [t(BOOL, 2)]), {}, values("y", [t(BOOL, 2)]))


X, W, E = t(F32, 5, 3), t(F32, 5), t(F32)


@pytest.mark.parametrize(
    ("text", "types", "attrs", "results", "message"),
    [
        (RMS_NORM, [X, W, E], {"config": "1"}, [X], "attribute config is '1', 0 is needed"),
        (RMS_NORM, [X, W, E], {"config": "0x0"}, [X], "attribute config is '0x0', 0 is needed"),
        (RMS_NORM, [X, W, E], {"config": False}, [X], "attribute config is False, 0 is needed"),
        (RMS_NORM, [X, W, E], {}, [X], "attribute config is missing"),
        (RMS_NORM, [X, W, E], {"config": 0, "mode": 1}, [X], "attribute mode is not named by the define"),
        (RMS_NORM, [X, W, E], {"config": 0, "target": "Other"}, [X], "target 'Other' is not"),
        (RMS_NORM, [X, t(F32, 3), E], {"config": 0}, [X], "operand w is f32[3], 5 is needed along k"),
        (RMS_NORM, [X, W, t(F32, 1)], {"config": 0}, [X], "operand eps is f32[1], dims [] are needed"),
        (RMS_NORM, [X, W], {"config": 0}, [X], "2 operands found, 3 needed"),
        (RMS_NORM, [X, W, E], {"config": 0}, [X, X], "2 results found, 1 needed"),
        (RMS_NORM, [X, W, E], {"config": 0}, [t(F32, 3, 5)], "result y is f32[3,5], 5 is needed along k"),
        (RMS_NORM, [X, W, E], {"config": 0}, [t(S32, 5, 3)], "the define gives a value of kind real"),
        (RMS_NORM, [t(S32, 5, 3), W, E], {"config": 0}, [X], "found int where real is needed"),
        (RMS_NORM, [t(DType.C64, 5, 3), W, E], {"config": 0}, [X], "a real, int or bool is needed"),
        (RMS_NORM, [t(F32, 0, 3), t(F32, 0), E], {"config": 0}, [t(F32, 0, 3)], "dim of size 0"),
        (FUSED, [X, X, t(F32, 3)], {"epsilon": "small"}, [X, X], "a finite number is needed"),
        (FUSED, [X, X, t(F32, 3)], {"epsilon": float("nan")}, [X, X], "a finite number is needed"),
        (FUSED, [X, X, t(F32, 3)], {"epsilon": True}, [X, X], "a finite number is needed"),
        (LAST_DIM, [t(F32, 3, 5), t(F32, 3), E], {}, [t(F32, 3, 5)], "5 is needed along k"),
        (LAST_DIM, [t(F32, 3, 5), t(F32, 1, 5), E], {}, [t(F32, 3, 5)], "3 is needed along ...0"),
        ('define f(x[i, j]) -> y[i] "d" y = x', [X], {}, [W], "varies along j"),
        (
            'define f(x[i], y[i]) -> z[i] "d" z = take[i](x, i + 1) + y',
            [W, W],
            {},
            [W],
            "out of the range of i",
        ),
        ('define f(x[i]) -> z[i] "d" z = x*16777217', [W], {}, [W], "does not fit f32"),
    ],
)
def test_other_uses_do_not_match(
    text: str, types: list[TensorType], attrs: Mapping[str, Any], results: list[TensorType], message: str
) -> None:
    with pytest.raises(Unmatched) as error:
        lower(define(text), values("x", types), attrs, values("y", results))
    assert message in str(error.value)


ATTENTION = """
opaque vllm::attention(q[t, h, d], k[s, h, d], mask, out![..., h, t]; layer) -> lse[h, t] batched over h, ...
  "Attention per head."
"""


HEADS = [t(F32, 6, 2, 4), t(F32, 7, 2, 4), t(BOOL, 6, 7), t(F32, 3, 5, 2, 6)]


def test_an_opaque_operator_is_free_along_its_batch_dims() -> None:
    text = ATTENTION.replace("lse[h, t]", "lse[..., h, t]")
    (found,) = map(check, parse(text, "a.lemma"))
    assert isinstance(found, OpaqueDefine)
    made = [t(F32, 3, 5, 2, 6), t(F32, 3, 5, 2, 6)]
    op = lower_opaque(found, values("x", HEADS), {"layer": "a"}, values("y", made))
    assert op.attrs["free"] == (
        ((1, 1, -1, 2), (2, 2)),
        ((-1, -1, -1, 0), (0, 0)),
        ((-1, -1, -1, 1), (1, 1)),
    )
    inputs = tuple(Input(v, i) for i, v in enumerate(op.operands))
    outputs = tuple(Output(v.name, v) for v in op.results)
    verify(Module("m", Mesh(), inputs, (op,), outputs))
    names = {
        lower_opaque(found, values("x", HEADS), {"layer": layer}, values("y", made)).attrs["name"]
        for layer in ("1", 1, 1.0, True, None, (1,), "(1,)")
    }
    assert len(names) == 7


def test_a_dim_that_a_result_lacks_is_not_batched() -> None:
    (found,) = parse(ATTENTION, "a.lemma")
    with pytest.raises(LemmaError, match="no dim of the result `lse`"):
        check(found)


@pytest.mark.parametrize(
    ("place", "type", "attrs", "message"),
    [
        (1, t(F32, 7, 3, 4), {"layer": 1}, "operand k is f32[7,3,4], 2 is needed along h"),
        (0, t(F32, 6, 2), {"layer": 1}, "dims [t, h, d] are needed"),
        (0, t(F32, 6, 2, 4), {}, "attribute layer is missing"),
        (0, t(F32, 6, 2, 4), {"layer": 1, "scale": 2.0}, "attribute scale is not named"),
    ],
)
def test_other_uses_of_an_opaque_operator(
    place: int, type: TensorType, attrs: Mapping[str, Any], message: str
) -> None:
    text = ATTENTION.replace("lse[h, t]", "lse[..., h, t]")
    (found,) = parse(text, "a.lemma")
    assert isinstance(found, OpaqueDefine)
    types = [*HEADS[:place], type, *HEADS[place + 1 :]]
    with pytest.raises(Unmatched) as error:
        lower_opaque(found, values("x", types), attrs, values("y", [HEADS[3], HEADS[3]]))
    assert message in str(error.value)

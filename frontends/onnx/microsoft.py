"""Fused operators of onnxruntime (domain com.microsoft).

Most are calls by name that the lemma library defines (`lemmas/library/onnxruntime.lemma`); the rules here
bring their operands and defaults into the form that the definitions are written for. The kernels round
between the fused steps, which over the reals is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.frontends.onnx.contract import RULES as CONTRACTIONS
from shardproof.frontends.onnx.contract import matmul
from shardproof.frontends.onnx.convolutions import RULES as CONVOLUTIONS
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType

DOMAIN: Final = "com.microsoft"
RENAMED: Final = frozenset({"SimplifiedLayerNormalization"})
"""Operators of onnxruntime that it puts into the default domain, where the standard has none of the name."""


def attributes(s: Lowering, n: Node, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a node, which must be among those with a default; the onnx package knows none."""
    given = n.attrs.whole()
    other = set(given) - set(defaults)
    if other:
        s.fail(f"has the attribute {min(other)}; {', '.join(defaults) or 'none'} are known")
    return {**defaults, **given}


def _elementwise(**defaults: float) -> Rule:
    """A call whose result is like its first operand."""

    def rule(s: Lowering, n: Node) -> tuple[Value, ...]:
        held = {name: float(np.float32(value)) for name, value in defaults.items()}
        return s.custom(n, n.inputs, [n.operand(0).type], attributes(s, n, held))

    return rule


def _simplified_layer_normalization(s: Lowering, n: Node) -> list[Value | None]:
    """Over the dims from `axis` on, which become one; the second result is the inverse deviation."""
    x, scale = n.operand(0), n.operand(1)
    told = attributes(s, n, {"axis": -1, "epsilon": float(np.float32(1e-5)), "stash_type": 1})
    shape = x.type.shape
    axis = s.dim(told["axis"], len(shape))
    width = prod(shape[axis:])
    rows = s.reshape(x, (*shape[:axis], width))
    flat = s.reshape(s.spread(scale, shape[axis:]), (width,))
    types = [rows.type, TensorType(DType.F32, shape[:axis])]
    found, inverse = s.custom(n, (rows, flat), types, {"epsilon": told["epsilon"]})
    kept = (*shape[:axis], *(1 for _ in shape[axis:]))
    return [s.reshape(found, shape), s.reshape(inverse, kept)]


def _skip_normalization(*optional: str) -> Rule:
    """`optional` operands that are left out are zeros: they are added."""

    def rule(s: Lowering, n: Node) -> list[Value | None]:
        x, skip, gamma = n.operand(0), n.operand(1), n.operand(2)
        told = attributes(s, n, {"epsilon": float(np.float32(1e-12))})
        if n.wants(1) or n.wants(2):
            s.fail("gives mean and deviation, which are not supported")
        rest = [s.like(gamma, 0) if (v := n.given(3 + k)) is None else v for k in range(len(optional))]
        operands = (x, s.spread(skip, x.type.shape), gamma, *rest)
        found, total = s.custom(n, operands, [x.type, x.type], told)
        return [found, None, None, total]

    return rule


def _fused_matmul(s: Lowering, n: Node) -> Value:
    """`alpha` times the product of the operands, transposed as told; vectors are not."""
    told = attributes(s, n, {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0})
    x, y = (
        _turned(s, n.operand(k), bool(told["trans" + name]), bool(told["transBatch" + name]))
        for k, name in enumerate("AB")
    )
    found = matmul(s, x, y)
    return found if told["alpha"] == 1 else s.pair("multiply", found, told["alpha"])


def _turned(s: Lowering, x: Value, last: bool, batch: bool) -> Value:
    """The matrices of an operand: with `batch` rows run along dim 0, with `last` they are transposed."""
    order = list(range(len(x.type.shape)))
    if len(order) < 2:
        return x
    if batch:
        order = [*order[1:-1], order[0], order[-1]]
    if last:
        order[-2:] = order[:-3:-1]
    return s.transpose(x, order)


def _fused_gemm(s: Lowering, n: Node) -> Value:
    """Gemm, then an activation."""
    told = attributes(s, n, {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, **_ACTIVATION})
    found = CONTRACTIONS["Gemm"](s, n.again("Gemm", {k: told[k] for k in told if k not in _ACTIVATION}))
    assert isinstance(found, Value)
    return activated(s, found, told["activation"], (told["activation_alpha"], told["activation_beta"]))


_ACTIVATION: Final[Mapping[str, Any]] = {
    "activation": None,
    "activation_alpha": None,
    "activation_beta": None,
    "activation_gamma": None,
}


def _fused_conv(s: Lowering, n: Node) -> Value:
    """A convolution, what is added to it, and an activation."""
    open_ = dict.fromkeys(("dilations", "kernel_shape", "pads", "strides"))
    defaults = {"auto_pad": "NOTSET", "group": 1, **open_}
    told = attributes(s, n, {**defaults, "activation": None, "activation_params": ()})
    own = {name: told[name] for name in defaults if told[name] is not None}
    found = CONVOLUTIONS["Conv"](s, n.again("Conv", own))
    assert isinstance(found, Value)
    added = n.given(3)
    found = found if added is None else s.pair("add", found, added)
    return activated(s, found, told["activation"], told["activation_params"])


def _blocked(s: Lowering, n: Node) -> Value:
    s.fail(
        "keeps channels in blocks, whose size depends on the processor and stands nowhere in the file: "
        "optimise at the level `extended`"
    )


def activated(s: Lowering, x: Value, name: str | None, numbers: Sequence[float | None]) -> Value:
    """An activation by its name in onnxruntime; what it takes must be told."""
    first, second = (*numbers, None, None)[:2]
    if name == "Relu":
        return s.pair("maximum", x, 0)
    if name in ("Sigmoid", "Tanh"):
        return s.emit("logistic" if name == "Sigmoid" else "tanh", x)
    if name == "LeakyRelu" and first is not None:
        return s.select(s.compare("LT", x, 0), s.pair("multiply", x, first), x)
    if name != "Clip" or first is None or second is None:
        s.fail(f"is followed by the activation {name!r} with {list(numbers)}, which is not known")
    return s.pair("minimum", s.pair("maximum", x, first), second)


def _bias_softmax(s: Lowering, n: Node) -> Value:
    """The softmax of the sum, over the dims from `axis` on; a bias of another rank has no known meaning."""
    x, bias = n.operand(0), n.operand(1)
    told = attributes(s, n, {"axis": 1, "is_inner_broadcast": 0})
    rank = len(x.type.shape)
    if len(bias.type.shape) != rank:
        s.fail(f"adds {bias.type} to {x.type}: only a bias with as many dims is supported")
    dims = tuple(range(s.dim(told["axis"], rank), rank))
    total = s.pair("add", x, s.spread(bias, x.type.shape))
    most = s.spread(s.reduce(total, dims, "max", keepdim=True), x.type.shape)
    found = s.emit("exponential", s.pair("subtract", total, most))
    return s.pair("divide", found, s.reduce(found, dims, "sum", keepdim=True))


RULES: Final[Mapping[str, Rule]] = {
    "BiasGelu": _elementwise(),
    "BiasSoftmax": _bias_softmax,
    "FastGelu": _elementwise(),
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _elementwise(),
    "QuickGelu": _elementwise(alpha=1.702),
    "SimplifiedLayerNormalization": _simplified_layer_normalization,
    "SkipLayerNormalization": _skip_normalization("beta", "bias"),
    "SkipSimplifiedLayerNormalization": _skip_normalization("bias"),
}
BLOCKED: Final[Mapping[str, Rule]] = dict.fromkeys(
    (
        *("AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
        *("ReorderInput", "ReorderOutput", "Upsample"),
    ),
    _blocked,
)
"""Operators of the domain com.microsoft.nchwc."""

"""Attention: scores, what is masked of them, and what the weights of each row give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardproof.frontends.onnx.contract import matmul
from shardproof.frontends.onnx.elements import dtype_of
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType

_RANK: Final = 4
_MODES: Final = range(4)


@dataclass(frozen=True, slots=True)
class Masking:
    """What a row may attend to.

    `allowed` says where, `bias` is added to the scores; None where that is everywhere, or nothing. `whole` is
    whether all of a row may be masked.
    """

    allowed: Value | None
    bias: Value | None
    whole: bool

    def apply(self, s: Lowering, scores: Value) -> Value:
        if self.bias is not None:
            scores = s.pair("add", scores, s.convert(self.bias, scores.type.dtype))
        return scores if self.allowed is None else s.select(self.allowed, scores, s.like(scores, -math.inf))


def _attention(s: Lowering, n: Node) -> list[Value | None]:
    q, k, v = (_heads(s, n, at, heads) for at, heads in enumerate(("q_num_heads", *["kv_num_heads"] * 2)))
    past = [n.given(at) for at in (4, 5)]
    if (past[0] is None) != (past[1] is None) or (past[0] is not None and n.given(6) is not None):
        s.fail("needs both a past key and a past value, or none, and none beside the lengths of a cache")
    before = 0 if past[0] is None else past[0].type.shape[2]
    pairs = zip(past, (k, v), strict=True)
    present = [x if old is None else s.emit("concatenate", old, x, dim=2) for old, x in pairs]
    k, v = (repeated(s, x, q.type.shape[1]) for x in present)
    scale, cap, mode = n.attrs.get("scale"), n.attrs["softcap"], n.attrs["qk_matmul_output_mode"]
    if mode not in _MODES:
        s.fail(f"has qk_matmul_output_mode {mode}, 0 to 3 are known")
    raw = matmul(s, q, s.transpose(k, (0, 1, 3, 2)))
    raw = s.pair("multiply", raw, 1 / math.sqrt(q.type.shape[-1]) if scale is None else scale)
    capped = raw if not cap else s.pair("multiply", s.emit("tanh", s.pair("divide", raw, cap)), cap)
    batch, heads, rows, _ = q.type.shape
    masking = _masking(s, n, (batch, heads, rows, k.type.shape[2]), before)
    scores = masking.apply(s, capped)
    told = n.attrs.get("softmax_precision")
    weights = weighting(s, s.convert(scores, dtype_of(told)) if told else scores, guarded=masking.whole)
    weights = s.convert(weights, q.type.dtype)
    out = matmul(s, weights, v)
    if len(n.operand(0).type.shape) < _RANK:
        batch, heads, rows, size = out.type.shape
        out = s.reshape(s.transpose(out, (0, 2, 1, 3)), (batch, rows, heads * size))
    return [out, *present, (raw, capped, scores, weights)[mode]]


def _heads(s: Lowering, n: Node, at: int, name: str) -> Value:
    """The operand as (batch, heads, rows, features)."""
    x = n.operand(at)
    if len(x.type.shape) == _RANK:
        return x
    count = n.attrs.get(name)
    if len(x.type.shape) != _RANK - 1 or not count or x.type.shape[2] % count:
        s.fail(f"has the operand {x.type} and {name} = {count}, which do not fit")
    batch, rows, features = x.type.shape
    return s.transpose(s.reshape(x, (batch, rows, count, features // count)), (0, 2, 1, 3))


def repeated(s: Lowering, x: Value, heads: int) -> Value:
    """Each head for as many neighbours as there are of the queries."""
    batch, own, rows, size = x.type.shape
    if heads % own:
        s.fail(f"has {heads} heads of queries for {own} of keys, a multiple is needed")
    if heads == own:
        return x
    spread = s.place(x, (0, 1, 3, 4), (batch, own, heads // own, rows, size))
    return s.reshape(spread, (batch, heads, rows, size))


def _masking(s: Lowering, n: Node, shape: tuple[int, int, int, int], before: int) -> Masking:
    """The masks of scores of a shape; `before` keys are ahead of the first row's own."""
    batch, _, rows, columns = shape
    mask, lengths = n.given(3), n.given(6)
    causal = n.attrs["is_causal"]
    left, right = (n.attrs.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if left < -1 or right < -1:
        s.fail(f"has the windows {left} and {right}, -1 or more is needed")
    inner = (1 if lengths is None else batch, 1, rows, columns)
    column = s.iota(DType.S64, inner, 3)
    row = s.iota(DType.S64, inner, 2)
    conditions = []
    if lengths is None:
        row = s.pair("add", row, before) if before else row
    else:
        own = s.place(s.convert(lengths, DType.S64), (0,), inner)
        row = s.emit("add", row, s.pair("subtract", own, rows))
        conditions.append(s.compare("LT", column, own))
    if causal:
        conditions.append(s.compare("LE", column, row))
    if left >= 0:
        conditions.append(s.compare("GE", column, s.pair("subtract", row, left)))
    if right >= 0:
        conditions.append(s.compare("LE", column, s.pair("add", row, right)))
    bias = None
    if mask is not None:
        mask = _widened(s, mask, columns)
        if mask.type.dtype is DType.BOOL:
            conditions.append(mask)
        else:
            bias = mask
    allowed = None
    for condition in conditions:
        allowed = condition if allowed is None else s.pair("and", allowed, condition)
    whole = mask is not None or lengths is not None or (left >= 0 and before + rows > columns)
    return Masking(allowed, bias, whole)


def _widened(s: Lowering, mask: Value, columns: int) -> Value:
    """The mask over all columns; those that it does not reach are masked."""
    rank = len(mask.type.shape)
    missing = columns - mask.type.shape[-1] if rank else 0
    if missing <= 0:
        return mask
    if mask.type.shape[-1] == 1:
        s.fail(f"has the mask {mask.type}, which may be meant for the first of {columns} keys, or for all")
    rest = s.scalar(False if mask.type.dtype is DType.BOOL else -math.inf, mask.type.dtype)
    high = (0,) * (rank - 1) + (missing,)
    return s.emit("pad", mask, rest, low=(0,) * rank, high=high, interior=(0,) * rank)


def weighting(s: Lowering, scores: Value, *, guarded: bool) -> Value:
    """Softmax over the last dim; a row of which all is masked gives 0."""
    last = (len(scores.type.shape) - 1,)
    powers = s.emit("exponential", scores)
    found = s.pair("divide", powers, s.reduce(powers, last, "sum", keepdim=True))
    if not guarded:
        return found
    dead = s.reduce(s.compare("EQ", scores, -math.inf), last, "and", keepdim=True)
    return s.select(dead, s.like(found, 0), found)


RULES: Final[Mapping[str, Rule]] = {"Attention": _attention}

"""Small HLO programs: text, and the function that each computes (on one rank) in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

ADD = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}
"""
MAX = ADD.replace("add {", "max {").replace(" add(", " maximum(")


@dataclass(frozen=True, slots=True)
class Program:
    """A one-rank program: `inputs` are shapes of float parameters, `meaning` gives the outputs."""

    text: str
    inputs: tuple[tuple[int, ...], ...]
    meaning: Callable[..., tuple[Any, ...]]


def _softmax(x: Any) -> tuple[Any, ...]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True),)


def _window_max(x: Any) -> tuple[Any, ...]:
    return (np.maximum(np.maximum(x[:, 0:-1:2], x[:, 1::2]), -1e30),)


def _convolve(x: Any, k: Any) -> tuple[Any, ...]:
    padded = np.pad(x, ((0, 0), (1, 0), (0, 0)))
    out = np.stack([np.einsum("bwi,wio->bo", padded[:, s : s + 2], k) for s in range(4)], axis=1)
    return (out,)


PROGRAMS: dict[str, Program] = {
    "elementwise": Program(
        """HloModule m
ENTRY main {
  x = f32[2,3]{1,0} parameter(0)
  y = f32[2,3] parameter(1)
  c = f32[] constant(0.5)
  b = f32[2,3] broadcast(c), dimensions={}
  s = f32[2,3] subtract(x, y), metadata={op_name="sub" source_file="net.py" source_line=7}
  d = f32[2,3] multiply(s, b)
  t = f32[2,3] tanh(d)
  p = pred[2,3] compare(x, y), direction=GE
  ROOT r = f32[2,3] select(p, t, y)
}
""",
        ((2, 3), (2, 3)),
        lambda x, y: (np.where(x >= y, np.tanh(0.5 * (x - y)), y),),
    ),
    "layout": Program(
        """HloModule m
ENTRY main {
  x = f32[2,6] parameter(0)
  r = f32[2,2,3] reshape(x)
  t = f32[3,2,2] transpose(r), dimensions={2,0,1}
  s = f32[2,2,1] slice(t), slice={[0:3:2], [0:2], [1:2]}
  z = f32[] constant(-1)
  p = f32[4,2,2] pad(s, z), padding=1_0_1x0_0x0_1
  v = f32[4,2,2] reverse(p), dimensions={0,2}
  ROOT c = f32[4,4,2] concatenate(v, v), dimensions={1}
}
""",
        ((2, 6),),
        lambda x: (_layout(x),),
    ),
    "softmax": Program(
        f"""HloModule m
{ADD}{MAX}
ENTRY main {{
  x = f32[4,5] parameter(0)
  low = f32[] constant(-inf)
  zero = f32[] constant(0)
  m = f32[4] reduce(x, low), dimensions={{1}}, to_apply=max
  mb = f32[4,5] broadcast(m), dimensions={{0}}
  d = f32[4,5] subtract(x, mb)
  e = f32[4,5] exponential(d)
  s = f32[4] reduce(e, zero), dimensions={{1}}, to_apply=add
  sb = f32[4,5] broadcast(s), dimensions={{0}}
  ROOT q = f32[4,5] divide(e, sb)
}}
""",
        ((4, 5),),
        _softmax,
    ),
    "dot": Program(
        """HloModule m
ENTRY main {
  x = f32[2,3,4] parameter(0)
  y = f32[2,4,5] parameter(1)
  ROOT d = f32[2,3,5] dot(x, y), lhs_batch_dims={0}, lhs_contracting_dims={2},
    rhs_batch_dims={0}, rhs_contracting_dims={1}
}
""",
        ((2, 3, 4), (2, 4, 5)),
        lambda x, y: (x @ y,),
    ),
    "convolution": Program(
        """HloModule m
ENTRY main {
  x = f32[2,4,3] parameter(0)
  k = f32[2,3,5] parameter(1)
  ROOT c = f32[2,4,5] convolution(x, k), window={size=2 pad=1_0}, dim_labels=b0f_0io->b0f
}
""",
        ((2, 4, 3), (2, 3, 5)),
        _convolve,
    ),
    "reduce_window": Program(
        f"""HloModule m
{MAX}
ENTRY main {{
  x = f32[2,6] parameter(0)
  low = f32[] constant(-1e30)
  ROOT w = f32[2,3] reduce-window(x, low), window={{size=1x2 stride=1x2}}, to_apply=max
}}
""",
        ((2, 6),),
        _window_max,
    ),
    "gather_and_slices": Program(
        """HloModule m
ENTRY main {
  x = f32[5,3] parameter(0)
  ids = s32[2] constant({4, 1})
  g = f32[2,3] gather(x, ids), offset_dims={1}, collapsed_slice_dims={0},
    start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}
  one = s32[] constant(1)
  two = s32[] constant(2)
  d = f32[2,2] dynamic-slice(x, two, one), dynamic_slice_sizes={2,2}
  u = f32[5,3] dynamic-update-slice(x, d, one, one)
  ROOT t = (f32[2,3], f32[2,2], f32[5,3]) tuple(g, d, u)
}
""",
        ((5, 3),),
        lambda x: (x[[4, 1]], x[2:4, 1:3], _updated(x, x[2:4, 1:3], 1, 1)),
    ),
    "scatter": Program(
        f"""HloModule m
{ADD}
ENTRY main {{
  x = f32[5,3] parameter(0)
  u = f32[2,3] parameter(1)
  ids = s32[2] constant({{3, 3}})
  ROOT s = f32[5,3] scatter(x, ids, u), update_window_dims={{1}}, inserted_window_dims={{0}},
    scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
}}
""",
        ((5, 3), (2, 3)),
        lambda x, u: (_scattered(x, u, 3),),
    ),
    "sort": Program(
        """HloModule m
greater {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] parameter(2)
  d = f32[] parameter(3)
  ROOT gt = pred[] compare(c, d), direction=GT, type=TOTALORDER
}
ENTRY main {
  x = f32[2,5] parameter(0)
  y = f32[2,5] parameter(1)
  s = (f32[2,5], f32[2,5]) sort(x, y), dimensions={1}, is_stable=true, to_apply=greater
  g = f32[2,5] get-tuple-element(s), index=0
  h = f32[2,5] get-tuple-element(s), index=1
  ROOT t = (f32[2,5], f32[2,5]) tuple(g, h)
}
""",
        ((2, 5), (2, 5)),
        lambda x, y: (np.take_along_axis(x, np.argsort(-y, 1), 1), -np.sort(-y, 1)),
    ),
    "call_and_fusion": Program(
        """HloModule m
double {
  p = f32[3] parameter(0)
  ROOT twice = f32[3] add(p, p)
}
fused {
  p.1 = f32[3] parameter(0)
  q.1 = f32[3] parameter(1)
  n = f32[3] negate(p.1)
  m = f32[3] multiply(n, q.1)
  ROOT pair = (f32[3], f32[3]) tuple(m, n)
}
ENTRY main {
  x = f32[3] parameter(0)
  c1 = f32[3] call(x), to_apply=double
  c2 = f32[3] call(c1), to_apply=double
  f = (f32[3], f32[3]) fusion(c2, x), kind=kLoop, calls=fused
  g = f32[3] get-tuple-element(f), index=0
  h = f32[3] get-tuple-element(f), index=1
  ROOT r = f32[3] add(g, h)
}
""",
        ((3,),),
        lambda x: (-4 * x * x - 4 * x,),
    ),
    "counted_loop": Program(
        """HloModule m
body {
  carry = (s32[], f32[3]) parameter(0)
  i = s32[] get-tuple-element(carry), index=0
  v = f32[3] get-tuple-element(carry), index=1
  two = s32[] constant(2)
  next = s32[] add(i, two)
  grown = f32[3] add(v, v)
  ROOT out = (s32[], f32[3]) tuple(next, grown)
}
condition {
  carry.1 = (s32[], f32[3]) parameter(0)
  i.1 = s32[] get-tuple-element(carry.1), index=0
  n = s32[] constant(6)
  ROOT less = pred[] compare(i.1, n), direction=LT
}
ENTRY main {
  x = f32[3] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[3]) tuple(zero, x)
  w = (s32[], f32[3]) while(start), condition=condition, body=body
  ROOT r = f32[3] get-tuple-element(w), index=1
}
""",
        ((3,),),
        lambda x: (8 * x,),
    ),
    "branches": Program(
        """HloModule m
same {
  ROOT p = f32[3] parameter(0)
}
square {
  q = f32[3] parameter(0)
  ROOT qq = f32[3] multiply(q, q)
}
minus {
  s = f32[3] parameter(0)
  ROOT ss = f32[3] negate(s)
}
ENTRY main {
  x = f32[3] parameter(0)
  yes = f32[] constant(1)
  no = f32[] constant(2)
  p.1 = pred[] compare(yes, no), direction=LT
  c = f32[3] conditional(p.1, x, x), true_computation=square, false_computation=same
  i = s32[] constant(7)
  d = f32[3] conditional(i, c, c, c), branch_computations={same, square, minus}
  j = s32[] constant(1)
  e = f32[3] conditional(j, c, c, c), branch_computations={same, square, minus}
  ROOT t = (f32[3], f32[3], f32[3]) tuple(c, d, e)
}
""",
        ((3,),),
        lambda x: (x * x, -x * x, x**4),
    ),
    "argmax": Program(
        """HloModule m
keep {
  v0 = f32[] parameter(0)
  i0 = s32[] parameter(1)
  v1 = f32[] parameter(2)
  i1 = s32[] parameter(3)
  gt = pred[] compare(v0, v1), direction=GT
  nan = pred[] compare(v0, v0), direction=NE
  first = pred[] or(gt, nan)
  v = f32[] select(first, v0, v1)
  eq = pred[] compare(v0, v1), direction=EQ
  lt = pred[] compare(i0, i1), direction=LT
  tie = pred[] and(eq, lt)
  which = pred[] or(first, tie)
  i = s32[] select(which, i0, i1)
  ROOT r = (f32[], s32[]) tuple(v, i)
}
ENTRY main {
  x = f32[4,6] parameter(0)
  n = s32[4,6] iota(), iota_dimension=1
  low = f32[] constant(-inf)
  zero = s32[] constant(0)
  a = (f32[4], s32[4]) reduce(x, n, low, zero), dimensions={1}, to_apply=keep
  v = f32[4] get-tuple-element(a), index=0
  i = s32[4] get-tuple-element(a), index=1
  ROOT t = (f32[4], s32[4]) tuple(v, i)
}
""",
        ((4, 6),),
        lambda x: (x.max(1), x.argmax(1)),
    ),
    "two_reductions": Program(
        """HloModule m
both {
  a0 = f32[] parameter(0)
  b0 = f32[] parameter(1)
  a1 = f32[] parameter(2)
  b1 = f32[] parameter(3)
  s = f32[] add(a0, a1)
  m = f32[] minimum(b0, b1)
  ROOT r = (f32[], f32[]) tuple(s, m)
}
ENTRY main {
  x = f32[4,6] parameter(0)
  zero = f32[] constant(0)
  high = f32[] constant(inf)
  ROOT a = (f32[6], f32[6]) reduce(x, x, zero, high), dimensions={0}, to_apply=both
}
""",
        ((4, 6),),
        lambda x: (x.sum(0), x.min(0)),
    ),
    "bitcasts": Program(
        """HloModule m
ENTRY main {
  x = f32[2,6]{1,0} parameter(0)
  flat = f32[12]{0} bitcast(x)
  turned = f32[6,2]{0,1} bitcast(x)
  mixed = f32[3,2,2]{0,2,1} bitcast(turned)
  ROOT t = (f32[12], f32[6,2], f32[3,2,2]) tuple(flat, turned, mixed)
}
""",
        ((2, 6),),
        lambda x: (x.ravel(), x.T, x.reshape(2, 2, 3).transpose(2, 0, 1)),
    ),
    "top_k": Program(
        """HloModule m
ENTRY main {
  x = f32[3,7] parameter(0)
  k = (f32[3,2], s32[3,2]) topk(x), k=2, largest=true
  v = f32[3,2] get-tuple-element(k), index=0
  ROOT r = f32[3,2] copy(v)
}
""",
        ((3, 7),),
        lambda x: (-np.sort(-x, 1)[:, :2],),
    ),
    "old_dynamic_slice": Program(
        """HloModule m
ENTRY main {
  x = f32[5,3] parameter(0)
  at = s32[2] constant({3, 0})
  ROOT d = f32[2,3] dynamic-slice(x, at), dynamic_slice_sizes={2,3}
}
""",
        ((5, 3),),
        lambda x: (x[3:5],),
    ),
}


def _layout(x: Any) -> Any:
    s = x.reshape(2, 2, 3).transpose(2, 0, 1)[0:3:2, :, 1:2]
    p = np.full((4, 2, 2), -1.0)
    p[1, :, 0], p[3, :, 0] = s[0, :, 0], s[1, :, 0]
    v = p[::-1, :, ::-1]
    return np.concatenate([v, v], 1)


def _updated(x: Any, u: Any, i: int, j: int) -> Any:
    y = x.copy()
    y[i : i + u.shape[0], j : j + u.shape[1]] = u
    return y


def _scattered(x: Any, u: Any, i: int) -> Any:
    y = x.copy()
    y[i] += u.sum(0)
    return y

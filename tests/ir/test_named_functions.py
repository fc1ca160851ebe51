"""Opaque operators with a well-known name compute what the name says; others can't be run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shardproof.ir.interpret import Unsupported
from shardproof.ir.module import Op, Value
from shardproof.ir.named_functions import is_named, opaque
from shardproof.ir.types import DType, TensorType


def op(name: str, operands: int, results: int, dtype: DType, shape: tuple[int, ...], free: Any = None) -> Op:
    every = tuple(((d,) * operands, (d,) * results) for d in range(len(shape)))
    type = TensorType(dtype, shape)
    return Op(
        "opaque",
        tuple(Value(f"x{k}", type) for k in range(operands)),
        tuple(Value(f"y{k}", type) for k in range(results)),
        {"name": name, "free": every if free is None else free},
    )


@pytest.mark.parametrize(
    ("key", "counter", "wanted"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry(key: tuple[int, int], counter: tuple[int, int], wanted: tuple[int, int]) -> None:
    """The known answers that come with Random123."""
    words = [np.full((2,), n, np.uint32) for n in (*key, *counter)]
    found = opaque(op("threefry2x32", 4, 2, DType.U32, (2,)), words)
    assert [x.tolist() for x in found] == [[wanted[0]] * 2, [wanted[1]] * 2]
    assert all(x.dtype == np.uint32 for x in found)


def test_functions_of_reals() -> None:
    x = np.array([-1.5, -1.0, -0.3, 0.0, 0.2, 1.0, 3.0])
    found = {name: opaque(op(name, 1, 1, DType.F32, (7,)), [x])[0] for name in ("erf_inv", "lgamma")}
    inside = slice(2, 5)
    back = [math.erf(float(y)) for y in found["erf_inv"][inside].tolist()]
    np.testing.assert_allclose(back, x[inside], atol=1e-12)
    assert np.isnan(found["erf_inv"][0]) and found["erf_inv"][1] == -np.inf and found["erf_inv"][5] == np.inf
    gamma = np.exp(found["lgamma"])
    np.testing.assert_allclose(gamma[[0, 5, 6]], [4 / 3 * math.sqrt(math.pi), 1, 2])
    assert gamma[1] == gamma[3] == np.inf


def test_others_have_no_meaning() -> None:
    """Another name, or one that is not said to work element by element."""
    for other in (op("unheard", 1, 1, DType.F32, (2,)), op("lgamma", 1, 1, DType.F32, (2,), free=())):
        assert not is_named(other)
        with pytest.raises(Unsupported, match="%y0 has no NumPy meaning"):
            opaque(other, [np.zeros(2)])

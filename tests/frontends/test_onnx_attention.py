"""The Attention operator of ONNX, and what it is written out as."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import node

from shardproof.ir.interpret import run
from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(13)


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


Q, K, V = floats(2, 4, 5, 8), floats(2, 2, 5, 8), floats(2, 2, 5, 6)
HEADS = {"q": Q, "k": K, "v": V}
FLAT = {"q": floats(2, 5, 32), "k": floats(2, 5, 16), "v": floats(2, 5, 12)}
FEW = RNG.random((5, 5)) > 0.4
FEW[0] = False
PAST = {"pk": floats(2, 2, 3, 8), "pv": floats(2, 2, 3, 6)}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("q k v", {}, HEADS),
    "flat": ("q k v", {"q_num_heads": 4, "kv_num_heads": 2}, FLAT),
    "causal": ("q k v", {"is_causal": 1}, HEADS),
    "scaled and capped": ("q k v", {"scale": 0.3, "softcap": 1.5}, HEADS),
    "dead row": ("q k v m", {}, {**HEADS, "m": FEW}),
    "added mask": ("q k v m", {"is_causal": 1}, {**HEADS, "m": floats(4, 5, 5)}),
    "short mask": ("q k v m", {}, {**HEADS, "m": FEW[:, :3]}),
    "past": ("q k v - pk pv", {"is_causal": 1}, {**HEADS, **PAST}),
    "window": ("q k v", {"left_window_size": 1, "right_window_size": 2}, HEADS),
    "window behind a past": ("q k v - pk pv", {"left_window_size": 2, "is_causal": 1}, {**HEADS, **PAST}),
    "lengths": ("q k v - - - n", {"is_causal": 1}, {**HEADS, "n": np.asarray([5, 3])}),
    "lengths and mask": ("q k v m - - n", {"softcap": 2.0}, {**HEADS, "m": FEW, "n": np.asarray([1, 4])}),
}


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, mode: int) -> None:
    operands, attributes, given = CASES[name]
    if mode == 0 and "softcap" in attributes:
        pytest.skip("onnx's evaluator gives capped products where the standard asks for raw ones")
    outputs = "y pk2 pv2 s" if "pk" in given else "y - - s"
    made = node("Attention", operands, outputs, qk_matmul_output_mode=mode, **attributes)
    assert disagreement(program([made], given, outputs.replace("- ", "")), given) is None


def test_raw_products_are_not_capped() -> None:
    """As the standard and the operator's function say."""
    made = node("Attention", "q k v", "y - - s", softcap=1.5)
    found = run(imported(program([made], HEADS, "y s")), HEADS)["s"][0]
    np.testing.assert_allclose(found, Q @ np.repeat(K, 2, 1).swapaxes(2, 3) / math.sqrt(8), 1e-4)


def test_mask_of_one_column_is_ambiguous() -> None:
    given = {**HEADS, "m": np.ones((5, 1), bool)}
    made = node("Attention", "q k v m", "y")
    with pytest.raises(ModuleError, match="may be meant for the first"):
        imported(program([made], given, "y"))


def written(mask: Any, *, grouped: bool = True) -> Any:
    """Causal attention in small operators; a key head serves two neighbours, or every second query head."""
    stored = {
        "mask": mask,
        "lost": np.float32(-np.inf),
        "scale": np.float32(1 / math.sqrt(8)),
        "place": np.asarray([2 if grouped else 1]),
        **{f"{n}5": np.asarray([2, 2, 2, 5, size]) for n, size in (("k", 8), ("v", 6))},
        **{f"{n}4": np.asarray([2, 4, 5, size]) for n, size in (("k", 8), ("v", 6))},
    }
    nodes = []
    for n in "kv":
        nodes += [
            node("Unsqueeze", f"{n} place", f"{n}a"),
            node("Expand", f"{n}a {n}5", f"{n}b"),
            node("Reshape", f"{n}b {n}4", f"{n}c"),
        ]
    nodes += [
        node("Transpose", "kc", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "a"),
        node("Mul", "a scale", "b"),
        node("Where", "mask b lost", "c"),
        node("Softmax", "c", "p", axis=-1),
        node("MatMul", "p vc", "y"),
    ]
    return program(nodes, HEADS, "y", stored)


def test_written_out() -> None:
    whole = imported(program([node("Attention", "q k v", "y", is_causal=1)], HEADS, "y"))
    triangle = np.tril(np.ones((5, 5), bool))
    assert verify(whole, imported(written(triangle))).verdict is Verdict.VERIFIED
    assert verify(imported(written(triangle)), whole).verdict is Verdict.VERIFIED
    later = np.tril(np.ones((5, 5), bool), 1)
    assert verify(whole, imported(written(later))).verdict is Verdict.REFUTED
    assert verify(whole, imported(written(triangle, grouped=False))).verdict is Verdict.REFUTED


@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_pytorch(masked: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    given = {**HEADS, "m": FEW} if masked else HEADS

    class Causal(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    class Masked(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, q: Any, k: Any, v: Any, m: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True)

    arguments = tuple(map(torch.tensor, given.values()))
    graph = torch.export.export((Masked if masked else Causal)(), arguments)
    attributes = {} if masked else {"is_causal": 1}
    right = node("Attention", "q k v m" if masked else "q k v", "y", **attributes)
    wrong = node("Attention", "q k v m" if masked else "q k v", "y", scale=0.5, **attributes)
    assert verify(graph, imported(program([right], given, "y"))).verdict is Verdict.VERIFIED
    assert verify(graph, imported(program([wrong], given, "y"))).verdict is Verdict.REFUTED

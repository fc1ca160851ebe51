"""Captured JAX functions: named inputs, divided as the specs say, read again from text, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.text import parse, to_text

jax = pytest.importorskip("jax", reason="jax is not installed")
jnp = jax.numpy
P = jax.sharding.PartitionSpec


def shape(*sizes: int, dtype: Any = None) -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype or jnp.float32)


INPUTS = {"w": {"up": shape(8, 24), "down": shape(24, 8)}, "x": shape(4, 8)}
SPECS = {"w": {"up": P(None, "tp"), "down": P("tp")}, "x": P()}


def whole(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w["up"]) @ w["down"]


def of_rank(w: Any, x: Any) -> Any:
    return jax.lax.psum(whole(w, x), "tp")


def divided(function: Any, specs: Any = SPECS, mesh: Any = None) -> Module:
    return shardproof.capture_jax(
        function, inputs=INPUTS, mesh=mesh or {"tp": 2}, in_specs=specs, out_specs=P()
    )


def test_inputs_and_their_parts() -> None:
    found = shardproof.capture_jax(whole, inputs=INPUTS)
    assert [(i.name, i.sharding) for i in found.inputs] == [("w.down", None), ("w.up", None), ("x", None)]
    parts = divided(of_rank)
    assert {i.name: i.sharding for i in parts.inputs} == {"w.down": (2, 1), "w.up": (1, 2), "x": (1, 1)}
    assert [o.name for o in parts.outputs] == ["out"]


def test_axes_in_another_order_are_no_hint() -> None:
    specs = {"w": {"up": P(None, ("b", "a")), "down": P(("a", "b"))}, "x": P()}
    found = divided(lambda w, x: jax.lax.psum(whole(w, x), ("a", "b")), specs, {"a": 2, "b": 3})
    assert {i.name: i.sharding for i in found.inputs} == {"w.down": (6, 1), "w.up": None, "x": (1, 1)}


def test_verdicts_are_those_of_programs_from_text(tmp_path: Path) -> None:
    reference = tmp_path / "whole.spf"
    reference.write_text(to_text(shardproof.capture_jax(whole, inputs=INPUTS)), encoding="utf-8")
    program = parse(to_text(divided(of_rank)), source="rank")
    assert to_text(program) == to_text(divided(of_rank))
    result = shardproof.verify(reference, program)
    assert result.verdict is shardproof.Verdict.VERIFIED, result.text()
    assert shardproof.verify(reference, divided(whole)).verdict is shardproof.Verdict.REFUTED


def test_a_layout_that_contradicts_the_specs_is_not_inferred() -> None:
    """Square weights divided along the other dim have other shapes, which the reference does not tell."""
    other = {"w": {"up": P("tp"), "down": P("tp")}, "x": P(None, "tp")}
    found = divided(lambda w, x: jax.lax.psum(x @ w["up"], "tp") @ jnp.zeros((24, 8)), other)
    result = shardproof.verify(shardproof.capture_jax(whole, inputs=INPUTS), found)
    assert result.verdict is not shardproof.Verdict.VERIFIED


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(ModuleError, match="together"):
        shardproof.capture_jax(whole, inputs=INPUTS, mesh={"tp": 2})
    with pytest.raises(ModuleError, match="pure_callback"):
        shardproof.capture_jax(
            lambda x: jax.pure_callback(lambda v: v, shape(4), x), inputs={"x": shape(4)}
        )


def softmax_of_looked_up(tokens: Any, table: Any, last: int, shifted: bool) -> Any:
    """Causal weights between what was looked up for each position."""
    x = table[tokens] * (1.0 + jnp.arange(6.0)[:, None])
    scores = x @ x.T
    visible = jnp.arange(6)[:, None] + last >= jnp.arange(6)
    if shifted:
        return jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
    masked = scores + jnp.where(visible, 0.0, -jnp.inf)
    weights = jnp.exp(masked)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return jnp.where(jnp.all(masked == -jnp.inf, axis=-1, keepdims=True), 0.0, weights)


@pytest.mark.parametrize(("last", "verdict"), [(0, "verified"), (1, "refuted")])
def test_masked_softmax_over_positions_that_were_looked_up(last: int, verdict: str) -> None:
    inputs = {"tokens": shape(6, dtype=jnp.int32), "table": shape(10, 4)}
    first, second = (
        shardproof.capture_jax(
            lambda tokens, table, last=last, shifted=shifted: softmax_of_looked_up(
                tokens, table, last, shifted
            ),
            inputs=inputs,
        )
        for last, shifted in ((0, True), (last, False))
    )
    assert shardproof.verify(first, second).verdict.value == verdict

"""Import and interpretation agree with JAX's own execution, also after partitioning and optimisation."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from shardproof.frontends.load import load  # noqa: E402
from shardproof.ir.interpret import run  # noqa: E402
from shardproof.ir.module import Module  # noqa: E402

P = jax.sharding.PartitionSpec


def _f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _convolve(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(
        x,
        k,
        (2, 1),
        [(1, 2), (0, 1)],
        lhs_dilation=(1, 2),
        rhs_dilation=(1, 2),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=2,
    )


def _unary(x: Any) -> Any:
    return (
        jnp.round(x),
        jnp.floor(x),
        jnp.sign(x),
        jnp.cbrt(x),
        jnp.expm1(x),
        jnp.log1p(jnp.abs(x)),
        lax.erf(x),
        jnp.isfinite(x),
        x**3,
        jnp.clip(x, 0, 1),
        jnp.arctan2(x, x + 1),
        jnp.flip(x, 0),
        lax.population_count(x.astype(jnp.int32)),
        lax.clz(x.astype(jnp.int32)),
    )


def _analytic(x: Any) -> Any:
    half = jnp.tanh(x) / 2
    return (
        *(f(x) for f in (lax.cos, lax.tan, lax.ceil, lax.logistic, lax.sinh, lax.cosh, lax.asinh)),
        *(f(half) for f in (lax.acos, lax.asin, lax.atanh)),
        *(f(half + 1.6) for f in (lax.log, lax.sqrt, lax.rsqrt, lax.acosh)),
        lax.pow(half + 1.6, x),
        lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    )


def _bits(x: Any, y: Any) -> Any:
    return (
        lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32),
        *(f(x - 1, y) for f in (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic)),
        ~x,
        (x - 1) ^ y,
    )


def _complex(x: Any, y: Any) -> Any:
    z = lax.exp(lax.complex(x, y)) * lax.complex(y, x)
    return lax.real(z), lax.imag(z), lax.abs(z)


def _grad(x: Any, w: Any) -> Any:
    return jax.grad(lambda x, w: jnp.sum(jax.nn.gelu(x @ w) ** 2), (0, 1))(x, w)


ONE_RANK: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "mlp": (lambda x, w, v: jax.nn.silu(x @ w) @ v, [_f(16, 64), _f(64, 32), _f(32, 64)]),
    "softmax": (lambda x: jax.nn.softmax(x), [_f(4, 8)]),
    "argmax": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), [_f(4, 8)]),
    "sort": (lambda x: (jnp.sort(x), jnp.argsort(x, stable=True)), [_f(4, 8)]),
    "top_k": (lambda x: lax.top_k(x, 3), [_f(4, 8)]),
    "take": (lambda w, i: w[i], [_f(10, 4), _i(3)]),
    "take_along": (lambda x, i: jnp.take_along_axis(x, i, 1), [_f(4, 8), _i(4, 3)]),
    "scatter_add": (lambda w, i, u: w.at[i].add(u), [_f(10, 4), _i(3), _f(3, 4)]),
    "scan": (
        lambda x, w: lax.scan(lambda c, a: (jnp.tanh(c @ a), c.sum()), x, w),
        [_f(4, 4), _f(3, 4, 4)],
    ),
    "fori": (lambda x: lax.fori_loop(0, 5, lambda i, c: c * 2 + i, x), [_f(4)]),
    "cond": (lambda p, x: lax.cond(p > 0, lambda y: y * 2, lambda y: y - 1, x), [_i(), _f(4)]),
    "switch": (
        lambda p, x: lax.switch(p, [lambda y: y * 2, lambda y: y - 1, lambda y: y + y.sum()], x),
        [_i(), _f(4)],
    ),
    "convolution": (_convolve, [_f(3, 9, 8, 4), _f(3, 2, 2, 6)]),
    "pool": (
        lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 2), "SAME"), jnp.cumsum(x, 1)),
        [_f(2, 5, 6)],
    ),
    "pad": (lambda x: lax.pad(x, 1.5, [(1, 2, 1), (-1, 0, 2)]), [_f(3, 4)]),
    "dynamic_slices": (
        lambda x, i, u: (lax.dynamic_slice(x, (i, 2), (2, 3)), lax.dynamic_update_slice(x, u, (i, i))),
        [_f(6, 7), _i(), _f(2, 2)],
    ),
    "unary": (_unary, [_f(4, 3)]),
    "reductions": (
        lambda x: (x.prod(0), x.max(1), x.min(), (x > 0).any(0), (x > 0).all(1), jnp.cumprod(x, 0), x.var(0)),
        [_f(3, 4)],
    ),
    "attention": (
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
        [_f(2, 8, 4, 16), _f(2, 8, 2, 16), _f(2, 8, 2, 16)],
    ),
    "analytic": (_analytic, [_f(4, 3)]),
    "bits": (_bits, [_i(4, 3), _i(4, 3)]),
    "complex": (_complex, [_f(4, 3), _f(4, 3)]),
    "barrier": (lambda x: lax.optimization_barrier(x * 2) + 1, [_f(3)]),
    "gradient": (_grad, [_f(4, 8), _f(8, 3)]),
}


def _arguments(shapes: list[Any]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [
        rng.normal(size=s.shape).astype(np.float32)
        if s.dtype == jnp.float32
        else rng.integers(0, 3, size=s.shape).astype(np.int32)
        for s in shapes
    ]


def _forms(lowered: Any, folder: Path) -> Iterator[Module]:
    """The program before and after optimisation, each serialised and as text."""
    before = lowered.compiler_ir("hlo")
    after = lowered.compile().runtime_executable().hlo_modules()[0]
    for k, (data, text) in enumerate(
        [
            (before.as_serialized_hlo_module_proto(), before.as_hlo_text()),
            (after.as_serialized_hlo_module_proto(), after.to_string()),
        ]
    ):
        (folder / f"{k}.pb").write_bytes(data)
        (folder / f"{k}.txt").write_text(text)
        yield load(folder / f"{k}.pb")
        yield load(folder / f"{k}.txt")


def _compare(module: Module, inputs: list[Any], expected: list[list[Any]]) -> None:
    ordered = sorted(module.inputs, key=lambda i: i.number)
    found = run(module, {i.name: x for i, x in zip(ordered, inputs, strict=True)})
    assert len(module.outputs) == len(expected)
    for output, ranks in zip(module.outputs, expected, strict=True):
        for got, want in zip(found[output.name], ranks, strict=True):
            np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("name", ONE_RANK)
def test_one_rank(name: str, tmp_path: Path) -> None:
    function, shapes = ONE_RANK[name]
    arguments = _arguments(shapes)
    jitted = jax.jit(function)
    expected = [[np.asarray(x)] for x in jax.tree.leaves(jitted(*arguments))]
    for module in _forms(jitted.lower(*shapes), tmp_path):
        _compare(module, arguments, expected)


def _mesh(**axes: int) -> Any:
    if len(jax.devices()) < 8:
        pytest.skip("JAX was started with fewer than 8 devices")
    return jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(tuple(axes.values())), tuple(axes))


def _shards(x: Any) -> list[Any]:
    return [np.asarray(s.data) for s in sorted(x.addressable_shards, key=lambda s: s.device.id)]


MEGATRON = (lambda x, w, v: jax.nn.silu(x @ w) @ v, [_f(16, 64), _f(64, 128), _f(128, 64)])
PARTITIONED: dict[str, tuple[dict[str, int], Callable[..., Any], list[Any], list[Any], Any]] = {
    "megatron": ({"tp": 8}, *MEGATRON, [P(), P(None, "tp"), P("tp", None)], P()),
    "sequence": ({"tp": 8}, *MEGATRON, [P("tp"), P(None, "tp"), P("tp", None)], P("tp")),
    "data_and_tensor": ({"dp": 2, "tp": 4}, *MEGATRON, [P("dp"), P(None, "tp"), P("tp", None)], P("dp")),
    "rows_to_columns": ({"tp": 8}, lambda x: x * 2, [_f(16, 16)], [P("tp")], P(None, "tp")),
    "swap_axes": ({"dp": 2, "tp": 4}, lambda x: x * 2, [_f(16, 16)], [P("dp", "tp")], P("tp", "dp")),
    "sub_axes": (
        {"a": 2, "b": 2, "c": 2},
        lambda x: x * 2,
        [_f(16, 16)],
        [P(("a", "c"), "b")],
        P("b", ("c", "a")),
    ),
    "roll": ({"tp": 8}, lambda x: jnp.roll(x, 1, 0), [_f(16, 4)], [P("tp")], P("tp")),
    "vocabulary": ({"tp": 8}, lambda w, i: w[i], [_f(64, 8), _i(5)], [P("tp"), P()], P()),
    "data_gradient": (
        {"dp": 2, "tp": 4},
        lambda w, x: jax.grad(lambda w, x: jnp.sum((x @ w) ** 2))(w, x),
        [_f(8, 8), _f(16, 8)],
        [P(None, "tp"), P("dp")],
        P(None, "tp"),
    ),
}


def _after_partitioning(lowered: Any) -> Iterator[Path]:
    """The dump after SPMD partitioning, serialised and as text, then the optimised program."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_as_text": True,
            "xla_dump_hlo_pass_re": "spmd-partitioning",
        }
        compiled = lowered.compile(compiler_options=options)
        yield next(Path(folder).glob("*after_spmd-partitioning*.hlo.pb"))
        yield next(Path(folder).glob("*after_spmd-partitioning*.txt"))
        optimised = Path(folder) / "optimised.pb"
        optimised.write_bytes(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
        yield optimised


def _several_ranks(mesh: Any, jitted: Any, shapes: list[Any], specs: list[Any]) -> None:
    placed = [
        jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
        for x, spec in zip(_arguments(shapes), specs, strict=True)
    ]
    expected = [_shards(x) for x in jax.tree.leaves(jitted(*placed))]
    for path in _after_partitioning(jitted.lower(*shapes)):
        module = load(path)
        assert module.mesh.size == 8
        _compare(module, [_shards(x) for x in placed], expected)


@pytest.mark.parametrize("name", PARTITIONED)
def test_partitioned(name: str) -> None:
    axes, function, shapes, specs, out = PARTITIONED[name]
    mesh = _mesh(**axes)
    shardings = [jax.sharding.NamedSharding(mesh, spec) for spec in specs]
    jitted = jax.jit(
        function, in_shardings=tuple(shardings), out_shardings=jax.sharding.NamedSharding(mesh, out)
    )
    _several_ranks(mesh, jitted, shapes, specs)


EXPLICIT: dict[str, Callable[[Any], Any]] = {
    "psum": lambda x: lax.psum(x, "tp"),
    "psum_scatter": lambda x: lax.psum_scatter(x, "tp", tiled=True),
    "all_gather": lambda x: lax.all_gather(x, "tp", tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "tp", 0, 0, tiled=True),
    "ppermute": lambda x: lax.ppermute(x, "tp", [(i, (i + 1) % 8) for i in range(7)]),
    "axis_index": lambda x: x + lax.axis_index("tp"),
    "groups": lambda x: lax.psum(x, "tp", axis_index_groups=[[0, 3], [1, 2], [4, 7], [5, 6]]),
    "extremes": lambda x: lax.pmax(x, "tp") + lax.pmin(x, "tp"),
}


@pytest.mark.parametrize("name", EXPLICIT)
def test_explicit_collectives(name: str) -> None:
    mesh = _mesh(tp=8)
    body = jax.shard_map(EXPLICIT[name], mesh=mesh, in_specs=P("tp"), out_specs=P("tp"), check_vma=False)
    _several_ranks(mesh, jax.jit(body), [_f(64, 4)], [P("tp")])

"""What the body of a `shard_map` is imported as computes what JAX computes, on every rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402
from evaluated import check_module  # noqa: E402
from jax import lax  # noqa: E402

from shardproof.frontends.jaxpr.lower import lower  # noqa: E402
from shardproof.frontends.jaxpr.tracing import trace  # noqa: E402
from shardproof.ir.interpret import run  # noqa: E402
from shardproof.ir.verify import verify  # noqa: E402

P = jax.sharding.PartitionSpec
MESH = {"a": 2, "b": 4}
NEW = hasattr(jax, "shard_map")
Body = Callable[[Any], Any]

PAIRS = [[0, 3], [1, 2]]
BOTH = ("a", "b")
GROUPS = [[0, 3], [5, 6], [1, 2], [7, 4]]
BODIES: dict[str, Body] = {
    "psum": lambda x: lax.psum(x, "a"),
    "psum_both": lambda x: lax.psum(x, BOTH),
    "psum_swapped": lambda x: lax.psum(x, ("b", "a")),
    "psum_groups": lambda x: lax.psum(x, "b", axis_index_groups=PAIRS),
    "psum_groups_both": lambda x: lax.psum(x, BOTH, axis_index_groups=GROUPS),
    "psum_several": lambda x: lax.psum((x, {"k": x * 2}), "b")[1]["k"] + lax.psum((x, x), "a")[0],
    "psum_of_one": lambda x: x * lax.psum(1, "b"),
    "psum_integers": lambda x: lax.psum((x * 9).astype(jnp.int8) * 9, "b"),
    "psum_bool": lambda x: lax.psum(x > 0, BOTH),
    "pmean": lambda x: lax.pmean(x, "b"),
    "pmax": lambda x: lax.pmax(x, "b"),
    "pmin_both": lambda x: lax.pmin(x, ("b", "a")),
    "pmax_groups": lambda x: lax.pmax(x, "b", axis_index_groups=PAIRS),
    "all_gather": lambda x: lax.all_gather(x, "b"),
    "all_gather_inside": lambda x: lax.all_gather(x, "b", axis=1),
    "all_gather_last": lambda x: lax.all_gather(x, "a", axis=-1),
    "all_gather_tiled": lambda x: lax.all_gather(x, "b", axis=1, tiled=True),
    "all_gather_both": lambda x: lax.all_gather(x, BOTH, axis=0, tiled=True),
    "all_gather_swapped": lambda x: lax.all_gather(x, ("b", "a"), axis=1),
    "all_gather_groups": lambda x: lax.all_gather(x, "b", axis_index_groups=PAIRS, tiled=True),
    "psum_scatter": lambda x: lax.psum_scatter(x[:4], "b"),
    "psum_scatter_tiled": lambda x: lax.psum_scatter(x, "b", tiled=True),
    "psum_scatter_inside": lambda x: lax.psum_scatter(x, "b", scatter_dimension=1, tiled=True),
    "psum_scatter_both": lambda x: lax.psum_scatter(x, ("b", "a"), tiled=True),
    "psum_scatter_groups": lambda x: lax.psum_scatter(x, "b", axis_index_groups=PAIRS, tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x[:4], "b", 0, 0),
    "all_to_all_moved": lambda x: lax.all_to_all(x[:4], "b", 0, 1),
    "all_to_all_back": lambda x: lax.all_to_all(x[:, :4], "b", 1, 0),
    "all_to_all_tiled": lambda x: lax.all_to_all(x, "b", 0, 1, tiled=True),
    "all_to_all_tiled_back": lambda x: lax.all_to_all(x, "b", 1, 0, tiled=True),
    "all_to_all_same": lambda x: lax.all_to_all(x, "b", 0, 0, tiled=True),
    "all_to_all_both": lambda x: lax.all_to_all(x, BOTH, 0, 1, tiled=True),
    "all_to_all_groups": lambda x: lax.all_to_all(x, "b", 0, 1, axis_index_groups=PAIRS, tiled=True),
    "ppermute": lambda x: lax.ppermute(x, "b", [(k, (k + 1) % 4) for k in range(4)]),
    "ppermute_partial": lambda x: lax.ppermute(x, "b", [(0, 1), (1, 2), (2, 3)]),
    "ppermute_one": lambda x: lax.ppermute(x, "a", [(1, 0)]),
    "ppermute_both": lambda x: lax.ppermute(x, BOTH, [(k, (k + 3) % 8) for k in range(8)]),
    "pshuffle": lambda x: lax.pshuffle(x, "b", [2, 0, 3, 1]),
    "pswapaxes": lambda x: lax.pswapaxes(x[:4], "b", 0),
    "axis_index": lambda x: x + lax.axis_index("b"),
    "axis_index_both": lambda x: x + lax.axis_index(BOTH),
    "axis_index_swapped": lambda x: x + lax.axis_index("b") * 2 + lax.axis_index("a"),
    "axis_size": lambda x: x * lax.psum(1, BOTH),
    "shard_by_index": lambda x: lax.dynamic_slice_in_dim(x, lax.axis_index("b") * 2, 2, 1),
    "mapped_psum": lambda x: jax.vmap(lambda y: lax.psum(y, "b"))(x),
    "mapped_named": lambda x: jax.vmap(lambda y: lax.psum(y, ("b", "v")), axis_name="v")(x),
    "mapped_gather": lambda x: jax.vmap(lambda y: lax.all_gather(y, "b", tiled=True), 1, 1)(x),
    "mapped_scatter": lambda x: jax.vmap(lambda y: lax.psum_scatter(y, "b", tiled=True))(x),
    "mapped_exchange": lambda x: jax.vmap(lambda y: lax.all_to_all(y, "b", 0, 0, tiled=True))(x),
    "mapped_permute": lambda x: jax.vmap(lambda y: lax.ppermute(y, "a", [(0, 1), (1, 0)]), 1)(x),
    "gradient": lambda x: jax.grad(lambda y: jnp.sum(lax.all_gather(y, "b", tiled=True) ** 2))(x),
    "gradient_psum": lambda x: jax.grad(lambda y: jnp.sum(jnp.sin(lax.psum(y * y, "a"))))(x),
    "gradient_exchange": lambda x: jax.grad(
        lambda y: jnp.sum(lax.all_to_all(y, "b", 0, 1, tiled=True) ** 3)
    )(x),
    "gradient_permute": lambda x: jax.grad(lambda y: jnp.sum(lax.ppermute(y, "b", [(0, 2), (1, 3)]) ** 2))(x),
    "gradient_scatter": lambda x: jax.grad(lambda y: jnp.sum(lax.psum_scatter(y, "b", tiled=True) ** 2))(x),
    "maximum": lambda x: jax.nn.softmax(x - lax.pmax(x, "b"), axis=0),
}


def mapped(body: Body, mesh: Any, in_specs: Any, out_specs: Any, *, checked: bool, **more: Any) -> Any:
    if NEW:
        return jax.shard_map(
            body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=checked, **more
        )
    from jax.experimental.shard_map import shard_map

    return shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=checked, **more)


def devices(**axes: int) -> Any:
    if len(jax.devices()) < 8:
        pytest.skip("JAX was started with fewer than 8 devices")
    return jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(tuple(axes.values())), tuple(axes))


def per_rank(function: Any, x: Any, local: list[Any]) -> None:
    """Every rank gives a row of the result, in the order of ranks."""
    traced = trace(lambda x: function(x), {"x": jax.ShapeDtypeStruct(x.shape, x.dtype)})
    module = lower(traced.closed, inputs=traced.inputs, outputs=traced.outputs).module
    verify(module)
    assert module.mesh.size == 8
    if "i8[" not in str(traced.closed):
        check_module(module, {"x": local[0].astype(np.float64)})
    found = run(module, {"x": local})
    wanted = np.asarray(jax.jit(function)(x))
    (output,) = module.outputs
    for rank in range(8):
        got = found[output.name][rank]
        want = wanted if got.shape == wanted.shape else wanted[rank : rank + 1]
        np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-5, err_msg=f"rank {rank}")


def numbers(*shape: int) -> Any:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", BODIES)
def test_collectives(name: str) -> None:
    body = BODIES[name]
    x = numbers(64, 8)
    function = mapped(lambda y: body(y)[None], devices(**MESH), P(BOTH), P(BOTH), checked=False)
    per_rank(function, x, np.split(x, 8))


CHECKED: dict[str, tuple[Body, Any]] = {
    "psum": (lambda x: lax.psum(x, "b"), P("a")),
    "psum_both": (lambda x: lax.psum(x, ("b", "a")), P()),
    "pmean": (lambda x: x - lax.pmean(x, BOTH), P(BOTH)),
    "scaled": (lambda x: x * lax.psum(jnp.ones(()), "b") + lax.axis_index("a"), P(BOTH)),
    "constants": (lambda x: lax.psum(x + jnp.arange(8.0), "a") * 2, P("b")),
    "gradient": (lambda x: jax.grad(lambda y: lax.psum(jnp.sum(jnp.sin(y)), BOTH))(x), P(BOTH)),
    "branches": (lambda x: lax.cond(lax.axis_index("a") > 0, lambda y: y * 2, lambda y: -y, x), P(BOTH)),
    "gathered": (lambda x: lax.psum(lax.all_gather(x, "b", tiled=True), "b"), P("a")),
}


@pytest.mark.parametrize("name", CHECKED)
def test_checked_replication(name: str) -> None:
    """The variants that JAX makes when it keeps track of what varies over which axes."""
    body, out = CHECKED[name]
    x = numbers(64, 8)
    function = mapped(body, devices(**MESH), P(BOTH), out, checked=True)
    traced = trace(lambda x: function(x), {"x": jax.ShapeDtypeStruct(x.shape, x.dtype)})
    module = lower(traced.closed, inputs=traced.inputs, outputs=traced.outputs).module
    verify(module)
    found = run(module, {"x": np.split(x, 8)})[module.outputs[0].name]
    wanted = jax.jit(function)(x)
    shards = sorted(wanted.addressable_shards, key=lambda s: s.device.id)
    for rank, (got, shard) in enumerate(zip(found, shards, strict=True)):
        np.testing.assert_allclose(got, shard.data, rtol=3e-5, atol=3e-5, err_msg=f"rank {rank}")


WHOLE: dict[str, tuple[Body, Any, Any]] = {
    "sums": (lambda x: lax.psum(x, "b"), P("a", "b"), P("a", None)),
    "gathered": (lambda x: lax.all_gather(x, "b", axis=1, tiled=True), P("a", "b"), P("a", None)),
    "exchanged": (
        lambda x: lax.all_to_all(x, ("b", "a"), 1, 0, tiled=True),
        P(("b", "a"), None),
        P(None, ("b", "a")),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_arrays(name: str) -> None:
    """A `shard_map` inside of a larger program cuts its arguments and puts its results together."""
    body, taken, given = WHOLE[name]
    x = numbers(16, 16)
    inner = mapped(body, devices(**MESH), taken, given, checked=False)
    per_rank(lambda x: (inner(jnp.sin(x)) + 1) * 2, x, [x] * 8)


def test_broadcast_from_one_rank() -> None:
    """No backend for CPUs runs it: every rank along the axis gets what the rank at the source holds."""
    if not hasattr(lax, "pbroadcast"):
        pytest.skip("this version of JAX has no pbroadcast")
    x = numbers(64, 8)
    body = mapped(lambda y: lax.pbroadcast(y, "b", 2), devices(**MESH), P(BOTH), P(BOTH), checked=False)
    traced = trace(lambda x: body(x), {"x": jax.ShapeDtypeStruct(x.shape, x.dtype)})
    module = lower(traced.closed, inputs=traced.inputs, outputs=traced.outputs).module
    local = np.split(x, 8)
    found = run(module, {"x": local})[module.outputs[0].name]
    for rank in range(8):
        np.testing.assert_array_equal(found[rank], local[rank // 4 * 4 + 2])


def test_manual_in_part() -> None:
    """Axes that `shard_map` leaves alone: every rank along them holds what is whole."""
    more = {"axis_names": {"b"}} if NEW else {"auto": frozenset({"a"})}
    x = numbers(16, 16)
    inner = mapped(
        lambda y: y + lax.psum(y, "b"), devices(**MESH), P("b"), P("b"), checked=False, **more
    )
    per_rank(lambda x: inner(jnp.sin(x)), x, [x] * 8)


def test_nested() -> None:
    if not NEW:
        pytest.skip("this version of JAX nests no shard_map")
    x = numbers(16, 16)
    mesh = devices(**MESH)

    def inside(y: Any) -> Any:
        return lax.psum(y, "b") + lax.axis_index("b")

    def outside(y: Any) -> Any:
        specs = {"in_specs": P(None, "b"), "out_specs": P(None, "b"), "axis_names": {"b"}}
        return jax.shard_map(inside, check_vma=False, **specs)(y) * lax.axis_index("a")

    function = jax.shard_map(
        outside, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}, check_vma=False
    )
    per_rank(lambda x: function(x), x, [x] * 8)

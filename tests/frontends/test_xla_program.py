"""Functions traced and partitioned by XLA without devices: names, prefixes, messages, what XLA is told."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402

from shardproof.frontends.xla.partition import partitioned  # noqa: E402
from shardproof.frontends.xla.program import mesh_of, trace  # noqa: E402
from shardproof.ir.module import ModuleError  # noqa: E402
from shardproof.ir.types import Mesh  # noqa: E402

P = jax.sharding.PartitionSpec
MESH = {"dp": 2, "tp": 4}


def real(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def dense(p: Any, x: Any) -> Any:
    return {"y": x @ p["w"] + p["b"], "size": jnp.abs(x).sum()}


WEIGHTS = {"w": real(8, 16), "b": real(16)}


def test_names_are_paths_and_prefixes_spread() -> None:
    traced = trace(dense, (WEIGHTS, real(4, 8)), MESH, (P(), P("dp")), {"y": P("dp"), "size": None})
    assert traced.name == "dense"
    assert [t.name for t in traced.inputs] == ["p.b", "p.w", "x"]
    assert [str(t.placed) for t in traced.inputs] == ["replicate", "replicate", "shard(0, dp)"]
    assert [(t.name, t.placed and str(t.placed)) for t in traced.outputs] == [
        ("out.size", None),
        ("out.y", "shard(0, dp)"),
    ]


def test_one_argument_keywords_and_lambdas() -> None:
    one = trace(lambda x: x * 2, real(8), MESH, P("tp"), None)
    assert (one.name, [t.name for t in one.inputs]) == ("function", ["x"])
    both = trace(dense, {"p": WEIGHTS, "x": real(4, 8)}, MESH, None, None)
    assert [t.name for t in both.inputs] == ["p.b", "p.w", "x"]
    several = trace(lambda *xs: sum(xs), (real(8), real(8)), MESH, [P("tp"), None], P())
    assert [t.name for t in several.inputs] == ["xs0", "xs1"]
    assert [str(t.placed) for t in several.inputs] == ["shard(0, tp)", "replicate"]


def test_meshes_are_mappings_or_of_jax() -> None:
    wanted = Mesh((("dp", 2), ("tp", 4)))
    abstract = trace(lambda x: x, real(8), MESH, P("tp"), None)
    assert mesh_of(MESH) == abstract.mesh == wanted
    with pytest.raises(ModuleError, match="give a dict of axes and sizes"):
        mesh_of(8)
    with pytest.raises(ModuleError, match="at least one rank"):
        mesh_of({"tp": 0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": (WEIGHTS,)}, "the function does not take 1 inputs"),
        ({"inputs": (WEIGHTS, 3)}, "is int, a jax.ShapeDtypeStruct is needed"),
        ({"in_shardings": (P("dp"), P(), P())}, "in_shardings is no prefix"),
        ({"in_shardings": (P("dp"), "dp")}, "in_shardings holds str: give a PartitionSpec"),
        ({"in_shardings": (None, P("pp"))}, "input `x`: the sharding names the axis `pp`"),
        ({"in_shardings": (None, P(None, "dp", "tp"))}, "input `x`: the sharding"),
        ({"out_shardings": {"y": P("dp")}}, "out_shardings is no prefix"),
        ({"out_shardings": {"y": P("tp"), "size": P("dp")}}, "output `out.size`: the sharding"),
        ({"mesh": {"dp": 3}, "in_shardings": (None, P("dp"))}, "dim 0 of [4, 8] is divided into 3 parts"),
        ({"mesh": {"dp": 1}, "in_shardings": None}, "has one rank"),
        ({"partitioner": "other"}, "the partitioner is one of shardy, gspmd"),
    ],
)
def test_what_does_not_fit_is_told(change: dict[str, Any], message: str) -> None:
    case = {"inputs": (WEIGHTS, real(4, 8)), "mesh": MESH, "in_shardings": None, "out_shardings": None}
    with pytest.raises(ModuleError) as caught:
        trace(dense, **{**case, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_function_raises_goes_through() -> None:
    def fails(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(fails, real(4), MESH, None, None)


def test_constraints_inside_name_axes_of_the_mesh() -> None:
    def run(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x * 2, P("tp"))

    if not hasattr(jax.sharding, "use_abstract_mesh"):
        pytest.skip("this jax has no meshes without devices in context")
    traced = trace(run, real(8), MESH, P(), None)
    assert b"tp" in traced.stablehlo


def test_xla_refuses_with_its_own_message() -> None:
    with pytest.raises(ModuleError, match=r"XLA does not compile the program for 8 devices: .+"):
        partitioned(b"no program", 8, shardy=True, chosen=[True])


def test_xla_has_a_time_limit() -> None:
    traced = trace(dense, (WEIGHTS, real(4, 8)), MESH, None, None)
    with pytest.raises(ModuleError, match=r"needs more than 0\.01 s"):
        partitioned(traced.stablehlo, 8, shardy=traced.shardy, chosen=[True, True], timeout=0.01)

"""What a jaxpr is imported as computes what JAX computes, on one rank."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
jax = pytest.importorskip("jax", reason="jax is not installed")

from evaluated import check_module  # noqa: E402

from shardproof.frontends.jaxpr.lower import lower  # noqa: E402
from shardproof.frontends.jaxpr.tracing import trace  # noqa: E402
from shardproof.ir.interpret import run  # noqa: E402
from shardproof.ir.module import Module  # noqa: E402
from shardproof.ir.verify import verify  # noqa: E402
from shardproof.passes.unroll import unrolled  # noqa: E402

_SPEC = importlib.util.spec_from_file_location(
    "jaxpr_programs", Path(__file__).parent / "jaxpr_programs.py"
)
assert _SPEC is not None and _SPEC.loader is not None
_PROGRAMS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_PROGRAMS)
ONE_RANK = _PROGRAMS.ONE_RANK


def arguments(shapes: list[Any], seed: int = 3) -> list[Any]:
    rng = np.random.default_rng(seed)
    found = []
    for s in shapes:
        if jax.numpy.issubdtype(s.dtype, np.floating):
            found.append(rng.normal(size=s.shape).astype(s.dtype))
        else:
            found.append(rng.integers(0, 2 if s.dtype == bool else 3, size=s.shape).astype(s.dtype))
    return found


def agree(found: Any, wanted: Any, tolerance: float = 3e-5) -> None:
    wanted = np.asarray(wanted)
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_allclose(found, wanted.astype(np.float64), rtol=tolerance, atol=tolerance)


def imported(name: str) -> Module:
    """The program of that name with its loops written out."""
    function, shapes = ONE_RANK[name]
    names = [f"a{k}" for k in range(len(shapes))]
    traced = trace(lambda **a: function(*(a[n] for n in names)), dict(zip(names, shapes, strict=True)))
    module = lower(traced.closed, inputs=traced.inputs, outputs=traced.outputs).module
    verify(module)
    return unrolled(module, 10_000)


@pytest.mark.parametrize("name", ONE_RANK)
def test_one_rank(name: str) -> None:
    function, shapes = ONE_RANK[name]
    given = arguments(shapes)
    names = [f"a{k}" for k in range(len(shapes))]
    module = imported(name)
    found = run(module, dict(zip(names, given, strict=True)))
    wanted = jax.tree.leaves(jax.jit(function)(*map(jax.numpy.asarray, given)))
    assert len(wanted) == len(module.outputs)
    tolerance = 2e-2 if name == "mixed" else 3e-5
    for k, (output, want) in enumerate(zip(module.outputs, wanted, strict=True)):
        try:
            agree(found[output.name][0], want, tolerance)
        except AssertionError as error:
            raise AssertionError(f"output {k} of {name} is not what JAX computes: {error}") from None


LEFT_OUT = {"attention_gradient", "draws", "integers", "inverses"}
"""Programs that take long or are opaque, and one whose signed integers wrap, as views assume they do not."""


@pytest.mark.parametrize("name", sorted(ONE_RANK.keys() - LEFT_OUT))
def test_normal_form(name: str) -> None:
    """Views say what the interpreter computes."""
    given = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in arguments(ONE_RANK[name][1])]
    assert check_module(imported(name), {f"a{k}": x for k, x in enumerate(given)}) > 0

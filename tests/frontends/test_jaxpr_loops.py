"""JAX programs with loops: right ones are verified, by induction where that is said, wrong ones refuted."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
jax = pytest.importorskip("jax", reason="jax is not installed")

from shardproof import verify_jax  # noqa: E402
from shardproof.solver import decide as verifier  # noqa: E402
from shardproof.solver.certificates.certificate_file import read  # noqa: E402
from shardproof.solver.verdict import Result, Verdict  # noqa: E402

_SPEC = importlib.util.spec_from_file_location("jaxpr_loops", Path(__file__).parent / "jaxpr_loops.py")
assert _SPEC is not None and _SPEC.loader is not None
_PROGRAMS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_PROGRAMS)
CASES = _PROGRAMS.CASES
jnp, lax, P, f = _PROGRAMS.jnp, _PROGRAMS.lax, _PROGRAMS.P, _PROGRAMS.f


def judged(case: Any, function: Any, **options: Any) -> Result:
    result = verify_jax(
        case.reference,
        function,
        mesh=case.mesh,
        inputs=case.inputs,
        in_specs=case.in_specs,
        out_specs=case.out_specs,
        ranges=case.ranges,
        **options,
    )
    assert isinstance(result, Result)
    return result


@pytest.mark.parametrize("name", CASES)
def test_right_loops_are_verified(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    written: list[str] = []
    kept = verifier.unrolled

    def unrolled(module: Any, most: int) -> Any:
        written.append(module.name)
        return kept(module, most)

    monkeypatch.setattr(verifier, "unrolled", unrolled)
    result = judged(case, case.right)
    assert result.verdict is Verdict.VERIFIED, result.text()
    assert {a.kind for a in result.assumptions} <= {"no_overflow", "opaque_batched"}
    assert not (written and case.induction)


@pytest.mark.parametrize("name", CASES)
def test_wrong_loops_are_refuted(name: str) -> None:
    case = CASES[name]
    result = judged(case, case.wrong)
    assert result.verdict is Verdict.REFUTED, result.text()
    assert result.location is not None and result.location.file == str(_SPEC.origin)


def test_lemmas_prove_what_is_in_rounds(tmp_path: Path) -> None:
    case = CASES["loss by chunks"]
    result = judged(case, case.right, certificate=tmp_path / "proof.cert")
    assert result.verdict is Verdict.VERIFIED and result.lemmas
    assert read(tmp_path / "proof.cert").instances


def test_an_exponent_in_a_round_subtracts_a_maximum() -> None:
    """Equal over the reals with the sum of the ranks' maxima, which may lie far from all scores."""
    case = CASES["loss by chunks"]
    wrong = _PROGRAMS.loss_by_chunks(0, lambda x: lax.psum(x, "tp"))
    result = judged(case, wrong)
    assert (result.verdict, result.code) == (Verdict.UNKNOWN, "U14")
    assert result.location is not None and result.location.op == "all_reduce"


def test_inner_loops_are_not_taken_for_the_outer_one() -> None:
    """Where both have as many rounds, the number of one is not that of the other."""

    def reference(x: Any, xs: Any) -> Any:
        c, _ = lax.scan(lambda c, r: (jnp.tanh(c) * r, None), x, xs)
        return c, jnp.broadcast_to(c, (4, *c.shape))

    def other(x: Any, xs: Any) -> Any:
        def outer(c: Any, r: Any) -> Any:
            d, _ = lax.scan(lambda d, _: (jnp.tanh(d) * r, None), x, None, length=4)
            return jnp.tanh(c) * r, d

        return lax.scan(outer, x, xs)

    result = verify_jax(
        reference,
        other,
        mesh={"tp": 2},
        inputs={"x": f(4, 8), "xs": f(4, 4, 8)},
        in_specs={"x": P(), "xs": P()},
        out_specs=(P(), P()),
    )
    assert result.verdict is Verdict.REFUTED


def test_a_branch_that_only_some_ranks_take_is_not_verified() -> None:
    def function(summed: Any) -> Any:
        return lambda x: lax.cond(summed() == 0, lambda: lax.psum(x, "tp"), lambda: lax.psum(2 * x, "tp"))

    result = verify_jax(
        lambda x: 2 * x,
        function(lambda: lax.axis_index("tp")),
        mesh={"tp": 2},
        inputs={"x": f(4)},
        in_specs={"x": P()},
        out_specs=P(),
    )
    assert result.verdict is not Verdict.VERIFIED


def test_a_loop_that_runs_as_long_as_it_takes_is_unknown() -> None:
    def function(x: Any) -> Any:
        return lax.while_loop(lambda c: jnp.sum(c) < 10, lambda c: c + 1, x)

    result = verify_jax(
        function, function, mesh={"tp": 2}, inputs={"x": f(4)}, in_specs={"x": P()}, out_specs=P()
    )
    assert result.verdict is Verdict.UNKNOWN


def seconds(layers: int) -> float:
    shapes = {"x": f(16, 8), "w1": f(layers, 8, 32), "w2": f(layers, 32, 8)}
    case = CASES["carried loss"]
    found = []
    for _ in range(3):
        start = time.process_time()
        result = verify_jax(
            case.reference,
            case.right,
            mesh=case.mesh,
            inputs=shapes,
            in_specs=case.in_specs,
            out_specs=case.out_specs,
        )
        found.append(time.process_time() - start)
        assert result.verdict is Verdict.VERIFIED
    return min(found)


def test_many_layers_cost_what_few_do() -> None:
    assert seconds(64) < 3 * seconds(2)

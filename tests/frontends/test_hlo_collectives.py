"""Collectives of several ranks: plain, variadic, tuple and asynchronous forms, run in lock-step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hlo_programs import ADD, MAX

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, ModuleError

G2 = "replica_groups={{0,1},{2,3}}"


def _program(body: str) -> str:
    return f"HloModule m, replica_count=4\n{ADD}{MAX}\nENTRY e {{\n  x = f32[4] parameter(0)\n{body}\n}}\n"


def _run(module: Module) -> list[list[Any]]:
    data = [np.arange(4.0) + 10 * r for r in range(4)]
    found = run(module, {"x": data})
    return [found[o.name] for o in module.outputs]


def _sum() -> list[Any]:
    pair = [np.arange(4.0) * 2 + 10, np.arange(4.0) * 2 + 50]
    return [pair[0], pair[0], pair[1], pair[1]]


CASES: dict[str, tuple[str, Callable[[int], Any]]] = {
    "all_reduce": (
        f"  ROOT r = f32[4] all-reduce(x), {G2}, to_apply=add",
        lambda r: _sum()[r],
    ),
    "all_reduce_async": (
        f"  s = f32[4] all-reduce-start(x), {G2}, to_apply=add\n  ROOT r = f32[4] all-reduce-done(s)",
        lambda r: _sum()[r],
    ),
    "all_reduce_of_two": (
        f"  s = (f32[4], f32[4]) all-reduce(x, x), {G2}, to_apply=max\n"
        "  ROOT r = f32[4] get-tuple-element(s), index=1",
        lambda r: np.arange(4.0) + [10, 10, 30, 30][r],
    ),
    "all_gather": (
        f"  ROOT r = f32[8] all-gather(x), {G2}, dimensions={{0}}",
        lambda r: np.concatenate([np.arange(4.0) + 10 * k for k in ([0, 1] if r < 2 else [2, 3])]),
    ),
    "all_gather_async": (
        f"  s = (f32[4], f32[8]) all-gather-start(x), {G2}, dimensions={{0}}\n"
        "  ROOT r = f32[8] all-gather-done(s)",
        lambda r: np.concatenate([np.arange(4.0) + 10 * k for k in ([0, 1] if r < 2 else [2, 3])]),
    ),
    "reduce_scatter": (
        f"  ROOT r = f32[2] reduce-scatter(x), {G2}, dimensions={{0}}, to_apply=add",
        lambda r: _sum()[r][:2] if r % 2 == 0 else _sum()[r][2:],
    ),
    "reduce_scatter_async": (
        f"  s = ((f32[4]), f32[2], u32[]) reduce-scatter-start(x), {G2}, dimensions={{0}}, to_apply=add\n"
        "  u = ((f32[4]), f32[2], u32[]) reduce-scatter-update(s)\n"
        "  ROOT r = f32[2] reduce-scatter-done(u)",
        lambda r: _sum()[r][:2] if r % 2 == 0 else _sum()[r][2:],
    ),
    "all_to_all": (
        f"  ROOT r = f32[4] all-to-all(x), {G2}, dimensions={{0}}",
        lambda r: np.concatenate(
            [(np.arange(4.0) + 10 * k).reshape(2, 2)[r % 2] for k in (r // 2 * 2, r // 2 * 2 + 1)]
        ),
    ),
    "all_to_all_of_pieces": (
        "  a = f32[2] slice(x), slice={[0:2]}\n  b = f32[2] slice(x), slice={[2:4]}\n"
        f"  s = (f32[2], f32[2]) all-to-all(a, b), {G2}\n"
        "  g = f32[2] get-tuple-element(s), index=0\n  h = f32[2] get-tuple-element(s), index=1\n"
        "  ROOT r = f32[4] concatenate(g, h), dimensions={0}",
        lambda r: np.concatenate(
            [(np.arange(4.0) + 10 * k).reshape(2, 2)[r % 2] for k in (r // 2 * 2, r // 2 * 2 + 1)]
        ),
    ),
    "permute": (
        "  ROOT r = f32[4] collective-permute(x), source_target_pairs={{0,1},{1,2},{2,0}}",
        lambda r: np.arange(4.0) + [20, 0, 10, 0][r] if r < 3 else np.zeros(4),
    ),
    "permute_async": (
        "  s = (f32[4], f32[4], u32[], u32[]) collective-permute-start(x), source_target_pairs={{3,0}}\n"
        "  ROOT r = f32[4] collective-permute-done(s)",
        lambda r: np.arange(4.0) + 30 if r == 0 else np.zeros(4),
    ),
    "broadcast": (
        "  ROOT r = f32[4] collective-broadcast(x), replica_groups={{2,0,1}}",
        lambda r: np.arange(4.0) + 20 if r < 3 else np.zeros(4),
    ),
    "replica_id": (
        "  i = u32[] replica-id()\n  f = f32[] convert(i)\n  b = f32[4] broadcast(f), dimensions={}\n"
        "  ROOT r = f32[4] add(x, b)",
        lambda r: np.arange(4.0) + 11 * r,
    ),
    "partition_id_is_zero": (
        "  i = u32[] partition-id()\n  f = f32[] convert(i)\n  b = f32[4] broadcast(f), dimensions={}\n"
        "  ROOT r = f32[4] add(x, b)",
        lambda r: np.arange(4.0) + 10 * r,
    ),
    "wrapped_start": (
        "  s = f32[4] negate(x)\n  c = (f32[4], f32[4], u32[]) copy-start(s)\n  ROOT r = f32[4] copy-done(c)",
        lambda r: -(np.arange(4.0) + 10 * r),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_collectives(name: str, load_text: Callable[..., Module]) -> None:
    text, expected = CASES[name]
    (output,) = _run(load_text(_program(text)))
    for rank in range(4):
        np.testing.assert_array_equal(output[rank], expected(rank), err_msg=f"rank {rank}")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            f"  s = f32[4] all-reduce-start(x), {G2}, to_apply=add\n  ROOT r = f32[4] negate(s)",
            "`s` is used before its wait",
        ),
        (
            f"  s = f32[4] all-reduce-start(x), {G2}, to_apply=add\n  ROOT r = (f32[4]) tuple(s)",
            "`s` is used before its wait",
        ),
        (f"  ROOT s = f32[4] all-reduce-start(x), {G2}, to_apply=add", "used before its wait"),
        ("  ROOT s = f32[4] all-reduce-done(x)", "waits for something that no start gave"),
        (
            "  ROOT r = f32[4] collective-permute(x), source_target_pairs={{0,1},{2,1}}",
            "names rank 1 twice",
        ),
        (
            f"  s = (f32[4], f32[4], f32[4]) all-to-all(x, x, x), {G2}\n"
            "  ROOT r = f32[4] get-tuple-element(s), index=0",
            "3 pieces in groups of 2",
        ),
        (f"  ROOT r = f32[8] all-gather(x), {G2}, dimensions={{0,1}}", "along 2 dims"),
        ("  ROOT r = f32[4] ragged-all-to-all(x, x, x, x, x, x)", "not supported"),
    ],
)
def test_refused(body: str, expected: str, load_text: Callable[..., Module]) -> None:
    with pytest.raises(ModuleError, match=expected):
        load_text(_program(body))


def test_a_reducer_that_is_no_monoid_is_refused(load_text: Callable[..., Module]) -> None:
    text = _program(f"  ROOT r = f32[4] all-reduce(x), {G2}, to_apply=add").replace(
        " add(a, b)", " subtract(a, b)"
    )
    with pytest.raises(ModuleError, match="no known sum"):
        load_text(text)


def test_a_loop_without_known_end_may_not_communicate(load_text: Callable[..., Module]) -> None:
    body = (
        f"body {{\n  c = f32[4] parameter(0)\n  ROOT r = f32[4] all-reduce(c), {G2}, to_apply=add\n}}\n"
        "cond {\n  d = f32[4] parameter(0)\n  z = f32[] constant(0)\n"
        "  s = f32[] reduce(d, z), dimensions={0}, to_apply=add\n"
        "  h = f32[] constant(9)\n  ROOT p = pred[] compare(s, h), direction=LT\n}\n"
    )
    text = _program("  ROOT w = f32[4] while(x), condition=cond, body=body").replace("ENTRY", f"{body}ENTRY")
    with pytest.raises(ModuleError, match="no function of its operands"):
        load_text(text)


@pytest.mark.parametrize("opcode", ["partition-id", "replica-id"])
def test_an_own_number_needs_the_number_of_ranks(opcode: str, load_text: Callable[..., Module]) -> None:
    text = f"HloModule m\nENTRY e {{\n  ROOT i = u32[] {opcode}()\n}}\n"
    with pytest.raises(ModuleError, match="how many ranks"):
        load_text(text)
    module = load_text(text, ranks=4)
    assert [op.opcode for op in module.ops] == ["rank_id"]
    assert module.warnings == (
        f"the file doesn't tell replicas from partitions: {opcode} is read as the rank",
    )
    assert load_text(text, ranks=1).ops[0].opcode == "constant"


def test_two_kinds_of_own_number(load_text: Callable[..., Module]) -> None:
    text = (
        "HloModule m\nENTRY e {\n  i = u32[] partition-id()\n  j = u32[] replica-id()\n"
        "  ROOT r = u32[] add(i, j)\n}\n"
    )
    with pytest.raises(ModuleError, match="replicas or partitions"):
        load_text(text, ranks=4)
    known = load_text(text.replace("HloModule m", "HloModule m, num_partitions=4"))
    assert [op.opcode for op in known.ops] == ["rank_id", "constant", "add"]

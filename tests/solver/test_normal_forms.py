"""Programs that compute the same in other words meet in one class: the completeness list, one pair each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

import shardproof
from shardproof.ir.module import Module
from shardproof.ir.text import parse

DOT = "{lhs_contracting=(1,), rhs_contracting=(0,), lhs_batch=(), rhs_batch=()}"
ROWS = (
    "{offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=1, "
    "slice_sizes=(1,5), operand_batching_dims=(), start_indices_batching_dims=()}"
)
M = "f32[4,6]"


def module(lines: str, mesh: str = "") -> Module:
    return parse(f'module "m" mesh({mesh}) {{\n{lines}\n}}\n', source="test")


def scalar(name: str, value: str, type_: str = "f32[]") -> str:
    return f"%{name} = constant() {{value={type_} ({value})}} : {type_}\n"


def spread(name: str, source: str, type_: str, dims: str = "()") -> str:
    return f"%{name} = broadcast_in_dim(%{source}) {{dims={dims}}} : {type_}\n"


def times(value: str, opcode: str = "multiply") -> str:
    return (
        "%x = input(0) : f32[4,6]\n"
        + scalar("k", value)
        + spread("b", "k", M)
        + f'%o = {opcode}(%x, %b) : {M}\noutput "o" = %o'
    )


def table(values: object, type_: str) -> str:
    return f"{type_} ({','.join(repr(float(v)) for v in np.asarray(values).ravel())})"


X = "%x = input(0) : f32[4,6]\n"
XY = X + "%y = input(1) : f32[4,6]\n"
V = "%x = input(0) : f32[16]\n"
SOFT = (
    X
    + "%v = input(1) : f32[6,5]\n"
    + "%e = exponential(%x) : f32[4,6]\n"
    + scalar("z", "0.0")
    + '%s = reduce(%e, %z) {dims=(1,), kind="sum"} : f32[4]\n'
)
IDS = "%w = input(0) : f32[6,5]\n%i = input(1) : s32[3]\n"
SCALED = "%a = input(0) : f32[4,6]\n%s = input(1) : f32[4]\n%b = input(2) : f32[6,5]\n"


def cut(name: str, source: str, start: int, stop: int, step: int = 1) -> str:
    n = -(-(stop - start) // step)
    where = f"{{starts=({start},), limits=({stop},), strides=({step},)}}"
    return f"%{name} = slice(%{source}) {where} : f32[{n}]\n"


ANGLES = np.arange(5)[:, None] * (1.0 / 10000 ** (np.arange(0, 8, 2) / 8)).astype(np.float32).astype(float)
COSINES = np.cos(ANGLES).astype(np.float32)
ROTARY = (
    "%x = input(0) : f32[5,4]\n%p = iota() {dim=0} : f32[5]\n%f = constant() {value="
    + table((1.0 / 10000 ** (np.arange(0, 8, 2) / 8)).astype(np.float32), "f32[4]")
    + "} : f32[4]\n"
    + spread("pb", "p", "f32[5,4]", "(0,)")
    + spread("fb", "f", "f32[5,4]", "(1,)")
    + "%a = multiply(%pb, %fb) : f32[5,4]\n%c = cosine(%a) : f32[5,4]\n"
    + '%o = multiply(%x, %c) : f32[5,4]\noutput "o" = %o'
)


def with_table(values: object) -> str:
    return (
        "%x = input(0) : f32[5,4]\n%c = constant() {value="
        + table(values, "f32[5,4]")
        + '} : f32[5,4]\n%o = multiply(%x, %c) : f32[5,4]\noutput "o" = %o'
    )


LATE = np.arange(0, 4000, 800)
FOLDED = np.cos((LATE[:, None] * ANGLES[1].astype(np.float32)).astype(np.float32)).astype(np.float32)
"""Cosines of angles that were rounded, too, which far from zero is the larger error."""
LATE_ROTARY = ROTARY.replace(
    "%p = iota() {dim=0} : f32[5]\n",
    "%n = iota() {dim=0} : f32[4000]\n" + cut("p", "n", 0, 4000, 800),
)
TWO_BY_PI = (
    scalar("one", "1.0") + "%quarter = atan2(%one, %one) : f32[]\n" + scalar("half", "0.5")
    + "%ratio = divide(%half, %quarter) : f32[]\n%root = sqrt(%ratio) : f32[]\n"
)


def by_root_of_two_by_pi() -> str:
    rest = spread("b", "root", M) + f'%o = multiply(%x, %b) : {M}\noutput "o" = %o'
    return X + TWO_BY_PI + rest


def scaled_factors(factor: str) -> str:
    """The square of a scaled input."""
    rest = f'%d = multiply(%x, %b) : {M}\n%o = multiply(%d, %d) : {M}\noutput "o" = %o'
    return X + scalar("k", factor) + spread("b", "k", M) + rest


def mask(lines: str) -> str:
    return (
        "%x = input(0) : f32[4,4]\n"
        + lines
        + scalar("n", "-9.0")
        + spread("nb", "n", "f32[4,4]")
        + '%o = select(%m, %x, %nb) : f32[4,4]\noutput "o" = %o'
    )


def masked_sum(direction: str) -> str:
    return (
        "%x = input(0) : f32[4]\n%r = rank_id() : s32[]\n"
        + scalar("k", "1", "s32[]")
        + f'%p = compare(%r, %k) {{direction="{direction}", total=false}} : bool[]\n'
        + scalar("z", "0.0")
        + spread("zb", "z", "f32[4]")
        + "%s = select(%p, %x, %zb) : f32[4]\n"
        + '%o = all_reduce(%s) {kind="sum", groups=((0,1),)} : f32[4]\noutput "o" = %o'
    )


@dataclass(frozen=True)
class Pair:
    a: str
    b: str
    assumes: set[str] = field(default_factory=set)
    mesh: str = ""


EQUAL = {
    "twice": Pair(times("2.0"), X + f'%o = add(%x, %x) : {M}\noutput "o" = %o'),
    "take away and add": Pair(
        XY + f'%d = subtract(%x, %y) : {M}\n%o = add(%d, %y) : {M}\noutput "o" = %o',
        XY + f'%s = add(%x, %y) : {M}\n%o = subtract(%s, %y) : {M}\noutput "o" = %o',
    ),
    "times one plus zero": Pair(
        X + 'output "o" = %x',
        X
        + scalar("k", "1.0")
        + spread("b", "k", M)
        + scalar("z", "0.0")
        + spread("zb", "z", M)
        + f'%p = multiply(%x, %b) : {M}\n%o = add(%p, %zb) : {M}\noutput "o" = %o',
    ),
    "mean inside or outside": Pair(
        X
        + scalar("z", "0.0")
        + '%s = reduce(%x, %z) {dims=(1,), kind="sum"} : f32[4]\n'
        + scalar("k", "6.0")
        + spread("b", "k", "f32[4]")
        + '%o = divide(%s, %b) : f32[4]\noutput "o" = %o',
        X
        + scalar("z", "0.0")
        + scalar("k", "6.0")
        + spread("b", "k", M)
        + f"%d = divide(%x, %b) : {M}\n"
        + '%o = reduce(%d, %z) {dims=(1,), kind="sum"} : f32[4]\noutput "o" = %o',
    ),
    "root of a dimension": Pair(times("11.3137085", "divide"), times("0.088388346"), {"literal_rounding"}),
    "a reciprocal": Pair(times("768.0", "divide"), times("0.0013020834"), {"literal_rounding"}),
    "fourth roots on both sides": Pair(
        X
        + scalar("k", "8.0")
        + spread("b", "k", M)
        + f'%d = divide(%x, %b) : {M}\n%o = multiply(%d, %x) : {M}\noutput "o" = %o',
        X
        + scalar("k", "0.35355338")
        + spread("b", "k", M)
        + f'%d = multiply(%x, %b) : {M}\n%o = multiply(%d, %d) : {M}\noutput "o" = %o',
        {"literal_rounding"},
    ),
    "a root that is computed": Pair(
        X
        + scalar("k", "64.0")
        + "%q = sqrt(%k) : f32[]\n"
        + spread("b", "q", M)
        + f'%o = divide(%x, %b) : {M}\noutput "o" = %o',
        times("0.125"),
    ),
    "rotary table": Pair(ROTARY, with_table(COSINES), {"literal_rounding"}),
    "folded rotary table": Pair(LATE_ROTARY, with_table(FOLDED), {"literal_rounding"}),
    "root of two by pi": Pair(by_root_of_two_by_pi(), times("0.7978846"), {"literal_rounding"}),
    "a factor split in fourth roots": Pair(
        X
        + scalar("k", "0.35355338")
        + spread("b", "k", M)
        + f'%s = multiply(%x, %x) : {M}\n%o = multiply(%s, %b) : {M}\noutput "o" = %o',
        scaled_factors("0.59460354"),
        {"literal_rounding"},
    ),
    "a number is itself": Pair(
        X + 'output "o" = %x',
        X
        + f'%n = compare(%x, %x) {{direction="NE", total=false}} : bool[{M[4:]}\n'
        + scalar("z", "0.0")
        + spread("zb", "z", M)
        + f'%o = select(%n, %zb, %x) : {M}\noutput "o" = %o',
    ),
    "what is assumed to be a number": Pair(
        X + f'%l = log(%x) : {M}\noutput "o" = %l',
        X
        + f"%l = log(%x) : {M}\n"
        + f'%n = compare(%l, %l) {{direction="NE", total=false}} : bool[{M[4:]}\n'
        + scalar("z", "0.0")
        + spread("zb", "z", M)
        + f'%o = select(%n, %zb, %l) : {M}\noutput "o" = %o',
        {"finite_value"},
    ),
    "slice of a reshape": Pair(
        V
        + "%e = exponential(%x) : f32[16]\n%r = reshape(%e) : f32[4,4]\n"
        + '%o = slice(%r) {starts=(0,0), limits=(4,2), strides=(1,1)} : f32[4,2]\noutput "o" = %o',
        V
        + "%r = reshape(%x) : f32[4,4]\n"
        + "%s = slice(%r) {starts=(0,0), limits=(4,2), strides=(1,1)} : f32[4,2]\n"
        + '%o = exponential(%s) : f32[4,2]\noutput "o" = %o',
    ),
    "one element": Pair(
        V + "%e = exponential(%x) : f32[16]\n" + cut("o", "e", 3, 4) + 'output "o" = %o',
        V + cut("e", "x", 3, 4) + '%o = exponential(%e) : f32[1]\noutput "o" = %o',
    ),
    "every other": Pair(
        V + "%e = exponential(%x) : f32[16]\n" + cut("o", "e", 0, 16, 2) + 'output "o" = %o',
        V + cut("e", "x", 0, 16, 2) + '%o = exponential(%e) : f32[8]\noutput "o" = %o',
    ),
    "pieces put together": Pair(
        V + '%o = exponential(%x) : f32[16]\noutput "o" = %o',
        V
        + cut("a", "x", 0, 8)
        + cut("b", "x", 8, 16)
        + "%ea = exponential(%a) : f32[8]\n%eb = exponential(%b) : f32[8]\n"
        + '%o = concatenate(%ea, %eb) {dim=0} : f32[16]\noutput "o" = %o',
    ),
    "a misaligned reshape": Pair(
        "%x = input(0) : f32[2,3]\n%e = exponential(%x) : f32[2,3]\n"
        '%o = reshape(%e) : f32[3,2]\noutput "o" = %o',
        "%x = input(0) : f32[2,3]\n%r = reshape(%x) : f32[3,2]\n"
        '%o = exponential(%r) : f32[3,2]\noutput "o" = %o',
    ),
    "scale of a row": Pair(
        SCALED
        + spread("sb", "s", M, "(0,)")
        + f'%m = multiply(%a, %sb) : {M}\n%o = dot_general(%m, %b) {DOT} : f32[4,5]\noutput "o" = %o',
        SCALED
        + f"%m = dot_general(%a, %b) {DOT} : f32[4,5]\n"
        + spread("sb", "s", "f32[4,5]", "(0,)")
        + '%o = multiply(%m, %sb) : f32[4,5]\noutput "o" = %o',
    ),
    "late softmax division": Pair(
        SOFT
        + spread("b", "s", M, "(0,)")
        + f'%p = divide(%e, %b) : {M}\n%o = dot_general(%p, %v) {DOT} : f32[4,5]\noutput "o" = %o',
        SOFT
        + f"%n = dot_general(%e, %v) {DOT} : f32[4,5]\n"
        + spread("b", "s", "f32[4,5]", "(0,)")
        + '%o = divide(%n, %b) : f32[4,5]\noutput "o" = %o',
    ),
    "causal mask": Pair(
        mask(
            "%i = iota() {dim=0} : s32[4,4]\n%j = iota() {dim=1} : s32[4,4]\n"
            '%m = compare(%i, %j) {direction="GE", total=false} : bool[4,4]\n'
        ),
        mask(
            "%m = constant() {value=bool[4,4] (true,false,false,false,true,true,false,false,"
            "true,true,true,false,true,true,true,true)} : bool[4,4]\n"
        ),
    ),
    "sliding window": Pair(
        mask(
            "%i = iota() {dim=0} : s32[4,4]\n%j = iota() {dim=1} : s32[4,4]\n"
            "%d = subtract(%i, %j) : s32[4,4]\n"
            + scalar("z", "0", "s32[]")
            + spread("zb", "z", "s32[4,4]")
            + scalar("w", "2", "s32[]")
            + spread("wb", "w", "s32[4,4]")
            + '%p = compare(%d, %zb) {direction="GE", total=false} : bool[4,4]\n'
            + '%q = compare(%d, %wb) {direction="LT", total=false} : bool[4,4]\n'
            + "%m = and(%p, %q) : bool[4,4]\n"
        ),
        mask(
            "%m = constant() {value=bool[4,4] (true,false,false,false,true,true,false,false,"
            "false,true,true,false,false,false,true,true)} : bool[4,4]\n"
        ),
    ),
    "one-hot look-up": Pair(
        IDS + f'%o = gather(%w, %i) {ROWS} : f32[3,5]\noutput "o" = %o',
        IDS
        + "%io = iota() {dim=1} : s32[3,6]\n"
        + spread("ib", "i", "s32[3,6]", "(0,)")
        + '%eq = compare(%io, %ib) {direction="EQ", total=false} : bool[3,6]\n'
        + f'%f = convert(%eq) : f32[3,6]\n%o = dot_general(%f, %w) {DOT} : f32[3,5]\noutput "o" = %o',
        {"ids_in_range"},
    ),
    "broadcast by a masked sum": Pair(
        '%x = input(0) : f32[4]\noutput "o" = %x', masked_sum("LT"), mesh="tp=2"
    ),
    "broadcast from the last": Pair('%x = input(0) : f32[4]\noutput "o" = %x', masked_sum("GE"), mesh="tp=2"),
    "update at a constant": Pair(
        V
        + "%u = input(1) : f32[4]\n"
        + cut("a", "x", 0, 5)
        + cut("b", "x", 9, 16)
        + '%o = concatenate(%a, %u, %b) {dim=0} : f32[16]\noutput "o" = %o',
        V
        + "%u = input(1) : f32[4]\n"
        + scalar("k", "5", "s32[]")
        + '%o = dynamic_update_slice(%x, %u, %k) : f32[16]\noutput "o" = %o',
    ),
    "divided and multiplied": Pair(
        XY + 'output "o" = %x',
        XY + f'%d = divide(%x, %y) : {M}\n%o = multiply(%d, %y) : {M}\noutput "o" = %o',
        {"nonzero_divisor"},
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_programs_meet(name: str) -> None:
    pair = EQUAL[name]
    for a, b in ((pair.a, pair.b), (pair.b, pair.a)):
        if pair.mesh and b is pair.a:
            continue
        result = shardproof.verify(module(a), module(b, pair.mesh))
        assert result.verdict == "verified", result.text()
        kinds = {x.kind for x in result.assumptions if x.kind != "inferred_relation"}
        assert kinds == pair.assumes


BAD_FOLDED = FOLDED.copy()
BAD_FOLDED[3, 2] *= 1 + 2e-6
BAD_COSINES = COSINES.copy()
BAD_COSINES[3, 2] += 1e-4

UNEQUAL = {
    "another epsilon": (
        X + scalar("k", "1e-05") + spread("b", "k", M) + f'%o = add(%x, %b) : {M}\noutput "o" = %o',
        X + scalar("k", "1e-06") + spread("b", "k", M) + f'%o = add(%x, %b) : {M}\noutput "o" = %o',
    ),
    "almost a root": (times("11.3137085", "divide"), times("0.08839")),
    "almost a reciprocal": (times("768.0", "divide"), times("0.0013")),
    "a window of another width": (
        EQUAL["sliding window"].a.replace("(2)", "(3)"),
        EQUAL["sliding window"].b,
    ),
    "a table entry off": (ROTARY, with_table(BAD_COSINES)),
    "an entry of a folded table off": (LATE_ROTARY, with_table(BAD_FOLDED)),
    "almost the root of two by pi": (by_root_of_two_by_pi(), times("0.797885")),
    "almost a fourth root": (EQUAL["a factor split in fourth roots"].a, scaled_factors("0.594604")),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_near_misses_do_not(name: str) -> None:
    a, b = UNEQUAL[name]
    assert shardproof.verify(module(a), module(b)).verdict != "verified"

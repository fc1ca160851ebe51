"""Programs that the algebra, the lemmas and the masks must not take for right, whichever attempt is made.

`verify` replays before it tries lemmas, which would hide a lemma that proves too much; so each attempt is
made directly.
"""

from __future__ import annotations

import pytest

import shardproof
from shardproof.ir.module import Module
from shardproof.ir.text import parse
from shardproof.solver.attempts import BY_LEMMAS, LITERAL
from shardproof.solver.prove import Clock, prove
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import compose
from shardproof.solver.relations.relation_file import Declared, resolve
from shardproof.solver.search.theory import theory


def program(mesh: str, output: str, *lines: str) -> Module:
    body = "\n".join(f"  %{line}" for line in lines)
    return parse(f'module "m" mesh({mesh}) {{\n{body}\n  output "y" = %{output}\n}}\n', source="test")


def proofs(a: Module, b: Module) -> list[str]:
    """The attempts that prove the programs equal, and what each assumes."""
    inferred = infer(a, b, resolve(Declared(), a, b))
    assert not inferred.gaps
    composed = compose(a, b, inferred.relation)
    found = []
    for attempt in (*LITERAL, *BY_LEMMAS):
        proof = prove(composed, Clock(30), attempt, rules=theory().rules(attempt.lemmas))
        if proof.complete:
            found.append(f"{attempt} {sorted(kind for kind, _ in proof.store.assumptions)}")
    return found


X = "x = input(0) : f32[8]"
ZERO = "zero = constant() {value=f32[](0.0)} : f32[]"
TOTAL = program("", "y", X, ZERO, 'y = reduce(%x, %zero) {dims=(0,), kind="sum"} : f32[]')


def blocks(*edges: tuple[int, int]) -> Module:
    """The sum of the sums of some blocks of x."""
    lines = [X, ZERO]
    for n, (a, b) in enumerate(edges):
        lines.append(f"b{n} = slice(%x) {{starts=({a},), limits=({b},), strides=(1,)}} : f32[{b - a}]")
        lines.append(f's{n} = reduce(%b{n}, %zero) {{dims=(0,), kind="sum"}} : f32[]')
    last = "s0"
    for n in range(1, len(edges)):
        lines.append(f"t{n} = add(%{last}, %s{n}) : f32[]")
        last = f"t{n}"
    return program("", last, *lines)


@pytest.mark.parametrize(
    ("edges", "right"),
    [
        (((0, 3), (3, 8)), True),
        (((5, 8), (0, 2), (2, 5)), True),
        (((0, 4), (3, 8)), False),
        (((0, 3), (4, 8)), False),
        (((0, 4), (0, 4)), False),
        (((0, 4), (4, 8), (4, 8)), False),
        (((1, 4), (4, 8)), False),
    ],
)
def test_blocks_are_all_of_it_once(edges: tuple[tuple[int, int], ...], right: bool) -> None:
    assert bool(proofs(TOTAL, blocks(*edges))) is right
    assert (shardproof.verify(TOTAL, blocks(*edges)).verdict == "verified") is right


def ring(*turns: tuple[int, ...]) -> Module:
    """Each rank adds its own block and those it is sent; `turns` say from which rank, by receiver."""
    lines = ["x = input(0) : f32[4]"]
    last = "x"
    for n, sources in enumerate(turns):
        pairs = ",".join(f"({s},{r})" for r, s in enumerate(sources))
        lines.append(f"p{n} = collective_permute(%x) {{pairs=({pairs})}} : f32[4]")
        lines.append(f"s{n} = add(%{last}, %p{n}) : f32[4]")
        last = f"s{n}"
    return program("cp=3", last, *lines)


GATHERED = program(
    "",
    "y",
    "x = input(0) : f32[12]",
    "r = reshape(%x) : f32[3,4]",
    ZERO,
    'y = reduce(%r, %zero) {dims=(0,), kind="sum"} : f32[4]',
)


@pytest.mark.parametrize(
    ("turns", "right"),
    [
        (((1, 2, 0), (2, 0, 1)), True),
        (((2, 0, 1), (1, 2, 0)), True),
        (((1, 2, 0), (1, 0, 2)), False),
        (((1, 2, 0), (1, 2, 0)), False),
        (((1, 2, 0), (0, 1, 2)), False),
        (((1, 0, 2), (2, 1, 0)), False),
        (((1, 2, 0),), False),
    ],
)
def test_every_rank_sees_every_block_once(turns: tuple[tuple[int, ...], ...], right: bool) -> None:
    """Right on one rank is not enough: the third passes rank 1 alone."""
    assert bool(proofs(GATHERED, ring(*turns))) is right


CHOICE = (
    "p = input(0) : bool[5]",
    "i = input(1) : s32[5]",
    "x = input(2) : f32[9]",
    "four = constant() {value=s32[](4)} : s32[]",
    "fours = broadcast_in_dim(%four) {dims=()} : s32[5]",
    "low = constant() {value=s32[](0)} : s32[]",
    "high = constant() {value=s32[](8)} : s32[]",
    "lows = broadcast_in_dim(%low) {dims=()} : s32[5]",
    "highs = broadcast_in_dim(%high) {dims=()} : s32[5]",
    "at = clamp(%lows, %i, %highs) : s32[5]",
)
ROW = (
    "{offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=1, "
    "operand_batching_dims=(), start_indices_batching_dims=(), slice_sizes=(1,)}"
)


def chosen(position: str, mask: str = "p") -> Module:
    """x at a chosen position where the mask holds, else 0."""
    return program(
        "",
        "y",
        *CHOICE,
        "not_p = not(%p) : bool[5]",
        "here = select(%p, %at, %fours) : s32[5]",
        "there = select(%p, %fours, %at) : s32[5]",
        f"g = gather(%x, %{position}) {ROW} : f32[5]",
        "zero = constant() {value=f32[](0.0)} : f32[]",
        "zeros = broadcast_in_dim(%zero) {dims=()} : f32[5]",
        f"y = select(%{mask}, %g, %zeros) : f32[5]",
    )


def test_a_choice_is_decided_by_its_own_condition_only() -> None:
    assert proofs(chosen("at"), chosen("here"))
    assert not proofs(chosen("at"), chosen("there"))
    assert not proofs(chosen("at"), chosen("here", "not_p"))
    assert proofs(chosen("at", "not_p"), chosen("there", "not_p"))


MASKED = (
    "m = input(0) : bool[6]",
    "s = input(1) : f32[6]",
    "lowest = constant() {value=f32[](-inf)} : f32[]",
    "floor = broadcast_in_dim(%lowest) {dims=()} : f32[6]",
    "e = select(%m, %s, %floor) : f32[6]",
    "zero = constant() {value=f32[](0.0)} : f32[]",
    "zeros = broadcast_in_dim(%zero) {dims=()} : f32[6]",
)


def test_a_mask_times_infinity_is_no_selection() -> None:
    """0 * -inf is not a number, a selection is 0."""
    product = program("", "y", *MASKED, "r = convert(%m) : f32[6]", "y = multiply(%r, %e) : f32[6]")
    selection = program("", "y", *MASKED, "y = select(%m, %e, %zeros) : f32[6]")
    assert not proofs(product, selection)
    assert proofs(product, product)


@pytest.mark.parametrize("unique", ["true", "false"])
def test_a_scatter_marked_unique_says_what_it_rests_on(unique: str) -> None:
    attributes = (
        "update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), "
        'index_vector_dim=1, input_batching_dims=(), scatter_indices_batching_dims=(), kind="sum"'
    )

    def added(unique: str) -> Module:
        return program(
            "",
            "y",
            "x = input(0) : f32[6]",
            "i = input(1) : s32[3]",
            "u = input(2) : f32[3]",
            f"y = scatter(%x, %i, %u) {{{attributes}, unique={unique}}} : f32[6]",
        )

    result = shardproof.verify(added("false"), added(unique))
    assert result.verdict == "verified"
    assert [a.kind for a in result.assumptions] == ["distinct_indices"] * (unique == "true")

"""What is known of elements that are picked or sorted, and of the positions that they stand at."""

from __future__ import annotations

from shardproof.ir.module import Module
from shardproof.ir.text import parse
from shardproof.passes.classes import NEGATIVE_INFINITY, POSITIVE, UNKNOWN_SIGN, Class
from shardproof.passes.facts import ANYTHING
from shardproof.passes.normalise import input_view, new_store, normalise
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

BEGIN = """module "m" mesh() {
  %x = input(0) : f32[3,5]
  %w = input(1) : f32[3,5]
"""


def module(text: str, *outputs: str) -> Module:
    named = "".join(f'  output "{name}" = %{name}\n' for name in outputs)
    return parse(f"{BEGIN}{text}{named}}}\n", source="text")


def classes(text: str) -> dict[str, Class]:
    """The class of each value."""
    program = module(text, "x")
    store = new_store()
    views = normalise(store, program, {i.name: input_view(store, i.value) for i in program.inputs}).views
    return {name: store.classes[view.term.cls] for name, view in views.items()}


TOP = "  %v, %i = top_k(%e) {k=2} : f32[3,2], s32[3,2]\n"


def test_picked_elements_are_like_the_others() -> None:
    found = classes("  %e = exponential(%x) : f32[3,5]\n" + TOP)
    assert (found["v"].special, found["v"].sign) == (0, POSITIVE)
    assert (found["i"].low, found["i"].high) == (0, 4)
    found = classes("  %e = negate(%x) : f32[3,5]\n" + TOP)
    assert (found["v"].special, found["v"].sign) == (0, UNKNOWN_SIGN)


def test_picked_elements_may_be_infinite() -> None:
    lost = """  %l = constant() {value=f32[](-inf)} : f32[]
  %s = broadcast_in_dim(%l) {dims=()} : f32[3,5]
  %z = compare(%x, %w) {direction="LT", total=false} : bool[3,5]
  %e = select(%z, %x, %s) : f32[3,5]
"""
    found = classes(lost + TOP)
    assert found["v"].special & NEGATIVE_INFINITY
    pair = '  %a, %b = sort(%x, %e) {dim=1, comparator="gt:0", stable=true} : f32[3,5], f32[3,5]\n'
    found = classes(lost + pair)
    assert found["a"].special == 0 and found["b"].special & NEGATIVE_INFINITY


def test_other_functions_may_give_anything() -> None:
    name = '{name="top_k 2", free=()}'
    found = classes(f"  %v, %i = opaque(%x) {name} : f32[3,2], s32[3,2]\n")
    assert found["v"].special == ANYTHING and found["v"].sign == UNKNOWN_SIGN
    assert (found["i"].low, found["i"].high) == (None, None)


SET = (
    "{update_window_dims=(), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), "
    "index_vector_dim=2, input_batching_dims=(0,), scatter_indices_batching_dims=(0,), "
    'kind="set", unique=true}'
)
ROUTED = f"""  %e = exponential(%x) : f32[3,5]
  %v, %i = top_k(%e) {{k=2}} : f32[3,2], s32[3,2]
  %n = constant() {{value=f32[](0.0)}} : f32[]
  %o = broadcast_in_dim(%n) {{dims=()}} : f32[3,5]
  %r = reduce(%v, %n) {{dims=(1,), kind="sum"}} : f32[3]
  %t = broadcast_in_dim(%r) {{dims=(0,)}} : f32[3,2]
  %q = divide(%v, %t) : f32[3,2]
  %y = scatter(%o, %i, %q) {SET} : f32[3,5]
"""


def by_rows(direction: str) -> str:
    """The same weights by comparing positions with each column."""
    return (
        ROUTED.rpartition("  %y")[0]
        + f"""  %c = iota() {{dim=2}} : s32[3,2,5]
  %p = broadcast_in_dim(%i) {{dims=(0, 1)}} : s32[3,2,5]
  %h = compare(%p, %c) {{direction="{direction}", total=false}} : bool[3,2,5]
  %u = broadcast_in_dim(%q) {{dims=(0, 1)}} : f32[3,2,5]
  %k = broadcast_in_dim(%n) {{dims=()}} : f32[3,2,5]
  %s = select(%h, %u, %k) : f32[3,2,5]
  %y = reduce(%s, %n) {{dims=(1,), kind="sum"}} : f32[3,5]
"""
    )


def test_weights_of_the_largest_put_in_their_places() -> None:
    written = module(ROUTED, "y")
    found = verify(written, module(by_rows("EQ"), "y"))
    assert found.verdict is Verdict.VERIFIED
    assert {a.kind for a in found.assumptions} == {"distinct_indices"}
    assert verify(written, module(by_rows("NE"), "y")).verdict is Verdict.REFUTED

"""Branches and loops with graphs inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardproof.frontends.onnx.loops import communicates, repeated, scanned, stacked
from shardproof.frontends.onnx.state import Lowering, NeedsValue, Node, Rule
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import DType

ROUNDS: Final = 1 << 10
"""Rounds of a `Loop` that are written out when one is not like the other."""
NODES: Final = 256
"""Nodes that the rounds of a `Loop` written out may have before an operator is tried for them."""


def _if(s: Lowering, n: Node) -> Sequence[Value]:
    """The branch that is known to be taken, else a choice among the results of both."""
    branches = n.attrs["then_branch"], n.attrs["else_branch"]
    which = s.reshape(n.operand(0), ())
    known = s.known(which)
    if known is not None:
        return s.graph(branches[not known], n.scope, ())
    before = len(s.ops)
    results = [s.graph(branch, n.scope, ()) for branch in branches]
    if communicates(s.ops[before:]):
        s.fail("has a collective in a branch that depends on the data: ranks may take different branches")
    for x, y in zip(*results, strict=True):
        if x.type != y.type:
            s.fail(f"gives {x.type} in one branch, {y.type} in the other; which is taken depends on the data")
    return [x if x is y else s.select(which, x, y) for x, y in zip(*results, strict=True)]


def _loop(s: Lowering, n: Node) -> Sequence[Value]:
    """Rounds whose number follows from constants."""
    body, count, going = n.attrs["body"], n.given(0), n.given(1)
    length = None if count is None else s.integer(count, "the number of rounds")
    if going is not None and not bool(s.array(going, "whether it runs").all()):
        length = 0
    if length is None and going is None:
        s.fail("has neither a number of rounds nor a condition, so it never ends")
    carried = [n.operand(k) for k in range(2, len(n.inputs))]
    length = None if length is None else max(length, 0)
    if length is not None and length * len(body.node) > NODES:
        found = _alike(s, n, length, carried)
        if found is not None:
            return found
    if length == 0:
        return _whole(s, n, 0, carried)
    return _written_out(s, n, length, carried, conditional=going is not None)


def _round(
    s: Lowering, n: Node, carried: Sequence[Value], number: Value
) -> tuple[Value, Sequence[Value], Sequence[Value]]:
    """Whether it goes on, what it carries on, and what it gives, after a round."""
    body = n.attrs["body"]
    goes_on, *found = s.graph(body, n.scope, (number, s.scalar(True, DType.BOOL), *carried))
    return s.reshape(goes_on, ()), found[: len(carried)], found[len(carried) :]


def _whole(s: Lowering, n: Node, length: int, carried: Sequence[Value]) -> list[Value]:
    """All rounds, none of which may be the last before its time. Raises NeedsValue where one may."""

    def step(state: Sequence[Value], rows: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
        goes_on, new, out = _round(s, n, state, rows[0])
        if length and not bool(s.array(goes_on, "whether it goes on")):
            raise NeedsValue(s.about("ends before its last round"), ())
        return new, out

    numbers = s.iota(DType.S64, (length,), 0)
    run = scanned if length else repeated
    state, out = run(s, length, carried, [numbers], step)
    return [*state, *out]


def _alike(s: Lowering, n: Node, length: int, carried: Sequence[Value]) -> list[Value] | None:
    """The rounds as one operator; None where they differ by more than their number."""
    before = len(s.ops)
    try:
        return _whole(s, n, length, carried)
    except ModuleError:
        del s.ops[before:]
        return None


def _written_out(
    s: Lowering, n: Node, length: int | None, carried: Sequence[Value], *, conditional: bool
) -> list[Value]:
    """Round after round, the number of the round known in each, up to the first that ends it.

    A loop without a condition at its start must not end by one: the standard ignores it, runtimes do not.
    """
    if length is not None and length > ROUNDS:
        s.fail(f"has {length} rounds that are not alike, at most {ROUNDS} are read")
    state: Sequence[Value] = carried
    rows = []
    for k in range(ROUNDS if length is None else length):
        goes_on, state, out = _round(s, n, state, s.literal(k, DType.S64))
        rows.append(out)
        if k + 1 != length and not bool(s.array(goes_on, "whether it goes on")):
            if not conditional:
                s.fail("is given no condition, and a round ends it: give it a condition that is true")
            break
    else:
        if length is None:
            s.fail(f"does not end within {ROUNDS} rounds")
    return [*state, *(stacked(s, each) for each in zip(*rows, strict=True))]


def _scan(s: Lowering, n: Node) -> Sequence[Value]:
    """Rounds over slices of the last operands, each along its axis and in its direction."""
    body, count = n.attrs["body"], n.attrs["num_scan_inputs"]
    given = [n.operand(k) for k in range(len(n.inputs))]
    carried, whole = given[: len(given) - count], given[len(given) - count :]
    axes = _entries(s, n, "scan_input_axes", count)
    rows = []
    for x, axis, back in zip(whole, axes, _entries(s, n, "scan_input_directions", count), strict=True):
        dim = s.dim(axis, len(x.type.shape))
        row = s.transpose(x, [dim, *(d for d in range(len(x.type.shape)) if d != dim)])
        rows.append(s.emit("reverse", row, dims=(0,)) if back else row)
    lengths = {r.type.shape[0] for r in rows}
    if len(lengths) != 1:
        s.fail(f"goes over {sorted(lengths)} slices, one number is needed")

    def step(state: Sequence[Value], row: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
        found = s.graph(body, n.scope, (*state, *row))
        return found[: len(carried)], found[len(carried) :]

    state, out = repeated(s, lengths.pop(), carried, rows, step)
    axes, backs = (_entries(s, n, f"scan_output_{w}", len(out)) for w in ("axes", "directions"))
    return [*state, *(_unrowed(s, y, axis, back) for y, axis, back in zip(out, axes, backs, strict=True))]


def _entries(s: Lowering, n: Node, name: str, count: int) -> tuple[int, ...]:
    """An attribute with one integer for each operand or result, all 0 when it is left out."""
    found: tuple[int, ...] = n.attrs.get(name) or (0,) * count
    if len(found) != count or ("directions" in name and not set(found) <= {0, 1}):
        s.fail(f"has {name} = {list(found)} for {count} values")
    return found


def _unrowed(s: Lowering, y: Value, axis: int, back: int) -> Value:
    """Stacked rows in their order, the first dim moved to `axis`."""
    rank = len(y.type.shape)
    y = s.emit("reverse", y, dims=(0,)) if back else y
    order: list[Any] = list(range(1, rank))
    order.insert(s.dim(axis, rank), 0)
    return s.transpose(y, order)


RULES: Final[Mapping[str, Rule]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}

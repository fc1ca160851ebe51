"""Carried tensors of which each round writes one row, and that nothing else reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardproof.ir.module import Op, Value
from shardproof.passes.access import Expr, index
from shardproof.passes.classes import Store
from shardproof.passes.views import View


class Write(NamedTuple):
    """The row that is written (its first dim is of size 1 with `led`), and the number that says where.

    With `added` it is added to what is there.
    """

    row: Value
    at: Value
    led: bool
    added: bool


def write_of(
    value: Value, result: str, uses: Mapping[str, Sequence[Op]], results: Sequence[str], length: int
) -> Write | None:
    """How a carried value becomes its result by one write, if there is nothing else that reads either."""
    readers, shape = uses.get(value.name, ()), value.type.shape
    if len(readers) != 1 or value.name in results or uses.get(result) or list(results).count(result) != 1:
        return None
    (op,) = readers
    if op.results[0].name != result or op.operands[0].name != value.name or not shape or shape[0] != length:
        return None
    if op.opcode == "dynamic_update_slice":
        fits = op.operands[1].type.shape == (1, *shape[1:])
        return Write(op.operands[1], op.operands[2], True, False) if fits else None
    attrs = op.attrs
    if (
        op.opcode != "scatter"
        or not (attrs["kind"] == "set" or (attrs["kind"] == "sum" and value.type.dtype.kind == "real"))
        or attrs["update_window_dims"] != tuple(range(len(shape) - 1))
        or attrs["inserted_window_dims"] != (0,)
        or attrs["scatter_dims_to_operand_dims"] != (0,)
        or attrs["input_batching_dims"]
        or op.operands[1].type.size != 1
        or op.operands[2].type.shape != shape[1:]
    ):
        return None
    return Write(op.operands[2], op.operands[1], False, attrs["kind"] == "sum")


def rows_of(store: Store, write: Write, views: Mapping[str, View], step: int, length: int) -> View | None:
    """What all rounds write as one tensor; None unless each writes the row of its number, from either end."""
    at, row = store.expression(views[write.at.name].term), views[write.row.name]
    number = store.fresh(length)
    turn: Expr
    if at == index(step):
        turn = index(number)
    elif at == (length - 1, ((step, -1),)):
        turn = (length - 1, ((number, -1),))
    else:
        return None
    term = store.substitute_term(row.term, {step: turn})
    dims, shape = (row.dims[1:], row.shape[1:]) if write.led else (row.dims, row.shape)
    return View(term, ((number,), *dims), (length, *shape), row.dtype)

"""Builds an `HloModuleProto` one instruction at a time, in the dialect that NeuronX dumps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from shardproof.frontends.hlo import hlo_pb2

pb: Any = hlo_pb2
Proto = Any

FOLDERS = {Path(__file__).resolve().parent}
PRIMITIVE = {"pred": 1, "s32": 4, "f16": 10, "f32": 11}
MUST_ALIAS = 2

RECORDED_AS = {
    "builder.py": "site-packages/torch_neuronx/pyhlo/scribe.py",
    "hlo_ops.py": "transformers_neuronx/hlo.py",
    "model.py": "examples/neuron_llama/model.py",
    "variants.py": "examples/neuron_llama/variants.py",
}
"""Which frames enter the metadata, and under which name.

The tracer and the operator wrappers are recorded as NeuronX records its own, so that a report has
to look past them to find the line of the model.
"""

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One instruction of the entry computation."""

    id: int
    name: str
    dtype: str
    shape: tuple[int, ...]


def _shape(dtype: str, dims: Sequence[int]) -> Proto:
    layout = pb.LayoutProto(minor_to_major=list(reversed(range(len(dims)))))
    return pb.ShapeProto(element_type=PRIMITIVE[dtype], dimensions=list(dims), layout=layout)


def _stack() -> str:
    frames: list[str] = []
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename).resolve()
        if path.parent in FOLDERS and path.name in RECORDED_AS:
            frames.append(f"{RECORDED_AS[path.name]}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    frames.reverse()
    return f"{frames[0].rpartition(':')[0]}\n----\n{frames!r}"


class Builder:
    """Appends instructions to one entry computation; `finish` gives the serialised module.

    Shapes are computed here from the operands; a method raises AssertionError when they do not fit.
    Every instruction records the Python stack of its caller in `source_file`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._next = 1
        self._reducers: list[Proto] = []
        self._instructions: list[Proto] = []
        self._parameters: list[Tensor] = []

    def _fresh(self) -> int:
        self._next += 1
        return self._next - 1

    def _emit(
        self,
        opcode: str,
        dtype: str,
        shape: Sequence[int],
        operands: Sequence[Tensor] = (),
        *,
        name: str | None = None,
        **fields: Any,
    ) -> Tensor:
        number = self._fresh()
        label = f"{name or opcode}.{number}"
        stack = _stack()
        self._instructions.append(
            pb.HloInstructionProto(
                name=label,
                opcode=opcode,
                shape=_shape(dtype, shape),
                metadata=pb.OpMetadata(op_type="<module>", source_file=stack, source_line=1),
                id=number,
                operand_ids=[t.id for t in operands],
                **fields,
            )
        )
        return Tensor(number, label, dtype, tuple(shape))

    def parameter(self, dtype: str, *shape: int) -> Tensor:
        number = len(self._parameters)
        p = self._emit("parameter", dtype, shape, name=f"p{number}", parameter_number=number)
        self._parameters.append(p)
        return p

    def constant(self, dtype: str, value: float | Sequence[float]) -> Tensor:
        storage = {"f16": np.float16, "f32": np.float32, "s32": np.int32}[dtype]
        array = np.asarray(value, dtype=storage)
        literal = pb.LiteralProto(shape=_shape(dtype, array.shape))
        if dtype == "f16":
            literal.f16s = array.astype("<f2").tobytes()
        elif dtype == "f32":
            literal.f32s.extend(array.reshape(-1).tolist())
        else:
            literal.s32s.extend(array.reshape(-1).tolist())
        return self._emit("constant", dtype, array.shape, literal=literal)

    def iota(self, dtype: str, extent: int) -> Tensor:
        return self._emit("iota", dtype, (extent,), dimensions=[0])

    def unary(self, opcode: str, x: Tensor) -> Tensor:
        return self._emit(opcode, x.dtype, x.shape, (x,))

    def binary(self, opcode: str, x: Tensor, y: Tensor) -> Tensor:
        assert (x.dtype, x.shape) == (y.dtype, y.shape), (opcode, x, y)
        return self._emit(opcode, x.dtype, x.shape, (x, y))

    def compare(self, direction: str, x: Tensor, y: Tensor) -> Tensor:
        assert (x.dtype, x.shape) == (y.dtype, y.shape), (x, y)
        return self._emit("compare", "pred", x.shape, (x, y), comparison_direction=direction)

    def select(self, pred: Tensor, x: Tensor, y: Tensor) -> Tensor:
        assert pred.shape == x.shape == y.shape, (pred, x, y)
        return self._emit("select", x.dtype, x.shape, (pred, x, y))

    def convert(self, dtype: str, x: Tensor) -> Tensor:
        return self._emit("convert", dtype, x.shape, (x,))

    def broadcast(self, x: Tensor, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
        """Operand dim i becomes result dim dims[i]."""
        assert x.shape == tuple(shape[d] for d in dims), (x, shape, dims)
        return self._emit("broadcast", x.dtype, shape, (x,), dimensions=list(dims))

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        assert prod(shape) == prod(x.shape), (x, shape)
        return self._emit("reshape", x.dtype, shape, (x,))

    def transpose(self, x: Tensor, *permutation: int) -> Tensor:
        shape = [x.shape[d] for d in permutation]
        return self._emit("transpose", x.dtype, shape, (x,), dimensions=list(permutation))

    def slice(self, x: Tensor, dim: int, start: int, limit: int) -> Tensor:
        assert 0 <= start < limit <= x.shape[dim], (x, dim, start, limit)
        cuts = [pb.SliceDimensions(limit=extent, stride=1) for extent in x.shape]
        cuts[dim] = pb.SliceDimensions(start=start, limit=limit, stride=1)
        shape = [*x.shape[:dim], limit - start, *x.shape[dim + 1 :]]
        return self._emit("slice", x.dtype, shape, (x,), slice_dimensions=cuts)

    def concatenate(self, dim: int, *parts: Tensor) -> Tensor:
        head = parts[0]
        shape = [*head.shape[:dim], sum(p.shape[dim] for p in parts), *head.shape[dim + 1 :]]
        return self._emit("concatenate", head.dtype, shape, parts, dimensions=[dim])

    def dot(
        self,
        x: Tensor,
        y: Tensor,
        contract: tuple[int, int],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> Tensor:
        """Result dims: the batch dims, then x's other dims, then y's; one contracted dim on each side."""
        assert x.shape[contract[0]] == y.shape[contract[1]], (x, y, contract)
        numbers = pb.DotDimensionNumbers(
            lhs_contracting_dimensions=[contract[0]],
            rhs_contracting_dimensions=[contract[1]],
            lhs_batch_dimensions=list(batch[0]),
            rhs_batch_dimensions=list(batch[1]),
        )
        shape = [x.shape[d] for d in batch[0]]
        shape += [n for d, n in enumerate(x.shape) if d != contract[0] and d not in batch[0]]
        shape += [n for d, n in enumerate(y.shape) if d != contract[1] and d not in batch[1]]
        return self._emit("dot", x.dtype, shape, (x, y), dot_dimension_numbers=numbers)

    def gather_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """x[rows]: whole slices of dim 0, for a vector of positions."""
        numbers = pb.GatherDimensionNumbers(
            offset_dims=list(range(1, len(x.shape))),
            collapsed_slice_dims=[0],
            start_index_map=[0],
            index_vector_dim=1,
        )
        shape = (*rows.shape, *x.shape[1:])
        sizes = [1, *x.shape[1:]]
        return self._emit(
            "gather", x.dtype, shape, (x, rows), gather_dimension_numbers=numbers, gather_slice_sizes=sizes
        )

    def _reducer(self, opcode: str, dtype: str, used_by: str) -> int:
        stack = _stack()

        def scalar(op: str, label: str, **fields: Any) -> Proto:
            number = self._fresh()
            metadata = pb.OpMetadata(op_type="<module>", source_file=stack, source_line=1)
            name = f"{label}.{number}"
            return pb.HloInstructionProto(
                name=name, opcode=op, shape=_shape(dtype, ()), metadata=metadata, id=number, **fields
            )

        x = scalar("parameter", "p0")
        y = scalar("parameter", "p1", parameter_number=1)
        root = scalar(opcode, opcode, operand_ids=[x.id, y.id])
        number = self._fresh()
        name = f"{used_by}.Reducer.{number}"
        self._reducers.append(
            pb.HloComputationProto(name=name, instructions=[x, y, root], id=number, root_id=root.id)
        )
        return number

    def reduce(self, opcode: str, x: Tensor, init: Tensor, dim: int) -> Tensor:
        shape = [n for d, n in enumerate(x.shape) if d != dim]
        body = self._reducer(opcode, x.dtype, "reduce")
        return self._emit(
            "reduce", x.dtype, shape, (x, init), dimensions=[dim], called_computation_ids=[body]
        )

    def all_reduce(self, x: Tensor, groups: Groups) -> Tensor:
        body = self._reducer("add", x.dtype, "all-reduce")
        lists = _groups(groups)
        return self._emit(
            "all-reduce", x.dtype, x.shape, (x,), replica_groups=lists, called_computation_ids=[body]
        )

    def reduce_scatter(self, x: Tensor, dim: int, groups: Groups) -> Tensor:
        body = self._reducer("add", x.dtype, "reduce-scatter")
        size = len(groups[0])
        assert x.shape[dim] % size == 0, (x, dim, groups)
        shape = [*x.shape[:dim], x.shape[dim] // size, *x.shape[dim + 1 :]]
        return self._emit(
            "reduce-scatter",
            x.dtype,
            shape,
            (x,),
            dimensions=[dim],
            replica_groups=_groups(groups),
            called_computation_ids=[body],
        )

    def all_gather(self, x: Tensor, dim: int, groups: Groups) -> Tensor:
        """The members' pieces side by side along `dim`, in the order in which the group lists them."""
        shape = [*x.shape[:dim], x.shape[dim] * len(groups[0]), *x.shape[dim + 1 :]]
        return self._emit(
            "all-gather", x.dtype, shape, (x,), dimensions=[dim], replica_groups=_groups(groups)
        )

    def custom_call(
        self, target: str, dtype: str, shape: Sequence[int], operands: Sequence[Tensor], config: bytes = b""
    ) -> Tensor:
        return self._emit(
            "custom-call", dtype, shape, operands, custom_call_target=target, backend_config=config
        )

    def finish(self, outputs: Sequence[Tensor], updates: dict[int, int]) -> bytes:
        """The module whose result is the tuple of `outputs`; output i overwrites parameter updates[i]."""
        number = self._fresh()
        result = pb.ShapeProto(element_type=13, tuple_shapes=[_shape(t.dtype, t.shape) for t in outputs])
        self._instructions.append(
            pb.HloInstructionProto(
                name=f"tuple.{number}",
                opcode="tuple",
                shape=result,
                metadata=pb.OpMetadata(op_type="<module>", source_file=_stack(), source_line=1),
                id=number,
                operand_ids=[t.id for t in outputs],
            )
        )
        entry_id = self._fresh()
        entry = f"{self.name}.{entry_id}"
        computation = pb.HloComputationProto(
            name=entry, instructions=self._instructions, id=entry_id, root_id=number
        )
        aliases = [
            pb.AliasEntryProto(output_shape_index=[output], parameter_number=parameter, kind=MUST_ALIAS)
            for output, parameter in updates.items()
        ]
        module = pb.HloModuleProto(
            name=entry,
            entry_computation_name=entry,
            computations=[*self._reducers, computation],
            id=entry_id,
            entry_computation_id=entry_id,
            input_output_alias=pb.HloInputOutputAliasProto(entries=aliases),
        )
        serialised: bytes = module.SerializeToString(deterministic=True)
        return serialised


def _groups(groups: Groups) -> list[Proto]:
    return [pb.ReplicaGroup(replica_ids=list(group)) for group in groups]

"""The relation of a certificate: what must hold of it before a replay means anything (soundness R1).

Every input of both programs is given once, a reference on one rank has free inputs, every output of the
reference has a counterpart, and no value of the relation hides one of a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardproof.ir.module import Module, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import TensorType
from shardproof.solver.certificates.certificate import Certificate, CertificateError, Claim
from shardproof.solver.names import distribution, is_draw
from shardproof.solver.sweep import BASE, OF
from shardproof.solver.verdict import Assumption

FOREIGN: Final = frozenset({"custom_call", "opaque", "scan"})
"""Operators that a relation may not use, besides random ones."""
WHOLE: Final = frozenset({"reshape", "transpose", "reduce", "constant"})
"""Operators of which any tensor is the value for some operand; `reduce` as a sum."""
PARTS: Final = frozenset(
    {"slice", "dynamic_slice", "concatenate", "rank_id", "add", "multiply", "divide", "remainder"}
)
"""Further operators that cut the shards of a distributed reference's inputs."""


def check_relation(certificate: Certificate, reference: Module, implementation: Module) -> None:
    """Every input of both programs is given once, and what is compared is made of outputs (soundness R1)."""
    claim = certificate.claim
    first, second, after, expected = claim.modules[:4]
    for module in claim.modules:
        _plain(module)
        if [i.number for i in module.inputs] != list(range(len(module.inputs))):
            raise CertificateError(f"inputs of `{module.name}` of the relation are not numbered in order")
        if module.mesh != (reference if module is first else implementation).mesh:
            raise CertificateError(f"`{module.name}` of the relation runs on another mesh than its program")
    _given("reference", reference, first)
    _free(reference, first)
    _given("implementation", implementation, second)
    shared = [(i.name, i.value.type) for i in first.inputs]
    if [(i.name, i.value.type) for i in second.inputs[: len(shared)]] != shared:
        raise CertificateError("both programs are not made of the same base tensors")
    if any(not i.name.startswith(BASE) for i in second.inputs):
        raise CertificateError(f"a base tensor has no name of the form `{BASE}NAME`")
    types = {i.name: i.value.type for i in second.inputs}
    for name, _, _ in (*claim.ranges, *certificate.bounds):
        if name not in types or types[name].dtype.kind not in ("int", "uint"):
            raise CertificateError(f"`{name}` has a range and is no integer base tensor")
    _compared(implementation, second, after)
    _expected(claim, reference, after, expected)
    if claim.assumed is not None:
        _assumed(claim.assumed, reference, implementation)


def _plain(module: Module) -> None:
    for op in module.ops:
        if op.opcode in FOREIGN or TABLE[op.opcode].traits & {"random", "effect"}:
            raise CertificateError(f"`{module.name}` of the relation uses {op.opcode}, which is no layout")


def _given(role: str, program: Module, layout: Module) -> None:
    """The layout makes each input of the program, under its name and of its type, and shadows nothing."""
    made = [(o.name, o.value.name, o.value.type) for o in layout.outputs]
    if made != [(i.name, i.name, i.value.type) for i in program.inputs]:
        raise CertificateError(f"the relation does not give every input of the {role} once, with its type")
    own = _defined(layout) - {i.name for i in program.inputs}
    if own & (_defined(program) | {i.name for i in program.inputs}):
        raise CertificateError(f"the relation uses the name of a value of the {role}")
    if {i.name for i in layout.inputs} & {i.name for i in program.inputs}:
        raise CertificateError(f"an input of the {role} is its own base tensor")


def _free(program: Module, layout: Module) -> None:
    """Each input of the reference is made of a base tensor of its own, without a change of its elements.

    So the claim is about all inputs of a reference that runs on one rank.
    """
    allowed = WHOLE if program.mesh.size == 1 else WHOLE | PARTS
    for op in layout.ops:
        if op.opcode not in allowed or op.attrs.get("kind", "sum") != "sum":
            raise CertificateError(f"an input of the reference is restricted by {op.opcode}")
        if op.opcode == "reduce" and not _zero(layout, op.operands[1]):
            raise CertificateError("an input of the reference is a sum that does not start from 0")
    reads = _reads(layout)
    taken: set[str] = set()
    for o in layout.outputs:
        own = reads[o.value.name]
        if len(own) != 1 or own & taken:
            raise CertificateError(f"the reference's `{o.name}` is not made of one base tensor of its own")
        taken |= own


def _zero(module: Module, value: Value) -> bool:
    made = next((op for op in module.ops if op.result.name == value.name), None)
    return made is not None and made.opcode == "constant" and not made.attrs["value"].any()


def _defined(module: Module) -> set[str]:
    return {i.name for i in module.inputs} | {v.name for op in module.ops for v in op.results}


def _compared(program: Module, layout: Module, after: Module) -> None:
    """What is compared is made of the implementation's outputs."""
    returned = {o.value.name: o.value.type for o in program.outputs}
    if any(returned.get(i.name) != i.value.type for i in after.inputs):
        raise CertificateError("a tensor that is compared is no output of the implementation")
    own = {v.name for op in after.ops for v in op.results}
    if own & (_defined(program) | _defined(layout)):
        raise CertificateError("the relation uses the name of a value of the implementation")


def _over_reals(output: tuple[str, TensorType]) -> tuple[str, tuple[int, ...], str]:
    """What two outputs must share to be compared: the width of a real is no part of it (A5)."""
    name, type = output
    return name, type.shape, type.dtype.kind


def _expected(claim: Claim, reference: Module, after: Module, expected: Module) -> None:
    """Every reference output is accounted for, and every compared tensor has one that is expected."""
    ranks = reference.mesh.size
    wanted = [(o.name + OF, _held(o.value.type, ranks)) for o in reference.outputs]
    if [(i.name, i.value.type) for i in expected.inputs] != wanted:
        raise CertificateError("the expected outputs are not made of the reference's outputs")
    stated = [(o.name, o.value.type) for o in after.outputs]
    goals = [(o.name, o.value.type) for o in expected.outputs]
    if not stated or [*map(_over_reals, goals)] != [*map(_over_reals, stated)]:
        raise CertificateError("compared and expected outputs differ in name, shape or kind")
    if [own for own, _, _ in claim.outputs] != [name for name, _ in stated]:
        raise CertificateError("the outputs that the certificate states are not those that are compared")
    reads = _reads(expected)
    for (own, source, _), out in zip(claim.outputs, expected.outputs, strict=True):
        if f"{source}{OF}" not in reads[out.value.name]:
            raise CertificateError(f"output `{own}` is not made of the reference's `{source}`")
    seen = {name for out in expected.outputs for name in reads[out.value.name]}
    for name, _ in wanted:
        if name not in seen:
            raise CertificateError(f"the reference's output `{name.removesuffix(OF)}` has no counterpart")
    made_of = _reads(after)
    for out in after.outputs:
        if not made_of[out.value.name]:
            raise CertificateError(f"output `{out.name}` is made of no output of the implementation")
    if not set(claim.even) <= {o.name for o in reference.outputs}:
        raise CertificateError("ranks agree on an output that the reference has not")


def _assumed(module: Module, reference: Module, implementation: Module) -> None:
    """Values of the implementation are made of values of the reference, each with its type."""
    ranks = reference.mesh.size
    types = {v.name: v.type for v in _values(reference)}
    for i in module.inputs:
        type = types.get(i.name.removesuffix(OF)) if i.name.endswith(OF) else None
        if type is None or i.value.type != _held(type, ranks):
            raise CertificateError(f"`{i.name}` is no value of the reference")
    own = {v.name: v.type for op in implementation.ops for v in op.results}
    for o in module.outputs:
        if own.get(o.name) != o.value.type:
            raise CertificateError(f"`{o.name}` is assumed and no value of the implementation")


def _values(module: Module) -> Iterator[Value]:
    yield from (i.value for i in module.inputs)
    yield from (v for op in module.ops for v in op.results)


def _held(type: TensorType, ranks: int) -> TensorType:
    """The type of a reference value, of all ranks as one if there are several."""
    return TensorType(type.dtype, (ranks, *type.shape)) if ranks > 1 else type


def assumed_values(claim: Claim) -> list[Assumption]:
    """That assumed values are what they are made of, in the words of a verdict."""
    found = []
    if claim.assumed is not None:
        reads = _reads(claim.assumed)
        for o in claim.assumed.outputs:
            made_of = ", ".join(f"`{n.removesuffix(OF)}`" for n in sorted(reads[o.value.name]))
            found.append(Assumption("user_assumed", f"`{o.name}` is {made_of} of the reference", o.name))
    return found


def drawn_from(claim: Claim) -> dict[str, str]:
    """The reference draw that each draw of the implementation is made of (soundness E1).

    Raises CertificateError for one that is made of several, of an input, or of the draw that another is
    made of.
    """
    own = {i.name for i in claim.layouts.reference.inputs}
    found: dict[str, str] = {}
    reads = _reads(claim.layouts.implementation)
    for o in claim.layouts.implementation.outputs:
        shared = sorted(name.removeprefix(BASE) for name in reads[o.value.name] & own)
        draws = [name for name in shared if is_draw(name)]
        if not is_draw(o.name) and draws:
            raise CertificateError(f"input `{o.name}` is made of a random draw")
        if not is_draw(o.name) or not shared:
            continue
        if shared != draws or len(draws) > 1 or distribution(draws[0]) != distribution(o.name):
            raise CertificateError(f"the draw `{o.name}` is made of something else than one draw")
        if draws[0] in found.values():
            raise CertificateError(f"two draws are made of the draw `{draws[0]}`")
        found[o.name] = draws[0]
    return found


def _reads(module: Module) -> dict[str, frozenset[str]]:
    """The inputs that each value is made of."""
    found = {i.name: frozenset({i.name}) for i in module.inputs}
    for op in module.ops:
        own = frozenset[str]().union(*(found[v.name] for v in op.operands))
        for v in op.results:
            found[v.name] = own
    return found

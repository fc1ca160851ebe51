"""Verdicts on programs with loops: proved by induction, else written out; certificates of such proofs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_programs import Build, Results, f32, program, s32

from shardproof.ir.digest import digest
from shardproof.ir.module import Module, Op, Output, Value
from shardproof.ir.text import to_text
from shardproof.ir.types import DType, TensorType
from shardproof.passes.mesh_axes import mesh_axes
from shardproof.solver.certificates.certificate import CertificateError
from shardproof.solver.certificates.certificate_file import read
from shardproof.solver.certificates.recheck import check
from shardproof.solver.verdict import Result, Verdict
from shardproof.solver.verify import verify

LAYERS = {"x": f32(4, 8), "w": f32(6, 8, 8), "v": f32(6, 8, 8)}
WHOLE = {"x": "replicate"}
BY_COLUMNS = {**WHOLE, "w": "shard(2)", "v": "shard(1)"}


def dot(b: Build, x: Value, y: Value) -> Value:
    sides = {"lhs_contracting": (1,), "rhs_contracting": (0,), "lhs_batch": (), "rhs_batch": ()}
    return b("dot_general", x, y, type=f32(), **sides)


def layers(ranks: int = 1, *, summed: bool = True, scale: float = 1.0, reverse: bool = False) -> Module:
    """Layers of two matrices with a residual; on ranks the first is cut by columns, the second by rows."""

    def build(b: Build, x: Value, w: Value, v: Value) -> Results:
        def layer(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            y = dot(b, b("tanh", dot(b, c[0], r[0])), r[1])
            y = b.all_reduce(y) if summed and ranks > 1 else y
            if scale != 1.0:
                y = b("multiply", y, b.full(scale, y.type))
            return [b("add", c[0], y)], []

        return b.scan(layer, [x], [w, v], length=6, reverse=reverse)

    cut = {"x": f32(4, 8), "w": f32(6, 8, 8 // ranks), "v": f32(6, 8 // ranks, 8)}
    return program(cut, build, ranks)


def judged(a: Module, b: Module, inputs: dict[str, str], folder: Path, **options: Any) -> Result:
    relation = folder / "relation.toml"
    lines = [f'"{name}" = "{placement}"\n' for name, placement in inputs.items()]
    relation.write_text("[inputs]\n" + "".join(lines), encoding="utf-8")
    return verify(a, b, relation=relation, **options)


def test_layers_are_verified_by_induction(tmp_path: Path) -> None:
    result = judged(layers(), layers(2), BY_COLUMNS, tmp_path)
    assert result.verdict is Verdict.VERIFIED
    assert result.stats is not None and result.stats.instructions == len(layers().ops) + len(layers(2).ops)


@pytest.mark.parametrize(
    "wrong",
    [{"summed": False}, {"scale": 3.0}, {"reverse": True}],
    ids=["not summed", "scaled", "backwards"],
)
def test_wrong_layers_are_refuted(wrong: dict[str, Any], tmp_path: Path) -> None:
    result = judged(layers(), layers(2, **wrong), BY_COLUMNS, tmp_path)
    assert result.verdict is Verdict.REFUTED
    assert result.counterexample is not None and result.location is not None


def long_loop(ranks: int, *, by_rank: bool) -> Module:
    def build(b: Build, x: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            y = b("tanh", c[0])
            return [b("add", y, b.spread(b.rank(), y.type)) if by_rank else y], []

        return b.scan(body, [x], length=300_000)

    return program({"x": f32(4)}, build, ranks)


def test_a_loop_too_long_to_write_out_is_unknown(tmp_path: Path) -> None:
    plain, ranked = long_loop(1, by_rank=False), long_loop(2, by_rank=True)
    assert judged(plain, long_loop(2, by_rank=False), WHOLE, tmp_path).verdict is Verdict.VERIFIED
    result = judged(plain, ranked, WHOLE, tmp_path)
    assert result.verdict is Verdict.UNKNOWN
    assert "no induction proves the loops" in result.message and "at most 200000" in result.message


def opaque_rounds(name: str) -> Module:
    """A loop whose rounds apply an unknown function, called like a value outside that has no meaning."""

    def build(b: Build, x: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            return [b("opaque", c[0], type=f32(4), name=name, free=())], []

        return b.scan(body, [x], length=3)

    return program({"x": f32(4)}, build)


def test_unknown_functions_in_rounds_are_assumptions() -> None:
    result = verify(opaque_rounds("fused"), opaque_rounds("fused"))
    assert result.verdict is Verdict.VERIFIED
    assert [(a.kind, "fused" in a.text) for a in result.assumptions if a.kind == "opaque_function"] == [
        ("opaque_function", True)
    ]
    assert verify(opaque_rounds("fused"), opaque_rounds("other")).verdict is not Verdict.VERIFIED


def test_names_in_rounds_hide_no_names_outside() -> None:
    """An operator outside is an assumption, although a round has one of its name that is not understood."""

    def build(b: Build, x: Value) -> Results:
        y = b("opaque", x, type=f32(4), name="outer", free=())

        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            state = b.full(3, TensorType(DType.U64, (2,)))
            drawn = Value("state", state.type), Value(y.name, TensorType(DType.U32, (4,)))
            b.ops.append(Op("rng_bit_generator", (state,), drawn, {"algorithm": "philox"}))
            return [b("tanh", c[0])], []

        return b.scan(body, [y], length=3)

    m = program({"x": f32(4)}, build)
    result = verify(m, m)
    assert result.verdict is Verdict.VERIFIED
    assert any(a.kind == "opaque_function" and "outer" in a.text for a in result.assumptions)


def changed_body(module: Module, change: Any) -> Module:
    """The module with one loop's attributes changed."""
    at = next(n for n, op in enumerate(module.ops) if op.opcode == "scan")
    op = module.ops[at]
    new = Op("scan", op.operands, op.results, {**op.attrs, **change(op.attrs)})
    return replace(module, ops=(*module.ops[:at], new, *module.ops[at + 1 :]))


def other_function(attrs: Any) -> dict[str, Any]:
    body = attrs["body"]
    ops = tuple(replace(op, opcode="sine") if op.opcode == "tanh" else op for op in body.ops)
    return {"body": replace(body, ops=ops)}


def other_result(attrs: Any) -> dict[str, Any]:
    body = attrs["body"]
    return {"body": replace(body, outputs=(Output("0", body.inputs[attrs["consts"]].value),))}


CHANGES = {
    "another function": other_function,
    "another result": other_result,
    "backwards": lambda attrs: {"reverse": True},
}


@pytest.mark.parametrize("name", CHANGES)
def test_certificates_tell_bodies_apart(name: str, tmp_path: Path) -> None:
    first, second = layers(), layers(2)
    file = tmp_path / "proof.cert"
    result = judged(first, second, BY_COLUMNS, tmp_path, certificate=file)
    assert result.verdict is Verdict.VERIFIED and file.exists()
    certificate = read(file)
    first, second = mesh_axes(first), mesh_axes(second)
    assert check(certificate, first, second, {}, {}).digest == certificate.stated
    other = changed_body(second, CHANGES[name])
    assert digest(other) != digest(second)
    with pytest.raises(CertificateError, match="the implementation is another program"):
        check(certificate, first, other, {}, {})
    forged = replace(certificate, claim=replace(certificate.claim, implementation=digest(other)))
    forged = replace(forged, stated=forged.claim.digest)
    with pytest.raises(CertificateError, match="is not what is expected"):
        check(forged, first, other, {}, {})


def test_a_relation_has_no_loops(tmp_path: Path) -> None:
    """A loop in the part of a certificate that says what is expected is refused."""
    file = tmp_path / "proof.cert"
    first, second = layers(), layers(2)
    judged(first, second, BY_COLUMNS, tmp_path, certificate=file)
    certificate = read(file)
    expected = certificate.claim.expected
    value = expected.outputs[0].value
    settings = {"consts": 0, "carries": 0, "length": 1, "reverse": False}
    loop = Op(
        "scan",
        (),
        (Value("none", value.type),),
        {"body": Module("round", expected.mesh, (), (), ()), **settings},
    )
    claim = replace(certificate.claim, expected=replace(expected, ops=(*expected.ops, loop)))
    forged = replace(certificate, claim=claim, stated=claim.digest)
    with pytest.raises(CertificateError, match="uses scan, which is no layout"):
        check(forged, mesh_axes(first), mesh_axes(second), {}, {})


def test_programs_with_loops_are_read_from_files(tmp_path: Path) -> None:
    files = tmp_path / "a.spf", tmp_path / "b.spf"
    for file, module in zip(files, (layers(), layers(2)), strict=True):
        file.write_text(to_text(module), encoding="utf-8")
    relation = tmp_path / "relation.toml"
    relation.write_text('[inputs]\nx = "replicate"\nw = "shard(2)"\nv = "shard(1)"\n', encoding="utf-8")
    assert verify(*files, relation=relation).verdict is Verdict.VERIFIED


def test_a_count_of_rounds_stays_exact() -> None:
    """What a loop counts is a number of its type: 0, 3, 6 are the rows that are read."""

    def counting(by: int) -> Module:
        def build(b: Build, x: Value) -> Results:
            def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
                row = b("dynamic_slice", k[0], c[0], sizes=(1,))
                return [b("add", c[0], b.full(by, s32()))], [b("reshape", row, type=f32())]

            return b.scan(body, [b.full(0, s32())], [], [x], length=3)[1:]

        return program({"x": f32(9)}, build)

    def strided(b: Build, x: Value) -> Results:
        return [b("slice", x, starts=(0,), limits=(9,), strides=(3,))]

    assert verify(program({"x": f32(9)}, strided), counting(3)).verdict is Verdict.VERIFIED
    assert verify(program({"x": f32(9)}, strided), counting(2)).verdict is Verdict.REFUTED

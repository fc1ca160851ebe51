"""Certificates: written, read and checked again; what they may not leave out; what the checker imports."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certified_pairs import Certified, certified, checked, holds, library

from shardproof.ir.module import Module
from shardproof.ir.text import parse
from shardproof.lemmas.load import Library, load_files
from shardproof.lemmas.printer import fingerprint
from shardproof.passes.mesh_axes import mesh_axes
from shardproof.solver.certificates.certificate import Certificate, CertificateError
from shardproof.solver.certificates.certificate_file import (
    from_bytes,
    packed,
    read,
    to_bytes,
    unpacked,
    write,
)
from shardproof.solver.certificates.certify import certified as made
from shardproof.solver.certificates.certify import lemma_assumptions, rechecked
from shardproof.solver.certificates.recheck import check
from shardproof.solver.parts import assumptions_of
from shardproof.solver.prove import Attempt, Clock, Proof, prove
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import compose
from shardproof.solver.relations.relation_file import Declared, resolve
from shardproof.solver.search.pattern import Pattern, compiled
from shardproof.solver.search.rewriting import Rules
from shardproof.solver.verdict import Assumption

ROOT = Path(__file__).resolve().parents[2]
PAIRS = [
    ("flash_attention", "two_blocks"),
    ("flash_attention", "finite_start"),
    ("ring_attention", "cp4"),
    ("softmax", "log_sum_exp"),
    ("lora", "row_parallel"),
    ("mean", "two_parts"),
    ("vocab_embedding", "tp4"),
    ("moe_dispatch", "ep4"),
    ("searched", "difference_of_squares"),
]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_what_is_written_is_read_and_holds(pair: tuple[str, str], tmp_path: Path) -> None:
    own = certified(*pair)
    certificate = own.certificate
    claim = checked(certificate, own)
    assert claim.digest == certificate.stated
    assert claim.implementation != claim.reference
    assert holds(claim, own, 0)
    write(certificate, tmp_path / "again.cert")
    assert read(tmp_path / "again.cert").claim == claim
    assert to_bytes(certificate) == own.content
    assert from_bytes(to_bytes(certificate, plain=True)).claim.digest == claim.digest


@pytest.mark.parametrize("pair", PAIRS[:4], ids="-".join)
def test_no_other_program_fits(pair: tuple[str, str]) -> None:
    own, other = certified(*pair), certified("mean", "two_parts")
    with pytest.raises(CertificateError, match=r"the implementation (is another|runs on)"):
        checked(own.certificate, replace(own, implementation=own.reference))
    with pytest.raises(CertificateError, match="the reference is another program"):
        checked(own.certificate, replace(own, reference=other.reference))
    mesh = replace(own.implementation, mesh=replace(own.implementation.mesh, axes=(("tp", 16),)))
    with pytest.raises(CertificateError, match="runs on 16 ranks"):
        checked(own.certificate, replace(own, implementation=mesh))


EXPONENTIAL = "exp(x + y) => exp(x)*exp(y)"


def lemma(tmp_path: Path, text: str, name: str = "own") -> Library:
    path = tmp_path / f"{name}.lemma"
    path.write_text(f'lemma {name}\n  "A lemma of a test."\n  {text}\n', encoding="utf-8")
    return load_files([path])


def proof_of(own: Certified, known: Library) -> Proof:
    patterns = [p for p in map(compiled, known.lemmas.values()) if isinstance(p, Pattern)]
    assert patterns
    first, second = own.reference, own.implementation
    relation = infer(first, second, resolve(Declared(), first, second)).relation
    rules = Rules(patterns)
    return prove(
        compose(first, second, relation), Clock(None), Attempt(folding=True, lemmas="early"), rules=rules
    )


def certificate_of(own: Certified, proof: Proof, status: str = "tested") -> Certificate:
    proof.proved = dict.fromkeys(proof.proved, True)
    names = [o.name for o in proof.composed.implementation.outputs]
    outputs = [(name, o.name, "") for name, o in zip(names, own.reference.outputs, strict=True)]
    assumptions = [*assumptions_of(proof, own.reference, own.implementation), *lemma_assumptions(proof)]
    statuses: dict[str, dict[str, str]] = {}
    if proof.search is not None:
        for name, pattern in proof.search.rules.lemmas.items():
            statuses[name] = {"status": status, "sha256": fingerprint(pattern.lemma)}
    return made(proof, own.reference, own.implementation, outputs, assumptions, statuses)


FALSE = [
    "exp(x + y) => exp(x) + exp(y)",
    "exp(x + y) => 2*exp(x)*exp(y)",
    "exp(x + y) => exp(x)*exp(-y)",
    "sum[k](exp(x - c)) => sum[k](exp(x))",
    "exp(x) => exp(x)^2",
    "max[k](x) => sum[k](x)",
]


@pytest.mark.parametrize("text", FALSE)
def test_a_false_lemma_is_found_by_evaluation(text: str, tmp_path: Path) -> None:
    """However it came into the library, and whatever its status says."""
    known = lemma(tmp_path, text)
    own = certified("softmax", "shifted_by_max")
    proof = proof_of(own, known)
    assert proof.instances
    certificate = certificate_of(own, proof, "proved")
    statuses = {n: {"status": "proved", "sha256": fingerprint(x)} for n, x in known.lemmas.items()}
    with pytest.raises(CertificateError, match="instance 0 of `own` is false: at a random point"):
        check(certificate, own.reference, own.implementation, known.lemmas, statuses)


WIDE = 400_000


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("sum[k](tanh(x)) => sum[k](2*sigmoid(2*x) - 1)", True),
        ("sum[k](tanh(x)) => sum[k](2*sigmoid(x) - 1)", False),
    ],
)
def test_large_extents_are_evaluated_too(text: str, right: bool, tmp_path: Path) -> None:
    """Where a class has too many elements, its lemma is evaluated at few."""
    total = module(
        f'module "t" mesh() {{\n  %x = input(0) : f32[2,{WIDE}]\n'
        f"  %z = constant() {{value=f32[](0.0)}} : f32[]\n  %e = tanh(%x) : f32[2,{WIDE}]\n"
        '  %y = reduce(%e, %z) {dims=(1,), kind="sum"} : f32[2]\n  output "o" = %y\n}\n'
    )
    own = Certified(total, total, b"")
    known = lemma(tmp_path, text)
    proof = proof_of(own, known)
    assert proof.instances
    certificate = certificate_of(own, proof)
    if right:
        assert check(certificate, total, total, known.lemmas, {})
    else:
        with pytest.raises(CertificateError, match="is false: at a random point"):
            check(certificate, total, total, known.lemmas, {})


def test_a_lemma_is_taken_from_the_library_alone(tmp_path: Path) -> None:
    own = certified("softmax", "shifted_by_max")
    known = lemma(tmp_path, EXPONENTIAL)
    certificate = certificate_of(own, proof_of(own, known))
    programs = own.reference, own.implementation
    assert check(certificate, *programs, known.lemmas, {}).digest == certificate.stated
    with pytest.raises(CertificateError, match="there is no lemma `own`"):
        check(certificate, *programs, {}, {})
    for changed in ("exp(x + y) => exp(y)*exp(x)", f"{EXPONENTIAL}\n  when x finite"):
        with pytest.raises(CertificateError, match="says something else"):
            check(certificate, *programs, lemma(tmp_path, changed).lemmas, {})


def test_assumptions_are_collected_anew(tmp_path: Path) -> None:
    own = certified("softmax", "shifted_by_max")
    known = lemma(tmp_path, EXPONENTIAL)
    certificate = certificate_of(own, proof_of(own, known))
    assert [kind for kind, _ in certificate.claim.assumptions] == ["tested_lemma"]
    silent = replace(certificate.claim, assumptions=())
    programs = own.reference, own.implementation
    with pytest.raises(CertificateError, match=r"does not list the assumption `.own.: A lemma of a test"):
        check(replace(certificate, claim=silent, stated=silent.digest), *programs, known.lemmas, {})
    proved = {"own": {"status": "proved", "sha256": fingerprint(known.lemmas["own"])}}
    assert check(replace(certificate, claim=silent, stated=silent.digest), *programs, known.lemmas, proved)
    stale = {"own": {"status": "proved", "sha256": "0" * 64}}
    with pytest.raises(CertificateError, match="does not list the assumption"):
        check(replace(certificate, claim=silent, stated=silent.digest), *programs, known.lemmas, stale)
    claimed = replace(certificate, lemmas=(replace(certificate.lemmas[0], status="proved"),))
    with pytest.raises(CertificateError, match="is tested, not proved"):
        check(claimed, *programs, known.lemmas, {})


def module(text: str) -> Module:
    return mesh_axes(parse(text, source="test"))


def test_what_the_store_assumes_and_unknown_functions_must_be_listed() -> None:
    own = Certified(
        module(
            'module "a" mesh() {\n  %x = input(0) : s32[4]\n  %t = add(%x, %x) : s32[4]\n'
            '  %z = opaque(%t) {name="f", free=()} : f32[4]\n  output "o" = %z\n}\n'
        ),
        module(
            'module "b" mesh() {\n  %x = input(0) : s32[4]\n'
            "  %c = constant() {value=s32[4] splat (2)} : s32[4]\n  %t = multiply(%x, %c) : s32[4]\n"
            '  %z = opaque(%t) {name="f", free=()} : f32[4]\n  output "o" = %z\n}\n'
        ),
        b"",
    )
    relation = infer(
        own.reference, own.implementation, resolve(Declared(), own.reference, own.implementation)
    ).relation
    proof = prove(compose(own.reference, own.implementation, relation), Clock(None))
    assert proof.complete
    certificate = certificate_of(own, proof)
    kinds = {kind for kind, _ in certificate.claim.assumptions}
    assert kinds == {"no_overflow", "opaque_function"}
    assert check(certificate, own.reference, own.implementation, {}, {})
    for n in range(len(certificate.claim.assumptions)):
        fewer = certificate.claim.assumptions[:n] + certificate.claim.assumptions[n + 1 :]
        claim = replace(certificate.claim, assumptions=fewer)
        with pytest.raises(CertificateError, match="does not list the assumption"):
            check(
                replace(certificate, claim=claim, stated=claim.digest),
                own.reference,
                own.implementation,
                {},
                {},
            )


def test_an_unproved_output_is_rejected() -> None:
    own = certified("softmax", "shifted_by_max")
    wrong = Certified(own.reference, own.reference, b"")
    twice = module(
        'module "t" mesh() {\n  %x = input(0) : f32[2]\n  %y = add(%x, %x) : f32[2]\n  output "o" = %y\n}\n'
    )
    once = module('module "t" mesh() {\n  %x = input(0) : f32[2]\n  output "o" = %x\n}\n')
    for first, second, right in (
        (once, twice, False),
        (twice, twice, True),
        (wrong.reference,) * 2 + (True,),
    ):
        relation = infer(first, second, resolve(Declared(), first, second)).relation
        proof = prove(compose(first, second, relation), Clock(None))
        assert proof.complete is right
        pair = Certified(first, second, b"")
        certificate = certificate_of(pair, proof)
        if right:
            assert check(certificate, first, second, {}, {})
        else:
            with pytest.raises(CertificateError, match="output `o` is not what is expected"):
                check(certificate, first, second, {}, {})


def test_a_proof_that_does_not_replay_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    own = certified("softmax", "shifted_by_max")
    proof = proof_of(own, Library(lemmas={"exp_add": library().lemmas["exp_add"]}))
    assert proof.complete and proof.search is not None
    outputs = [(o.name, o.name, "") for o in own.implementation.outputs]
    found = [*assumptions_of(proof, own.reference, own.implementation), *lemma_assumptions(proof)]
    assert rechecked(proof, own.reference, own.implementation, outputs, found, [], Clock(None))
    proof.search.instances.append(proof.search.instances[-1])
    with pytest.raises(CertificateError, match="is never used"):
        rechecked(proof, own.reference, own.implementation, outputs, found, [], Clock(None))


# relations


def edited(own: Certified, n: int, old: str, new: str, **fields: Any) -> Certificate:
    """The certificate with one program of its relation changed, and the claim's digest renewed."""
    body = own.body
    assert old in body["relation"][n]
    body["relation"][n] = body["relation"][n].replace(old, new)
    body.update(fields)
    certificate = from_bytes(packed(body))
    return replace(certificate, stated=certificate.claim.digest)


def test_relations_that_give_inputs_otherwise_are_rejected() -> None:
    own = certified("ring_attention", "cp4")
    cases = [
        (0, 'output "k" = %k', 'output "k" = %v', "does not give every input of the reference once"),
        (0, '  output "k" = %k\n', "", "does not give every input of the reference once"),
        (0, 'reshape(%"base k")', 'reshape(%"base q")', "not made of one base tensor of its own"),
        (0, 'reshape(%"base k")', 'negate(%"base k")', "restricted by negate"),
        (1, '  output "k" = %k\n', "", "does not give every input of the implementation once"),
        (1, '"base q"', '"base w"', "not made of the same base tensors"),
        (1, "mesh(tp=4)", "mesh(tq=4)", "runs on another mesh"),
        (1, '"layout 0"', '"div1"', "uses the name of a value"),
        (2, 'output "y" = ', 'output "z" = ', "differ in name, shape or kind"),
        (3, '%"y@" = input', '%"z@" = input', "not defined"),
        (3, '"y@"', '"z@"', "not made of the reference's outputs"),
    ]
    for n, old, new, reason in cases:
        with pytest.raises(CertificateError, match=reason):
            checked(edited(own, n, old, new), own)
    body = own.body
    assert [len(t) > 40 for t in body["relation"]] == [True] * 4
    with pytest.raises(CertificateError, match="the claim is not the one"):
        checked(replace(edited(own, 1, '"layout 1"', '"other"'), stated=body["claim"]), own)
    swapped = edited(own, 1, 'dynamic_slice(%"base k"', 'dynamic_slice(%"base v"')
    with pytest.raises(CertificateError, match=r"output `y` is not what is expected|is never used|not hold"):
        checked(swapped, own)


def test_random_values_are_no_layout() -> None:
    own = certified("softmax", "shifted_by_max")
    body = own.body
    name = own.implementation.inputs[0].name
    line = next(x for x in body["relation"][1].splitlines() if x.strip().startswith(f"%{name} = reshape"))
    fake = f'  %{name} = opaque(%"base {name}") {{name="f", free=()}} : {line.rpartition(" : ")[2]}'
    with pytest.raises(CertificateError, match="uses opaque, which is no layout"):
        checked(edited(own, 1, line, fake), own)


def test_a_reference_output_without_counterpart_is_rejected() -> None:
    two = module(
        'module "t" mesh() {\n  %x = input(0) : f32[2]\n  %y = add(%x, %x) : f32[2]\n'
        '  output "o" = %y\n  output "p" = %x\n}\n'
    )
    relation = infer(two, two, resolve(Declared(), two, two)).relation
    proof = prove(compose(two, two, relation), Clock(None))
    certificate = certificate_of(Certified(two, two, b""), proof)
    claim = certificate.claim
    for keep in (0, 1):
        left = replace(
            claim,
            layouts=replace(
                claim.layouts,
                compared=replace(claim.layouts.compared, outputs=(claim.layouts.compared.outputs[keep],)),
            ),
            expected=replace(claim.expected, outputs=(claim.expected.outputs[keep],)),
            outputs=(claim.outputs[keep],),
        )
        with pytest.raises(CertificateError, match=f"output `{'po'[keep]}` has no counterpart"):
            check(replace(certificate, claim=left, stated=left.digest), two, two, {}, {})


# files


def test_files_that_are_no_certificate() -> None:
    own = certified("softmax", "shifted_by_max")
    body = own.body
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    text = json.dumps({"format": 1, "checksum": "0", "body": body})
    bad = [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        own.content[:-1],
        own.content + b"\0",
        text.encode(),
        text.replace('"format": 1', '"format": 2').encode(),
        text.replace('"format": 1', '"format": true').encode(),
        ("[" * 200_000).encode(),
        ('{"format":1,"checksum":"0","body":' + "[" * 5000 + "]" * 5000 + "}").encode(),
        zlib.compress(b"x" * 100),
        b'{"format":1,"checksum":1e999,"body":0}',
        b'{"format":1,"checksum":NaN,"body":0}',
        ('{"format":1,"checksum":"","body":' + "9" * 10_000 + "}").encode(),
    ]
    for content in bad:
        with pytest.raises(CertificateError) as found:
            from_bytes(content)
        assert "\n" not in str(found.value) and len(str(found.value)) < 200
    assert unpacked(own.content) == body


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instances", 0),
        ("instances", [[]]),
        ("instances", [[1, "a", [], {}, {}, "1", [], [], 0]]),
        ("rounds", [1]),
        ("bounds", [["x", 0.5, 1]]),
        ("flags", {}),
        ("flags", {"folding": 1, "lenient": False, "reading": False, "algebra": False}),
        ("outputs", [["a"]]),
        ("relation", []),
        ("relation", ["", "", "", ""]),
        ("even", "y"),
        ("lemmas", [["a", "b", "c", 1]]),
        ("assumptions", [["a", 1]]),
        ("reference", {"digest": "0", "mesh": [["tp", "4"]]}),
        ("more", 1),
    ],
)
def test_data_of_another_shape(field: str, value: Any) -> None:
    body = certified("softmax", "shifted_by_max").body
    body[field] = value
    try:
        content = packed(body)
    except (TypeError, ValueError):
        return
    with pytest.raises(CertificateError):
        from_bytes(content)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, -2),
        (0, True),
        (0, 1 << 70),
        (0, "1"),
        (1, ["exp_add"]),
        (2, [-1]),
        (2, [True]),
        (3, {"k": ["0"]}),
        (3, []),
        (4, {"x": ["", [["1e9", 3, []]]]}),
        (4, {"x": ["", [["9" * 500, 3, []]]]}),
        (4, {"x": ["", ["1", 3, []]]}),
        (4, {"x": ["add", [["1", 3, [[0, [["digit", [0, []], 1.5, 2]]]]]]]}),
        (5, "1/0x"),
        (5, "1e999999999"),
        (5, 1),
        (6, [["1", 2]]),
        (7, "exp_add"),
        (7, [1]),
    ],
)
def test_instances_of_another_shape(position: int, value: Any) -> None:
    own = certified("softmax", "shifted_by_max")
    body = own.body
    body["instances"][0][position] = value
    with pytest.raises(CertificateError):
        checked(from_bytes(packed(body)), own)


# what the checker is made of

ALLOWED = {
    "certificate",
    "certificate_file",
    "claims",
    "codes",
    "families",
    "install",
    "instance",
    "meaning",
    "names",
    "portable",
    "randomness",
    "recheck",
    "stated_relation",
    "stepping",
    "sweep",
    "table",
    "verdict",
}
LAZY = {"wording"}
"""Only the text of a result needs it."""


def imported(path: Path) -> set[str]:
    """The project's modules that a file imports when it runs, lazily or not."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in node.body
        for inner in ast.walk(child)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return found


def test_the_checker_imports_no_search() -> None:
    seen: set[str] = set()
    outside: set[str] = set()
    waiting = ["shardproof.solver.certificates.recheck", "shardproof.solver.certificates.certificate_file"]
    while waiting:
        name = waiting.pop()
        path = ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")
        if name in seen or not path.exists():
            outside |= {name} if not name.startswith("shardproof") else set()
            continue
        seen.add(name)
        waiting += [n for n in imported(path) if n.split(".")[-1] not in LAZY]
    assert {n.split(".")[1] for n in seen} <= {"ir", "lemmas", "frontends", "passes", "solver"}
    assert {n.split(".")[-1] for n in seen if n.startswith("shardproof.solver.")} == ALLOWED
    assert not any(n.startswith("shardproof.solver.search") for n in seen)
    assert not {n for n in outside if n.split(".")[0] in ("egglog", "z3", "torch", "jax")}
    assert "shardproof.passes.normalise" in seen and "shardproof.lemmas.terms" in seen


def test_the_checker_runs_without_the_search() -> None:
    code = """
import sys
import shardproof.solver.certificates.recheck, shardproof.solver.certificates.certificate_file
print(sorted(m.split(".")[-1] for m in sys.modules if m.startswith("shardproof.solver.")))
print(sorted(m for m in sys.modules if m in ("egglog", "z3", "lark")))
"""
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    solver, others = map(ast.literal_eval, lines.splitlines())
    assert set(solver) <= ALLOWED | {"certificates"} and others == []


def test_steps_after_the_sweep_are_followed_one_by_one() -> None:
    own = certified("searched", "difference_of_squares")
    certificate = own.certificate
    assert certificate.rounds == (("o", len(certificate.instances)),)
    assert all(i.cls == -1 for i in certificate.instances)
    for rounds, reason in [
        ((), "is never used"),
        ((("o", 0),), "is never used|not what is expected"),
        ((("o", 9),), "are no steps of a round"),
        ((("p", 1),), "is no output that a round"),
        ((("o", len(certificate.instances)), ("o", 0)), "is no output that a round"),
    ]:
        with pytest.raises(CertificateError, match=reason):
            checked(replace(certificate, rounds=rounds), own)


def test_kinds_of_assumption_are_checked() -> None:
    own = certified("softmax", "shifted_by_max")
    certificate = own.certificate
    more = replace(certificate.claim, assumptions=(("no_such_kind", "text"),))
    with pytest.raises(CertificateError, match="no kind of assumption"):
        checked(replace(certificate, claim=more, stated=more.digest), own)
    extra = Assumption("user_assumed", "more than is needed")
    listed = replace(certificate.claim, assumptions=((extra.kind, extra.text),))
    assert checked(replace(certificate, claim=listed, stated=listed.digest), own) == listed

"""Uses of defined operators are written out once, for proof, replay and report alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardproof.frontends.load import load
from shardproof.ir.interpret import run
from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.types import DType, Location, Mesh, TensorType
from shardproof.ir.verify import verify as verify_module
from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.load import load_files
from shardproof.solver.meaning import defined, meant
from shardproof.solver.verdict import Result
from shardproof.solver.verify import verify

EXPLICIT = """\
module "explicit" mesh() {
  %x = input(0) : f32[3,6]
  %w = input(1) : f32[6]
  %sq = multiply(%x, %x) : f32[3,6]
  %zero = constant() {value=f32[](0.0)} : f32[]
  %sum = reduce(%sq, %zero) {dims=(1,), kind="sum"} : f32[3]
  %six = constant() {value=f32[](6.0)} : f32[]
  %n = broadcast_in_dim(%six) {dims=()} : f32[3]
  %mean = divide(%sum, %n) : f32[3]
  %eps = constant() {value=f32[](EPS)} : f32[]
  %e = broadcast_in_dim(%eps) {dims=()} : f32[3]
  %safe = add(%mean, %e) : f32[3]
  %inv = rsqrt(%safe) : f32[3]
  %b = broadcast_in_dim(%inv) {dims=(0,)} : f32[3,6]
  %scaled = multiply(%x, %b) : f32[3,6]
  %v = broadcast_in_dim(%w) {dims=(1,)} : f32[3,6]
  %y = multiply(%scaled, %v) : f32[3,6]
  output "y" = %y
}
"""
CALL = """\
module "call" mesh() {
  %x = input(0) : f32[3,6]
  %w = input(1) : f32[6]
  %eps = constant() {value=f32[](0.125)} : f32[]
  %y = custom_call(%x, %w, %eps) {target="TARGET", config="CONFIG"} : f32[3,6]
  output "y" = %y
}
"""
NORM = """
define my::norm(x[..., k], w[k], eps[]; config = "rms") -> y[..., k]
  "Root-mean-square normalisation over the last dim."
  y = x*rsqrt(sum[k](x*x)/|k| + eps)*w
"""
Reader = Callable[..., Module]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    def read(text: str, **words: str) -> Module:
        for name, value in words.items():
            text = text.replace(name, value)
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.spf"
        path.write_text(text, encoding="utf-8")
        return load(path)

    return read


@pytest.fixture
def norm(tmp_path: Path) -> Path:
    path = tmp_path / "norm.lemma"
    path.write_text(NORM, encoding="utf-8")
    return path


def kinds(result: Result) -> set[str]:
    return {a.kind for a in result.assumptions}


def test_a_library_define_is_verified_without_an_assumption(read: Reader) -> None:
    call = read(CALL, TARGET="AwsNeuronRmsNorm", CONFIG="1")
    result = verify(read(EXPLICIT, EPS="0.125"), call)
    assert result.verdict == "verified", result.text()
    assert not result.assumptions and not result.findings


def test_the_replay_knows_the_meaning(read: Reader, norm: Path) -> None:
    call = read(CALL, TARGET="my::norm", CONFIG="rms")
    result = verify(read(EXPLICIT, EPS="0.25"), call, lemmas=[norm])
    assert result.verdict == "refuted", result.text()
    found = result.counterexample
    assert found is not None and found.output == "y"
    x = np.ones((3, 6))
    assert abs(complex(found.reference) - complex(found.implementation)) > 1e-6 * np.abs(x).max()


def test_a_define_of_the_user_is_listed(read: Reader, norm: Path) -> None:
    call = read(CALL, TARGET="my::norm", CONFIG="rms")
    result = verify(read(EXPLICIT, EPS="0.125"), call, lemmas=[norm])
    assert result.verdict == "verified", result.text()
    (only,) = result.assumptions
    assert only.kind == "user_define" and only.value == "y"
    assert only.text == "`my::norm` with config 'rms' means what norm.lemma:2 says"


def test_another_attribute_leaves_it_opaque(read: Reader, norm: Path) -> None:
    call = read(CALL, TARGET="my::norm", CONFIG="layer")
    result = verify(read(EXPLICIT, EPS="0.125"), call, lemmas=[norm])
    assert result.verdict == "unknown", result.text()
    (warning,) = result.findings or ()
    assert warning == (
        "`y` (my::norm) is kept opaque, norm.lemma:2 does not fit: attribute config is 'layer', "
        "'rms' is needed; add a define that fits"
    )
    assert "user_define" not in kinds(result) and "opaque_function" in kinds(result)


def test_a_define_that_nothing_needs_is_not_listed(read: Reader, norm: Path) -> None:
    text = CALL.replace('output "y" = %y', 'output "y" = %x')
    module = read(text, TARGET="my::norm", CONFIG="rms")
    meaning = defined(module, load_files([norm]))
    assert not meaning.assumptions and len(meaning.module.ops) > len(module.ops)


def test_results_keep_their_names_and_places(norm: Path) -> None:
    place = Location("model.py", 7)
    x, w = Value("x", TensorType(DType.F32, (3, 6))), Value("w", TensorType(DType.F32, (6,)))
    eps, taken = Value("eps", TensorType(DType.F32, ())), Value("y.0", TensorType(DType.F32, (3, 6)))
    y = Value("y", x.type, place)
    ops = (
        Op("negate", (x,), (taken,)),
        Op("custom_call", (taken, w, eps), (y,), {"target": "my::norm", "config": "rms"}),
    )
    inputs = tuple(Input(v, n) for n, v in enumerate((x, w, eps)))
    module = Module("m", Mesh(), inputs, ops, (Output("y", y),))
    found = defined(module, load_files([norm])).module
    verify_module(found)
    assert found.outputs[0].value is y and found.ops[-1].results == (y,)
    names = [v.name for op in found.ops for v in op.results]
    assert len(set(names)) == len(names) and "y.0" in names
    assert {v.location for op in found.ops[1:] for v in op.results} == {place}


def test_uses_are_lowered_apart(read: Reader, norm: Path) -> None:
    text = CALL.replace(
        "  output", '  %z = custom_call(%y, %w, %eps) {target="my::norm", config="rms"} : f32[3,6]\n  output'
    ).replace('"y" = %y', '"y" = %z')
    found = defined(read(text, TARGET="my::norm", CONFIG="rms"), load_files([norm])).module
    verify_module(found)
    x, w = np.arange(18.0).reshape(3, 6) - 4, np.linspace(1, 2, 6)

    def once(a: Any) -> Any:
        return a / np.sqrt((a * a).mean(1, keepdims=True) + 0.125) * w

    (got,) = run(found, {"x": x, "w": w})["y"]
    np.testing.assert_allclose(got, once(once(x)), rtol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_the_library_and_the_interpreter_agree(read: Reader, dim: int) -> None:
    shape = (3, 4, 5)
    text = f"""\
module "norm" mesh() {{
  %x = input(0) : f32[3,4,5]
  %w = input(1) : f32[{shape[dim]}]
  %e = input(2) : f32[]
  %y = custom_call(%x, %w, %e) {{target="AwsNeuronRmsNorm", config="{dim}"}} : f32[3,4,5]
  output "y" = %y
}}
"""
    module = read(text)
    (meaning,) = meant([module])
    assert all(op.opcode != "custom_call" for op in meaning.module.ops)
    rng = np.random.default_rng(dim)
    inputs = {"x": rng.normal(size=shape), "w": rng.normal(size=shape[dim]), "e": np.array(0.1)}
    (own,), (written,) = run(module, inputs)["y"], run(meaning.module, inputs)["y"]
    np.testing.assert_allclose(own, written, rtol=1e-5)


def test_mutated_parameters_are_results_in_order(read: Reader, tmp_path: Path) -> None:
    text = """\
module "fused" mesh() {
  %x = input(0) : f32[3,6]
  %r = input(1) : f32[3,6]
  %new, %sum = opaque(%x, %r) {name="my::add_double.default", free=()} : f32[3,6], f32[3,6]
  output "new" = %new
  output "sum" = %sum
}
"""
    define = 'define my::add_double.default(x![..., k], r![..., k]) "d" r = x + r x = 2*r'
    path = tmp_path / "own.lemma"
    path.write_text(define, encoding="utf-8")
    meaning = defined(read(text), load_files([path]))
    found = run(meaning.module, {"x": np.ones((3, 6)), "r": np.full((3, 6), 2.0)})
    np.testing.assert_allclose(found["new"][0], 6)
    np.testing.assert_allclose(found["sum"][0], 3)


def attention(ranks: int) -> Module:
    """An unknown kernel over heads, each rank computing its own."""
    heads = 4 // ranks
    x = Value("q", TensorType(DType.F32, (5, heads, 3)))
    y = Value("y", x.type)
    call = Op("custom_call", (x,), (y,), {"target": "my::attention", "config": ""})
    mesh = Mesh((("tp", ranks),)) if ranks > 1 else Mesh()
    return Module("attention", mesh, (Input(x, 0),), (call,), (Output("y", y),))


@pytest.mark.parametrize(("batched", "verdict"), [("h", "verified"), ("t", "unknown")])
def test_an_opaque_kernel_works_slice_by_slice(tmp_path: Path, batched: str, verdict: str) -> None:
    path = tmp_path / "own.lemma"
    path.write_text(f'opaque my::attention(q[t, h, d]) -> o[t, h, d] "d" batched over {batched}\n')
    result = verify(attention(1), attention(2), lemmas=[path])
    assert result.verdict == verdict, result.text()
    assert {"opaque_batched", "user_define"} <= kinds(result)
    assert verify(attention(1), attention(2)).verdict == "unknown"


def test_the_importer_no_longer_warns_of_what_is_known(read: Reader, norm: Path) -> None:
    texts = [f"custom call '{t}' (y) has no known meaning: kept opaque" for t in ("my::norm", "other")]
    module = replace(read(CALL, TARGET="my::norm", CONFIG="rms"), warnings=tuple(texts))
    assert defined(module, load_files([norm])).module.warnings == (texts[1],)
    assert defined(module, load_files([])).module.warnings == tuple(texts)


def test_programs_without_custom_operators_read_no_lemma_file(
    read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Mapping[str, Any]:
        raise AssertionError("lemma files are read")

    monkeypatch.setattr("shardproof.lemmas.load.defines_for", refuse)
    assert verify(read(EXPLICIT, EPS="0.5"), read(EXPLICIT, EPS="0.5")).verdict == "verified"


def test_a_broken_file_is_an_error_with_its_place(read: Reader, tmp_path: Path) -> None:
    path = tmp_path / "broken.lemma"
    path.write_text('define my::norm(x[k]) -> y[k] "d" y = x*\n', encoding="utf-8")
    with pytest.raises(LemmaError, match=r"broken.lemma:2:1: "):
        verify(read(EXPLICIT, EPS="1.0"), read(CALL, TARGET="my::norm", CONFIG=""), lemmas=[path])

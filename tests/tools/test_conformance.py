"""The conformance kit: a right frontend passes, and each check finds one that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardproof.frontend import (
    Builder,
    DType,
    Input,
    Location,
    Mesh,
    Module,
    ModuleError,
    Output,
    Source,
    TensorType,
    Value,
)
from shardproof.frontends.formats import HLO, ONNX
from shardproof.testing import Report, Sample, frontend_conformance
from shardproof.tools.conformance_checks import CHECKS

TESTS = Path(__file__).resolve().parents[1]
MARK = b'{"step": '
FILE = MARK + b'[2, 3], "by": 3, "line": 7}'


class Steps:
    """Reads `{"step": shape, "by": factor, "line": number}`: the input times `by`, summed over the ranks."""

    def recognises(self, source: Source) -> bool:
        return source.head.startswith(MARK)

    def read(self, source: Source) -> Module:
        try:
            table = json.loads(source.text)
            shape, by, line = table["step"], table["by"], table["line"]
        except (KeyError, ValueError) as error:
            raise ModuleError(f"is damaged: {error}") from None
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 99 for n in shape):
            raise ModuleError("has no shape")
        if type(by) is not int or type(line) is not int:
            raise ModuleError("has no factor, or no line")
        return self.build(tuple(shape), by, Location("model.py", line), source.ranks or 1)

    def build(self, shape: tuple[int, ...], by: int, location: Location | None, ranks: int) -> Module:
        mesh = Mesh((("tp", ranks),)) if ranks > 1 else Mesh()
        builder = Builder()
        x = Value(builder.claim("x"), TensorType(DType.F32, shape))
        builder.begin("y", location)
        y = self.made(builder, x, by)
        if ranks > 1:
            y = builder.emit("all_reduce", y, kind="sum", groups=mesh.groups(["tp"]))
        return Module("steps", mesh, (Input(x, 0),), tuple(builder.ops), (Output("y", y),))

    def made(self, builder: Builder, x: Value, by: int) -> Value:
        return builder.pair("multiply", x, by)


def run(inputs: Mapping[str, list[Any]]) -> dict[str, Any]:
    return {"y": 3 * np.sum(inputs["x"], axis=0)}


RIGHT = (
    Sample(FILE, run=run, locations={"y.1": "model.py:7"}),
    Sample(FILE, ranks=2, run=run),
    Sample(FILE, inputs={"x": np.ones((2, 3))}, outputs={"y": [np.full((2, 3), 3.0)]}),
)


def test_a_right_frontend_passes() -> None:
    report = frontend_conformance(Steps(), RIGHT)
    assert report.passed and report.skipped == (), report


class Unrecognised(Steps):
    def recognises(self, source: Source) -> bool:
        return False


class Unsure(Steps):
    def recognises(self, source: Source) -> bool:
        raise KeyError(source.name)


class Untyped(Steps):
    def build(self, *args: Any) -> Module:
        module = super().build(*args)
        op = module.ops[-1]
        wrong = Value("wrong", TensorType(DType.F32, (3,)), op.location)
        return replace(module, ops=(*module.ops[:-1], replace(op, results=(wrong,))), outputs=())


class Undefined(Steps):
    def build(self, *args: Any) -> Module:
        module = super().build(*args)
        return replace(module, ops=module.ops[::-1])


class Failing(Steps):
    def build(self, *args: Any) -> Module:
        raise AttributeError("made")


class Empty(Steps):
    def build(self, *args: Any) -> Any:
        return None


class Alone(Steps):
    def build(self, shape: Any, by: int, location: Any, ranks: int) -> Module:
        return replace(super().build(shape, by, location, 1), mesh=Mesh((("tp", 3),)))


class Unlocated(Steps):
    def build(self, shape: Any, by: int, location: Any, ranks: int) -> Module:
        return super().build(shape, by, None, ranks)


class NextLine(Steps):
    def build(self, shape: Any, by: int, location: Any, ranks: int) -> Module:
        return super().build(shape, by, replace(location, line=location.line + 1), ranks)


class Opaque(Steps):
    def made(self, builder: Builder, x: Value, by: int) -> Value:
        return builder.emit("opaque", x, type=x.type, name="times", free=())


class WithoutText(Steps):
    def build(self, *args: Any) -> Module:
        module = super().build(*args)
        return replace(module, warnings=("two\nlines",), name=7)  # type: ignore[arg-type]


class Counting(Steps):
    numbers: Iterator[int] = count(1)

    def build(self, *args: Any) -> Module:
        return replace(super().build(*args), name=f"steps{next(self.numbers)}")


class Once(Steps):
    def __init__(self) -> None:
        self.used: set[tuple[str, int | None]] = set()

    def read(self, source: Source) -> Module:
        if (source.text, source.ranks) in self.used:
            raise RuntimeError("read already")
        self.used.add((source.text, source.ranks))
        return super().read(source)


class Adding(Steps):
    def made(self, builder: Builder, x: Value, by: int) -> Value:
        return builder.pair("add", x, by)


class Renamed(Steps):
    def build(self, *args: Any) -> Module:
        module = super().build(*args)
        return replace(module, outputs=(replace(module.outputs[0], name="z"),))


class Whole(Steps):
    def made(self, builder: Builder, x: Value, by: int) -> Value:
        return builder.convert(super().made(builder, x, by), DType.S32)


class FirstRank(Steps):
    """Takes the first rank's part for the sum."""

    def build(self, shape: Any, by: int, location: Any, ranks: int) -> Module:
        module = super().build(shape, by, location, ranks)
        ops = [
            replace(op, opcode="collective_broadcast", attrs={"groups": op.attrs["groups"]})
            if op.opcode == "all_reduce"
            else op
            for op in module.ops
        ]
        return replace(module, ops=tuple(ops))


class Repeated(Steps):
    """Writes rows to places that may be the same, in no order that is known."""

    def made(self, builder: Builder, x: Value, by: int) -> Value:
        places = builder.convert(x, DType.S32)
        rows = builder.iota(DType.F32, (*x.type.shape, 3), 0)
        return builder.emit(
            "scatter",
            *(builder.full(0.0, DType.F32, (9, 3)), builder.reshape(places, (*x.type.shape, 1)), rows),
            update_window_dims=(2,),
            inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
            index_vector_dim=2,
            input_batching_dims=(),
            scatter_indices_batching_dims=(),
            kind="set",
            unique=False,
        )


class Trusting(Steps):
    def read(self, source: Source) -> Module:
        table = json.loads(source.text)
        return self.build(tuple(table["step"]), table["by"], Location("model.py", table["line"]), 1)


def without_values() -> tuple[Sample, ...]:
    return tuple(replace(s, run=None, outputs=None) for s in RIGHT)


BROKEN: list[tuple[str, Steps, tuple[Sample, ...], str]] = [
    ("recognised", Unrecognised(), RIGHT, "`recognises` gives false"),
    ("recognised", Unsure(), RIGHT, "raises KeyError"),
    ("well formed", Untyped(), RIGHT, "result is declared f32[3], the operator gives f32[2,3]"),
    ("well formed", Undefined(), RIGHT, "is used before it is defined"),
    ("well formed", Failing(), RIGHT, "reading it raises AttributeError: made"),
    ("well formed", Empty(), RIGHT, "gives a NoneType"),
    ("well formed", Alone(), RIGHT, "for 3 ranks, 2 are asked for"),
    ("locations", Unlocated(), RIGHT, "has no location"),
    ("locations", NextLine(), RIGHT, "its location is model.py:8, expected model.py:7"),
    ("opaque", Opaque(), without_values(), "is kept opaque as `times`"),
    ("round trip", WithoutText(), RIGHT, "can't be written and read back"),
    ("deterministic", Counting(), RIGHT, "a second reading gives another program"),
    ("deterministic", Once(), RIGHT[:1], "a second time raises RuntimeError: read already"),
    ("values", Adding(), RIGHT[:1], "element [0, 0] on rank 0 is"),
    ("values", Adding(), RIGHT[2:], "element [0, 0] on rank 0 is 4, expected 3"),
    ("values", Renamed(), RIGHT, "its outputs are ['z'], expected ['y']"),
    ("values", Whole(), RIGHT, "is of type s32[2,3], expected float"),
    ("values", FirstRank(), RIGHT, "element [0, 0] on rank 0 is"),
    ("values", Opaque(), RIGHT, "can't be run on random inputs"),
    ("itself", Repeated(), without_values(), "compared with itself it is unknown"),
    ("malformed", Trusting(), RIGHT, "raises JSONDecodeError"),
]


@pytest.mark.parametrize(("check", "importer", "samples", "told"), BROKEN)
def test_a_broken_one_is_found(check: str, importer: Steps, samples: tuple[Sample, ...], told: str) -> None:
    report = frontend_conformance(importer, samples)
    found = [f for f in report.failures if f.check == check and told in f.found]
    assert found and not report.passed, report
    assert str(found[0]) in str(report) and found[0].help in str(report)


def test_every_check_has_one_that_breaks_it() -> None:
    assert {check for check, *_ in BROKEN} == set(CHECKS)


def test_a_file_that_looks_like_another_format_is_found() -> None:
    class Text(Steps):
        def recognises(self, source: Source) -> bool:
            return True

    report = frontend_conformance(Text(), [Sample(b"HloModule m\n")])
    assert "it is read as HLO text" in str(report)


def test_what_a_sample_says_is_what_is_checked() -> None:
    opaque = Sample(FILE, opaque=("times",), run=run)
    report = frontend_conformance(Opaque(), [opaque])
    assert report.passed and "values: sample: an opaque function can't be run" in report.skipped[0]
    report = frontend_conformance(Steps(), [Sample(FILE, locations={"nothing": "model.py:7"}, run=run)])
    assert "has no value %nothing" in str(report)
    report = frontend_conformance(Unlocated(), [Sample(FILE, locations=None)])
    assert report.passed and len(report.skipped) == 2
    wrong = Sample(FILE, inputs={"x": np.ones((3, 2))}, outputs={"y": np.ones((3, 2))})
    assert "the inputs of the sample must be those of the program" in str(
        frontend_conformance(Steps(), [wrong])
    )

    def fails(inputs: Any) -> Any:
        raise KeyError("w")

    assert "correct its `run`" in str(frontend_conformance(Steps(), [Sample(FILE, run=fails)]))
    with pytest.raises(ValueError, match="no sample"):
        frontend_conformance(Steps(), [])


def _of_hlo(name: str) -> Sample:
    from hlo_programs import PROGRAMS  # type: ignore[import-not-found,unused-ignore]
    from hlo_writer import to_bytes  # type: ignore[import-not-found,unused-ignore]

    program = PROGRAMS[name]

    def meaning(inputs: Mapping[str, list[Any]]) -> dict[str, Any]:
        found = program.meaning(*(arrays[0].astype(np.float64) for arrays in inputs.values()))
        return dict(zip(outputs, found, strict=True))

    from shardproof.frontends.load import interpret

    outputs = [o.name for o in interpret(Source("m", data=program.text.encode())).outputs]
    return Sample(to_bytes(program.text), run=meaning, locations=None)


def test_hlo_conforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS / "frontends"))
    from hlo_programs import PROGRAMS

    report = frontend_conformance(HLO, [_of_hlo(name) for name in PROGRAMS])
    assert report.passed, report


def _of_onnx(model: Any) -> Sample:
    from onnx.reference import ReferenceEvaluator

    names = [o.name for o in model.graph.output]
    evaluator = ReferenceEvaluator(model)

    def reference(inputs: Mapping[str, list[Any]]) -> dict[str, Any]:
        return dict(zip(names, evaluator.run(None, {n: a[0] for n, a in inputs.items()}), strict=True))

    return Sample(model.SerializeToString(), run=reference, locations=None)


def test_onnx_conforms(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    monkeypatch.syspath_prepend(str(TESTS / "frontends"))
    from onnx_models import model, node  # type: ignore[import-not-found,unused-ignore]

    ids = {"shape": np.asarray([4, 6], dtype=np.int64)}
    mlp = [node("MatMul", "x up", "h"), node("Relu", "h", "a"), node("MatMul", "a down", "y")]
    layers = [
        node("LayerNormalization", "x scale bias", "n", axis=-1),
        node("Softmax", "n", "s", axis=-1),
        node("Reshape", "s shape", "y"),
    ]
    report: Report = frontend_conformance(
        ONNX,
        [
            _of_onnx(model(mlp, {"x": (4, 8), "up": (8, 6), "down": (6, 8)}, {"y": (4, 8)})),
            _of_onnx(model(layers, {"x": (4, 2, 3), "scale": (3,), "bias": (3,)}, {"y": (4, 6)}, ids)),
        ],
    )
    assert report.passed, report



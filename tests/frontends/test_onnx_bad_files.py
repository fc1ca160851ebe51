"""ONNX files that no program can be read from: exit code 3 and one clear line, or a ModuleError."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx_models import model, node, save

from shardproof.frontends.load import load
from shardproof.ir.module import ModuleError
from shardproof.tools.command_line import run

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

WEIGHT = np.arange(32, dtype=np.float32).reshape(8, 4)


def good() -> Any:
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "s"), node("Softmax", "s", "y", axis=-1)]
    return model(nodes, {"x": (4, 8)}, {"y": (4, 4)}, {"w": WEIGHT, "b": np.ones(4, np.float32)})


def changed(change: Callable[[Any], object]) -> bytes:
    proto = good()
    change(proto)
    data: bytes = proto.SerializeToString()
    return data


def kept_in(proto: Any, location: str, offset: int = 0, length: int = 128) -> None:
    """Keep the weight in a file of its own."""
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def cyclic(m: Any) -> None:
    m.graph.node[0].input[0] = "s"


def recursive(m: Any) -> None:
    """A function that calls itself."""
    body = [node("f", "a", "b", "own")]
    opsets = [onnx.helper.make_opsetid("own", 1), onnx.helper.make_opsetid("", 18)]
    m.functions.append(onnx.helper.make_function("own", "f", ["a"], ["b"], body, opsets))
    m.opset_import.append(onnx.helper.make_opsetid("own", 1))
    m.graph.node[2].CopyFrom(node("f", "s", "y", "own"))


def opset(number: int) -> Callable[[Any], None]:
    return lambda m: setattr(m.opset_import[0], "version", number)


def dims(which: Any, *extents: int) -> None:
    shape = which.type.tensor_type.shape
    del shape.dim[:]
    for extent in extents:
        shape.dim.add(dim_value=extent)


def empty_graph(m: Any) -> None:
    m.graph.Clear()
    m.graph.name = "empty"


def enormous(m: Any) -> None:
    """Extents that fit together but not into any memory."""
    m.graph.CopyFrom(model([node("Identity", "x", "y")], {"x": (1 << 45, 9)}, {"y": (1 << 45, 9)}).graph)


def unknown_operator(m: Any) -> None:
    m.graph.node[0].op_type = "Frobnicate"


def unknown_custom_operator(m: Any) -> None:
    m.graph.node[0].op_type, m.graph.node[0].domain = "Frobnicate", "acme"
    m.opset_import.append(onnx.helper.make_opsetid("acme", 1))


NAMED: dict[str, tuple[bytes, str]] = {
    "truncated": (good().SerializeToString()[:-40], "truncated"),
    "cut after the first bytes": (good().SerializeToString()[:6], "no ONNX model"),
    "cyclic": (changed(cyclic), "is not output of any previous nodes"),
    "function that calls itself": (changed(recursive), "own::f"),
    "missing external data": (changed(lambda m: kept_in(m, "weights.bin")), "not beside the model"),
    "external data above": (changed(lambda m: kept_in(m, "../w.bin")), "not inside the model's folder"),
    "external data above, hidden": (changed(lambda m: kept_in(m, "a/../../w.bin")), "not inside"),
    "external data above, by backslash": (changed(lambda m: kept_in(m, "..\\w.bin")), "not inside"),
    "absolute external data": (changed(lambda m: kept_in(m, "/etc/hostname")), "not inside"),
    "external data without a place": (changed(lambda m: kept_in(m, "")), "not inside"),
    "external data that is a link": (changed(lambda m: kept_in(m, "link")), "a link"),
    "external data through a linked folder": (changed(lambda m: kept_in(m, "out/w.bin")), "a link"),
    "external data too short": (changed(lambda m: kept_in(m, "short.bin")), "has 16"),
    "external data from before its start": (changed(lambda m: kept_in(m, "short.bin", -16, 16)), "bytes"),
    "external data of a size that is none": (
        changed(lambda m: kept_in(m, "short.bin", length="many")),  # type: ignore[arg-type]
        "no number",
    ),
    "external data in a folder": (changed(lambda m: kept_in(m, "folder")), "not beside the model"),
    "opset 1": (changed(opset(1)), "opset 1"),
    "opset of the future": (changed(opset(9999)), "opset 9999"),
    "no opset": (changed(lambda m: m.ClearField("opset_import")), "opset"),
    "random bytes": (b"\x08" + Random(1).randbytes(400), "no ONNX model"),
    "one number": (b"\x08\x0b", "has no graph"),
    "huge input": (changed(enormous), "2**48 elements"),
    "huge extent": (changed(lambda m: dims(m.graph.input[0], 1 << 62, 1 << 62)), "2**48 elements"),
    "negative extent": (changed(lambda m: dims(m.graph.input[0], -4, 8)), "the size -4"),
    "huge weight": (changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, 1 << 50)), "too small"),
    "empty graph": (changed(empty_graph), "no outputs"),
    "no outputs": (changed(lambda m: m.graph.ClearField("output")), "no outputs"),
    "extent without value": (
        changed(lambda m: m.graph.input[0].type.tensor_type.shape.dim[0].Clear()),
        "input `x` has a size without a name",
    ),
    "symbolic extent": (
        changed(lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", "batch")),
        "the size `batch`",
    ),
    "input of unknown rank": (
        changed(lambda m: m.graph.input[0].type.tensor_type.ClearField("shape")),
        "'shape' of 'type'",
    ),
    "unknown operator": (changed(unknown_operator), "Frobnicate"),
    "unknown operator of unknown types": (changed(unknown_custom_operator), "types of its results"),
    "output that nothing gives": (changed(lambda m: setattr(m.graph.output[0], "name", "q")), "q"),
    "shapes that do not fit": (changed(lambda m: dims(m.graph.input[0], 4, 9)), "MatMul"),
    "strings": (
        changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 8)),
        "input `x` holds strings",
    ),
    "element type that is none": (
        changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99)),
        "input `x` has type 99",
    ),
    "weight of too few bytes": (
        changed(lambda m: setattr(m.graph.initializer[0], "raw_data", b"1234")),
        "too small",
    ),
}


def surroundings(folder: Path) -> Path:
    """A folder for the model with what its external data may point to, inside and outside."""
    inside = folder / "inside"
    inside.mkdir()
    (folder / "w.bin").write_bytes(WEIGHT.tobytes())
    (inside / "short.bin").write_bytes(bytes(16))
    (inside / "folder").mkdir()
    os.symlink(folder / "w.bin", inside / "link")
    os.symlink(folder, inside / "out")
    return inside


@pytest.mark.parametrize("place", ["reference", "implementation"])
@pytest.mark.parametrize("name", NAMED)
def test_bad_file_is_one_line(
    name: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, expected = NAMED[name]
    inside = surroundings(tmp_path)
    own, bad = save(good(), inside / "good.onnx"), inside / "bad.onnx"
    bad.write_bytes(content)
    pair = (str(bad), own) if place == "reference" else (own, str(bad))
    assert run(["verify", *pair]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error[E01]: ") and len(err.splitlines()) == 1, err
    assert "bad.onnx: " in err and expected in err and "Traceback" not in err
    assert "without its own message" not in err


def with_function() -> Any:
    """A model with a function of its own, a branch, and integers that shapes are made of."""
    body = [node("Mul", "a k", "m"), node("Relu", "m", "b")]
    opsets = [onnx.helper.make_opsetid("", 18)]
    branches = [
        onnx.helper.make_graph([node(op, "h", out)], out, [], [onnx.ValueInfoProto(name=out)])
        for op, out in (("Abs", "t"), ("Neg", "e"))
    ]
    nodes = [
        node("twice", "x k", "h", "own"),
        node("If", "c", "i", then_branch=branches[0], else_branch=branches[1]),
        node("Reshape", "i shape", "r"),
        node("Slice", "r starts ends axes", "s"),
        node("ReduceSum", "s axes", "y", keepdims=0),
    ]
    stored = {
        "c": np.array(True),
        "k": np.ones(8, np.float32),
        "shape": np.array([2, -1]),
        "starts": np.array([0]),
        "ends": np.array([12]),
        "axes": np.array([1]),
    }
    found = model(nodes, {"x": (4, 8)}, {"y": (2,)}, stored)
    found.functions.append(onnx.helper.make_function("own", "twice", ["a", "k"], ["b"], body, opsets))
    found.opset_import.append(onnx.helper.make_opsetid("own", 1))
    return found


def flipped(data: bytes, rng: Random) -> bytes:
    """The bytes with one to three of them changed, cut out or doubled."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(1, len(found))
        kind = rng.random()
        if kind < 0.7:
            found[at] = rng.randrange(256)
        elif kind < 0.85:
            del found[at]
        else:
            found.insert(at, found[at])
    return bytes(found)


def divided() -> Any:
    """A model annotated for two devices, with fused operators."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("SkipLayerNormalization", "h h b", "n", "com.microsoft", epsilon=0.5),
        node("QuickGelu", "n", "y", "com.microsoft", alpha=2.0),
    ]
    found = model(nodes, {"x": (4, 8)}, {"y": (4, 4)}, {"w": WEIGHT, "b": np.ones(4, np.float32)})
    found.configuration.add(name="two", num_devices=2)
    for n in found.graph.node:
        spec = n.device_configurations.add(configuration_id="two").sharding_spec.add(device=[0, 1])
        spec.tensor_name = n.output[0]
        spec.sharded_dim.add(axis=0).simple_sharding.add(num_shards=2)
    return found


@pytest.mark.parametrize("made", [good, with_function, divided])
def test_flipped_bytes_are_an_error_or_a_program(made: Callable[[], Any], tmp_path: Path) -> None:
    data, rng, path = made().SerializeToString(), Random(11), tmp_path / "model.onnx"
    path.write_bytes(data)
    load(path)
    refused = 0
    for _ in range(150):
        path.write_bytes(flipped(data, rng))
        try:
            load(path)
        except ModuleError as error:
            refused += 1
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
            assert "without its own message" not in str(error)
    assert refused > 30


def messages(message: Any) -> Iterator[Any]:
    """A message and all inside of it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from messages(inner)


NUMBERS = (-(1 << 63), -7, -1, 0, 1, 2, 3, 5, 8, 11, 16, 1 << 31, (1 << 63) - 1)


def edited(proto: Any, rng: Random) -> Any:
    """The model with one field of one message changed, taken away, doubled or moved."""
    found = proto.__class__.FromString(proto.SerializeToString())
    places = [m for m in messages(found) if m.ListFields()]
    message = rng.choice(places)
    field, value = rng.choice(message.ListFields())
    repeated = not (hasattr(value, "ListFields") or isinstance(value, int | float | str | bytes))
    other = rng.choice([s for m in places for f, s in m.ListFields() if isinstance(s, str)])
    if repeated:
        items = list(value)
        change = rng.choice(["drop", "double", "turn", "new"])
        if change == "new" and isinstance(items[0], int | str):
            items[rng.randrange(len(items))] = rng.choice(NUMBERS) if isinstance(items[0], int) else other
        elif change == "double":
            items.append(rng.choice(items))
        elif change == "turn":
            items.reverse()
        else:
            del items[rng.randrange(len(items))]
        if hasattr(items[0] if items else None, "ListFields"):
            items = [i.__class__.FromString(i.SerializeToString()) for i in items]
        message.ClearField(field.name)
        getattr(message, field.name).extend(items)
    elif isinstance(value, str):
        setattr(message, field.name, other)
    elif isinstance(value, int) and rng.random() < 0.8:
        narrow = field.cpp_type != field.CPPTYPE_INT64
        setattr(message, field.name, rng.choice(NUMBERS[1:-2] if narrow else NUMBERS))
    else:
        message.ClearField(field.name)
    return found


@pytest.mark.parametrize("made", [good, with_function, divided])
def test_edited_models_are_an_error_or_a_program(
    made: Callable[[], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command line ends with an answer or with one line that says what is wrong."""
    proto, rng = made(), Random(12)
    own, path = save(proto, tmp_path / "own.onnx"), tmp_path / "edited.onnx"
    refused = 0
    for _ in range(40):
        try:
            data = edited(proto, rng).SerializeToString()
        except ValueError:
            continue
        path.write_bytes(data)
        code = run(["verify", own, str(path), "--timeout", "0.5"])
        err = capsys.readouterr().err
        assert code in (0, 1, 2, 3), err
        if code == 3:
            refused += 1
            assert len(err.splitlines()) == 1 and "without its own message" not in err, err
    assert refused > 10


def test_the_same_models_read_when_nothing_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """External data beside the model is read, so what is refused above is refused for its place."""
    inside = surroundings(tmp_path)
    own, other = save(good(), inside / "good.onnx"), inside / "other.onnx"
    (inside / "beside.bin").write_bytes(WEIGHT.tobytes())
    other.write_bytes(changed(lambda m: kept_in(m, "beside.bin")))
    assert run(["verify", own, str(other)]) == 0
    capsys.readouterr()

"""Export archives: graph, weights and constants without torch; hostile archives are refused."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.frontends.fx.archive.read import read_archive, read_weights
from shardproof.frontends.fx.archive.values import expression
from shardproof.frontends.fx.code.ranks import read_ranks
from shardproof.frontends.fx.graph import Graph, Node, Ref, Symbol, Tensor
from shardproof.frontends.load import load
from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType

F32, S64, BF16 = 7, 5, 13
SYMBOL = "Symbol('s7', positive=True, integer=True)"


def described(
    dtype: int, *sizes: int | str, strides: list[int] | None = None, offset: int = 0
) -> dict[str, Any]:
    """A tensor's metadata; a str is a symbolic size."""
    row_major = [int(np.prod([s for s in sizes[i + 1 :] if isinstance(s, int)])) for i in range(len(sizes))]
    return {
        "dtype": dtype,
        "sizes": [{"as_int": s} if isinstance(s, int) else {"as_expr": {"expr_str": s}} for s in sizes],
        "strides": [{"as_int": s} for s in (row_major if strides is None else strides)],
        "storage_offset": {"as_int": offset},
        "device": {"type": "cpu", "index": None},
        "layout": 7,
        "requires_grad": False,
    }


def payload(path: str, meta: dict[str, Any], *, pickled: bool = False) -> dict[str, Any]:
    return {"path_name": path, "is_param": True, "use_pickle": pickled, "tensor_meta": meta}


def value(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def call(
    target: str, outputs: list[Any], *args: Any, name: str | None = None, **kwargs: Any
) -> dict[str, Any]:
    positional = [{"name": f"a{i}", "arg": arg, "kind": 1} for i, arg in enumerate(args)]
    keyword = [{"name": key, "arg": arg, "kind": 2} for key, arg in kwargs.items()]
    trace = 'File "model.py", line 4, in outer\n    f(x)\nFile "block.py", line 9, in f\n    x @ w'
    metadata = {"stack_trace": trace}
    return {
        "target": target,
        "inputs": positional + keyword,
        "outputs": outputs,
        "metadata": metadata,
        "name": name,
    }


def model(batch: int | str = SYMBOL, alpha: float | str = "NaN") -> dict[str, Any]:
    """A linear layer with a running buffer, a lifted constant, a split, and a size that is computed."""
    twice = 2 * batch if isinstance(batch, int) else f"Mul(Integer(2), {batch})"
    nodes = [
        call("torch.ops.aten.sym_size.int", [{"as_sym_int": {"as_name": "n"}}], value("x"), {"as_int": 0}),
        call("torch.ops.aten.linear.default", [value("lin")], value("x"), value("p_w"), {"as_none": True}),
        call(
            "torch.ops.aten.split.Tensor",
            [{"as_tensors": [{"name": "left"}, {"name": "right"}]}],
            value("lin"),
            {"as_int": 2},
            {"as_int": -1},
            name="split",
        ),
        call(
            "torch.ops.aten.cat.default",
            [value("cat")],
            {"as_tensors": [{"name": "right"}, {"name": "left"}]},
            {"as_int": -1},
        ),
        call(
            "torch.ops.aten.add.Tensor",
            [value("shifted")],
            value("cat"),
            value("c_k"),
            alpha={"as_float": alpha},
        ),
        call("torch.ops.aten.mul.Tensor", [value("state")], value("b_s"), {"as_int": 2}),
        call(
            "torch.ops.aten.to.dtype",
            [value("wide")],
            value("shifted"),
            dtype={"as_scalar_type": 8},
            device={"as_device": {"type": "cuda", "index": 1}},
        ),
        call(
            "_operator.mul",
            [{"as_sym_int": {"as_name": "twice"}}],
            {"as_sym_int": {"as_name": "n"}},
            {"as_int": 2},
        ),
        call(
            "torch.ops.aten.view.default",
            [value("flat")],
            value("wide"),
            {"as_sym_ints": [{"as_name": "twice"}, {"as_int": 2}]},
        ),
    ]
    tensors = {name: described(F32, batch, 4) for name in ("x", "lin", "cat", "shifted")}
    tensors |= {name: described(F32, batch, 2) for name in ("left", "right")}
    tensors |= {"p_w": described(BF16, 4, 4), "b_s": described(F32, 3), "state": described(F32, 3)}
    tensors |= {"c_k": described(F32, 4), "wide": described(8, batch, 4)}
    tensors["flat"] = described(8, twice, 2)
    sizes = {
        name: {"as_int": size} if isinstance(size, int) else {"as_expr": {"expr_str": size}}
        for name, size in (("n", batch), ("twice", twice))
    }
    inputs = ["p_w", "b_s", "c_k", "x"]
    signature = {
        "input_specs": [
            {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "layers.0.w"}},
            {"buffer": {"arg": {"name": "b_s"}, "buffer_name": "steps", "persistent": True}},
            {"tensor_constant": {"arg": {"name": "c_k"}, "tensor_constant_name": "k"}},
            {"user_input": {"arg": value("x")}},
            {"constant_input": {"name": "flag", "value": {"as_bool": True}}},
        ],
        "output_specs": [
            {"buffer_mutation": {"arg": {"name": "state"}, "buffer_name": "steps"}},
            {"user_output": {"arg": value("flat")}},
            {"user_output": {"arg": {"as_none": True}}},
        ],
    }
    graph = {
        "inputs": [value(name) for name in inputs] + [{"as_bool": True}],
        "outputs": [value("state"), value("flat"), {"as_none": True}],
        "nodes": nodes,
        "tensor_values": tensors,
        "sym_int_values": sizes,
        "sym_bool_values": {},
    }
    version = {"major": 8, "minor": 20}
    return {"graph_module": {"graph": graph, "signature": signature}, "schema_version": version}


def members() -> dict[str, bytes]:
    """The members of an archive of `model()`."""
    weights = np.arange(16, dtype=np.float32).view(np.uint32) >> 16
    pickled = pickle.dumps({"never": "read"})
    config = {
        "layers.0.w": payload("weight_0", described(BF16, 4, 4, strides=[1, 4])),
        "steps": payload("weight_1", described(F32, 3, offset=1)),
    }
    constants = {"k": payload("tensor_0", described(F32, 4))}
    return {
        "models/model.json": json.dumps(model()).encode(),
        "data/weights/model_weights_config.json": json.dumps({"config": config}).encode(),
        "data/weights/weight_0": weights.astype("<u2").tobytes(),
        "data/weights/weight_1": np.array([9, 1, 2, 3], "<f4").tobytes(),
        "data/constants/model_constants_config.json": json.dumps({"config": constants}).encode(),
        "data/constants/tensor_0": np.array([1, 2, 3, 4], "<f4").tobytes(),
        "data/sample_inputs/model.pt": pickled,
        "extra/dist.json": b'{"rank": 1, "groups": {"tp": [0, 1]}}',
        "byteorder": b"little",
    }


def archive(content: dict[str, bytes], *, method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as zipped:
        for name, data in content.items():
            zipped.writestr(f"program/{name}" if not name.startswith("!") else name[1:], data)
    return file.getvalue()


def read(data: bytes) -> Graph:
    return read_archive(io.BytesIO(data), "m.pt2")


def changed(**parts: Any) -> bytes:
    """An archive whose model has other values at dotted paths, written with `__` between keys."""
    document = model()
    for path, new in parts.items():
        *keys, last = path.split("__")
        place: Any = document
        for key in keys:
            place = place[int(key)] if isinstance(place, list) else place[key]
        place[int(last) if isinstance(place, list) else last] = new
    return archive({**members(), "models/model.json": json.dumps(document).encode()})


def node(graph: Graph, name: str) -> Node:
    return next(node for node in graph.nodes if node.name == name)


def test_the_program_of_an_archive() -> None:
    graph = read(archive(members()))
    assert graph.name == "m" and graph.rank == 1 and dict(graph.groups) == {"tp": (0, 1)}
    assert [n.name for n in graph.placeholders] == ["p_w", "b_s", "x"]
    assert dict(graph.titles) == {"p_w": "layers.0.w", "b_s": "steps"}
    assert dict(graph.updates) == {0: "b_s"}
    assert graph.outputs == (Ref("state"), Ref("flat"), None)
    assert node(graph, "p_w").meta == Tensor(DType.BF16, (4, 4))
    assert node(graph, "x").meta == Tensor(DType.F32, ("s7", 4))
    assert node(graph, "c_k").op == "get_attr" and node(graph, "c_k").target == "k"
    np.testing.assert_array_equal(graph.constants["k"], [1, 2, 3, 4])


def test_the_calls_of_an_archive() -> None:
    graph = read(archive(members()))
    assert node(graph, "n").target == "aten.sym_size.int" and node(graph, "n").meta == Symbol("s7")
    assert node(graph, "lin").args == (Ref("x"), Ref("p_w"), None)
    assert str(node(graph, "lin").location) == "block.py:9"
    assert node(graph, "split").meta == (Tensor(DType.F32, ("s7", 2)),) * 2
    assert node(graph, "right").target == "getitem" and node(graph, "right").args == (Ref("split"), 1)
    assert node(graph, "cat").args == ((Ref("right"), Ref("left")), -1)
    alpha = node(graph, "shifted").kwargs["alpha"]
    assert isinstance(alpha, float) and alpha != alpha
    assert dict(node(graph, "wide").kwargs) == {"dtype": DType.F64, "device": "cuda:1"}
    assert node(graph, "twice").target == "mul" and node(graph, "twice").args == (Ref("n"), 2)
    assert node(graph, "flat").args == (Ref("wide"), (Ref("twice"), 2))
    assert node(graph, "flat").meta == Tensor(DType.F64, ("2*s7", 2))


def test_the_weights_of_an_archive() -> None:
    weights = read_weights(io.BytesIO(archive(members())), "m.pt2")
    np.testing.assert_array_equal(weights["layers.0.w"], np.arange(16).reshape(4, 4).T)
    np.testing.assert_array_equal(weights["steps"], [1, 2, 3])
    assert set(weights) == {"layers.0.w", "steps", "k"}


def test_a_weight_on_the_meta_device_has_no_elements() -> None:
    config = {"w": payload("weight_0", described(F32, 3))}
    config["w"]["tensor_meta"]["device"]["type"] = "meta"
    content = {**members(), "data/weights/model_weights_config.json": json.dumps({"config": config}).encode()}
    content["data/weights/weight_0"] = b""
    assert set(read_weights(io.BytesIO(archive(content)), "m.pt2")) == {"k"}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (SYMBOL, "s7"),
        (f"Add(Mul(Integer(2), {SYMBOL}), Integer(1))", "(2*s7) + 1"),
        (f"Mul(Integer(-1), {SYMBOL})", "-1*s7"),
        (f"FloorDiv({SYMBOL}, Integer(2))", "(s7//2)"),
        (f"Max(Integer(1), {SYMBOL})", "Max(1, s7)"),
    ],
)
def test_symbolic_expressions_are_rewritten_without_evaluation(text: str, written: str) -> None:
    assert expression(text) == written


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch canary')",
        "Symbol('x').__class__",
        "Symbol('a b')",
        "Lambda(Symbol('x'))",
        "Integer(open('canary', 'w'))",
        "[x for x in (1,)]",
        "-" * 4000 + "1",
        "Add(" * 200 + "Integer(1)" + ")" * 200,
        "x" * 10_000,
        "Add(",
    ],
)
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises(ModuleError, match="symbol"):
        expression(text)


class Canary:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, (f"open({str(self.path)!r}, 'w')",))


def test_a_pickled_payload_is_refused_and_never_loaded(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    hostile = pickle.dumps(Canary(canary))
    config = {"w": payload("weight_0", described(F32, 3), pickled=True)}
    content = {**members(), "data/sample_inputs/model.pt": hostile, "data/weights/weight_0": hostile}
    read(archive(content))
    content["data/weights/model_weights_config.json"] = json.dumps({"config": config}).encode()
    with pytest.raises(ModuleError, match=r"^m\.pt2: holds 'w' pickled, which is never read"):
        read(archive(content))
    path = tmp_path / "m.pt2"
    path.write_bytes(archive(content))
    run = subprocess.run(
        [sys.executable, "-m", "shardproof", "inspect", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 3 and "pickled" in run.stderr
    assert not canary.exists()


@pytest.mark.parametrize(
    "name",
    [
        "!../evil",
        "!/etc/evil",
        "!program/../../evil",
        "!program/./x",
        "!program\\..\\evil",
        "!a\x01b/c",
        "!C:/x",
    ],
)
def test_a_path_that_leaves_the_archive_is_refused(name: str) -> None:
    with pytest.raises(ModuleError, match=r"^m\.pt2: holds a member named .*leaves the archive's folder"):
        read(archive({**members(), name: b"x"}))


@pytest.mark.parametrize("path", ["../weight_0", "a/b", "..", ""])
def test_a_payload_outside_of_its_folder_is_refused(path: str) -> None:
    config = {"w": payload(path, described(F32, 3))}
    content = {**members(), "data/weights/model_weights_config.json": json.dumps({"config": config}).encode()}
    with pytest.raises(ModuleError, match=r"^m\.pt2: 'w' names the file .*leaves its folder"):
        read(archive(content))


def test_a_zip_bomb_is_refused_before_it_is_unpacked() -> None:
    content = {**members(), "data/weights/weight_9": bytes(64 << 20)}
    with pytest.raises(ModuleError, match=r"weight_9 unpacks to 67108864 bytes, 100 times its size or more"):
        read(archive(content, method=zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"!../evil": b"x"}, "leaves the archive's folder"),
        ({"data/weights/weight_9": bytes(8 << 20)}, "unpacks to 8388608 bytes"),
    ],
)
def test_the_command_refuses_a_hostile_archive(
    extra: dict[str, bytes], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from shardproof.tools.command_line import run

    path = tmp_path / "m.pt2"
    path.write_bytes(archive({**members(), **extra}, method=zipfile.ZIP_DEFLATED))
    for command in (["verify", str(path), str(path)], ["inspect", str(path)]):
        assert run(command) == 3
        (line,) = capsys.readouterr().err.splitlines()
        assert str(path) in line and message in line
    assert [p.name for p in tmp_path.iterdir()] == ["m.pt2"]


def test_a_member_that_lies_about_its_size_is_refused() -> None:
    data = archive(members(), method=zipfile.ZIP_DEFLATED)
    name = b"program/models/model.json"
    directory = data.rindex(b"PK\x01\x02", 0, data.rindex(name))
    lying = bytearray(data)
    lying[directory + 24 : directory + 28] = (100).to_bytes(4, "little")
    with pytest.raises(ModuleError, match=r"^m\.pt2: models/model\.json (is damaged|has|is not JSON)"):
        read(bytes(lying))


def test_two_members_of_one_name_are_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped, pytest.warns(UserWarning):
        for _ in range(2):
            zipped.writestr("program/models/model.json", b"{}")
    with pytest.raises(ModuleError, match="two members named"):
        read(file.getvalue())


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ({"schema_version__major": 9}, "version 9 of the export schema"),
        (
            {"graph_module__graph__nodes__1__target": "os.system"},
            "a call of 'os.system', which is no operator",
        ),
        ({"graph_module__graph__nodes__1__target": "torch.load"}, "a call of 'torch.load'"),
        ({"graph_module__graph__nodes__1__target": "_operator.call"}, "a call of '_operator.call'"),
        ({"graph_module__graph__nodes__1__inputs__0__arg": {"as_graph": {}}}, "kind 'as_graph'"),
        ({"graph_module__graph__nodes__1__inputs__0__arg": value("nobody")}, "reads 'nobody'"),
        (
            {"graph_module__graph__nodes__1__inputs__0__arg": value("cat")},
            "reads 'cat', which nothing before",
        ),
        ({"graph_module__graph__nodes__1__inputs__0__arg": {"as_int": "3"}}, "not an integer"),
        ({"graph_module__graph__nodes__1__outputs": [value("x")]}, "second definition of 'x'"),
        ({"graph_module__graph__nodes__1__outputs": [value("a b")]}, "not a name"),
        ({"graph_module__graph__tensor_values__x__dtype": 9}, "element type '9'"),
        ({"graph_module__graph__tensor_values__x__sizes": [{"as_int": -1}]}, "extent -1"),
        ({"graph_module__graph__outputs": []}, "describes 3 results, the graph has 0"),
        ({"graph_module__graph__nodes": {}}, "'nodes' is missing or not of type list"),
        ({"graph_module__signature__input_specs__0": {"token": {}}}, "an input of kind 'token'"),
        ({"graph_module__signature__output_specs__0__buffer_mutation__buffer_name": "q"}, "overwrites 'q'"),
    ],
)
def test_a_program_that_does_not_fit_is_refused(parts: dict[str, Any], found: str) -> None:
    with pytest.raises(ModuleError, match=f"^m\\.pt2: .*{found}"):
        read(changed(**parts))


@pytest.mark.parametrize(
    "meta",
    [
        described(F32, 5),
        described(F32, 2, strides=[9]),
        described(F32, 4, offset=1),
        described(F32, 2, 2, strides=[1]),
        described(8, 4),
        described(F32, 1 << 40, strides=[0]),
        described(F32, SYMBOL),
    ],
)
def test_a_description_that_does_not_fit_its_bytes_is_refused(meta: dict[str, Any]) -> None:
    config = {"config": {"k": payload("tensor_0", meta)}}
    content = {**members(), "data/constants/model_constants_config.json": json.dumps(config).encode()}
    with pytest.raises(ModuleError, match=r"^m\.pt2: tensor 'k': "):
        read(archive(content))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"models/model.json": b"{" * 100_000}, "is not JSON"),
        ({"models/model.json": b"[" * 100_000}, "is not JSON"),
        ({"models/model.json": b"[]"}, "'schema_version' is missing"),
        ({"serialized_exported_program.json": b"{}"}, "lacks 'models/model.json'"),
        ({"models/model.json": b"{}", "!other/x": b""}, "exactly one folder"),
        ({"!x": b""}, "outside of a folder"),
    ],
)
def test_another_archive_is_refused(content: dict[str, bytes], found: str) -> None:
    with pytest.raises(ModuleError, match=found):
        read(archive(content))


def test_an_archive_is_loaded_like_any_other_program(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    document = model(6, 0.5)
    document["graph_module"]["graph"]["tensor_values"]["p_w"] = described(F32, 4, 4)
    path.write_bytes(archive({**members(), "models/model.json": json.dumps(document).encode()}))
    module = load(path)
    assert [given.name for given in module.inputs] == ["layers.0.w", "steps", "x"]
    assert [output.name for output in module.outputs] == ["state", "flat"]
    assert [output.updates for output in module.outputs] == ["steps", None]
    assert module.outputs[1].value.type.shape == (12, 2)
    assert read_ranks([path])[0].rank == 1


def test_what_is_no_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(archive(members())[:200])
    with pytest.raises(ModuleError, match=r"m\.pt2: is not a readable zip archive"):
        load(path)


def test_neither_torch_nor_pickle_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(archive(members()))
    code = (
        "import sys; from pathlib import Path; from shardproof.frontends.fx.archive.read import read_archive;"
        f"before = 'pickle' in sys.modules; read_archive(Path({str(path)!r}), 'm');"
        "assert 'torch' not in sys.modules and ('pickle' in sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


SAMPLE = archive(members())
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 1 << 70), st.text(max_size=3), st.just([]), st.just({})
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *(place for key in keys for place in places(value[key], (*path, key)))]


PLACES = [place for place in places(model()) if place]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), leaves), min_size=1, max_size=2))
def test_a_changed_model_is_read_or_refused_with_one_line(edits: list[tuple[tuple[Any, ...], Any]]) -> None:
    document = copy.deepcopy(model())
    for path, new in edits:
        place: Any = document
        for key in path[:-1]:
            inside = isinstance(place, dict) and key in place
            inside = inside or (isinstance(place, list) and isinstance(key, int) and key < len(place))
            if not inside:
                break
            place = place[key]
        else:
            if isinstance(place, dict) or (isinstance(place, list) and path[-1] in range(len(place))):
                place[path[-1]] = new
    try:
        read(archive({**members(), "models/model.json": json.dumps(document).encode()}))
    except ModuleError as error:
        assert str(error).startswith("m.pt2: ") and "\n" not in str(error)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(SAMPLE)), st.integers(0, 8), st.binary(max_size=4)),
        min_size=1,
        max_size=3,
    )
)
def test_a_damaged_archive_is_read_or_refused_with_one_line(edits: list[tuple[int, int, bytes]]) -> None:
    data = SAMPLE
    for place, dropped, added in edits:
        data = data[:place] + added + data[place + dropped :]
    try:
        read(data)
    except ModuleError as error:
        assert str(error).startswith("m.pt2: ") and "\n" not in str(error)

"""The frame that is shown: the innermost that the user wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hlo_writer import to_proto

from shardproof.frontends.load import load
from shardproof.frontends.locate import (
    WRAPPER_FILES,
    Locator,
    configured_wrapper_files,
    innermost,
    is_wrapper,
)
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import Frame


def _frames(*places: str) -> list[Frame]:
    return [Frame(p.rpartition(":")[0], int(p.rpartition(":")[2])) for p in places]


def test_innermost_user_frame() -> None:
    frames = _frames(
        "/home/u/train.py:3",
        "/home/u/nets/attention.py:12",
        "/src/transformers_neuronx/hlo.py:1935",
        "/v/lib/python3.11/site-packages/torch_neuronx/pyhlo/scribe.py:553",
    )
    location = innermost(frames)
    assert location is not None
    assert (location.file, location.line) == ("/home/u/nets/attention.py", 12)
    assert location.stack == tuple(frames)


def test_a_file_of_the_same_name_elsewhere_is_no_wrapper() -> None:
    assert is_wrapper("/src/transformers_neuronx/hlo.py", WRAPPER_FILES)
    assert not is_wrapper("/src/transformers_neuronx/llama/hlo.py", WRAPPER_FILES)
    assert not is_wrapper("/src/my_transformers_neuronx/hlo.py", WRAPPER_FILES)
    assert is_wrapper("C:\\v\\jax\\_src\\pjit.py", WRAPPER_FILES)
    assert is_wrapper("hlo.py", ("hlo.py",))


def test_without_a_user_frame_the_nearest_is_shown() -> None:
    installed = _frames("/v/site-packages/net/a.py:1", "/v/site-packages/jax/_src/core.py:2")
    assert str(innermost(installed)) == "/v/site-packages/net/a.py:1"
    assert str(innermost(installed[1:])) == "/v/site-packages/jax/_src/core.py:2"
    assert innermost([]) is None


def test_wrapper_files_come_from_the_project(tmp_path: Path) -> None:
    assert configured_wrapper_files(tmp_path) == WRAPPER_FILES
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.shardproof]\nwrapper_files = ["my/ops.py"]\n')
    assert configured_wrapper_files(tmp_path) == (*WRAPPER_FILES, "my/ops.py")
    project.write_text("[tool.shardproof]\nwrapper_files = 3\n")
    with pytest.raises(ModuleError, match="must be a list"):
        configured_wrapper_files(tmp_path)
    project.write_text("[tool")
    with pytest.raises(ModuleError, match="can't be read"):
        configured_wrapper_files(tmp_path)


def test_stack_inside_the_source_file() -> None:
    text = "/a/main.py\n----\n['/a/main.py:3', '/a/net.py:7', '/x/transformers_neuronx/hlo.py:9']"
    location = Locator().from_text(text, 46)
    assert str(location) == "/a/net.py:7"
    assert Locator().from_text(text, 46) is not None
    assert Locator((*WRAPPER_FILES, "a/net.py")).from_text(text, 46) != location


@pytest.mark.parametrize(
    "stack",
    ["__import__('os').getcwd()", "[", "3", "[1, 2]", "['a:1'" + ", 'a:1'" * 20000 + "]", "[" * 500, ""],
)
def test_a_stack_that_is_not_a_list_of_frames(stack: str) -> None:
    assert str(Locator().from_text(f"/a/main.py\n----\n{stack}", 46)) == "/a/main.py:46"


def test_odd_frames_keep_their_text() -> None:
    location = Locator().from_text("f\n----\n['/a/net.py:x', 'C:\\\\n.py:4']", 1)
    assert location is not None and location.stack == (Frame("/a/net.py:x", 0), Frame("C:\\n.py", 4))


TEXT = """HloModule m

FileNames
1 "/home/u/net.py"
2 "/v/site-packages/jax/_src/core.py"

FunctionNames
1 "layer"
2 "bind"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=4 end_column=9}
2 {file_name_id=2 function_name_id=2 line=90 end_line=90 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

ENTRY e {
  x = f32[2] parameter(0)
  ROOT y = f32[2] negate(x), metadata={op_type="n" op_name="layer/neg" stack_frame_id=2}
}
"""


def test_stack_frame_index(load_text: Callable[..., Module]) -> None:
    message = to_proto(TEXT)
    index = message.stack_frame_index
    index.file_names.extend(["/home/u/net.py", "/v/site-packages/jax/_src/core.py"])
    index.function_names.extend(["layer", "bind"])
    index.file_locations.add(file_name_id=1, function_name_id=1, line=12)
    index.file_locations.add(file_name_id=2, function_name_id=2, line=90)
    index.stack_frames.add(file_location_id=1)
    index.stack_frames.add(file_location_id=2, parent_frame_id=1)
    message.computations[0].instructions[1].metadata.stack_frame_id = 2
    expected = (
        Frame("/home/u/net.py", 12, "layer"),
        Frame("/v/site-packages/jax/_src/core.py", 90, "bind"),
    )
    for content in (TEXT, message.SerializeToString()):
        location = load_text(content).ops[0].location
        assert location is not None
        assert str(location) == "/home/u/net.py:12" and location.stack == expected


def test_a_stack_that_is_its_own_parent_ends(load_text: Callable[..., Module]) -> None:
    message = to_proto(TEXT)
    message.stack_frame_index.stack_frames.add(file_location_id=7, parent_frame_id=1)
    message.computations[0].instructions[1].metadata.stack_frame_id = 1
    assert load_text(message.SerializeToString()).ops[0].location is None


def test_load_takes_wrapper_files(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_text(TEXT)
    location = load(path, wrapper_files=("u/net.py",)).ops[0].location
    assert location is not None and location.file.endswith("core.py")


def test_pythons_own_library_is_not_shown() -> None:
    frames = (
        Frame("/home/u/net.py", 12, "layer"),
        Frame("/usr/lib/python3.11/contextlib.py", 81, "inner"),
        Frame("/v/lib/python3.12/site-packages/mine/block.py", 7, "block"),
    )
    assert is_wrapper(frames[1].file, ()) and not is_wrapper(frames[2].file, ())
    location = innermost(frames[:2])
    assert location is not None and str(location) == "/home/u/net.py:12"

"""Where a value was written: the frame a user wants to see, out of the stack a framework recorded."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardproof.ir.module import ModuleError
from shardproof.ir.types import Frame, Location

WRAPPER_FILES: Final = (
    "transformers_neuronx/hlo.py",
    "torch_neuronx/pyhlo/",
    "neuronx_distributed/trace/",
    "pyhlo/scribe.py",
    "jax/_src/",
    "jax/experimental/",
    "flax/core/",
    "flax/linen/",
    "flax/nnx/",
    "equinox/",
    "torch/",
    "torch_xla/",
    "functorch/",
    "onnxscript/",
)
"""Files that only pass a call on: operator wrappers and tracers. A name that ends in `/` is a folder.

`[tool.shardproof] wrapper_files` in pyproject.toml adds to them.
"""

MAX_STACK_TEXT: Final = 1 << 16
_FRAME: Final = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9}), in ([^\n]{1,200})')
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
_STANDARD: Final = re.compile(r"/lib/python3\.\d+/(?!site-packages/|dist-packages/)")
"""Where Python's own library is, such as `contextlib`, through which decorated functions are called."""


def is_wrapper(file: str, wrapper_files: Sequence[str]) -> bool:
    """Whether `file` is one of `wrapper_files`, or of Python's own library."""
    return _STANDARD.search("/" + file.replace("\\", "/")) is not None or is_one_of(file, wrapper_files)


def is_one_of(file: str, names: Sequence[str]) -> bool:
    """Whether `file` has one of these names, or is in a folder with one that ends in `/`, compared by whole
    path components from the end."""
    path = "/" + file.replace("\\", "/").lstrip("/")
    return any(
        f"/{n.lstrip('/')}" in path if n.endswith("/") else path.endswith(f"/{n.lstrip('/')}") for n in names
    )


def innermost(frames: Sequence[Frame], wrapper_files: Sequence[str] = WRAPPER_FILES) -> Location | None:
    """The location to show for a stack (outermost first); None for an empty one.

    It is the innermost frame that is neither installed (site-packages, dist-packages) nor in a wrapper
    file; when there is none, the innermost that isn't in a wrapper file; then the innermost of all.
    """
    if not frames:
        return None
    shown = frames[-1]
    fallback = True
    for frame in reversed(frames):
        if is_wrapper(frame.file, wrapper_files):
            continue
        if not any(folder in frame.file.replace("\\", "/") for folder in _INSTALLED):
            shown = frame
            break
        if fallback:
            shown, fallback = frame, False
    return Location(shown.file, shown.line, tuple(frames))


def configured_wrapper_files(directory: Path) -> tuple[str, ...]:
    """`WRAPPER_FILES` and those that `directory`'s pyproject.toml adds.

    Raises `ModuleError` when that file is not valid TOML or the entry is not a list of strings.
    """
    path = directory / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return WRAPPER_FILES
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModuleError(f"{path}: can't be read: {' '.join(str(error).split())}") from None
    tool = table.get("tool", {})
    section = tool.get("shardproof", {}) if isinstance(tool, dict) else {}
    extra = section.get("wrapper_files", []) if isinstance(section, dict) else []
    if not isinstance(extra, list) or not all(isinstance(name, str) and name for name in extra):
        raise ModuleError(f"{path}: [tool.shardproof] wrapper_files must be a list of file names")
    return (*WRAPPER_FILES, *extra)


def frames_of(trace: str) -> tuple[Frame, ...]:
    """The frames of a traceback as Python prints it, outermost first; of a longer text those at its start."""
    found = _FRAME.findall(trace[:MAX_STACK_TEXT])
    return tuple(Frame(file, int(line), name.strip()) for file, line, name in found)


class Locator:
    """Turns recorded stacks into locations, each distinct one once."""

    def __init__(self, wrapper_files: Sequence[str] = WRAPPER_FILES) -> None:
        self._wrapper_files = tuple(wrapper_files)
        self._by_text: dict[tuple[str, int], Location | None] = {}
        self._by_trace: dict[str, Location | None] = {}
        self._frames: dict[str, Frame] = {}

    def from_text(self, source_file: str, line: int) -> Location | None:
        """A location from metadata: a file, or (NeuronX) a file, a dashed line and the list of frames."""
        key = (source_file, line)
        if key not in self._by_text:
            frames = self._parse(source_file, line)
            self._by_text[key] = innermost(frames, self._wrapper_files)
        return self._by_text[key]

    def from_frames(self, frames: Sequence[Frame]) -> Location | None:
        return innermost(frames, self._wrapper_files)

    def from_traceback(self, trace: str) -> Location | None:
        """A location from a traceback as Python prints it."""
        if trace not in self._by_trace:
            self._by_trace[trace] = self.from_frames(frames_of(trace))
        return self._by_trace[trace]

    def _parse(self, source_file: str, line: int) -> tuple[Frame, ...]:
        file, separator, stack = source_file.partition("\n----\n")
        alone = (Frame(file, line),) if file else ()
        if not separator or len(stack) > MAX_STACK_TEXT:
            return alone
        try:
            entries = ast.literal_eval(stack)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return alone
        if not isinstance(entries, (list, tuple)):
            return alone
        frames = tuple(self._frame(entry) for entry in entries if isinstance(entry, str))
        return frames or alone

    def _frame(self, entry: str) -> Frame:
        if entry not in self._frames:
            file, _, number = entry.rpartition(":")
            valid = bool(file) and number.isascii() and number.isdigit() and len(number) < 10
            self._frames[entry] = Frame(file, int(number)) if valid else Frame(entry, 0)
        return self._frames[entry]

"""The text form of a module: what `.spf` files hold and tests show.

    module "mlp" mesh(tp=2) {
      frame 0 = "train.py":3 in "main"
      %x = input(0) sharding=(1, 2) : f32[4,8]
      %y = all_reduce(%x) {kind="sum", groups=((0, 1),)} : f32[4,8] at "model.py":12 via (0)
      output "logits" = %y
    }

`parse(to_text(m))` equals `m` in every name, type, attribute bit, location, warning and guess. Small
arrays are listed row by row (a complex one as real and imaginary parts in turn), arrays of one
value are a `splat`, others are little-endian bytes in base64. The body of a loop is a module in
this form, with frames of its own.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Attributes, Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.parse import parse
from shardproof.ir.types import Frame

__all__ = ["parse", "to_text"]

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.$-]+")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_LISTED: Final = 32
_ELEMENTS: Final = {"b": "bool", "i": "s", "u": "u", "f": "f", "c": "c"}


def to_text(module: Module) -> str:
    """The text form; `ModuleError` for an attribute value that has none."""
    frames: dict[Frame, int] = {}
    body = [_input(parameter, frames) for parameter in module.inputs]
    body += [_operation(op, frames) for op in module.ops]
    body += [_output(output) for output in module.outputs]
    head = [f"warning {quote(text)}" for text in module.warnings]
    head += [f"guess {g.kind} {quote(g.text)} {quote(g.value)}" for g in module.guesses]
    head += [f"frame {i} = {_frame(frame)}" for frame, i in frames.items()]
    axes = ", ".join(f"{_bare(name)}={size}" for name, size in module.mesh.axes)
    rank = "" if module.rank is None else f" rank={module.rank}"
    lines = "".join(f"  {line}\n" for line in [*head, *body])
    return f"module {quote(module.name)} mesh({axes}){rank} {{\n{lines}}}\n"


def quote(text: str) -> str:
    """A JSON string."""
    return json.dumps(text, ensure_ascii=any("\ud800" <= c <= "\udfff" for c in text))


def _bare(name: str) -> str:
    return name if _NAME.fullmatch(name) else quote(name)


def _value(value_name: str) -> str:
    return "%" + (value_name if _PLAIN.fullmatch(value_name) else quote(value_name))


def _frame(frame: Frame) -> str:
    function = "" if frame.function is None else f" in {quote(frame.function)}"
    return f"{quote(frame.file)}:{frame.line}{function}"


def _result(value: Value, frames: dict[Frame, int]) -> str:
    location = value.location
    if location is None:
        return str(value.type)
    numbers = [frames.setdefault(frame, len(frames)) for frame in location.stack]
    stack = f" via ({', '.join(map(str, numbers))})" if numbers else ""
    return f"{value.type} at {quote(location.file)}:{location.line}{stack}"


def _input(parameter: Input, frames: dict[Frame, int]) -> str:
    sharding = "" if parameter.sharding is None else f" sharding={_literal(parameter.sharding)}"
    result = _result(parameter.value, frames)
    return f"{_value(parameter.name)} = input({parameter.number}){sharding} : {result}"


def _names(values: Iterable[Value]) -> str:
    return ", ".join(_value(value.name) for value in values)


def _operation(op: Op, frames: dict[Frame, int]) -> str:
    if not _NAME.fullmatch(op.opcode) or not op.results:
        raise ModuleError(f"operator {op.opcode!r} with {len(op.results)} results has no text form")
    attributes = _attributes(op.attrs)
    results = ", ".join(_result(value, frames) for value in op.results)
    return f"{_names(op.results)} = {op.opcode}({_names(op.operands)}){attributes} : {results}"


def _attributes(attrs: Attributes) -> str:
    if not attrs:
        return ""
    for name in attrs:
        if not _NAME.fullmatch(name):
            raise ModuleError(f"attribute name {name!r} has no text form")
    return f" {{{', '.join(f'{name}={_literal(value)}' for name, value in attrs.items())}}}"


def _output(output: Output) -> str:
    updates = "" if output.updates is None else f" updates {_value(output.updates)}"
    return f"output {quote(output.name)} = {_value(output.value.name)}{updates}"


_WORDS: Final[Mapping[Any, str]] = {None: "none", True: "true", False: "false"}


def _literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if type(value) in (int, float):
        return repr(value)
    if type(value) is str:
        return quote(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, Module):
        return to_text(value).rstrip().replace("\n", "\n  ")
    raise ModuleError(f"attribute value {value!r} of type {type(value).__name__} has no text form")


def _array(array: Any) -> str:
    kind, size = array.dtype.kind, array.dtype.itemsize * 8
    if kind not in _ELEMENTS or (kind in "fc" and array.dtype not in ("f4", "f8", "c8", "c16")):
        raise ModuleError(f"attribute value holds {array.dtype}, which has no text form")
    shape = ",".join(map(str, array.shape))
    head = f"{_ELEMENTS[kind]}{'' if kind == 'b' else size}[{shape}]"
    first = array[(slice(0, 1),) * array.ndim]
    if array.size > 1 and _uniform(array, first):
        if (listed := _listed(first)) is not None:
            return f"{head} splat {listed}"
    elif array.size <= _LISTED and (listed := _listed(array)) is not None:
        return f"{head}{listed}"
    data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    return f'{head} base64 "{b64encode(data).decode()}"'


def _uniform(array: Any, first: Any) -> bool:
    """Whether all elements have the same bits."""
    if not any(array.strides):
        return True
    if array.size > 2 and array.flat[1] != array.flat[0]:
        return False
    octets = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    return bool((octets == octets[:1]).all())


def _listed(array: Any) -> str | None:
    """The elements as a list that reads back to the same bits, or None."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(np.float32 if flat.dtype == np.complex64 else np.float64)
    if flat.dtype.kind == "b":
        return f"({', '.join(_WORDS[bool(x)] for x in flat)})"
    words = [_real(x) if flat.dtype.kind == "f" else str(x) for x in flat]
    if flat.dtype.kind == "f":
        again = np.array([float(w) for w in words], dtype=flat.dtype)
        if again.tobytes() != flat.tobytes():
            return None
    return f"({', '.join(words)})"


def _real(x: Any) -> str:
    """The shortest decimal that float64 and then the type of `x` read back exactly."""
    short = str(x)
    return short if x.dtype.type(float(short)) == x else repr(float(x))

"""The small texts of a dump: annotations (`f32[2, s0][4, 1]cuda:0`), element types, location comments."""

from __future__ import annotations

import re
from typing import Final

from shardproof.frontends.fx.graph import Meta, Symbol, Tensor
from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType, Frame, Location

ABBREVIATIONS: Final = {
    "b8": DType.BOOL,
    "i8": DType.S8,
    "i16": DType.S16,
    "i32": DType.S32,
    "i64": DType.S64,
    "u8": DType.U8,
    "u16": DType.U16,
    "u32": DType.U32,
    "u64": DType.U64,
    "f16": DType.F16,
    "bf16": DType.BF16,
    "f32": DType.F32,
    "f64": DType.F64,
    "c64": DType.C64,
    "c128": DType.C128,
    "f8e4m3fn": DType.F8E4M3FN,
    "f8e4m3fnuz": DType.F8E4M3FNUZ,
    "f8e5m2": DType.F8E5M2,
    "f8e5m2fnuz": DType.F8E5M2FNUZ,
}
"""Element types as annotations abbreviate them."""

TORCH_DTYPES: Final = {
    "bool": DType.BOOL,
    "int8": DType.S8,
    "int16": DType.S16,
    "short": DType.S16,
    "int32": DType.S32,
    "int": DType.S32,
    "int64": DType.S64,
    "long": DType.S64,
    "uint8": DType.U8,
    "uint16": DType.U16,
    "uint32": DType.U32,
    "uint64": DType.U64,
    "float16": DType.F16,
    "half": DType.F16,
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "float": DType.F32,
    "float64": DType.F64,
    "double": DType.F64,
    "complex64": DType.C64,
    "cfloat": DType.C64,
    "complex128": DType.C128,
    "cdouble": DType.C128,
    "float8_e4m3fn": DType.F8E4M3FN,
    "float8_e4m3fnuz": DType.F8E4M3FNUZ,
    "float8_e5m2": DType.F8E5M2,
    "float8_e5m2fnuz": DType.F8E5M2FNUZ,
}
"""Attributes of `torch` that are element types."""

TORCH_WORDS: Final = frozenset(
    (
        *("strided", "sparse_coo", "jagged"),
        *("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
    )
)
"""Attributes of `torch` that are layouts and memory formats."""

MAX_ANNOTATION: Final = 4096
MAX_COMMENT: Final = 4096
MAX_EXTENT: Final = 1 << 63
_TENSOR: Final = re.compile(r"([a-z][a-z0-9]*)\[([^\[\]]*)\](?:\[[^\[\]]*\])?(?:[a-z]+(?::\d+)?)?")
_SYMBOLIC: Final = re.compile(r"[\w\s+\-*/%().,<>=!&|~^]+", re.ASCII)
_FILE: Final = re.compile(r"File: (.+?):(\d{1,9}) in ([^,]{1,200})(?:, code:|$)")
_TITLE: Final = re.compile(r"# (?:Param|Buffer)AOTInput\(target='([^']{1,500})'\)")


def meta_of(annotation: str) -> Meta:
    """What an annotation says; strides and device are dropped.

    Raises `ModuleError` on anything but a plain tensor with a known element type, or a symbolic number.
    """
    if len(annotation) > MAX_ANNOTATION:
        raise ModuleError(f"an annotation of {len(annotation)} characters, at most {MAX_ANNOTATION} are read")
    match = _TENSOR.fullmatch(annotation)
    if match is not None:
        dtype = ABBREVIATIONS.get(match[1])
        if dtype is None:
            raise ModuleError(f"element type {match[1]!r}, which has no counterpart here")
        return Tensor(dtype, _extents(match[2]))
    if annotation.startswith("Sym(") and annotation.endswith(")"):
        return Symbol(symbolic(annotation[4:-1]))
    raise ModuleError(f"annotation {shown(annotation)}, a tensor such as f32[2, 4] or Sym(s0) is needed")


def _extents(text: str) -> tuple[int | str, ...]:
    if not text.strip():
        return ()
    return tuple(_extent(part.strip()) for part in _split(text))


def _split(text: str) -> list[str]:
    if "(" not in text:
        return text.split(",")
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _extent(text: str) -> int | str:
    if text.isascii() and text.isdigit() and len(text) < 20:
        extent = int(text)
        if extent >= MAX_EXTENT:
            raise ModuleError(f"extent {text}, which is out of range")
        return extent
    if text.startswith("-") or not re.search("[A-Za-z_]", text):
        raise ModuleError(f"extent {shown(text)}, a number or a symbolic size is needed")
    return symbolic(text)


def symbolic(text: str) -> str:
    """`text` if it is made of the characters of symbolic expressions."""
    if len(text) > MAX_ANNOTATION or _SYMBOLIC.fullmatch(text) is None:
        raise ModuleError(f"symbolic expression {shown(text)}, names, numbers and arithmetic are needed")
    return text


def location_of(comment: str) -> Location | None:
    """The place that a `# File: path:line in function, code: ...` comment names, None for other comments."""
    start = comment.find("File: ", 0, MAX_COMMENT)
    match = _FILE.match(comment[:MAX_COMMENT], start) if start >= 0 else None
    if match is None:
        return None
    line = int(match[2])
    return Location(match[1], line, (Frame(match[1], line, match[3].strip()),))


def title_of(line: str) -> tuple[str, str] | None:
    """The parameter and the model's own name for it, from one line of an expanded signature."""
    match = _TITLE.search(line[:MAX_COMMENT])
    name, separator, _ = line.strip().partition(":")
    return (name, match[1]) if match is not None and separator else None


def shown(text: str, limit: int = 48) -> str:
    """`text` quoted on one line, cut to `limit` characters."""
    return repr(text if len(text) <= limit else f"{text[:limit]}...")

"""Values of HLO text attributes: integer lists, windows, replica groups, shardings, literals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from shardproof.frontends.hlo.groups import AxisRef, cut, iota_devices, mesh_groups
from shardproof.frontends.hlo.instruction import Groups, WindowDim
from shardproof.frontends.hlo.literal import FLOAT8, float8_values, shaped
from shardproof.frontends.hlo.sharding import tile_counts
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Array, DType, TensorType

_LIST: Final = re.compile(r"\{\s*(?:-?[0-9]+\s*(?:,\s*-?[0-9]+\s*)*)?\}")
_LISTS: Final = re.compile(r"\{\s*(\{[^{}]*\}\s*(?:,\s*\{[^{}]*\}\s*)*)?\}")
_IOTA: Final = re.compile(r"\[([0-9,\s]+)\]\s*<=\s*\[([0-9,\s]+)\](?:\s*T\(([0-9,\s]+)\))?")
_MESH: Final = re.compile(r"mesh\[([^\]]*)\]\s*(?:\{([^}]*)\})?")
_DEVICES: Final = re.compile(r"\((?:\[([0-9,\s]+)\](?:T\(([0-9,\s]+)\))?|([0-9,\s]+))\)\s*\{([^}]*)\}")
_MESH_AXIS: Final = re.compile(r"\s*'?([^'=,]+?)'?\s*=\s*([0-9]+)\s*")
_AXIS_REF: Final = re.compile(r"\s*'?([^',:]+?)'?\s*(?::\(([0-9]+)\)([0-9]+))?\s*")
_TILES: Final = re.compile(
    r"\{devices=\[([0-9,]+)\](?:<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?|([0-9,]+))"
    r"(\s+last_tile_dim_replicate)?(?:\s+metadata=.*)?\}",
    re.DOTALL,
)


def numbers(text: str) -> tuple[int, ...]:
    """Integers between commas; nothing for blank text. Raises `ModuleError` for anything else."""
    if not text.strip():
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"-?\d{1,19}", part, re.ASCII) for part in parts):
        raise ModuleError(f"{text[:60]!r} is not a list of integers")
    return tuple(map(int, parts))


def _bad(key: str, text: str, where: str) -> ModuleError:
    return ModuleError(f"{where} has {key}={' '.join(text[:60].split())}, which is not understood")


def integer(key: str, text: str, where: str) -> int:
    if not re.fullmatch(r"-?\d{1,20}", text, re.ASCII):
        raise _bad(key, text, where)
    return int(text)


def boolean(key: str, text: str, where: str) -> bool:
    if text not in ("true", "false"):
        raise _bad(key, text, where)
    return text == "true"


def integers(key: str, text: str, where: str) -> tuple[int, ...]:
    """`{1,2}`"""
    if not _LIST.fullmatch(text):
        raise _bad(key, text, where)
    return numbers(text.strip()[1:-1])


def integer_lists(key: str, text: str, where: str) -> Groups:
    """`{{0,1},{2,3}}`; `{}` is none."""
    if not _LISTS.fullmatch(text):
        raise _bad(key, text, where)
    return tuple(integers(key, part, where) for part in re.findall(r"\{[^{}]*\}", text[1:-1]))


def rank_pairs(key: str, text: str, where: str) -> Groups:
    """`{{0,1},{1,2}}`, two to each."""
    pairs = integer_lists(key, text, where)
    if any(len(pair) != 2 for pair in pairs):
        raise _bad(key, text, where)
    return pairs


def names(text: str) -> tuple[str, ...]:
    """`%a` or `{%a, %b}`"""
    inner = text[1:-1] if text.startswith("{") else text
    return tuple(part.strip().removeprefix("%") for part in inner.split(",") if part.strip())


def unquoted(text: str) -> str:
    """The content of a quoted string, its escapes undone; other text as it is."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    return unescape(text[1:-1])


_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


def unescape(text: str) -> str:
    """C escapes as XLA prints them."""
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        code = match.group(1)
        if code[0] in "01234567":
            return chr(int(code, 8))
        if code[0] == "x":
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, code)

    return re.sub(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", one, text, flags=re.DOTALL)


def slices(key: str, text: str, where: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """`{[0:8], [2:8:3]}` as starts, limits, strides."""
    inner = text.strip()[1:-1].strip()
    cuts = [part.strip() for part in inner.split(",")] if inner else []
    found = [re.fullmatch(r"\[([0-9]+):([0-9]+)(?::([0-9]+))?\]", part) for part in cuts]
    if any(match is None for match in found):
        raise _bad(key, text, where)
    triples = [(int(m[1]), int(m[2]), int(m[3] or 1)) for m in found if m is not None]
    return tuple(t[0] for t in triples), tuple(t[1] for t in triples), tuple(t[2] for t in triples)


def padding(key: str, text: str, where: str) -> tuple[tuple[int, ...], ...]:
    """`1_2x0_0_3` as low, high, interior."""
    dims = (
        [re.fullmatch(r"(-?[0-9]+)_(-?[0-9]+)(?:_([0-9]+))?", part) for part in text.split("x")]
        if text
        else []
    )
    if any(match is None for match in dims):
        raise _bad(key, text, where)
    triples = [(int(m[1]), int(m[2]), int(m[3] or 0)) for m in dims if m is not None]
    return tuple(t[0] for t in triples), tuple(t[1] for t in triples), tuple(t[2] for t in triples)


def window(key: str, text: str, where: str) -> tuple[WindowDim, ...]:
    """`{size=3x2 stride=2x1 pad=1_2x0_1 lhs_dilate=1x2 rhs_dilate=1x1 rhs_reversal=1x0}`"""
    fields: dict[str, list[str]] = {}
    for part in text.strip()[1:-1].split():
        name, _, value = part.partition("=")
        if (
            name not in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")
            or name in fields
        ):
            raise _bad(key, text, where)
        fields[name] = value.split("x")
    count = len(fields.get("size", []))
    if any(len(values) != count for values in fields.values()):
        raise _bad(key, text, where)

    def of(name: str, default: int) -> list[int]:
        return [integer(key, v, where) for v in fields[name]] if name in fields else [default] * count

    low, high, _ = padding(key, "x".join(fields["pad"]), where) if "pad" in fields else ((0,) * count,) * 3
    columns = (of("size", 1), of("stride", 1), low, high, of("rhs_dilate", 1), of("lhs_dilate", 1))
    reversal = [bool(r) for r in of("rhs_reversal", 0)]
    return tuple(WindowDim(*row) for row in zip(*columns, reversal, strict=True))


def dim_labels(key: str, text: str, where: str) -> tuple[tuple[int, ...], ...]:
    """`b01f_01io->b01f` as positions (batch, feature, *spatial), and of the kernel (in, out, *spatial)."""
    match = re.fullmatch(r"([bf0-9]+)_([io0-9]+)->([bf0-9]+)", text)
    if match is None:
        raise _bad(key, text, where)
    found = []
    for labels, (first, second) in zip(match.groups(), (("b", "f"), ("i", "o"), ("b", "f")), strict=True):
        spatial = [str(d) for d in range(len(labels) - 2)]
        if sorted(labels) != sorted([first, second, *spatial]):
            raise _bad(key, text, where)
        found.append(tuple(labels.index(label) for label in (first, second, *spatial)))
    return tuple(found)


def replica_groups(text: str, devices: str | None, where: str) -> Groups:
    """Each of the text forms, as explicit ids; `devices` is the device_ids part of a mesh."""
    key = "replica_groups"
    if text.startswith("{"):
        return integer_lists(key, text, where)
    iota = _IOTA.fullmatch(text)
    if iota is not None:
        shape = numbers(iota[1])
        if len(shape) != 2:
            raise _bad(key, text, where)
        flat = iota_devices(numbers(iota[2]), numbers(iota[3] or ""), where)
        return cut(flat, shape[0], shape[1], where)
    mesh = _MESH.fullmatch(text)
    if mesh is None:
        raise _bad(key, text, where)
    axes = [_MESH_AXIS.fullmatch(part) for part in mesh[1].split(",")]
    if any(axis is None for axis in axes):
        raise _bad(key, text, where)
    labels = [axis[1] for axis in axes if axis is not None]
    sizes = [int(axis[2]) for axis in axes if axis is not None]
    order, refs = iota_devices(sizes, (), where), mesh[2]
    if devices is not None:
        match = _DEVICES.fullmatch(devices)
        if match is None or refs is not None:
            raise _bad("device_ids", devices, where)
        refs = match[4]
        explicit = match[3]
        order = (
            iota_devices(numbers(match[1]), numbers(match[2] or ""), where)
            if explicit is None
            else numbers(explicit)
        )
    if refs is None:
        raise _bad(key, text, where)
    parts = [_AXIS_REF.fullmatch(part) for part in refs.split(",")] if refs.strip() else []
    if any(part is None or part[1] not in labels for part in parts):
        raise _bad(key, text, where)
    chosen = [
        AxisRef(labels.index(p[1]), int(p[2]), int(p[3])) if p[2] else AxisRef(labels.index(p[1]))
        for p in parts
        if p is not None
    ]
    return mesh_groups(sizes, order, chosen, where)


def sharding(text: str) -> tuple[int, ...] | None:
    """Parts per dim (`()` for replicated), or None for what is not a plain tiling."""
    if text == "{replicated}" or text.startswith("{replicated metadata="):
        return ()
    match = _TILES.fullmatch(text)
    if match is None:
        return None
    dims, _, permutation, explicit, copied = match.groups()
    return tile_counts(
        numbers(dims),
        numbers(explicit) if explicit else None,
        numbers(permutation or ""),
        replicate_last=copied is not None,
    )


def literal(text: str, type: TensorType, where: str) -> Array:
    """A constant: numbers in braces nested by dims, `true`, `inf`, `nan`, `(re, im)`."""
    if "{...}" in text or "..." in text:
        raise ModuleError(
            f"{where} is a large constant that the text form leaves out: use the serialised dump (.pb)"
        )
    flat = re.sub(r"/\*.*?\*/", " ", text)
    if type.dtype.kind == "complex":
        pairs = re.findall(r"\(\s*([^,()]+),\s*([^,()]+)\)", flat)
        rest = re.sub(r"\([^()]*\)", "", flat)
        if re.sub(r"[{},\s]", "", rest):
            raise _bad("constant", text, where)
        values: list[Any] = [complex(_real(a, where), _real(b, where)) for a, b in pairs]
        return shaped(np.array(values, dtype=type.dtype.storage), type, where)
    words = re.sub(r"[{},]", " ", flat).split()
    if len(words) != type.size:
        raise ModuleError(f"{where} has {len(words)} values, its type {type} needs {type.size}")
    return shaped(_numbers(words, type.dtype, where), type, where)


def _real(word: str, where: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise _bad("constant", word, where) from None


def _numbers(words: Sequence[str], dtype: DType, where: str) -> Array:
    if dtype is DType.BOOL:
        table = {"true": True, "false": False, "1": True, "0": False}
        if any(word not in table for word in words):
            raise _bad("constant", next(w for w in words if w not in table), where)
        return np.array([table[word] for word in words], dtype=np.bool_)
    if dtype.kind in ("int", "uint"):
        values = [integer("constant", word, where) for word in words]
        low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
        high = (1 << (dtype.bits - (dtype.kind == "int"))) - 1
        if any(not low <= n <= high for n in values):
            raise ModuleError(f"{where} holds a number that {dtype.value} doesn't")
        return np.array(values, dtype=dtype.storage)
    reals = np.array([_real(word, where) for word in words], dtype=np.float64)
    if dtype is DType.F64:
        return reals
    with np.errstate(over="ignore"):
        return round_to(reals, dtype).astype(dtype.storage)


def round_to(reals: Any, dtype: DType) -> Array:
    """The nearest values of a narrower real type; XLA prints enough digits for that to be exact."""
    if dtype is DType.F16:
        half: Array = reals.astype(np.float16)
        return half
    single: Array = reals.astype(np.float32)
    if dtype is DType.BF16:
        bits = single.view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
        return np.where(np.isnan(single), single, rounded)
    if dtype in FLOAT8:
        table = float8_values(dtype)
        codes = table[~np.isnan(table)]
        finite = codes[np.isfinite(codes)]
        nearest = finite[np.abs(finite[None, :].astype(np.float64) - reals[:, None]).argmin(axis=1)]
        return np.where(np.isfinite(reals), nearest, single)
    return single

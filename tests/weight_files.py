"""Writes small weight files, as loaders save them; bf16 and 8-bit floats as their bits."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

SPELLED = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "bool": "BOOL",
}


def safetensors(path: Path, tensors: Mapping[str, Any], types: Mapping[str, str] | None = None) -> Path:
    """`types` gives the element types that NumPy does not know, such as BF16 for uint16 codes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, value in tensors.items():
        array = np.ascontiguousarray(value)
        element = (types or {}).get(name) or SPELLED[array.dtype.name]
        raw = array.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": element, "shape": list(np.shape(value)), "data_offsets": offsets}
        data += raw
    return raw_safetensors(path, header, data)


def raw_safetensors(path: Path, header: Any, data: bytes = b"") -> Path:
    """A file with any header, an object or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path

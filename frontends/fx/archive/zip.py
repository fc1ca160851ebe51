"""The container of an export archive: a zip whose members are looked up by name and never extracted."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Final

from shardproof.frontends.fx.code.meta import shown
from shardproof.ir.module import ModuleError

MODEL: Final = "models/model.json"
"""The member that holds the program."""
MAX_MEMBERS: Final = 1_000_000
MAX_JSON: Final = 512 << 20
MAX_TOTAL: Final = 1 << 42
MAX_RATIO: Final = 100
_FREE: Final = 1 << 20
_DAMAGED: Final = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(RuntimeError, NotImplementedError, OverflowError, ValueError),
)
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Archive:
    """Members by their path below the archive's only folder.

    A path that leaves the folder, two members of one name, encryption, an unknown compression, and a
    member that unpacks to more than `MAX_RATIO` times its size are refused when the archive is opened.
    """

    def __init__(self, file: IO[bytes] | Path) -> None:
        try:
            self._zip = zipfile.ZipFile(file)
        except _DAMAGED as error:
            raise ModuleError(f"is not a readable zip archive ({str(error).lower()})") from None
        members = self._zip.infolist()
        if len(members) > MAX_MEMBERS:
            raise ModuleError(f"holds {len(members)} members, at most {MAX_MEMBERS} are read")
        if sum(member.file_size for member in members) > MAX_TOTAL:
            raise ModuleError(f"unpacks to more than {MAX_TOTAL >> 30} GiB")
        self._members: dict[str, zipfile.ZipInfo] = {}
        roots = set()
        for member in members:
            root, name = _checked(member)
            roots.add(root)
            if name in self._members:
                raise ModuleError(f"holds two members named {shown(name)}")
            self._members[name] = member
        if len(roots) != 1:
            raise ModuleError("doesn't hold exactly one folder, an archive of torch.export.save is needed")

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def read(self, name: str, limit: int = MAX_TOTAL) -> bytes:
        """The bytes of a member. Raises `ModuleError` when it is absent, damaged, or more than `limit`."""
        member = self._members.get(name)
        if member is None:
            raise ModuleError(f"lacks {shown(name)}, an archive of torch.export.save is needed")
        if member.file_size > limit:
            raise ModuleError(f"{name} unpacks to {member.file_size} bytes, at most {limit} are read")
        try:
            with self._zip.open(member) as stream:
                data = stream.read(member.file_size + 1)
        except _DAMAGED as error:
            raise ModuleError(f"{name} is damaged ({str(error).lower()})") from None
        if len(data) != member.file_size:
            raise ModuleError(f"{name} has {len(data)} bytes, the archive says {member.file_size}")
        return data

    def read_json(self, name: str) -> object:
        """The value of a JSON member. Raises `ModuleError` when it isn't JSON."""
        data = self.read(name, MAX_JSON)
        try:
            value: object = json.loads(data)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).lower()
            raise ModuleError(f"{name} is not JSON ({reason})") from None
        return value


def is_exported(file: IO[bytes] | Path) -> bool:
    """Whether a zip holds a model as `torch.export.save` writes it; False also when it can't be read."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith(f"/{MODEL}") for name in archive.namelist())
    except _DAMAGED:
        return False


def _checked(member: zipfile.ZipInfo) -> tuple[str, str]:
    """The folder of a member and its path below."""
    path = member.filename
    parts = path.split("/")
    if (
        not path.isprintable()
        or "\\" in path
        or ":" in path
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise ModuleError(f"holds a member named {shown(path)}, which leaves the archive's folder")
    if len(parts) < 2:
        raise ModuleError(f"holds a member named {shown(path)} outside of a folder")
    if member.flag_bits & 0x1:
        raise ModuleError(f"{path} is encrypted")
    if member.compress_type not in _METHODS:
        raise ModuleError(f"{path} is compressed in a way that is not read")
    if member.file_size > _FREE and member.file_size > MAX_RATIO * member.compress_size:
        raise ModuleError(f"{path} unpacks to {member.file_size} bytes, {MAX_RATIO} times its size or more")
    return parts[0], "/".join(parts[1:])

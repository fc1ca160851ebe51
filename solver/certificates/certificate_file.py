"""Certificate files: JSON, deflated or plain, with a checksum; reading takes only data of the right shape.

What the data means is left to `solver.recheck`.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from shardproof.ir.module import ModuleError
from shardproof.ir.types import Mesh
from shardproof.ir.verify import verify
from shardproof.solver.certificates.certificate import Certificate, CertificateError, Claim, Flags, Range, Use
from shardproof.solver.certificates.install import Instance
from shardproof.solver.certificates.portable import DEPTH, Data, Malformed
from shardproof.solver.sweep import Layouts

FORMAT: Final = 1
LARGEST: Final = 256 << 20
"""Size limit of a certificate in bytes, inflated."""

_NUMERAL: Final = re.compile(r"-?[0-9]{1,400}(/[0-9]{1,400})?")
_OPERATOR: Final = re.compile(r"[a-z]{0,16}")
_T = TypeVar("_T")


def to_bytes(certificate: Certificate, *, plain: bool = False) -> bytes:
    """The file's content."""
    return packed(_data(certificate), plain=plain)


def packed(body: Data, *, plain: bool = False) -> bytes:
    """A certificate's data with its checksum."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    whole = json.dumps(
        {"format": FORMAT, "checksum": sha256(text.encode()).hexdigest(), "body": body},
        separators=(",", ":"),
    )
    return whole.encode() + b"\n" if plain else zlib.compress(whole.encode(), 6)


def write(certificate: Certificate, path: str | Path) -> None:
    """Write a file. Raises OSError."""
    Path(path).write_bytes(to_bytes(certificate))


def _data(certificate: Certificate) -> Data:
    from shardproof.ir.text import to_text

    claim, flags = certificate.claim, certificate.flags
    return {
        "shardproof": certificate.version,
        "claim": certificate.stated or claim.digest,
        "reference": {"digest": claim.reference, "mesh": [list(a) for a in claim.meshes[0].axes]},
        "implementation": {"digest": claim.implementation, "mesh": [list(a) for a in claim.meshes[1].axes]},
        "relation": [to_text(m) for m in claim.modules],
        "ranges": [list(r) for r in claim.ranges],
        "even": list(claim.even),
        "outputs": [list(o) for o in claim.outputs],
        "assumptions": [list(a) for a in claim.assumptions],
        "flags": {n: getattr(flags, n) for n in ("folding", "lenient", "reading", "algebra", "inside")},
        "bounds": [list(r) for r in certificate.bounds],
        "lemmas": [[u.name, u.digest, u.status, u.plain] for u in certificate.lemmas],
        "instances": [i.data() for i in certificate.instances],
        "rounds": [list(r) for r in certificate.rounds],
    }


def read(path: str | Path) -> Certificate:
    """The certificate of a file. Raises CertificateError."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise CertificateError(f"{path}: no certificate can be read, {reason}") from None
    try:
        return from_bytes(content)
    except CertificateError as error:
        raise CertificateError(f"{path}: {error}") from None


def from_bytes(content: bytes) -> Certificate:
    """The certificate in a file's content. Raises CertificateError."""
    body = unpacked(content)
    try:
        return _certificate(body)
    except (Malformed, ModuleError) as error:
        raise CertificateError(str(error)) from None
    except RecursionError:
        raise CertificateError("the certificate is nested too deeply") from None


def unpacked(content: bytes) -> Data:
    """The data of a certificate whose checksum holds. Raises CertificateError."""
    if len(content) > LARGEST:
        raise CertificateError(f"the certificate has more than {LARGEST} bytes")
    try:
        if content[:1] != b"{":
            stream = zlib.decompressobj()
            content = stream.decompress(content, LARGEST)
            if not stream.eof or stream.unused_data:
                raise CertificateError("the certificate is cut off, too large, or followed by other data")
        whole = json.loads(content, parse_float=_no_number, parse_constant=_no_number)
    except (zlib.error, UnicodeDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, CertificateError):
            raise
        raise CertificateError("the file is no certificate") from None
    if not isinstance(whole, dict) or set(whole) != {"format", "checksum", "body"}:
        raise CertificateError("the file is no certificate")
    if type(whole["format"]) is not int or whole["format"] != FORMAT:
        raise CertificateError(f"the certificate has another format than {FORMAT}, which is read here")
    try:
        text = json.dumps(whole["body"], separators=(",", ":"), sort_keys=True)
    except RecursionError:
        raise CertificateError("the certificate is nested too deeply") from None
    if sha256(text.encode()).hexdigest() != whole["checksum"]:
        raise CertificateError("the checksum is not that of the content")
    return whole["body"]


def _no_number(text: str) -> Any:
    raise CertificateError(f"the certificate holds {text[:20]}, which is no integer")


def _certificate(body: Data) -> Certificate:
    entries = _record(
        body,
        "shardproof claim reference implementation relation ranges even outputs assumptions flags bounds "
        "lemmas instances rounds",
    )
    programs = [_record(entries[name], "digest mesh") for name in ("reference", "implementation")]
    from shardproof.ir.parse import parse

    texts = _each(entries["relation"], _string)
    if len(texts) not in (4, 5):
        raise Malformed("the relation is four programs, or five with values that are assumed")
    modules = [parse(t, source=f"relation {n}") for n, t in enumerate(texts)]
    for module in modules:
        verify(module)
    flags = _record(entries["flags"], "folding lenient reading algebra inside")
    return Certificate(
        Claim(
            _string(programs[0]["digest"]),
            _string(programs[1]["digest"]),
            (_mesh(programs[0]["mesh"]), _mesh(programs[1]["mesh"])),
            Layouts(modules[0], modules[1], modules[2]),
            modules[3],
            modules[4] if len(modules) == 5 else None,
            tuple(_each(entries["ranges"], _range)),
            tuple(_each(entries["even"], _string)),
            tuple(_each(entries["outputs"], _three)),
            tuple(_each(entries["assumptions"], _two)),
        ),
        Flags(**{name: _truth(value) for name, value in flags.items()}),
        tuple(_each(entries["bounds"], _range)),
        tuple(_each(entries["lemmas"], _use)),
        tuple(_each(entries["instances"], _instance)),
        tuple(_each(entries["rounds"], _round)),
        _string(entries["shardproof"]),
        _string(entries["claim"]),
    )


def _instance(data: Data) -> Instance:
    """An instance all of whose parts have the right shape; what they mean is left to `install`."""
    fields = _list(data)
    if len(fields) != 8:
        raise Malformed("an instance has eight fields")
    number, lemma, fresh, indices, variables, lead, rest, under = fields
    if _whole(number) < -1:
        raise Malformed(f"there is no class {number}")
    _string(lemma)
    _each(fresh, _count)
    for name, own in _mapping(indices).items():
        _string(name)
        _each(own, _count)
    for name, recipe in _mapping(variables).items():
        _string(name)
        if len(_list(recipe)) != 2 or not isinstance(recipe[0], str) or not _OPERATOR.fullmatch(recipe[0]):
            raise Malformed("a variable is terms joined by an operator")
        _each(recipe[1], _term)
    if not isinstance(lead, str) or not _NUMERAL.fullmatch(lead):
        raise Malformed("a coefficient is a fraction in a string")
    _each(rest, _term)
    _each(under, _string)
    return Instance.read(fields)


def _term(data: Data) -> Data:
    coef = _list(data)[0] if _list(data) else None
    if not isinstance(coef, str) or not _NUMERAL.fullmatch(coef):
        raise Malformed("a coefficient is a fraction in a string")
    stack: list[tuple[Data, int]] = [(data[1:], 0)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, list):
            if depth > 4 * DEPTH:
                raise Malformed("an expression is nested too deeply")
            stack += [(x, depth + 1) for x in item]
        elif item not in ("digit", "element"):
            _whole(item)
    return data


def _use(data: Data) -> Use:
    if len(_list(data)) != 4:
        raise Malformed("a lemma has four fields")
    return Use(_string(data[0]), _string(data[1]), _string(data[2]), _truth(data[3]))


def _range(data: Data) -> Range:
    if len(_list(data)) != 3:
        raise Malformed("a range has three fields")
    return _string(data[0]), _whole(data[1]), _whole(data[2])


def _round(data: Data) -> tuple[str, int]:
    if len(_list(data)) != 2:
        raise Malformed("a round has two fields")
    return _string(data[0]), _count(data[1])


def _two(data: Data) -> tuple[str, str]:
    a, b = _words(data, 2)
    return a, b


def _three(data: Data) -> tuple[str, str, str]:
    a, b, c = _words(data, 3)
    return a, b, c


def _words(data: Data, count: int) -> list[str]:
    found = _each(data, _string)
    if len(found) != count:
        raise Malformed(f"{count} strings are expected")
    return found


def _mesh(data: Data) -> Mesh:
    axes = []
    for axis in _list(data):
        if len(_list(axis)) != 2:
            raise Malformed("a mesh axis is a name and a size")
        axes.append((_string(axis[0]), _count(axis[1])))
    return Mesh(tuple(axes))


def _record(data: Data, names: str) -> dict[str, Data]:
    if not isinstance(data, dict) or set(data) != set(names.split()):
        raise Malformed(f"an object with exactly {names} is expected")
    return data


def _mapping(data: Data) -> Mapping[str, Data]:
    if not isinstance(data, dict):
        raise Malformed("an object is expected")
    return data


def _list(data: Data) -> list[Data]:
    if not isinstance(data, list):
        raise Malformed("a list is expected")
    return data


def _each(data: Data, each: Callable[[Data], _T]) -> list[_T]:
    return [each(x) for x in _list(data)]


def _string(data: Data) -> str:
    if not isinstance(data, str):
        raise Malformed("a string is expected")
    return data


def _truth(data: Data) -> bool:
    if not isinstance(data, bool):
        raise Malformed("true or false is expected")
    return data


def _whole(data: Data) -> int:
    if type(data) is not int or abs(data) >= 1 << 63:
        raise Malformed("an integer of at most 63 bits is expected")
    return data


def _count(data: Data) -> int:
    if _whole(data) < 0:
        raise Malformed(f"a number that is not negative is expected, found {data}")
    return int(data)

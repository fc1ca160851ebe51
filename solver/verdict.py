"""What a run answers: the verdict, what it rests on, and the data of a refutation or a failed proof."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Final, NoReturn

from shardproof import __version__
from shardproof.ir.types import Frame, Location
from shardproof.solver.codes import CODES

Json = dict[str, Any]

ASSUMPTION_KINDS: Final[dict[str, str]] = {
    "inferred_relation": "the inputs are laid out over the ranks as inferred, not as declared",
    "reference_layout": "the reference's own inputs are laid out over its ranks as stated",
    "opaque_function": "an operator without a known meaning is a function of its operands and attributes",
    "opaque_batched": "an operator without a known meaning works slice by slice, on nothing but its operands",
    "no_overflow": "an integer value stays within its type, so that it may be treated as a whole number",
    "literal_rounding": "constants that agree up to the rounding of their type stand for one real number",
    "ids_in_range": "an integer input or computed index stays within the range stated",
    "nonzero_divisor": "a divisor is nowhere zero",
    "finite_value": "a value is finite: neither infinite nor not-a-number",
    "distinct_indices": "the positions that a scatter writes are distinct",
    "rng_aligned": "random draws of the implementation are draws of the reference, laid out as stated",
    "user_assumed": "a value is right because --assume says so",
    "tested_lemma": "a lemma was used that is tested on samples, not proved",
    "group_guess": "replica groups belong to the mesh axis stated, although the file does not say so",
    "constant_guess": "a constant that the file does not contain has the value stated",
    "assume_lemma": "a lemma was used that holds only under the side condition stated",
    "constant_tolerance": "constants of both programs that agree within the tolerance stated are one number",
    "mask_value": "a score masked by a large negative number has weight zero, as if by minus infinity",
    "row_not_fully_masked": "a mask leaves something of each row: not all of its scores are masked",
    "user_define": "a custom operator means what the definition given for it says",
}
"""The closed list of assumption kinds, with what each one claims."""


class Verdict(StrEnum):
    """`verified`: proved for all inputs; `refuted`: a counterexample replays; `unknown`: neither."""

    VERIFIED = "verified"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OutputVerdict:
    """One reference output, the placement its counterpart was read through, and what was shown."""

    name: str
    placement: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something the verdict rests on; `kind` is a key of ASSUMPTION_KINDS, `value` names a tensor if any."""

    kind: str
    text: str
    value: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in ASSUMPTION_KINDS:
            raise ValueError(f"unknown kind of assumption `{self.kind}`")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written; `stack` holds all frames, outermost first. Unknown parts are None."""

    value: str
    op: str
    file: str | None = None
    line: int | None = None
    stack: tuple[Frame, ...] = ()

    @classmethod
    def at(cls, value: str, op: str, location: Location | None) -> Place:
        if location is None:
            return cls(value, op)
        return cls(value, op, location.file, location.line, location.stack)


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Inputs (drawn from `seed`) and an element at which the outputs differ, at the programs' own shapes.

    `index` is the position within the implementation's output on `rank`, `extents` are those of its dims.
    """

    seed: int
    rank: int
    output: str
    index: tuple[int, ...]
    reference: complex
    implementation: complex
    extents: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blocked:
    """A value that stops the proof, the lemma that nearly applied, and its condition that failed."""

    value: str
    closest_lemma: str | None = None
    failed_condition: str | None = None


@dataclass(frozen=True, slots=True)
class LemmaUse:
    """A lemma of a proof: its status, how often it rewrote a class, and how often the outputs needed that.

    The status is `proved`, `tested` or `assumed`. `needed` is an estimate.
    """

    name: str
    status: str
    fired: int
    needed: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Seconds by phase, instructions of both programs, and classes of equal values."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    instructions: int = 0
    classes: int = 0

    @property
    def total(self) -> float:
        return math.fsum(self.seconds.values())


JSON_FIELDS: Final = (
    "version",
    "verdict",
    "code",
    "outputs",
    "unchecked_outputs",
    "assumptions",
    "inferred_relation",
    "location",
    "expected",
    "found",
    "counterexample",
    "blocked",
    "tested_equal",
    "findings",
    "repair",
    "lemmas",
    "certificate",
    "cached",
    "stats",
)

_LETTER: Final = {Verdict.VERIFIED: "V", Verdict.REFUTED: "R", Verdict.UNKNOWN: "U"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer of one run. A field that does not apply is None.

    The attributes up to `stats` are the fields of the JSON form, under the same names; those after it
    serve the text form only. It has no truth value: `unknown` is neither.

    Raises ValueError when the parts contradict each other: a code of another verdict, a `verified` with an
    output that is not, or with a counterexample, or with an inferred layout that the code does not admit.
    """

    version: str = __version__
    verdict: Verdict
    code: str
    outputs: tuple[OutputVerdict, ...] = ()
    unchecked_outputs: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    inferred_relation: Mapping[str, str] | None = None
    location: Place | None = None
    expected: str | None = None
    found: str | None = None
    counterexample: Counterexample | None = None
    blocked: tuple[Blocked, ...] | None = None
    tested_equal: int | None = None
    findings: tuple[str, ...] | None = None
    repair: str | None = None
    lemmas: tuple[LemmaUse, ...] | None = None
    certificate: str | None = None
    cached: bool | None = None
    stats: Stats = field(default_factory=Stats)
    message: str = ""
    mesh: str = ""
    reference_location: Place | None = None
    notes: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    lemma_count: int | None = None

    def __post_init__(self) -> None:
        if self.code not in CODES or self.code[0] != _LETTER[self.verdict]:
            raise ValueError(f"code {self.code} does not belong to the verdict {self.verdict}")
        if self.verdict is not Verdict.VERIFIED:
            return
        if any(output.verdict is not Verdict.VERIFIED for output in self.outputs):
            raise ValueError("a verified result has an output that is not verified")
        if self.counterexample is not None or self.blocked:
            raise ValueError("a verified result has a counterexample or a blocked value")
        if bool(self.inferred_relation) != (self.code == "V02"):
            raise ValueError(f"code {self.code} contradicts the inferred relation")

    def __bool__(self) -> NoReturn:
        raise TypeError("a result has no truth value; compare result.verdict instead")

    def to_dict(self) -> Json:
        """The JSON form as plain dicts, lists, strings and numbers; keys are JSON_FIELDS, in that order."""
        return {name: _plain(getattr(self, name)) for name in JSON_FIELDS}

    def to_json(self) -> str:
        """Strict JSON (a float that is not finite becomes a string), ending without a newline."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def text(self, color: bool = False) -> str:
        """The report for people, several lines, ending with a newline; with ANSI styles when `color`."""
        from shardproof.solver.wording import render, wording

        return render(wording(self), color)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        return _plain(value.item())
    return {name: _plain(getattr(value, name)) for name in value.__slots__}

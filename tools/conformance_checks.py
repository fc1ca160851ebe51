"""The checks of the conformance kit, one function each: a trial of one sample to the problems it shows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardproof.frontends.formats import CERTAIN, Frontend
from shardproof.ir.evaluate import per_rank
from shardproof.ir.interpret import InterpretError, Unsupported, run
from shardproof.ir.module import Input, Module, ModuleError, Op
from shardproof.ir.ops import TABLE
from shardproof.ir.text import parse, to_text
from shardproof.ir.verify import verify

if TYPE_CHECKING:
    from shardproof.tools.conformance import Sample

CUTS: Final = 24
FLIPS: Final = 96
"""Truncated copies, and copies with a flipped bit, that a sample is damaged to."""
LISTED: Final = 3
"""Problems that one check lists of one sample."""
_DRAWN: Final = 2
"""Random inputs that a sample with `run` is run on."""
_KINDS: Final = {"b": "bool", "i": "int", "u": "uint", "f": "real", "c": "complex"}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and where in the sample; `help` where there is more to say than for the whole check."""

    found: str
    where: str = ""
    help: str = ""


class Skipped(Exception):
    """Why a sample gives nothing for a check."""


class Trial:
    """A sample with the module that a frontend makes of it, None when it makes none (`error` says why)."""

    def __init__(self, importer: Frontend, sample: Sample, seed: int) -> None:
        self.importer = importer
        self.sample = sample
        self.seed = seed
        self.error: Problem | None = None
        self.module: Module | None = self._module()

    @property
    def made(self) -> Module:
        assert self.module is not None
        return self.module

    def _module(self) -> Module | None:
        try:
            module = self.importer.read(self.sample.source())
        except Exception as error:
            self.error = Problem(f"reading it raises {told(error)}")
            return None
        if not isinstance(module, Module):
            self.error = Problem(f"reading it gives a {type(module).__name__}, a Module is needed")
            return None
        try:
            verify(module)
        except Exception as error:
            self.error = Problem(f"the module is not well formed: {told(error)}")
            return None
        ranks = self.sample.ranks
        if ranks is not None and module.mesh.axes and module.mesh.size != ranks:
            self.error = Problem(f"the module is for {module.mesh.size} ranks, {ranks} are asked for")
            return None
        return module


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def described(op: Op) -> str:
    place = f" at {op.location}" if op.location is not None else ""
    return f"%{op.results[0].name} ({op.opcode}){place}"


def recognised(trial: Trial) -> Iterator[Problem]:
    try:
        claimed = trial.importer.recognises(trial.sample.source())
    except Exception as error:
        yield Problem(f"`recognises` raises {told(error)}")
        return
    if not claimed:
        yield Problem("`recognises` gives false")
        return
    other = next((f for f in CERTAIN if f.recognises(trial.sample.source())), None)
    if other is not None and other is not trial.importer:
        yield Problem(
            f"it is read as {other.name}, by a format of shardproof's own that comes first",
            help="begin files with a mark of their own, such as a first field or magic bytes",
        )


def well_formed(trial: Trial) -> Iterator[Problem]:
    if trial.error is not None:
        yield trial.error


def located(trial: Trial) -> Iterator[Problem]:
    expected = trial.sample.locations
    if expected is None:
        raise Skipped("it is said to hold no source information")
    values = {v.name: v for op in trial.made.ops for v in op.results}
    values |= {i.name: i.value for i in trial.made.inputs}
    for name, place in expected.items():
        if name not in values:
            yield Problem(f"has no value %{name}, which `locations` names", help="name the values it has")
        elif str(values[name].location) != place:
            yield Problem(f"its location is {values[name].location}, expected {place}", f"%{name}")
    missing = [op for op in trial.made.ops if op.location is None and "closed" not in TABLE[op.opcode].traits]
    for op in missing[:LISTED]:
        rest = f" (and {len(missing) - 1} others)" if len(missing) > 1 else ""
        yield Problem(f"has no location{rest}", described(op))


def opaque(trial: Trial) -> Iterator[Problem]:
    known = set(trial.sample.opaque)
    for op in trial.made.ops:
        name = {"opaque": "name", "custom_call": "target"}.get(op.opcode)
        if name is not None and op.attrs[name] not in known:
            yield Problem(f"is kept opaque as `{op.attrs[name]}`", described(op))


def round_trip(trial: Trial) -> Iterator[Problem]:
    try:
        text = to_text(trial.made)
        again = parse(text, source="its text")
        verify(again)
    except Exception as error:
        yield Problem(f"its text form can't be written and read back: {told(error)}")
        return
    yield from _difference(text, to_text(again), "its text form reads back as another program")


def deterministic(trial: Trial) -> Iterator[Problem]:
    try:
        again = to_text(trial.importer.read(trial.sample.source()))
    except Exception as error:
        yield Problem(f"reading it a second time raises {told(error)}")
        return
    yield from _difference(to_text(trial.made), again, "a second reading gives another program")


def _difference(one: str, other: str, what: str) -> Iterator[Problem]:
    if one != other:
        pairs = zip(one.splitlines(), other.splitlines(), strict=False)
        first = next(((a, b) for a, b in pairs if a != b), ("", "more or fewer lines"))
        yield Problem(f"{what}: `{first[0].strip()}` becomes `{first[1].strip()}`")


def values(trial: Trial) -> Iterator[Problem]:
    sample, module = trial.sample, trial.made
    if sample.outputs is None and sample.run is None:
        raise Skipped("it gives neither `outputs` nor `run`")
    if sample.outputs is not None:
        yield from _compared(trial, dict(sample.inputs or {}), sample.outputs, "on the inputs given")
    if sample.run is not None:
        rng = np.random.default_rng(trial.seed)
        for number in range(_DRAWN):
            drawn = {i.name: _drawn(i, sample, module.mesh.size, rng) for i in module.inputs}
            try:
                expected = sample.run(drawn)
            except Exception as error:
                yield Problem(f"`run` raises {told(error)}", help="the sample is at fault: correct its `run`")
                return
            yield from _compared(trial, drawn, expected, f"on random inputs {number} of seed {trial.seed}")


def _drawn(parameter: Input, sample: Sample, ranks: int, rng: Any) -> list[Any]:
    """Random arrays of the input's type, one per rank."""
    dtype, shape = parameter.value.type.dtype, parameter.value.type.shape
    if dtype.kind in ("int", "uint", "bool"):
        low, high = sample.ranges.get(parameter.name, (0, 2))
        return [rng.integers(low, high, shape).astype(dtype.storage) for _ in range(ranks)]
    return [rng.standard_normal(shape).astype(dtype.storage) for _ in range(ranks)]


def _compared(
    trial: Trial, inputs: Mapping[str, Any], expected: Mapping[str, Any], when: str
) -> Iterator[Problem]:
    module = trial.made
    try:
        found = run(module, inputs)
    except Unsupported as error:
        if trial.sample.opaque:
            raise Skipped(f"an opaque function can't be run ({error})") from None
        yield Problem(f"can't be run {when}: {told(error)}")
        return
    except InterpretError as error:
        yield Problem(
            f"can't be run {when}: {told(error)}",
            help="the inputs of the sample must be those of the program, by name and type",
        )
        return
    if set(expected) != set(found):
        yield Problem(f"its outputs are {sorted(found)}, expected {sorted(expected)}")
    for name in found:
        if name in expected:
            yield from _differs(trial, name, found[name], expected[name], when)


def _differs(trial: Trial, name: str, found: Sequence[Any], expected: Any, when: str) -> Iterator[Problem]:
    output = next(o for o in trial.made.outputs if o.name == name)
    place = f" at {output.value.location}" if output.value.location is not None else ""
    where = f"output {name} (%{output.value.name}{place})"
    kind = output.value.type.dtype.kind
    try:
        wanted_all = per_rank(name, expected, trial.made.mesh.size)
    except InterpretError:
        yield Problem(f"{len(expected)} arrays are expected, it has {len(found)} ranks", where)
        return
    for rank, (mine, given) in enumerate(zip(found, wanted_all, strict=True)):
        wanted = np.asarray(given)
        if mine.shape != wanted.shape or _KINDS.get(wanted.dtype.kind) != kind:
            needed = f"{wanted.dtype}{list(wanted.shape)}"
            yield Problem(f"is of type {output.value.type}, expected {needed}", where)
            return
        finite = np.abs(wanted[np.isfinite(wanted)]) if wanted.size else wanted
        exact = kind in ("int", "uint", "bool")
        allowed = 0.0 if exact else trial.sample.tolerance * float(finite.max(initial=1))
        if not np.allclose(mine, wanted, rtol=0, atol=allowed, equal_nan=True):
            near = np.isclose(mine, wanted, rtol=0, atol=allowed, equal_nan=True)
            at = tuple(int(k) for k in np.argwhere(~near)[0])
            shown = f"{list(at)} on rank {rank} is {mine[at]:.6g}, expected {wanted[at]:.6g}"
            yield Problem(f"{when}, element {shown}", where)
            return


def itself(trial: Trial) -> Iterator[Problem]:
    from shardproof.solver.verdict import Verdict
    from shardproof.solver.verify import verify as prove

    try:
        found = prove(trial.made, trial.made)
    except Exception as error:
        yield Problem(f"comparing it with itself raises {told(error)}")
        return
    if found.verdict is not Verdict.VERIFIED:
        yield Problem(f"compared with itself it is {found.verdict.value}: {found.message}")


def malformed(trial: Trial) -> Iterator[Problem]:
    rng = random.Random(trial.seed)
    data = trial.sample.source().data
    seen: set[str] = set()
    for what, damaged in _damaged(data, rng):
        try:
            if trial.importer.recognises(trial.sample.source(damaged)):
                module = trial.importer.read(trial.sample.source(damaged))
                verify(module)
        except ModuleError:
            continue
        except Exception as error:
            if type(error).__name__ not in seen and len(seen) < LISTED:
                seen.add(type(error).__name__)
                yield Problem(f"raises {told(error)}", what)


def _damaged(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Copies that are cut short, and copies with one bit changed."""
    for length in sorted({len(data) - 1, *(rng.randrange(1, len(data)) for _ in range(CUTS))} - {0}):
        yield f"cut to {length} of {len(data)} bytes", data[:length]
    for _ in range(FLIPS):
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        yield f"bit {bit} of byte {at} flipped", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


Check = Callable[[Trial], Iterator[Problem]]
CHECKS: Final[Mapping[str, tuple[Check, str]]] = {
    "recognised": (recognised, "recognise every file of the format, by how it starts, and nothing else"),
    "well formed": (
        well_formed,
        "make operators with `Builder`, which gives them their types, and define values before they are used",
    ),
    "locations": (located, "call `Builder.begin(name, location)` before the operators of each node"),
    "opaque": (opaque, "give the operator a rule, or name the function in the sample's `opaque`"),
    "round trip": (round_trip, "use Python's numbers, texts, tuples and NumPy arrays as attributes"),
    "deterministic": (deterministic, "keep no state between readings, and go through no set or id()"),
    "values": (values, "compare the rule of the operator with what the framework computes"),
    "itself": (itself, "name its outputs once; draws and uninitialised memory equal nothing"),
    "malformed": (malformed, "check what is read before it is used, and raise ModuleError"),
}
"""Name, function, and what to do about what it finds."""

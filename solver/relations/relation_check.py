"""Whether the shards that a loader made obey a relation: element by element, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardproof.frontends.codes import cast, is_nan, values_of
from shardproof.frontends.weights import Element, Weight, read
from shardproof.ir.interpret import run
from shardproof.ir.module import Input, Module, Output, Value
from shardproof.ir.types import Array, DType, Mesh, TensorType
from shardproof.solver.programs import mesh_of
from shardproof.solver.relations import relation_file
from shardproof.solver.relations.layout import Cutter
from shardproof.solver.relations.loader_mistakes import Case, explain
from shardproof.solver.relations.placement import describe
from shardproof.solver.relations.relation import REPLICATE, Spec, cut
from shardproof.solver.relations.steps import Layout, RelationError, Step
from shardproof.solver.relations.weight_entries import Entry, TensorNames, entries, mentioned

EXPLAINED: Final = 16
"""How many tensors that do not obey are compared with the usual mistakes."""
_CODES: Final = {8: DType.U8, 16: DType.U16, 32: DType.U32, 64: DType.U64, 128: DType.C128}


@dataclass(frozen=True, slots=True)
class Failure:
    """A tensor of one rank that does not obey; element and values are those of the first difference."""

    rank: int
    name: str
    kind: str
    expected: str
    found: str
    element: tuple[int, ...] | None = None
    values: tuple[str, str] | None = None
    differing: int = 0
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked: `tensors` entries, `shards` tensors of ranks, and what was not, with the reason."""

    mesh: Mesh
    tensors: int
    shards: int
    failures: tuple[Failure, ...]
    casts: Mapping[tuple[str, str], tuple[str, ...]]
    unchecked: Mapping[str, str]
    absent: tuple[str, ...]
    unread: tuple[str, ...]

    @property
    def obeys(self) -> bool:
        return not self.failures


def check(
    relation: str | Path,
    reference: Sequence[str | Path],
    ranks: Sequence[str | Path],
    mesh: str | Mapping[str, int] | None = None,
) -> Report:
    """Compare every tensor of the rank files that `[inputs]` names with what its layout makes.

    `reference` are the files of the whole tensors, `ranks` one file per rank, in order. A tensor obeys
    when its bits are those of the layout's elements, or those of their cast to its own element type.
    Raises ModuleError for files that can't be read, RelationError for a relation that fits no tensor.
    """
    declared = relation_file.read(relation)
    if not ranks or not reference:
        raise RelationError("a reference file and a file for every rank are needed")
    axes = mesh_of(mesh) or declared.mesh or Mesh((("rank", len(ranks)),))
    if axes.size != len(ranks):
        raise RelationError(f"{len(ranks)} rank files are given, the mesh {axes} has {axes.size} ranks")
    whole: dict[str, Weight] = {}
    for path in reference:
        for name, weight in read(Path(path)).items():
            if name in whole:
                raise RelationError(f"{path}: `{name}` is in another reference file too")
            whole[name] = weight
    held = [read(Path(path)) for path in ranks]
    own, names = TensorNames(n for table in held for n in table), TensorNames(whole)
    checker = _Checker(axes, whole, names, held, entries(declared, own, names))
    return checker.run(own)


def compare(
    mesh: Mesh,
    whole: Mapping[str, Weight],
    held: Sequence[Mapping[str, Weight]],
    listed: Sequence[Entry],
) -> tuple[Failure, ...]:
    """As `check`, of tensors that are known already: where entries are not obeyed."""
    checker = _Checker(mesh, whole, TensorNames(whole), held, listed)
    for entry in listed:
        checker.entry(entry)
    return tuple(checker.failures)


class _Checker:
    def __init__(
        self,
        mesh: Mesh,
        whole: Mapping[str, Weight],
        names: TensorNames,
        held: Sequence[Mapping[str, Weight]],
        listed: Sequence[Entry],
    ) -> None:
        self.mesh, self.whole, self.names, self.held, self.listed = mesh, whole, names, held, listed
        self.failures: list[Failure] = []
        self.casts: dict[tuple[str, str], dict[str, None]] = {}
        self.unchecked: dict[str, str] = {}
        self.absent: list[str] = []
        self.shards = self.tensors = 0
        self.explained: set[str] = set()

    def run(self, own: TensorNames) -> Report:
        named = {e.name for e in self.listed}
        for name in own.names:
            if name not in named:
                self.unchecked[name] = "no entry names it"
        for entry in self.listed:
            self.entry(entry)
        if not self.tensors and not self.failures:
            raise RelationError("the relation names no tensor of the rank files: nothing is checked")
        used = {self.names.one(n) for e in self.listed for n in mentioned(e)}
        return Report(
            self.mesh,
            self.tensors,
            self.shards,
            tuple(self.failures),
            {pair: tuple(names) for pair, names in self.casts.items()},
            self.unchecked,
            tuple(self.absent),
            tuple(name for name in self.whole if name not in used),
        )

    def entry(self, entry: Entry) -> None:
        words = self._words(entry)
        source = self.names.one(entry.source)
        if entry.name is None:
            if source is None:
                self.absent.append(entry.key)
            else:
                self._fail(range(len(self.held)), entry.key, "missing", words, "no tensor of that name")
            return
        name = entry.name
        if source is None:
            lacks = f"the reference has no tensor `{entry.source}`"
            self._fail([r for r, t in enumerate(self.held) if name in t], name, "source", words, lacks)
            return
        if _is_partial(entry.spec):
            self.unchecked[name] = "it is a partial sum, only its sum over the ranks is known"
            return
        self.tensors += 1
        missing = [r for r, table in enumerate(self.held) if name not in table]
        self._fail(missing, name, "missing", words, "no tensor of that name")
        present = [r for r in range(len(self.held)) if r not in missing]
        try:
            for element in {self.held[r][name].element: None for r in present}:
                group = [r for r in present if self.held[r][name].element == element]
                self._shards(entry, source, words, element, group)
        except RelationError as e:
            self._fail(present, name, "layout", words, f"the layout does not fit: {e}")

    def _words(self, entry: Entry) -> str:
        if entry.spec == REPLICATE or (isinstance(entry.spec, Layout) and not entry.spec.steps):
            return f"all of `{entry.source}`"
        return f"`{entry.source}` as {describe(entry.spec, self.mesh)}"

    def _fail(self, ranks: Sequence[int], name: str, kind: str, expected: str, found: str) -> None:
        self.failures += [Failure(r, name, kind, expected, found) for r in ranks]

    def _shards(self, entry: Entry, source: str, words: str, element: Element, ranks: Sequence[int]) -> None:
        """Compare the tensors of the ranks that hold it in one element type."""
        name = entry.name
        assert name is not None
        origin = self.whole[source].element
        cast_made = origin != element and not _bits_only(origin, element)
        self.shards += len(ranks)
        made = self._maker(element)
        try:
            wanted = made(entry.spec, source)
        except _Uncast:
            self._fail(ranks, name, "type", f"{words}, {self.whole[source]}", str(self.held[ranks[0]][name]))
            return
        other: list[Array] | None = None
        for r in ranks:
            weight = self.held[r][name]
            expected = wanted[r]
            shape = f"{element}[{','.join(map(str, expected.shape))}]"
            if weight.shape != expected.shape:
                cause = self._cause(entry, source, element, wanted, r)
                wrong = Failure(r, name, "shape", f"{words}, {shape}", str(weight), cause=cause)
                self.failures.append(wrong)
                continue
            codes = weight.codes()
            differs = _differing(expected, codes, element, loose=cast_made)
            if differs is not None and cast_made and element.bits == 8:
                other = other or self._maker(element, saturate=True)(entry.spec, source)
                differs = _differing(other[r], codes, element, loose=True)
            if differs is None:
                if cast_made:
                    self.casts.setdefault((str(origin), str(element)), {})[name] = None
                continue
            at, count = differs
            values = _shown(expected, at, element), _shown(codes, at, element)
            cause = self._cause(entry, source, element, wanted, r)
            self.failures.append(
                Failure(r, name, "values", f"{words}, {shape}", str(weight), at, values, count, cause)
            )

    def _maker(self, element: Element, saturate: bool = False) -> Callable[[Spec, str], list[Array]]:
        """Gives every rank's codes in an element type, of a layout of a reference tensor."""

        def made(spec: Spec, source: str) -> list[Array]:
            arrays: dict[str, Array] = {}
            values: dict[str, Value] = {}
            cutter = Cutter(self.mesh, "layout ")

            def find(wanted: str) -> Value:
                name = self.names.one(wanted)
                if name is None:
                    raise RelationError(f"the reference has no tensor `{wanted}`")
                if name not in values:
                    weight = self.whole[name]
                    if weight.element != self.whole[source].element:
                        raise RelationError(f"`{name}` is {weight}, `{source}` is {self.whole[source]}")
                    arrays[name] = _cast(weight, element, saturate)
                    values[name] = Value(name, TensorType(_CODES[element.bits], weight.shape))
                return values[name]

            result = cut(cutter, spec, find(source), find)
            inputs = tuple(Input(v, n) for n, v in enumerate(values.values()))
            module = Module("shards", self.mesh, inputs, tuple(cutter.ops), (Output("shard", result),))
            return run(module, arrays)["shard"]

        return made

    def _cause(
        self, entry: Entry, source: str, element: Element, wanted: Sequence[Array], rank: int
    ) -> str | None:
        assert entry.name is not None
        if entry.name not in self.explained and len(self.explained) >= EXPLAINED:
            return None
        self.explained.add(entry.name)
        made = self._maker(element)

        def tried(spec: Spec, of: str) -> list[Array] | None:
            try:
                return made(spec, of)
            except (RelationError, _Uncast):
                return None

        return explain(
            Case(
                entry.spec,
                source,
                self.whole[source].shape,
                rank,
                self.mesh.size,
                element.dtype,
                tuple(wanted),
                self.held[rank][entry.name].codes(),
                tried,
                tuple(self._alike(entry)),
            )
        )

    def _alike(self, entry: Entry) -> list[tuple[str, Spec, str]]:
        """Other tensors whose place a wrong one may have come from: those made of a source of equal shape."""
        shape = self.whole[self.names.one(entry.source) or ""].shape
        found = []
        for other in self.listed:
            source = self.names.one(other.source)
            if source is None or self.whole[source].shape != shape:
                continue
            if other.key != entry.key and not _is_partial(other.spec):
                found.append((other.name or other.key, other.spec, source))
        return found


class _Uncast(Exception):
    """No cast leads from the reference's elements to those of the ranks."""


def _cast(weight: Weight, element: Element, saturate: bool) -> Array:
    codes = weight.codes()
    if weight.element == element or _bits_only(weight.element, element):
        return codes
    if weight.element.dtype is None or element.dtype is None:
        raise _Uncast
    found = cast(codes, weight.element.dtype, element.dtype, saturate=saturate)
    if found is None:
        raise _Uncast
    return found


def _bits_only(a: Element, b: Element) -> bool:
    """One of them is known by its width alone, as `.npz` files hold bf16."""
    return a.bits == b.bits and (a.name == f"bits{a.bits}" or b.name == f"bits{b.bits}")


def _is_partial(spec: Spec) -> bool:
    return isinstance(spec, Layout) and any(isinstance(s, Step) and s.name == "partial" for s in spec.steps)


def _differing(
    expected: Array, found: Array, element: Element, *, loose: bool
) -> tuple[tuple[int, ...], int] | None:
    """The first element that differs and how many do; None when none does.

    Bits are compared, but when `loose` any NaN is as good as another.
    """
    if element.bits != 128 and np.array_equal(expected, found):
        return None
    mask: Any = _bits(expected) != _bits(found)
    if element.bits == 128:
        mask = mask.any(axis=-1)
    if loose and element.dtype is not None and element.dtype.kind == "real":
        mask &= ~(is_nan(expected, element.dtype) & is_nan(found, element.dtype))
    count = int(np.count_nonzero(mask))
    if not count:
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), expected.shape)), count


def _bits(codes: Array) -> Any:
    if codes.dtype != np.complex128:
        return codes
    return np.ascontiguousarray(codes).view(np.uint64).reshape(*codes.shape, 2)


def _shown(codes: Array, at: tuple[int, ...], element: Element) -> str:
    """The element at a position, by its value where its type is known, else by its bits."""
    code = codes[at]
    if element.dtype is None:
        return f"{int(code):#0{element.bits // 4 + 2}x}"
    value = values_of(np.asarray(code).reshape(1), element.dtype)[0]
    return str(value)

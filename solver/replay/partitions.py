"""Partitions of the positions of a dim into classes of equal slices.

Classes are numbered in the order of their first positions, so that a partition has one form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
LARGEST = 1 << 24
"""Positions of a dim beyond which its classes are not listed."""


class TooLong(ValueError):
    """A dim whose classes would not fit; the message is one line."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Partition:
    """`labels` gives the class of each position, `first` and `sizes` the first position and the size of each.

    Equal partitions are one object.
    """

    labels: Numbers
    first: Numbers
    sizes: Numbers

    @property
    def size(self) -> int:
        """How many positions there are."""
        return len(self.labels)

    @property
    def count(self) -> int:
        """How many classes there are."""
        return len(self.first)

    @property
    def discrete(self) -> bool:
        """Whether each position is a class of its own."""
        return len(self.first) == len(self.labels)


_known: WeakValueDictionary[bytes, Partition] = WeakValueDictionary()


def classes_of(keys: npt.NDArray[Any]) -> Partition:
    """The positions with equal keys, of any integer type, as classes."""
    if len(keys) > LARGEST:
        raise TooLong(f"a dim of {len(keys)} positions has too many to class")
    _, first, inverse, sizes = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    labels = number[inverse]
    digest = blake2b(labels.tobytes(), digest_size=16).digest()
    found = _known.get(digest)
    if found is None:
        found = Partition(labels, first[order].astype(np.int64), sizes[order].astype(np.int64))
        _known[digest] = found
    return found


@lru_cache(maxsize=256)
def discrete(size: int) -> Partition:
    """Each position a class of its own."""
    return classes_of(np.arange(size))


@lru_cache(maxsize=256)
def single(size: int) -> Partition:
    """All positions in one class."""
    return classes_of(np.zeros(size, np.int64))


@lru_cache(maxsize=1024)
def refined(p: Partition, q: Partition) -> Partition:
    """Positions are in one class when they are in one class of both."""
    if p is q or q.count <= 1 or p.discrete:
        return p
    if p.count <= 1 or q.discrete:
        return q
    return classes_of(p.labels * q.count + q.labels)


@lru_cache(maxsize=1024)
def cut(p: Partition, start: int, stop: int, step: int) -> tuple[Partition, Numbers]:
    """The classes of the positions start, start + step, ... before `stop`, and which of `p` they are."""
    return taken(p, np.arange(start, stop, step))


def taken(p: Partition, positions: Numbers) -> tuple[Partition, Numbers]:
    """The classes of some positions, and which classes of `p` they are."""
    labels = p.labels[positions]
    found = classes_of(labels)
    return found, labels[found.first]


@lru_cache(maxsize=1024)
def joined(*parts: Partition) -> Partition:
    """Partitions of dims side by side; no class spans two of them."""
    offsets = np.cumsum([0, *(p.count for p in parts)])
    return classes_of(np.concatenate([p.labels + at for p, at in zip(parts, offsets[:-1], strict=True)]))


@lru_cache(maxsize=1024)
def regrouped(
    parts: tuple[Partition, ...], sizes: tuple[int, ...]
) -> tuple[tuple[Partition, ...], Numbers | None]:
    """Dims of a row-major run of positions read as dims of other `sizes`.

    Gives their partitions, and for each class of the new dims the class of the old ones, both row-major;
    None when the classes stay where they are.
    """
    if all(p.discrete for p in parts):
        return tuple(map(discrete, sizes)), None
    if all(p.count == 1 for p in parts):
        return tuple(map(single, sizes)), None
    if prod(sizes) > LARGEST:
        raise TooLong(f"a run of {prod(sizes)} positions is too long to class")
    flat = np.zeros(1, np.int64)
    for p in parts:
        flat = (flat[:, None] * p.count + p.labels[None, :]).reshape(-1)
    if len(sizes) == 1:
        whole = classes_of(flat)
        return (whole,), flat[whole.first]
    cube = flat.reshape(sizes)
    found = tuple(slices_of(cube, d) for d in range(len(sizes)))
    return found, cube[np.ix_(*(p.first for p in found))].reshape(-1)


def forget() -> None:
    """Drop what is kept for speed."""
    for kept in (refined, cut, joined, regrouped):
        kept.cache_clear()


def slices_of(array: npt.NDArray[Any], dim: int) -> Partition:
    """The positions along `dim` whose slices are the same numbers (any NaN is one), as classes."""
    rows = np.moveaxis(array, dim, 0).reshape(array.shape[dim], -1)
    words = _words(rows)
    found = classes_of(_fingerprints(words))
    if found.discrete or not rows.shape[1]:
        return found
    if np.array_equal(words, words[found.first[found.labels]]):
        return found
    return discrete(array.shape[dim])


def _words(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows as integers that are equal where the elements are the same numbers."""
    if rows.dtype.kind == "c":
        parts = [_words(np.ascontiguousarray(x)) for x in (rows.real, rows.imag)]
        return np.concatenate(parts, axis=1)
    if rows.dtype.kind != "f":
        return rows.astype(np.int64)
    plain = np.where(np.isnan(rows), np.nan, rows)
    double = np.ascontiguousarray(plain.astype(np.float64)).view(np.int64)
    if rows.dtype.itemsize <= 8:
        return double
    rest = np.ascontiguousarray((plain - plain.astype(np.float64)).astype(np.float64)).view(np.int64)
    return np.concatenate([double, rest], axis=1)


def _fingerprints(words: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        keys = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = words.view(np.uint64) * np.uint64(0xBF58476D1CE4E5B9) + keys
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(32)
        sums: npt.NDArray[np.uint64] = mixed.sum(axis=1, dtype=np.uint64)
        return sums

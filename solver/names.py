"""Names that tell what an input of a program is, besides what its caller calls it."""

from __future__ import annotations

from typing import Final

BASE: Final = "base "
"""Prefix of the names of base tensors."""
DRAW: Final = "random "
"""Prefix of the names of inputs that are random draws; after it come the distribution and the drawn value."""


def is_draw(name: str) -> bool:
    """Whether an input of this name is a draw."""
    return name.startswith(DRAW)


def distribution(name: str) -> str:
    """`uniform` (from 0 to 1) or `normal` (of mean 0 and deviation 1), for the name of a draw."""
    return name.removeprefix(DRAW).partition(" ")[0]


def drawn(name: str) -> str:
    """The value of the program that a draw was made for."""
    return name.removeprefix(DRAW).partition(" ")[2]


def is_uniform(name: str) -> bool:
    """Whether the input, or the base tensor, of this name is a uniform draw."""
    own = name.removeprefix(BASE)
    return is_draw(own) and distribution(own) == "uniform"

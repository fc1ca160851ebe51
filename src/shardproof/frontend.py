"""What a frontend of another package is written with; docs/new-frontend.md is the tutorial.

A frontend is a Python module, or an object, with two functions, named by an entry point of the group
`shardproof.frontends`:

    recognises(source: Source) -> bool     whether the file is of its kind
    read(source: Source) -> Module         the program; raises ModuleError

- `Source`: the file: its `head`, `text` or `data`, the `ranks` wanted, the `constants` of the relation file.
- `Module`: the program of all ranks of a `Mesh`: `Input`s, operators, `Output`s, and `Guess`es, which a
  verdict lists.
- `Mesh`: named axes; `groups(axes)` are the groups of ranks that a collective over them has.
- `Value`: one tensor on each rank: its name, its `TensorType` (a `DType` and a shape), its `Location`.
- `Builder`: makes the operators, each typed as it is added; `OPERATORS` is the table of them all.
- `Locator`: chooses the line to show from a recorded stack of `Frame`s.
- `ModuleError`: what is raised for a file that is not right: what was found, where, what to do.
- `Frontend`: the two functions as a type.
"""

from __future__ import annotations

from shardproof.frontends.formats import Frontend
from shardproof.frontends.locate import Locator
from shardproof.frontends.source import Source
from shardproof.ir.build import Builder
from shardproof.ir.module import Guess, Input, Module, ModuleError, Output, Value
from shardproof.ir.ops import TABLE as OPERATORS
from shardproof.ir.types import DType, Frame, Location, Mesh, TensorType

__all__ = [
    "OPERATORS",
    "Builder",
    "DType",
    "Frame",
    "Frontend",
    "Guess",
    "Input",
    "Location",
    "Locator",
    "Mesh",
    "Module",
    "ModuleError",
    "Output",
    "Source",
    "TensorType",
    "Value",
]

"""Reads the text form of a module; the grammar is `module.lark`."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any, Final, NoReturn

import numpy as np
from lark import Lark, Token, Transformer, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken, VisitError

from shardproof.ir.module import Guess, Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.types import DType, Frame, Location, Mesh, TensorType

_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "none": None}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_SPELLED: Final = {
    "VALUE": "a value such as %x",
    "TYPE": "a type such as f32[2,3]",
    "LIST": "a list such as (0, 1)",
    "INT": "an integer",
    "FLOAT": "a number",
    "STRING": "a string",
    "NAME": "a name",
    "$END": "the end of the file",
    "LPAR": "'('",
    "RPAR": "')'",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "COMMA": "','",
    "COLON": "':'",
    "EQUAL": "'='",
}


def parse(text: str, *, source: str) -> Module:
    """The module that `text` describes; `source` names it in messages.

    Raises `ModuleError` with line, column and what was expected. Values must be defined before they
    are used, and once; all else is left to `shardproof.ir.verify`.
    """
    try:
        parts: Any = _parser().parse(text)
        return _Builder().module(parts[1][0])
    except UnexpectedInput as error:
        raise ModuleError(f"{source}:{_unexpected(error, text)}") from None
    except _Misplaced as error:
        raise ModuleError(f"{source}:{error}") from None
    except VisitError as error:
        raise ModuleError(f"{source}:{error.orig_exc}") from None


class _Misplaced(ValueError):
    """`line:column: message`."""


def _fail(token: Token, message: str) -> NoReturn:
    raise _Misplaced(f"{token.line}:{token.column}: {message}")


def _unexpected(error: UnexpectedInput, text: str) -> str:
    expected: Iterable[str] | None
    if isinstance(error, UnexpectedCharacters):
        found, expected = repr(text[error.pos_in_stream or 0]), error.allowed
    elif isinstance(error, UnexpectedToken) and error.token.type != "$END":
        found, expected = repr(str(error.token)[:40]), error.accepts or error.expected
    else:
        found = "the end of the file"
        expected = error.expected if isinstance(error, UnexpectedEOF | UnexpectedToken) else set()
    line, column = error.line, error.column
    if found == "the end of the file" or line < 1:
        line, column = text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1
    names = sorted(_SPELLED.get(str(name), repr(str(name).lower())) for name in expected or ())
    return f"{line}:{column}: found {found}, expected {' or '.join(names) or 'something else'}"


def _string(token: Token) -> str:
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        _fail(token, f"{token[:40]} is not a JSON string")


def _integer(token: Token) -> int:
    try:
        return int(token)
    except ValueError:
        _fail(token, "the integer has too many digits")


def _list(token: Token) -> tuple[Any, ...]:
    """Numbers and words between parentheses, a last comma allowed."""
    words = [word.strip() for word in token[1:-1].split(",")]
    if not words[-1]:
        words.pop()
    try:
        return tuple(
            _WORDS[word] if word in _WORDS else int(word) if _INTEGER.fullmatch(word) else float(word)
            for word in words
        )
    except ValueError:
        _fail(token, "a list of numbers is needed")


@cache
def _type_of(text: str) -> TensorType | None:
    name, _, sizes = text[:-1].partition("[")
    try:
        shape = tuple(int(size) for size in sizes.split(",")) if sizes.strip() else ()
        return TensorType(DType(name), shape)
    except ValueError:
        return None


def _type(token: Token) -> TensorType:
    return _type_of(str(token)) or _fail(token, f"{token[:40]} is not a type such as f32[2,3]")


def _array(token: Token, flat: Any, *, splat: bool = False) -> Any:
    """An array of the type that `token` names from a flat array, or from its one element."""
    type_ = _type(token)
    try:
        if splat and type_.size > 1 << 20:
            return np.broadcast_to(flat.reshape(()), type_.shape)
        return np.full(type_.shape, flat.reshape(())) if splat else flat.reshape(type_.shape)
    except (ValueError, MemoryError):
        _fail(token, f"{type_} does not have the {flat.size} elements given")


def _flat(token: Token, values: tuple[Any, ...]) -> Any:
    dtype = _type(token).dtype
    if dtype.kind == "bool":
        wrong = [v for v in values if not isinstance(v, bool)]
    elif dtype.kind in ("int", "uint"):
        wrong = [v for v in values if type(v) is not int]
    else:
        wrong = [v for v in values if type(v) not in (int, float)]
    if wrong:
        _fail(token, f"{wrong[0]} is not an element of {dtype.value}")
    try:
        if dtype.kind != "complex":
            with np.errstate(over="ignore"):
                return np.array(values, dtype=dtype.storage)
        half = np.dtype(np.float32 if dtype is DType.C64 else np.float64)
        return np.array(values, dtype=half).view(dtype.storage)
    except (ValueError, OverflowError):
        _fail(token, f"an element does not fit in {dtype.value}")


class _Parts(Transformer[Token, Any]):
    """Turns literals into values and leaves the rest as lists."""

    def integer(self, children: list[Token]) -> int:
        return _integer(children[0])

    def real(self, children: list[Token]) -> float:
        return float(children[0])

    def string(self, children: list[Token]) -> str:
        return _string(children[0])

    def true(self, children: list[Token]) -> bool:
        return True

    def false(self, children: list[Token]) -> bool:
        return False

    def none(self, children: list[Token]) -> None:
        return None

    def list(self, children: list[Token]) -> tuple[Any, ...]:
        return _list(children[0])

    def nested(self, children: Any) -> tuple[Any, ...]:
        return tuple(children)

    def elements(self, children: Any) -> Any:
        return _array(children[0], _flat(children[0], _list(children[1])))

    def splat(self, children: Any) -> Any:
        return _array(children[0], _flat(children[0], _list(children[1])), splat=True)

    def packed(self, children: Any) -> Any:
        storage = _type(children[0]).dtype.storage
        try:
            data = b64decode(_string(children[1]), validate=True)
            if prod(_type(children[0]).shape) * storage.itemsize != len(data):
                _fail(children[1], f"{len(data)} bytes found, {children[0]} needs another number")
            return _array(children[0], np.frombuffer(data, dtype=storage.newbyteorder("<")).astype(storage))
        except _Misplaced:
            raise
        except ValueError:
            _fail(children[1], "the string is not base64")

    def submodule(self, children: Any) -> Module:
        return _Builder().module(children[0])

    def attribute(self, children: Any) -> Any:
        return children

    def __default__(self, data: Any, children: Any, meta: Any) -> Any:
        """A rule as (name, children); the parser's own list rules, which it inlines, stay trees."""
        name = str(data)
        return Tree(name, children) if name.startswith("_") else (name, children)


@cache
def _parser() -> Lark:
    grammar = files("shardproof.ir").joinpath("module.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", transformer=_Parts(), maybe_placeholders=True)


class _Builder:
    """Collects values by name and makes the module."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.frames: dict[int, Frame] = {}
        self.locations: dict[Location, Location] = {}

    def module(self, parts: Any) -> Module:
        name, (_, axes), (_, (rank,)), *statements = parts[1]
        mesh = Mesh(tuple(self._axis(*axis) for _, axis in axes if axis is not None) if axes[0] else ())
        inputs: list[Input] = []
        ops: list[Op] = []
        outputs: list[Output] = []
        warnings: list[str] = []
        guesses: list[Guess] = []
        for kind, children in statements:
            if kind == "operation":
                ops.append(self._operation(*children))
            elif kind == "input":
                inputs.append(self._input(*children))
            elif kind == "output":
                outputs.append(self._output(*children))
            elif kind == "frame":
                number, file, line, function = children
                where = None if function is None else _string(function)
                self.frames[_integer(number)] = Frame(_string(file), _integer(line), where)
            elif kind == "guess":
                guesses.append(Guess(str(children[0]), _string(children[1]), _string(children[2])))
            else:
                warnings.append(_string(children[0]))
        return Module(
            _string(name),
            mesh,
            tuple(inputs),
            tuple(ops),
            tuple(outputs),
            None if rank is None else _integer(rank),
            tuple(warnings),
            tuple(guesses),
        )

    def _axis(self, name: Token, size: Token) -> tuple[str, int]:
        return (_string(name) if name.type == "STRING" else str(name), _integer(size))

    def _name(self, token: Token) -> str:
        if token[1] != '"':
            return str(token[1:])
        return _string(Token.new_borrow_pos("STRING", token[1:], token))

    def _define(self, token: Token, result: Any) -> Value:
        name = self._name(token)
        if name in self.values:
            _fail(token, f"value %{name} is defined twice")
        type_, file, line, stack = result[1]
        location = None
        if file is not None:
            made = Location(_string(file), _integer(line), self._stack(stack))
            location = self.locations.setdefault(made, made)
        self.values[name] = value = Value(name, _type(type_), location)
        return value

    def _stack(self, numbers: Token | None) -> tuple[Frame, ...]:
        if numbers is None:
            return ()
        found = _list(numbers)
        for number in found:
            if number not in self.frames:
                _fail(numbers, f"frame {number} is not defined")
        return tuple(self.frames[number] for number in found)

    def _use(self, token: Token) -> Value:
        name = self._name(token)
        if name not in self.values:
            _fail(token, f"value %{name} is used but not defined before")
        return self.values[name]

    def _input(self, targets: Any, number: Token, sharding: Token | None, result: Any) -> Input:
        if len(targets[1]) != 1:
            _fail(number, f"{len(targets[1])} values are one input, one is needed")
        value = self._define(targets[1][0], result)
        return Input(value, _integer(number), None if sharding is None else _list(sharding))

    def _operation(self, targets: Any, opcode: Token, operands: Any, attributes: Any, results: Any) -> Op:
        read = tuple(self._use(token) for token in operands[1] if token is not None)
        if len(targets[1]) != len(results[1]):
            _fail(opcode, f"{len(targets[1])} values are given {len(results[1])} types")
        attrs: dict[str, Any] = {}
        for attribute in attributes[1]:
            if attribute is not None:
                if attribute[0] in attrs:
                    _fail(attribute[0], f"attribute {attribute[0]} is given twice")
                attrs[str(attribute[0])] = attribute[1]
        made = tuple(map(self._define, targets[1], results[1]))
        return Op(str(opcode), read, made, attrs)

    def _output(self, name: Token, value: Token, updates: Token | None) -> Output:
        state = None if updates is None else self._name(updates)
        return Output(_string(name), self._use(value), state)

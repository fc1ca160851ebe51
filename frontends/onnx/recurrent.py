"""RNN, LSTM and GRU as repetitions of their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardproof.frontends.onnx.loops import repeated
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType

Activation = Callable[[Value], Value]
Cell = Callable[["Direction", Value, Sequence[Value]], list[Value]]
"""The new state from a row of the input and the state, of which the hidden values come first."""


def _affine(s: Lowering, x: Value, a: float, b: float) -> Value:
    return s.pair("add", s.pair("multiply", x, a), b)


def _hard_sigmoid(s: Lowering, x: Value, a: float, b: float) -> Value:
    return s.pair("minimum", s.pair("maximum", _affine(s, x, a, b), 0), 1)


def _leaky_relu(s: Lowering, x: Value, a: float) -> Value:
    return s.select(s.compare("GE", x, 0), x, s.pair("multiply", x, a))


def _thresholded_relu(s: Lowering, x: Value, a: float) -> Value:
    return s.select(s.compare("GE", x, a), x, s.like(x, 0))


def _scaled_tanh(s: Lowering, x: Value, a: float, b: float) -> Value:
    return s.pair("multiply", s.emit("tanh", s.pair("multiply", x, b)), a)


def _elu(s: Lowering, x: Value, a: float) -> Value:
    below = s.pair("multiply", s.pair("subtract", s.emit("exponential", x), 1), a)
    return s.select(s.compare("GE", x, 0), x, below)


ACTIVATIONS: Final[Mapping[str, tuple[Callable[..., Value], tuple[float, ...]]]] = {
    "affine": (_affine, (1.0, 0.0)),
    "elu": (_elu, (1.0,)),
    "hardsigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "leakyrelu": (_leaky_relu, (0.01,)),
    "relu": (lambda s, x: s.pair("maximum", x, 0), ()),
    "scaledtanh": (_scaled_tanh, (1.0, 1.0)),
    "sigmoid": (lambda s, x: s.emit("logistic", x), ()),
    "softplus": (lambda s, x: s.emit("log", s.pair("add", s.emit("exponential", x), 1)), ()),
    "softsign": (lambda s, x: s.pair("divide", x, s.pair("add", s.emit("abs", x), 1)), ()),
    "tanh": (lambda s, x: s.emit("tanh", x), ()),
    "thresholdedrelu": (_thresholded_relu, (1.0,)),
}
"""Functions by name in small letters, with the defaults of the alpha and the beta that they take."""


def _activation(s: Lowering, name: str, given: Sequence[Iterator[float]]) -> Activation:
    """The function of a name; the next alpha and beta given are its own if it takes them."""
    found = ACTIVATIONS.get(name.lower())
    if found is None:
        s.fail(f"has the activation {name!r}; {', '.join(ACTIVATIONS)} are known")
    function, defaults = found
    numbers = [next(source, default) for source, default in zip(given, defaults, strict=False)]
    return lambda x: function(s, x, *numbers)


@dataclass(frozen=True, slots=True)
class Direction:
    """The weights of one direction, cut into those of the gates, and what applies to all gates."""

    state: Lowering
    input: Sequence[Value]
    hidden: Sequence[Value]
    input_bias: Sequence[Value]
    hidden_bias: Sequence[Value]
    peephole: Sequence[Value]
    functions: Sequence[Activation]
    clip: float | None

    def linear(self, x: Value, w: Value) -> Value:
        """`x @ w.T`."""
        return self.state.dot(x, w, (1, 1), ((), ()))

    def sum(self, gate: int, x: Value, h: Value, *more: Value) -> Value:
        """What a gate's function is applied to, but for the limits."""
        parts = [self.linear(h, self.hidden[gate]), *more]
        parts += [b[gate] for b in (self.input_bias, self.hidden_bias) if b]
        found = self.linear(x, self.input[gate])
        for part in parts:
            found = self.state.pair("add", found, part)
        return found

    def apply(self, function: int, x: Value) -> Value:
        s = self.state
        if self.clip is not None:
            x = s.pair("minimum", s.pair("maximum", x, -self.clip), self.clip)
        return self.functions[function](x)


def _rnn_cell(d: Direction, x: Value, state: Sequence[Value]) -> list[Value]:
    return [d.apply(0, d.sum(0, x, state[0]))]


def _lstm_cell(*, coupled: bool) -> Cell:
    """Gates i, o, f, c; with `coupled` the forget gate is what the input gate leaves."""

    def cell(d: Direction, x: Value, state: Sequence[Value]) -> list[Value]:
        s, (h, c) = d.state, state

        def peep(gate: int, c: Value) -> list[Value]:
            return [s.pair("multiply", c, d.peephole[gate])] if d.peephole else []

        kept = d.apply(0, d.sum(0, x, h, *peep(0, c)))
        forgot = d.apply(0, d.sum(2, x, h, *peep(2, c))) if not coupled else _rest(s, kept)
        new = d.apply(1, d.sum(3, x, h))
        c = s.emit("add", s.emit("multiply", forgot, c), s.emit("multiply", kept, new))
        shown = d.apply(0, d.sum(1, x, h, *peep(1, c)))
        return [s.emit("multiply", shown, d.apply(2, c)), c]

    return cell


def _gru_cell(*, linear_first: bool) -> Cell:
    """Gates z, r, h; with `linear_first` the reset gate scales what the hidden weights give."""

    def cell(d: Direction, x: Value, state: Sequence[Value]) -> list[Value]:
        s, (h,) = d.state, state
        update, reset = (d.apply(0, d.sum(gate, x, h)) for gate in (0, 1))
        new = d.linear(x, d.input[2])
        if d.input_bias:
            new = s.pair("add", new, d.input_bias[2])
        old = d.linear(h if linear_first else s.emit("multiply", reset, h), d.hidden[2])
        if d.hidden_bias:
            old = s.pair("add", old, d.hidden_bias[2])
        old = s.emit("multiply", reset, old) if linear_first else old
        new = d.apply(1, s.emit("add", new, old))
        return [s.emit("add", s.emit("multiply", _rest(s, update), new), s.emit("multiply", update, h))]

    return cell


def _rest(s: Lowering, x: Value) -> Value:
    """`1 - x`."""
    return s.emit("subtract", s.like(x, 1), x)


def _run(
    s: Lowering, n: Node, cell: Cell, gates: int, defaults: Sequence[str], peephole: Value | None, cells: int
) -> list[Value]:
    """All directions; `cells` is the number of tensors in the state, the first of them operand 5."""
    layout, told = n.attrs["layout"], n.attrs["direction"]
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(told)
    if directions is None or layout not in (0, 1):
        s.fail(f"has the direction {told!r} and the layout {layout}, which are not known")
    x, lengths = n.operand(0), n.given(4)
    x = s.transpose(x, (1, 0, 2)) if layout else x
    steps, batch, _ = x.type.shape
    size = n.operand(2).type.shape[-1]
    names = tuple(n.attrs.get("activations") or ()) or tuple(defaults) * len(directions)
    names = names[: len(defaults) * len(directions)]
    if len(names) != len(defaults) * len(directions):
        s.fail(f"has the activations {list(names)}, {len(defaults)} for each direction are needed")
    given = [iter(n.attrs.get(f"activation_{w}") or ()) for w in ("alpha", "beta")]
    functions = [_activation(s, name, given) for name in names]
    outs: list[Value] = []
    last: list[list[Value]] = []
    for k, back in enumerate(directions):
        own = Direction(
            s,
            _gates(s, n.given(1), k, gates),
            _gates(s, n.given(2), k, gates),
            _gates(s, n.given(3), k, 2 * gates)[:gates],
            _gates(s, n.given(3), k, 2 * gates)[gates:],
            _gates(s, peephole, k, 3),
            functions[len(defaults) * k : len(defaults) * (k + 1)],
            n.attrs.get("clip"),
        )
        initial = [_initial(s, n.given(5 + c), k, layout, (batch, size), x.type.dtype) for c in range(cells)]
        state, (out,) = _direction(s, own, cell, x, initial, lengths, steps, back)
        outs.append(out)
        last.append(state)
    y = _stacked(s, outs, 1)
    y = s.transpose(y, (2, 0, 1, 3)) if layout else y
    return [y, *(_stacked(s, [state[c] for state in last], layout) for c in range(cells))]


def _direction(
    s: Lowering,
    d: Direction,
    cell: Cell,
    x: Value,
    initial: Sequence[Value],
    lengths: Value | None,
    steps: int,
    back: bool,
) -> tuple[list[Value], list[Value]]:
    """The last state and the hidden values of all steps; steps behind a sequence's end keep the state and
    give 0."""

    def step(state: Sequence[Value], rows: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        new = cell(d, rows[0], state)
        if lengths is None:
            return new, [new[0]]
        inside = s.place(s.compare("LT", rows[1], lengths), (0,), new[0].type.shape)
        kept = [s.select(inside, a, b) for a, b in zip(new, state, strict=True)]
        return kept, [s.select(inside, new[0], s.like(new[0], 0))]

    rows = [x] if lengths is None else [x, s.iota(lengths.type.dtype, (steps,), 0)]
    return repeated(s, steps, initial, rows, step, reverse=back)


def _gates(s: Lowering, x: Value | None, direction: int, count: int) -> list[Value]:
    """The equal parts of a direction's weights; none of weights that are left out."""
    if x is None:
        return []
    own = s.reshape(s.slice(x, 0, direction, direction + 1), x.type.shape[1:])
    size = own.type.shape[0] // count
    return [s.slice(own, 0, k * size, (k + 1) * size) for k in range(count)]


def _initial(
    s: Lowering, x: Value | None, direction: int, dim: int, shape: tuple[int, ...], dtype: DType
) -> Value:
    """The initial state of a direction, along `dim` of the operand; 0 where it is left out."""
    if x is None:
        return s.full(0, dtype, shape)
    return s.reshape(s.slice(x, dim, direction, direction + 1), shape)


def _stacked(s: Lowering, parts: Sequence[Value], dim: int) -> Value:
    """The directions side by side in a new dim."""
    shape = parts[0].type.shape
    made = [s.reshape(p, (*shape[:dim], 1, *shape[dim:])) for p in parts]
    return made[0] if len(made) == 1 else s.emit("concatenate", *made, dim=dim)


def _rnn(s: Lowering, n: Node) -> list[Value]:
    return _run(s, n, _rnn_cell, 1, ("Tanh",), None, 1)


def _lstm(s: Lowering, n: Node) -> list[Value]:
    cell = _lstm_cell(coupled=bool(n.attrs["input_forget"]))
    return _run(s, n, cell, 4, ("Sigmoid", "Tanh", "Tanh"), n.given(7), 2)


def _gru(s: Lowering, n: Node) -> list[Value]:
    cell = _gru_cell(linear_first=bool(n.attrs["linear_before_reset"]))
    return _run(s, n, cell, 3, ("Sigmoid", "Tanh"), None, 1)


RULES: Final[Mapping[str, Rule]] = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}

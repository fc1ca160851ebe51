"""Branches, loops and recurrent cells of ONNX models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import MICROSOFT, node

from shardproof.frontends.onnx.lower import lower
from shardproof.ir.interpret import run
from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(11)
FLOAT, INT, BOOL = 1, 7, 9
Info = tuple[str, int, Sequence[int]]


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def graph(nodes: Sequence[Any], inputs: Sequence[Info], outputs: Sequence[Info]) -> Any:
    infos = [[onnx.helper.make_tensor_value_info(*i) for i in told] for told in (inputs, outputs)]
    return onnx.helper.make_graph(list(nodes), "inner", *infos)


def branches(then: str, other: str, *more: Any) -> Any:
    """`then` and `other` are operators of `x` and `z`."""
    made = [graph([node(op, "x z", "r"), *more], [], [("r", FLOAT, [3])]) for op in (then, other)]
    return node("If", "c", "y", then_branch=made[0], else_branch=made[1])


X, Z = floats(3), floats(3)


@pytest.mark.parametrize("which", [True, False])
def test_branch(which: bool) -> None:
    given = {"x": X, "z": Z, "c": np.asarray(which)}
    proto = program([branches("Add", "Mul")], given, "y")
    assert disagreement(proto, given) is None
    assert any(op.opcode == "select" for op in imported(proto).ops)
    assert disagreement(proto, given, {"c": which}) is None
    assert not any(op.opcode == "select" for op in imported(proto, {"c": which}).ops)


def test_branches_exchanged_are_refuted() -> None:
    given = {"x": X, "z": Z, "c": np.asarray(True)}
    one, other = (imported(program([branches(*ops)], given, "y")) for ops in (("Add", "Mul"), ("Mul", "Add")))
    assert verify(one, one).verdict is Verdict.VERIFIED
    assert verify(one, other).verdict is Verdict.REFUTED


def test_collective_in_a_branch_is_refused() -> None:
    ranked = branches("Add", "Mul")
    ranked.attribute[0].g.node[0].output[0] = "s"
    ranked.attribute[0].g.node.append(node("AllReduce", "s", "r", MICROSOFT))
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [ranked],
            "graph",
            [onnx.helper.make_tensor_value_info(*i) for i in (("x", 1, [3]), ("z", 1, [3]), ("c", 9, []))],
            [onnx.helper.make_tensor_value_info("y", 1, [3])],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(MICROSOFT, 1)],
        ir_version=10,
    )
    with pytest.raises(ModuleError, match="collective in a branch"):
        lower(model, ranks=2)
    assert any(op.opcode == "all_reduce" for op in lower(model, ranks=2, constants={"c": False}).ops)


def loop(body: Sequence[Any], outputs: str, *, grows: bool = False) -> Any:
    """A loop over `h`, of which `body` makes `o` and the row `r` from `h` and the number `i`."""
    inner = graph(
        body,
        [("i", INT, []), ("go", BOOL, []), ("h", FLOAT, [None] if grows else [3])],
        [("on", BOOL, []), ("o", FLOAT, [None] if grows else [3]), ("r", FLOAT, [3])],
    )
    return node("Loop", "count cond x", outputs, body=inner)


STEP = [node("Mul", "h z", "p"), node("Add", "p x", "o"), node("Neg", "o", "r")]
ON = node("Identity", "go", "on")


@pytest.mark.parametrize("count", [1, 3, 100])
def test_loop(count: int) -> None:
    given = {"x": X, "z": Z * 0.1}
    stored = {"count": np.asarray(count), "cond": np.asarray(True)}
    proto = program([loop([*STEP, ON], "y rows")], given, "y rows", stored)
    assert disagreement(proto, given) is None
    assert any(op.opcode == "scan" for op in imported(proto).ops) == (count == 100)


@pytest.mark.parametrize(
    "stored", [{"count": np.asarray(0)}, {"count": np.asarray(5), "cond": np.asarray(False)}]
)
def test_loop_without_rounds(stored: dict[str, Any]) -> None:
    made = loop([*STEP, ON], "y rows")
    made.input[1] = "cond" if "cond" in stored else ""
    given = {"x": X, "z": Z}
    found = run(imported(model_of(made, given, {"y": [3], "rows": [0, 3]}, **stored)), given)
    np.testing.assert_array_equal(found["y"][0], X)
    assert found["rows"][0].shape == (0, 3)


def test_loop_whose_condition_ends_it() -> None:
    given = {"x": X, "z": Z}
    body = [*STEP, node("Less", "i last", "on")]
    stored = {"count": np.asarray(200), "cond": np.asarray(True), "last": np.asarray(2)}
    assert disagreement(program([loop(body, "y rows")], given, "y rows", stored), given) is None
    del stored["cond"]
    endless = loop(body, "y rows")
    endless.input[1] = ""
    with pytest.raises(ModuleError, match="given no condition"):
        imported(model_of(endless, given, {"y": [3], "rows": [3, 3]}, **stored))


def test_loop_that_grows_is_written_out() -> None:
    body = [node("Concat", "h z", "o", axis=0), node("Neg", "x", "r"), ON]
    given = {"x": X, "z": Z}
    stored = {"count": np.asarray(100), "cond": np.asarray(True)}
    proto = program([loop(body, "y rows", grows=True)], given, "y rows", stored)
    assert disagreement(proto, given) is None


def test_loop_over_data_is_refused() -> None:
    given = {"x": X, "z": Z, "count": np.asarray(3)}
    proto = program([loop([*STEP, ON], "y rows")], given, "y rows", {"cond": np.asarray(True)})
    with pytest.raises(ModuleError, match="number of rounds depends on `count`"):
        imported(proto)


def model_of(made: Any, given: dict[str, Any], outputs: dict[str, Sequence[int]], **stored: Any) -> Any:
    """A model of one node over floats."""
    infos = [
        [onnx.helper.make_tensor_value_info(n, FLOAT, shape) for n, shape in told.items()]
        for told in ({n: a.shape for n, a in given.items()}, outputs)
    ]
    weights = [onnx.numpy_helper.from_array(a, n) for n, a in stored.items()]
    inner = onnx.helper.make_graph([made], "graph", *infos, weights)
    return onnx.helper.make_model(inner, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10)


def scan(given: dict[str, Any], shape: Sequence[int], **attributes: Any) -> Any:
    """`s, r -> tanh(s @ w + r)` over the rows of `x`, and its negative as a row of a result of a shape."""
    body = graph(
        [node("MatMul", "s w", "p"), node("Add", "p r", "o"), node("Tanh", "o", "t"), node("Neg", "t", "u")],
        [("s", FLOAT, [3]), ("r", FLOAT, [3])],
        [("t", FLOAT, [3]), ("u", FLOAT, [3])],
    )
    made = node("Scan", "h x", "last y", body=body, num_scan_inputs=1, **attributes)
    return model_of(made, given, {"last": [3], "y": shape})


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize(("axis", "place"), [(0, 0), (1, 0), (0, -1), (1, 1)])
def test_scan(rows: int, back: int, turned: int, axis: int, place: int) -> None:
    x, state = floats(rows, 3), floats(3)
    given = {"h": state, "w": floats(3, 3), "x": x.T if axis else x}
    out = []
    for row in x[::-1] if back else x:
        state = np.tanh(state @ given["w"] + row)
        out.append(-state)
    right = np.stack(out[::-1] if turned else out, axis=place)
    proto = scan(
        given,
        right.shape,
        scan_input_axes=[axis],
        scan_output_axes=[place],
        scan_input_directions=[back],
        scan_output_directions=[turned],
    )
    found = run(imported(proto), given)
    np.testing.assert_allclose(found["last"][0], state, 1e-4)
    np.testing.assert_allclose(found["y"][0], right, 1e-4)


def test_direction_of_a_scan_matters() -> None:
    given = {"h": floats(3), "w": floats(3, 3), "x": floats(9, 3)}
    one, other = (imported(scan(given, [9, 3], scan_input_directions=[back])) for back in (0, 1))
    assert verify(one, one).verdict is Verdict.VERIFIED
    assert verify(one, other).verdict is Verdict.REFUTED


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def weights(kind: str, steps: int, directions: int = 1) -> dict[str, Any]:
    gates, size = GATES[kind], 2
    return {
        "X": floats(steps, 2, 3),
        "W": floats(directions, gates * size, 3),
        "R": floats(directions, gates * size, size),
        "B": floats(directions, 2 * gates * size),
    }


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def cells(kind: str, given: dict[str, Any], k: int, x: Any, state: list[Any], *, linear: bool) -> list[Any]:
    """One step as ONNX defines it, in float64."""
    w, r, b = (given[name][k].astype(np.float64) for name in "WRB")
    gates, size = GATES[kind], r.shape[1]
    own = [slice(g * size, (g + 1) * size) for g in range(gates)]
    left = [x @ w[s].T + b[: gates * size][s] for s in own]
    right = [state[0] @ r[s].T + b[gates * size :][s] for s in own]
    if kind == "RNN":
        return [np.tanh(left[0] + right[0])]
    if kind == "LSTM":
        i, o, f = (sigmoid(left[g] + right[g]) for g in range(3))
        c = f * state[1] + i * np.tanh(left[3] + right[3])
        return [o * np.tanh(c), c]
    z, reset = (sigmoid(left[g] + right[g]) for g in range(2))
    plain = (reset * state[0]) @ r[own[2]].T + b[gates * size :][own[2]]
    new = np.tanh(left[2] + (reset * right[2] if linear else plain))
    return [(1 - z) * new + z * state[0]]


@pytest.mark.parametrize("lengths", [None, [6, 2]])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "linear"), [("RNN", False), ("LSTM", False), ("GRU", False), ("GRU", True)])
def test_recurrence(kind: str, linear: bool, direction: str, lengths: list[int] | None) -> None:
    steps, both = 6, direction == "bidirectional"
    given = weights(kind, steps, 1 + both)
    attributes: dict[str, Any] = {"hidden_size": 2, "direction": direction}
    attributes |= {"linear_before_reset": 1} if linear else {}
    stored = {} if lengths is None else {"n": np.asarray(lengths, np.int32)}
    names = "Y H C" if kind == "LSTM" else "Y H"
    made = node(kind, "X W R B" + (" n" if stored else ""), names, **attributes)
    shapes = {"Y": [steps, 1 + both, 2, 2], "H": [1 + both, 2, 2], "C": [1 + both, 2, 2]}
    model = model_of(made, given, {n: shapes[n] for n in names.split()}, **stored)
    found = run(imported(model), {n: a.astype(np.float64) for n, a in given.items()})
    for k, back in enumerate([False, True] if both else [direction == "reverse"]):
        for batch in range(2):
            count = steps if lengths is None else lengths[batch]
            state = [np.zeros(2)] * (2 if kind == "LSTM" else 1)
            right = np.zeros((steps, 2))
            for t in reversed(range(count)) if back else range(count):
                state = cells(kind, given, k, given["X"][t, batch].astype(np.float64), state, linear=linear)
                right[t] = state[0]
            np.testing.assert_allclose(found["Y"][0][:, k, batch], right, 1e-9)
            for name, last in zip("HC", state, strict=False):
                np.testing.assert_allclose(found[name][0][k, batch], last, 1e-9)


def test_limits_and_functions_of_a_cell() -> None:
    given = weights("RNN", 2)
    plain = {"X": given["X"], "W": given["W"], "R": given["R"], "B": given["B"] * 0}
    made = node(
        "RNN", "X W R B", "Y", hidden_size=2, activations=["Affine"], activation_alpha=[2.0],
        activation_beta=[0.5], clip=0.25,
    )  # fmt: skip
    written = [
        node("Slice", "X zero one", "x"), node("Reshape", "x flat", "f"), node("Transpose", "w", "t"),
        node("MatMul", "f t", "p"), node("Clip", "p low high", "c"), node("Mul", "c two", "m"),
        node("Add", "m half", "s"),
    ]  # fmt: skip
    stored = {
        "zero": np.array([0]), "one": np.array([1]), "flat": np.array([2, 3]), "w": plain["W"][0],
        "low": np.float32(-0.25), "high": np.float32(0.25), "two": np.float32(2), "half": np.float32(0.5),
    }  # fmt: skip
    from onnx.reference import ReferenceEvaluator

    hand = program(written, {"X": plain["X"]}, "s", stored)
    right = ReferenceEvaluator(hand).run(None, {"X": plain["X"]})[0]
    model = model_of(made, plain, {"Y": [2, 1, 2, 2]})
    np.testing.assert_allclose(run(imported(model), plain)["Y"][0][0, 0], right, 1e-5)


def test_order_of_gates_matters() -> None:
    given = weights("LSTM", 3)
    made = node("LSTM", "X W R B", "Y", hidden_size=2)
    swap = np.array([2, 3, 0, 1, 4, 5, 6, 7])
    turned = [node("Gather", f"{n} swap", f"{n}s", axis=1) for n in "WR"]
    both = np.concatenate([swap, swap + 8])
    turned += [node("Gather", "B both", "Bs", axis=1), node("LSTM", "X Ws Rs Bs", "Y", hidden_size=2)]
    right = imported(program([made], given, "Y"))
    wrong = imported(program(turned, given, "Y", {"swap": swap, "both": both}))
    assert verify(right, right).verdict is Verdict.VERIFIED
    assert verify(right, wrong).verdict is Verdict.REFUTED

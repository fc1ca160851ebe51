"""ONNX operators that slide windows: values against onnx's evaluator, and which programs are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import MICROSOFT, model, node, save

from shardproof.ir.interpret import run
from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(17)


def reals(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def named(value: Any) -> str:
    """What a case is called by: arrays by their shape."""
    return "x".join(map(str, value.shape)) if isinstance(value, np.ndarray) else str(value)


IMAGE, LINE, VOLUME = reals(2, 4, 6, 7), reals(2, 2, 9), reals(1, 2, 4, 5, 3)


def one(
    op_type: str, x: Any, *others: Any, stored: Mapping[str, Any] | None = None, **attributes: Any
) -> tuple[Any, dict[str, Any]]:
    """A program of one node, and its inputs; `stored` operands follow the others."""
    inputs = dict(zip(("x", "w", "b"), (x, *others), strict=False))
    names = " ".join((*inputs, *(stored or {})))
    return program([node(op_type, names, "y", **attributes)], inputs, "y", stored), inputs


CONVOLUTIONS: Sequence[tuple[Any, Any, Any, Mapping[str, Any]]] = [
    (LINE, reals(3, 2, 2), None, {}),
    (LINE, reals(4, 1, 3), reals(4), {"group": 2, "dilations": [2], "strides": [3]}),
    (IMAGE, reals(5, 4, 3, 2), reals(5), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    (IMAGE, reals(2, 4, 2, 3), None, {"pads": [1, 2, 0, 1], "dilations": [2, 1]}),
    (IMAGE, reals(4, 1, 3, 3), None, {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    (IMAGE, reals(3, 4, 2, 2), None, {"auto_pad": "SAME_LOWER"}),
    (IMAGE, reals(3, 4, 2, 2), None, {"auto_pad": "VALID", "kernel_shape": [2, 2]}),
    (VOLUME, reals(3, 2, 2, 3, 2), reals(3), {"pads": [0, 1, 0, 1, 0, 1], "strides": [1, 2, 1]}),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: str(c[3]))
def test_convolution(case: tuple[Any, Any, Any, Mapping[str, Any]]) -> None:
    x, kernel, bias, attributes = case
    proto, inputs = one("Conv", x, kernel, *([] if bias is None else [bias]), **attributes)
    assert disagreement(proto, inputs) is None


@pytest.mark.parametrize(
    ("x", "kernel", "attributes"),
    [
        (LINE, reals(2, 3, 4), {"strides": [2], "pads": [1, 2]}),
        (IMAGE, reals(4, 3, 2, 3), {"strides": [2, 3], "output_padding": [1, 2]}),
        (IMAGE, reals(4, 2, 3, 3), {"dilations": [1, 2], "pads": [1, 0, 2, 1]}),
        (VOLUME, reals(2, 1, 2, 2, 2), {"strides": [1, 2, 1]}),
        (IMAGE, reals(4, 1, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        (IMAGE, reals(4, 1, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ],
    ids=named,
)
def test_transposed_convolution(x: Any, kernel: Any, attributes: Mapping[str, Any]) -> None:
    proto, inputs = one("ConvTranspose", x, kernel, **attributes)
    assert disagreement(proto, inputs) is None


def test_transposed_convolution_in_groups() -> None:
    """Each group on its own; onnx's evaluator gives groups the wrong shape."""
    x, kernel = reals(1, 4, 3), reals(4, 2, 2)
    whole = transposed(x, kernel, (1, 4, 6), group=2, strides=[2])
    for g, channels in enumerate((slice(0, 2), slice(2, 4))):
        part = transposed(x[:, channels], kernel[channels], (1, 2, 6), strides=[2])
        np.testing.assert_allclose(whole[:, 2 * g : 2 * g + 2], part)


def transposed(x: Any, kernel: Any, shape: tuple[int, ...], **attributes: Any) -> Any:
    proto = model(
        [node("ConvTranspose", "x w", "y", **attributes)],
        {"x": x.shape, "w": kernel.shape},
        {"y": shape},
        opset=22,
    )
    return run(imported(proto), {"x": x.astype(np.float64), "w": kernel.astype(np.float64)})["y"][0]


def test_asked_output_is_cut_as_the_text_says() -> None:
    """A smaller `output_shape` leaves out as much at both ends, the odd element at the start or, by
    SAME_UPPER, at the end; a larger one has zeros at the end."""
    x, kernel = reals(1, 1, 4), reals(1, 1, 3)
    whole = transposed(x, kernel, (1, 1, 9), strides=[2])
    for extent, low, high in ((6, 2, 8), (7, 1, 8), (8, 1, 9)):
        found = transposed(x, kernel, (1, 1, extent), strides=[2], output_shape=[extent])
        np.testing.assert_allclose(found, whole[..., low:high])
    upper = transposed(x, kernel, (1, 1, 8), strides=[2], output_shape=[8], auto_pad="SAME_UPPER")
    np.testing.assert_allclose(upper, whole[..., :8])
    longer = transposed(x, kernel, (1, 1, 11), strides=[2], output_shape=[11])
    np.testing.assert_allclose(longer, np.pad(whole, [(0, 0), (0, 0), (0, 2)]))


POOLS: Sequence[tuple[str, Any, Mapping[str, Any]]] = [
    ("MaxPool", LINE, {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ("MaxPool", IMAGE, {"kernel_shape": [2, 3], "dilations": [2, 1], "storage_order": 1}),
    ("MaxPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("MaxPool", VOLUME, {"kernel_shape": [2, 3, 2], "strides": [1, 2, 1]}),
    ("MaxPool", IMAGE, {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
    ("AveragePool", IMAGE, {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1]}),
    ("AveragePool", IMAGE, {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "count_include_pad": 1}),
    ("AveragePool", IMAGE, {"kernel_shape": [2, 2], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
    ("AveragePool", VOLUME, {"kernel_shape": [2, 2, 2], "dilations": [2, 1, 1]}),
    ("LpPool", IMAGE, {"kernel_shape": [2, 2], "p": 1}),
    ("LpPool", IMAGE, {"kernel_shape": [2, 2], "p": 2, "strides": [2, 2]}),
    ("LpPool", IMAGE, {"kernel_shape": [2, 3], "p": 3}),
    ("GlobalAveragePool", IMAGE, {}),
    ("GlobalMaxPool", IMAGE, {}),
]


@pytest.mark.parametrize(("op_type", "x", "attributes"), POOLS, ids=named)
def test_pool(op_type: str, x: Any, attributes: Mapping[str, Any]) -> None:
    proto, inputs = one(op_type, x, **attributes)
    assert disagreement(proto, inputs) is None


def test_partial_windows_count_their_elements() -> None:
    """With `ceil_mode` the last window has one element, of the padding counted or not."""
    x = reals(1, 1, 5)
    attributes = {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "ceil_mode": 1}
    padded = np.concatenate([[0], x.reshape(-1), [0]])
    for counted in (0, 1):
        proto, _ = one("AveragePool", x, count_include_pad=counted, **attributes)
        found = run(imported(proto), {"x": x.astype(np.float64)})["y"][0].reshape(-1)
        sizes = (3, 3, 3) if counted else (2, 3, 2)
        right = [padded[2 * k : 2 * k + 3].sum() / size for k, size in enumerate(sizes)]
        np.testing.assert_allclose(found, right, 1e-6)


@pytest.mark.parametrize("order", [0, 1])
def test_places_of_maxima(order: int) -> None:
    """With dilation, what is beside a window is no element of it; the first of equal elements wins."""
    x = RNG.integers(-3, 3, (2, 2, 6, 5)).astype(np.float32)
    attributes = {"kernel_shape": [3, 2], "dilations": [2, 1], "strides": [2, 2], "pads": [2, 1, 2, 1]}
    pool = node("MaxPool", "x", "y at", storage_order=order, **attributes)
    values = imported(program([pool], {"x": x}, "y at"))
    found = run(values, {"x": x.astype(np.float64)})
    y, at = found["y"][0], found["at"][0]
    for n, c, i, j in np.ndindex(y.shape):
        places = [(2 * i - 2 + 2 * a, 2 * j - 1 + b) for a in range(3) for b in range(2)]
        places = [(p, q) for p, q in places if 0 <= p < 6 and 0 <= q < 5]
        best = max(places, key=lambda place: x[n, c][place])
        flat = best[0] * 5 + best[1] if order == 0 else best[1] * 6 + best[0]
        assert (y[n, c, i, j], at[n, c, i, j]) == (x[n, c][best], (n * 2 + c) * 30 + flat)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_padding(mode: str) -> None:
    x = reals(3, 4)
    for pads in ((1, 0, 2, 3), (0, 2, 0, 0), (2, 3, 1, 1)):
        proto, inputs = one("Pad", x, stored={"p": ints(*pads)}, mode=mode)
        assert disagreement(proto, inputs) is None


def test_padding_of_named_axes_and_by_a_value() -> None:
    stored = {"p": ints(1, 2), "v": np.float32(2.5), "a": ints(-2)}
    proto, inputs = one("Pad", IMAGE, stored=stored)
    assert disagreement(proto, inputs) is None


def test_negative_padding_cuts() -> None:
    x = reals(5)
    for mode, right in (
        ("constant", [x[1], x[2], x[3], x[4], 0, 0]),
        ("edge", [x[1], x[2], x[3], x[4], x[4], x[4]]),
        ("reflect", [x[1], x[2], x[3], x[4], x[3], x[2]]),
    ):
        proto = model([node("Pad", "x p", "y", mode=mode)], {"x": (5,)}, {"y": (6,)}, {"p": ints(-1, 2)})
        found = run(imported(proto), {"x": x.astype(np.float64)})["y"][0]
        np.testing.assert_allclose(found, right)


def test_blocks_that_overlap_add_up() -> None:
    cases = (([1, 2], [1, 1], [0, 0, 0, 0], 6), ([2, 1], [1, 2], [1, 0, 0, 1], 6))
    for strides, dilations, pads, places in cases:
        stored = {"i": ints(4, 4), "k": ints(2, 2)}
        x = reals(1, 8, places)
        proto, inputs = one("Col2Im", x, stored=stored, strides=strides, dilations=dilations, pads=pads)
        assert disagreement(proto, inputs) is None


def test_unpooling() -> None:
    x, at = reals(1, 1, 2, 2), np.array([[[[5, 2], [8, 15]]]], np.int64)
    nodes = [node("MaxUnpool", "x at", "y", kernel_shape=[2, 2], strides=[2, 2])]
    inputs = {"x": x, "at": at}
    proto = program(nodes, inputs, "y")
    assert disagreement(proto, inputs) is None
    assert [g.kind for g in imported(proto).guesses] == ["ids_in_range"]
    assert imported(proto, {"at": at}).guesses == ()


@pytest.mark.parametrize(
    ("kernel", "attributes", "text"),
    [
        (2, {"pads": [2, 0]}, "padding only"),
        (8, {}, "no window"),
        (1, {"strides": [4], "auto_pad": "SAME_UPPER"}, "ambiguous"),
        (2, {"dilations": [2], "auto_pad": "SAME_UPPER"}, "give pads"),
        (2, {"pads": [1, 1], "auto_pad": "SAME_UPPER"}, "one of them"),
        (2, {"auto_pad": "SAME"}, "not known"),
        (2, {"strides": [0]}, "strides"),
        (2, {"storage_order": 2}, "storage_order"),
    ],
    ids=str,
)
def test_what_is_not_specified_is_refused(kernel: int, attributes: Mapping[str, Any], text: str) -> None:
    pool = node("MaxPool", "x", "y", kernel_shape=[kernel], **attributes)
    proto = model([pool], {"x": (1, 1, 7)}, {"y": (None, None, None)}, opset=22)
    with pytest.raises(ModuleError, match=text):
        imported(proto)


# programs that are equal, and programs that nearly are

X = reals(2, 4, 6, 6)
KERNEL, GROUPED, POINT = reals(6, 4, 3, 3), reals(6, 2, 3, 3), reals(6, 4, 1, 1)


def conv(kernel: Any = KERNEL, **attributes: Any) -> Any:
    return one("Conv", X, kernel, **attributes)[0]


def padded_conv(*pads: int) -> Any:
    nodes = [node("Pad", "x p", "h"), node("Conv", "h w", "y")]
    return program(nodes, {"x": X, "w": KERNEL}, "y", {"p": ints(*pads)})


def swapped_groups() -> Any:
    nodes = [
        node("Split", "x", "a b", axis=1, num_outputs=2),
        node("Concat", "b a", "h", axis=1),
        node("Conv", "h w", "y", group=2),
    ]
    return program(nodes, {"x": X, "w": GROUPED}, "y")


def odd_elements() -> Any:
    nodes = [node("Slice", "x b e d", "h"), node("Conv", "h w", "y", strides=[2, 2])]
    return program(nodes, {"x": X, "w": POINT}, "y", {"b": ints(1, 1), "e": ints(6, 6), "d": ints(2, 3)})


def pointwise(equation: str) -> Any:
    nodes = [node("Reshape", "w s", "m"), node("Einsum", "x m", "y", equation=equation)]
    return program(nodes, {"x": X, "w": POINT}, "y", {"s": ints(6, 4)})


def averaged(weight: float) -> Any:
    nodes = [node("Conv", "x k", "y", group=4, strides=[2, 2])]
    return program(nodes, {"x": X}, "y", {"k": np.full((4, 1, 2, 2), weight, np.float32)})


def average(**attributes: Any) -> Any:
    return one("AveragePool", X, **attributes)[0]


def padded_average(*pads: int) -> Any:
    nodes = [node("Pad", "x p", "h"), node("AveragePool", "h", "y", kernel_shape=[3, 3])]
    return program(nodes, {"x": X}, "y", {"p": ints(*pads)})


def larger_of_rows(first: int, second: int) -> Any:
    nodes = [node("Slice", "x a e d s", "p"), node("Slice", "x b e d s", "q"), node("Max", "p q", "y")]
    stored = {"a": ints(first), "b": ints(second), "e": ints(6), "d": ints(2), "s": ints(2)}
    return program(nodes, {"x": X}, "y", stored)


def mean_of(*dims: int) -> Any:
    return program([node("ReduceMean", "x d", "y")], {"x": X}, "y", {"d": ints(*dims)})


def pad(mode: str, *pads: int) -> Any:
    return one("Pad", X, stored={"p": ints(*pads)}, mode=mode)[0]


def with_column(at: int, *order: str) -> Any:
    nodes = [node("Slice", "x b e d", "p"), node("Concat", " ".join(order), "y", axis=3)]
    return program(nodes, {"x": X}, "y", {"b": ints(at), "e": ints(at + 1), "d": ints(3)})


SAME = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
PAIRS: Mapping[str, tuple[Any, Any, Any]] = {
    "padding": (
        conv(pads=[1, 0, 0, 2]),
        padded_conv(0, 0, 1, 0, 0, 0, 0, 2),
        padded_conv(0, 0, 0, 0, 0, 0, 1, 2),
    ),
    "same": (conv(auto_pad="SAME_UPPER"), conv(pads=[1, 1, 1, 1]), conv(dilations=[2, 2], pads=[2, 2, 2, 2])),
    "even": (
        conv(POINT, auto_pad="SAME_UPPER", strides=[2, 2]),
        conv(POINT, strides=[2, 2]),
        odd_elements(),
    ),
    "groups": (conv(GROUPED, group=2), conv(GROUPED, group=2, pads=[0, 0, 0, 0]), swapped_groups()),
    "matrix": (conv(POINT), pointwise("nchw,dc->ndhw"), pointwise("nchw,dc->ndwh")),
    "average": (average(kernel_shape=[2, 2], strides=[2, 2]), averaged(0.25), averaged(0.5)),
    "counted": (
        average(count_include_pad=1, **SAME),
        padded_average(0, 0, 1, 1, 0, 0, 1, 1),
        average(**SAME),
    ),
    "global": (one("GlobalAveragePool", X)[0], mean_of(2, 3), one("GlobalMaxPool", X)[0]),
    "maximum": (
        one("MaxPool", X, kernel_shape=[2, 1], strides=[2, 1])[0],
        larger_of_rows(0, 1),
        larger_of_rows(0, 0),
    ),
    "reflection": (
        pad("reflect", 0, 0, 0, 1, 0, 0, 0, 0),
        with_column(1, "p", "x"),
        pad("edge", 0, 0, 0, 1, 0, 0, 0, 0),
    ),
    "edge": (
        pad("edge", 0, 0, 0, 0, 0, 0, 0, 1),
        with_column(5, "x", "p"),
        pad("wrap", 0, 0, 0, 0, 0, 0, 0, 1),
    ),
    "wrapping": (pad("wrap", 0, 0, 0, 1, 0, 0, 0, 0), with_column(5, "p", "x"), with_column(5, "x", "p")),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_programs_are_verified_and_others_refuted(name: str) -> None:
    reference, equal, other = map(imported, PAIRS[name])
    assert verify(reference, equal).verdict is Verdict.VERIFIED
    assert verify(reference, other).verdict is Verdict.REFUTED


# convolutions over two ranks

INNER, OUTER = reals(6, 4, 3, 3), reals(5, 6, 1, 1)


def block(first: Any, second: Any, *tail: Any) -> Any:
    """Two convolutions; what the tail makes of their result `p` is the output."""
    nodes = [node("Conv", "x a", "h", pads=[1, 1, 1, 1]), node("Relu", "h", "r"), node("Conv", "r b", "p")]
    nodes += tail
    return model(nodes, {"x": (2, 4, 6, 6)}, {"y": (2, 5, 6, 6)}, {"a": first, "b": second})


def by_channels(*tail: Any) -> list[Any]:
    """The inner channels cut in halves."""
    cuts = (slice(0, 3), slice(3, 6))
    return [block(INNER[cut], OUTER[:, cut], *tail) for cut in cuts]


def test_channels_over_ranks_are_summed(tmp_path: Path) -> None:
    reference = save(block(INNER, OUTER, node("Identity", "p", "y")), tmp_path / "reference.onnx")

    def verdict(*tail: Any) -> Verdict:
        files = [save(m, tmp_path / f"rank{r}.onnx") for r, m in enumerate(by_channels(*tail))]
        return verify(reference, files).verdict

    assert verdict(node("AllReduce", "p", "y", MICROSOFT)) is Verdict.VERIFIED
    assert verdict(node("Identity", "p", "y")) is Verdict.REFUTED

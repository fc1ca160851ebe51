"""ONNX operators that interpolate: values against onnx's evaluator, and which programs are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import model, node

from shardproof.ir.interpret import run
from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(29)


def reals(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


X = reals(1, 2, 4, 6)


def by_sizes(x: Any, *sizes: int, **attributes: Any) -> Any:
    return program([node("Resize", "x - - s", "y", **attributes)], {"x": x}, "y", {"s": ints(*sizes)})


def by_scales(x: Any, *scales: float, **attributes: Any) -> Any:
    stored = {"s": np.array(scales, np.float32)}
    return program([node("Resize", "x - s", "y", **attributes)], {"x": x}, "y", stored)


PLACES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners")


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_nearest_elements(places: str, rounding: str) -> None:
    for sizes in ((1, 2, 8, 9), (1, 2, 3, 2), (1, 2, 4, 6), (1, 2, 1, 1)):
        proto = by_sizes(X, *sizes, nearest_mode=rounding, coordinate_transformation_mode=places)
        assert disagreement(proto, {"x": X}) is None


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation(places: str, mode: str) -> None:
    for sizes in ((1, 2, 7, 9), (1, 2, 3, 4)):
        proto = by_sizes(X, *sizes, mode=mode, coordinate_transformation_mode=places)
        assert disagreement(proto, {"x": X}) is None


@pytest.mark.parametrize("scale", [0.5, 0.6, 1.5, 2.0, 3.0])
def test_scales_that_leave_fractions(scale: float) -> None:
    faint = X / 8
    cubic = {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}
    for attributes in ({}, {"mode": "linear"}, cubic):
        proto = by_scales(faint, 1, 1, scale, scale, **attributes)
        assert disagreement(proto, {"x": faint}) is None


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_blurred_before_it_shrinks(mode: str) -> None:
    proto = by_sizes(X, 1, 2, 3, 2, mode=mode, antialias=1)
    assert disagreement(proto, {"x": X}) is None
    assert verify(imported(proto), imported(by_sizes(X, 1, 2, 3, 2, mode=mode))).verdict is Verdict.REFUTED


def test_named_axes() -> None:
    stored = {"s": ints(5, 3)}
    proto = program([node("Resize", "x - - s", "y", axes=[3, 2], mode="linear")], {"x": X}, "y", stored)
    assert imported(proto).outputs[0].value.type.shape == (1, 2, 3, 5)
    other = imported(by_sizes(X, 1, 2, 3, 5, mode="linear"))
    assert verify(imported(proto), other).verdict is Verdict.VERIFIED


@pytest.mark.parametrize(("policy", "shape"), [("not_larger", (1, 2, 2, 3)), ("not_smaller", (1, 2, 6, 9))])
def test_ratio_is_kept(policy: str, shape: tuple[int, ...]) -> None:
    stored = {"s": ints(6, 3)}
    nodes = [node("Resize", "x - - s", "y", axes=[2, 3], keep_aspect_ratio_policy=policy)]
    proto = model(nodes, {"x": X.shape}, {"y": shape}, stored, opset=22)
    assert disagreement(proto, {"x": X}) is None


def test_crop_reads_beyond_the_image() -> None:
    stored = {"r": np.array([0, 0, 0.4, 0.2, 1, 1, 1.2, 0.9], np.float32), "s": ints(1, 2, 3, 4)}
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    nodes = [node("Resize", "x r - s", "y", mode="linear", **attributes)]
    proto = program(nodes, {"x": X}, "y", stored)
    assert disagreement(proto, {"x": X}) is None
    found = run(imported(proto), {"x": X.astype(np.float64)})["y"][0]
    assert (found[:, :, 2] == 7).all() and not (found[:, :, 1] == 7).any()


def resized(stored: Mapping[str, Any], **attributes: Any) -> Any:
    names = " ".join(n if n in stored else "-" for n in ("r", "f", "s"))
    nodes = [node("Resize", f"x {names}", "y", **attributes)]
    return model(nodes, {"x": X.shape}, {"y": (None,) * 4}, stored, opset=22)


@pytest.mark.parametrize(
    ("stored", "attributes", "text"),
    [
        ({"f": [1, 1, 0.6, 1]}, {"coordinate_transformation_mode": "align_corners"}, "sizes"),
        ({"s": ints(1, 2, 3, 3)}, {"mode": "linear", "keep_aspect_ratio_policy": "not_larger"}, "proportion"),
        ({"s": ints(1, 2, 3, 3)}, {"antialias": 1}, "nearest"),
        ({"s": ints(1, 2, 3, 3)}, {"mode": "lanczos"}, "not known"),
        ({"s": ints(1, 2, 3, 3)}, {"nearest_mode": "round"}, "known are"),
        ({"s": ints(1, 2, 3, 3)}, {"coordinate_transformation_mode": "tf_half_pixel"}, "not known"),
        ({"s": ints(1, 2, 3, 3)}, {"coordinate_transformation_mode": "tf_crop_and_resize"}, "region"),
        ({"f": [1, 1, -1, 1]}, {}, "scales"),
        (
            {"f": [1, 1, 1, 1 / 3]},
            {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            "rounding",
        ),
    ],
    ids=str,
)
def test_what_is_not_specified_is_refused(
    stored: Mapping[str, Any], attributes: Mapping[str, Any], text: str
) -> None:
    stored = {n: np.array(a, np.float32) if n == "f" else a for n, a in stored.items()}
    with pytest.raises(ModuleError, match=text):
        imported(resized(stored, **attributes))


def doubled(*order: int) -> Any:
    """Each element four times; `order` says which of the copies are neighbours."""
    nodes = [
        node("Reshape", "x a", "h"),
        node("Expand", "h b", "e"),
        node("Transpose", "e", "t", perm=list(order)),
        node("Reshape", "t c", "y"),
    ]
    stored = {"a": ints(1, 2, 4, 1, 6, 1), "b": ints(1, 2, 4, 2, 6, 2), "c": ints(1, 2, 8, 12)}
    return program(nodes, {"x": X}, "y", stored)


def test_doubling_repeats_elements() -> None:
    """The scales are a stored tensor that counts as a weight by its size: a program depends on it."""
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    reference = imported(by_scales(X, 1, 1, 2, 2, **attributes))
    assert verify(reference, imported(doubled(0, 1, 2, 3, 4, 5))).verdict is Verdict.VERIFIED
    assert verify(reference, imported(doubled(0, 1, 3, 2, 5, 4))).verdict is Verdict.REFUTED


# computed places

FLAT, SOLID = reals(2, 3, 4, 5), reals(1, 2, 3, 4, 2)
GRID, GRID3 = (RNG.uniform(-1.7, 1.7, s).astype(np.float32) for s in ((2, 2, 3, 2), (1, 2, 2, 1, 3)))


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid(mode: str, padding: str, corners: int) -> None:
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    nodes = [node("GridSample", "x g", "y", **attributes)]
    proto = program(nodes, {"x": FLAT, "g": GRID}, "y")
    if (mode, padding) == ("cubic", "border"):
        with pytest.raises(ModuleError, match="implementations differ"):
            imported(proto)
        return
    assert disagreement(proto, {"x": FLAT, "g": GRID}) is None
    if mode != "cubic":
        proto = program(nodes, {"x": SOLID, "g": GRID3}, "y")
        assert disagreement(proto, {"x": SOLID, "g": GRID3}) is None


def grid(**attributes: Any) -> Any:
    return imported(program([node("GridSample", "x g", "y", **attributes)], {"x": FLAT, "g": GRID}, "y"))


def test_grids_differ_by_what_is_outside_and_where_corners_are() -> None:
    assert verify(grid(), grid()).verdict is Verdict.VERIFIED
    for other in (grid(align_corners=1), grid(padding_mode="border"), grid(mode="nearest")):
        assert verify(grid(), other).verdict is Verdict.REFUTED


ROIS, OF = np.array([[0, 0, 3.5, 2.5], [1, 0.5, 4, 6], [-3, 1, 0, 2]], np.float32), ints(0, 1, 1)


@pytest.mark.parametrize("places", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions(mode: str, places: str) -> None:
    attributes = {"output_height": 2, "output_width": 3, "spatial_scale": 0.5, "sampling_ratio": 2}
    inputs = {"x": FLAT, "r": ROIS, "b": OF}
    nodes = [node("RoiAlign", "x r b", "y", mode=mode, coordinate_transformation_mode=places, **attributes)]
    assert disagreement(program(nodes, inputs, "y"), inputs) is None


def test_regions_with_as_many_samples_as_they_ask_for() -> None:
    inputs = {"x": FLAT, "r": np.array([[0, 0, 3, 3], [1, 0, 4, 3]], np.float32), "b": ints(0, 1)}
    proto = program([node("RoiAlign", "x r b", "y", output_height=2, output_width=2)], inputs, "y")
    assert disagreement(proto, inputs, {"r": inputs["r"]}) is None
    with pytest.raises(ModuleError, match="depends on `r`"):
        imported(proto)
    uneven = np.array([[0, 0, 3, 3], [1, 0, 9, 3]], np.float32)
    with pytest.raises(ModuleError, match="one number for all"):
        imported(proto, {"r": uneven})


@pytest.mark.parametrize("masked", [False, True])
def test_moved_convolution(masked: bool) -> None:
    inputs = {"x": reals(2, 4, 4, 5), "w": reals(4, 2, 2, 2), "o": reals(2, 16, 4, 4)}
    if masked:
        inputs |= {"b": reals(4), "m": reals(2, 8, 4, 4)}
    attributes = {"group": 2, "offset_group": 2, "pads": [1, 0, 0, 0], "kernel_shape": [2, 2]}
    proto = program([node("DeformConv", " ".join(inputs), "y", **attributes)], inputs, "y")
    assert disagreement(proto, inputs) is None


def test_places_that_are_not_moved_are_those_of_a_convolution() -> None:
    x, kernel, still = reals(1, 2, 4, 4), reals(3, 2, 2, 2), np.zeros((1, 8, 3, 3), np.float32)
    moved = model(
        [node("DeformConv", "x w o", "y", kernel_shape=[2, 2])],
        {"x": x.shape, "w": kernel.shape},
        {"y": (1, 3, 3, 3)},
        {"o": still},
        opset=22,
    )
    plain = program([node("Conv", "x w", "y")], {"x": x, "w": kernel}, "y")
    inputs = {"x": x.astype(np.float64), "w": kernel.astype(np.float64)}
    results = [run(imported(p), inputs)["y"][0] for p in (moved, plain)]
    np.testing.assert_allclose(*results, atol=1e-12)

"""Fourier transforms of ONNX: values against NumPy and onnx's evaluator, and which programs are equal."""

from __future__ import annotations

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

RNG = np.random.default_rng(31)


def reals(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


Stored = dict[str, Any]


def transformed(x: Any, shape: tuple[int, ...], stored: Stored | None = None, **attributes: Any) -> Any:
    """The complex or real result of a DFT, of length `n` along dim `d`, by default the last but one."""
    stored = stored or {}
    names = " ".join(["x", *(name if name in stored else "-" for name in ("n", "d"))])
    nodes = [node("DFT", names, "y", **attributes)]
    proto = model(nodes, {"x": x.shape}, {"y": shape}, stored, opset=22)
    y = run(imported(proto), {"x": x.astype(np.float64)})["y"][0]
    return y[..., 0] + 1j * y[..., 1] if y.shape[-1] == 2 else y[..., 0]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_transform(count: int) -> None:
    x = reals(2, count, 3, 2)
    z = x[..., 0] + 1j * x[..., 1]
    stored = {"d": np.array(1)}
    np.testing.assert_allclose(transformed(x, x.shape, stored), np.fft.fft(z, axis=1), 1e-5, 1e-6)
    inverse = transformed(x, x.shape, stored, inverse=1)
    np.testing.assert_allclose(inverse, np.fft.ifft(z, axis=1), 1e-5, 1e-6)


@pytest.mark.parametrize("count", [2, 3, 8, 9])
def test_half_of_the_frequencies_of_reals(count: int) -> None:
    x, half = reals(2, count, 1), count // 2 + 1
    found = transformed(x, (2, half, 2), onesided=1)
    np.testing.assert_allclose(found, np.fft.rfft(x[..., 0], axis=1), 1e-5, 1e-6)
    z = np.stack([found.real, found.imag], -1).astype(np.float32)
    stored = {"n": np.array(count)}
    back = transformed(z, (2, count, 1), stored, onesided=1, inverse=1)
    np.testing.assert_allclose(back, np.fft.irfft(z[..., 0] + 1j * z[..., 1], count, axis=1), 1e-5, 1e-6)


def test_length_cuts_or_adds_zeros() -> None:
    x = reals(2, 5, 1)
    for length in (3, 8):
        found = transformed(x, (2, length, 2), {"n": np.array(length)})
        np.testing.assert_allclose(found, np.fft.fft(x[..., 0], length, axis=1), 1e-5, 1e-6)


def test_the_parts_of_complex_numbers_are_not_transformed() -> None:
    with pytest.raises(ModuleError, match="dim 2 of"):
        transformed(reals(2, 3, 2), (2, 3, 2), {"d": np.array(2)})
    with pytest.raises(ModuleError, match="parts of complex numbers"):
        transformed(reals(2, 3, 4), (2, 3, 4))


def spectrogram(window: Any, **attributes: Any) -> Any:
    stored = {"s": np.array(3), "n": np.array(4)}
    names = "x s - n" if window is None else "x s w n"
    inputs = {"x": SIGNAL} | ({} if window is None else {"w": window})
    return program([node("STFT", names, "y", **attributes)], inputs, "y", stored), inputs


SIGNAL = reals(2, 11, 1)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [None, reals(4)], ids=["plain", "weighted"])
def test_spectrogram(window: Any, onesided: int) -> None:
    proto, inputs = spectrogram(window, onesided=onesided)
    assert disagreement(proto, inputs) is None


def test_spectrograms_of_other_frames_and_windows_differ() -> None:
    window = reals(4)
    reference = imported(spectrogram(window)[0])
    stored = {"s": np.array(3), "n": np.array(4), "i": np.array([3, 2, 1, 0])}
    turned = [node("Gather", "w i", "v"), node("STFT", "x s v n", "y")]
    backwards = imported(program(turned, {"x": SIGNAL, "w": window}, "y", stored))
    assert verify(reference, imported(spectrogram(window)[0])).verdict is Verdict.VERIFIED
    assert verify(reference, backwards).verdict is Verdict.REFUTED


def test_the_inverse_of_another_direction_is_another_function() -> None:
    x = reals(2, 4, 2)
    forward, backward = (
        imported(program([node("DFT", "x", "y", inverse=k)], {"x": x}, "y")) for k in (0, 1)
    )
    assert verify(forward, backward).verdict is Verdict.REFUTED


@pytest.mark.parametrize("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_window(op_type: str, periodic: int) -> None:
    proto = program([node(op_type, "n", "y", periodic=periodic)], {"n": np.array(6)}, "y")
    assert disagreement(proto, {"n": np.array(6)}, {"n": np.array(6)}) is None


def test_mel_weights() -> None:
    numbers = {"b": np.array(5), "n": np.array(32), "r": np.array(8192)}
    edges = {"l": np.array(0, np.float32), "h": np.array(2048, np.float32)}
    inputs = {**numbers, **edges}
    proto = program([node("MelWeightMatrix", "b n r l h", "y")], inputs, "y")
    assert disagreement(proto, inputs, inputs) is None
    with pytest.raises(ModuleError, match="depends on"):
        imported(proto)
    with pytest.raises(ModuleError, match="frequencies"):
        imported(proto, inputs | {"h": np.array(1e5, np.float32)})

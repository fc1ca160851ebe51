"""StableHLO files, of any form, are the programs that JAX lowered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardproof.frontends import stablehlo
from shardproof.frontends.load import load
from shardproof.ir.interpret import run
from shardproof.ir.module import Module, ModuleError

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")


def archive(bytecode: bytes, field: int = 13) -> bytes:
    """A FlatBuffers table with one vector of bytes, as the field of that number."""
    entries = [0] * (field + 1)
    entries[field] = 4
    vtable = b"".join(n.to_bytes(2, "little") for n in (4 + 2 * len(entries), 8, *entries))
    table = 4 + len(vtable)
    parts = [table, len(vtable), 4, len(bytecode)]
    head, back, vector, length = (n.to_bytes(4, "little") for n in parts)
    return head + vtable + back + vector + length + bytecode


def test_archive_is_recognised() -> None:
    assert stablehlo.exported(archive(b"ML\xefRabc")) == b"ML\xefRabc"
    assert stablehlo.exported(archive(b"ML\xefRabc", field=12)) is None
    assert stablehlo.exported(archive(b"other")) is None
    whole = archive(b"ML\xefRabc")
    for end in range(len(whole)):
        assert stablehlo.exported(whole[:end]) is None
    assert stablehlo.exported(b"\xff" * 64) is None


def test_without_jaxlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("jaxlib", "jaxlib._jax", "jaxlib.xla_extension"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "program.mlir"
    path.write_text("module @jit_f {\n}\n")
    with pytest.raises(ModuleError, match=r"is StableHLO, which jaxlib converts to HLO: install jax"):
        load(path)


@pytest.fixture
def lowered() -> tuple[Any, Any]:
    """A jitted function and the types of its arguments."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    import jax.numpy as jnp

    shapes = [jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((16, 4), jnp.float32)]
    return jax.jit(lambda x, w: jax.nn.silu(x @ w)), shapes


def computes(module: Module, function: Any) -> None:
    rng = np.random.default_rng(0)
    given = [rng.normal(size=i.value.type.shape).astype(np.float32) for i in module.inputs]
    found = run(module, {i.name: x for i, x in zip(module.inputs, given, strict=True)})
    (output,) = module.outputs
    np.testing.assert_allclose(found[output.name][0], function(*given), rtol=3e-5, atol=3e-5)


def test_text(tmp_path: Path, lowered: tuple[Any, Any]) -> None:
    function, shapes = lowered
    path = tmp_path / "program.mlir"
    path.write_text(function.lower(*shapes).as_text())
    computes(load(path), function)


def test_archive(tmp_path: Path, lowered: tuple[Any, Any]) -> None:
    """Bytecode alone, and in the file of `jax.export`; places in the source are kept."""
    export = pytest.importorskip("jax.export", reason="jax.export lacks a package")
    function, shapes = lowered
    written = export.export(function)(*shapes)
    for n, data in enumerate(
        (written.mlir_module_serialized, archive(written.mlir_module_serialized), _own(written))
    ):
        path = tmp_path / f"{n}.bin"
        path.write_bytes(data)
        module = load(path)
        computes(module, function)
        assert any(op.result.location and op.result.location.file == __file__ for op in module.ops)


def _own(written: Any) -> bytes:
    try:
        return bytes(written.serialize())
    except ImportError:
        return archive(written.mlir_module_serialized)


def test_shardings_are_kept(tmp_path: Path, lowered: tuple[Any, Any]) -> None:
    import jax

    function, shapes = lowered
    if len(jax.devices()) < 8:
        pytest.skip("JAX was started with fewer than 8 devices")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("tp",))
    spec = jax.sharding.PartitionSpec("tp")
    placed = jax.sharding.NamedSharding(mesh, spec)
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    path = tmp_path / "program.mlir"
    path.write_text(jax.jit(function, in_shardings=(placed, whole)).lower(*shapes).as_text())
    assert [i.sharding for i in load(path).inputs] == [(8, 1), (1, 1)]


ANY = "tensor<?xi1>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module @f {\n}\n", "main"),
        ("module { garbage }\n", "garbage"),
        (f"module {{\nfunc.func @main(%a: {ANY}) -> {ANY} {{ return %a : {ANY} }}\n}}", "dynamic"),
    ],
)
def test_what_is_no_program(tmp_path: Path, text: str, message: str) -> None:
    pytest.importorskip("jaxlib", reason="jaxlib is not installed")
    path = tmp_path / "program.mlir"
    path.write_text(text)
    with pytest.raises(ModuleError, match=message) as error:
        load(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_damaged_bytecode(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib", reason="jaxlib is not installed")
    path = tmp_path / "program.bin"
    path.write_bytes(b"ML\xefRgarbage")
    with pytest.raises(ModuleError, match="is no StableHLO that jaxlib converts"):
        load(path)


def test_verdict(tmp_path: Path, lowered: tuple[Any, Any]) -> None:
    from shardproof.tools.command_line import run as command

    function, shapes = lowered
    text = function.lower(*shapes).as_text()
    (tmp_path / "a.mlir").write_text(text)
    hlo = function.lower(*shapes).compiler_ir("hlo").as_serialized_hlo_module_proto()
    (tmp_path / "b.pb").write_bytes(hlo)
    assert command(["verify", str(tmp_path / "a.mlir"), str(tmp_path / "b.pb")]) == 0
    (tmp_path / "c.mlir").write_text(text.replace("stablehlo.add", "stablehlo.subtract"))
    assert command(["verify", str(tmp_path / "c.mlir"), str(tmp_path / "b.pb")]) == 1

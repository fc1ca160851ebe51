"""The decoder's programs as `shardproof.verify` takes them: captures of PyTorch and JAX, ONNX and HLO files.

Nothing is run and no weight matters. ONNX is PyTorch's export of torch_decoder.py, one file per rank, with
onnxruntime's AllReduce for its collectives; HLO is what JAX lowers jax_decoder.py to, after XLA's partitioner
where there are several ranks. For HLO of several ranks JAX must have as many devices:
`XLA_FLAGS=--xla_force_host_platform_device_count=2`.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import jax
import jax_decoder
import numpy as np
import onnx
import onnxscript
import torch
import torch.distributed as dist
import torch_decoder
from extents import Config
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch.testing._internal.distributed.fake_pg import FakeStore

import shardproof

Framework = Literal["torch", "jax", "onnx", "hlo"]
FRAMEWORKS: Final[tuple[Framework, ...]] = ("torch", "jax", "onnx", "hlo")

OPSET: Final = 23
PARTITIONED: Final = "*after_spmd-partitioning*.hlo.pb"


def torch_program(config: Config, folder: Path) -> Any:
    return shardproof.capture_torch(
        lambda: torch_decoder.made(config), mesh={"tp": config.tp} if config.tp > 1 else None
    )


def jax_program(config: Config, folder: Path) -> Any:
    function = partial(jax_decoder.forward, config=config)
    inputs = jax_decoder.input_shapes(config)
    if config.tp == 1:
        return shardproof.capture_jax(function, inputs=inputs)
    specs = jax_decoder.input_specs(config)
    return shardproof.capture_jax(
        function, inputs=inputs, mesh={"tp": config.tp}, in_specs=specs, out_specs=jax_decoder.LOGITS
    )


def onnx_program(config: Config, folder: Path) -> Any:
    paths = [folder / f"{_title(config)}.rank{rank}.onnx" for rank in range(config.tp)]
    for rank, path in enumerate(paths):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=config.tp)
        try:
            _export(torch_decoder.Decoder(config, rank), config).save(path)
        finally:
            dist.destroy_process_group()
    return paths


def _export(decoder: torch_decoder.Decoder, config: Config) -> Any:
    """As it is traced, without the exporter's optimisation, which renames weights that it folds."""
    collectives = torch.ops._c10d_functional
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.onnx.export(
                decoder.eval(),
                torch_decoder.example_inputs(config),
                dynamo=True,
                opset_version=OPSET,
                optimize=False,
                verbose=False,
                custom_translation_table={
                    collectives.all_reduce.default: lambda x, kind, group: _all_reduce(x),
                    collectives.wait_tensor.default: onnxscript.opset23.Identity,
                },
            )
    finally:
        logging.disable(logging.NOTSET)


def _all_reduce(x: Any) -> Any:
    """onnxruntime's sum over all ranks, of which the package `onnx` has no schema."""
    schema = onnx.defs.OpSchema(
        "AllReduce",
        "com.microsoft",
        1,
        inputs=[onnx.defs.OpSchema.FormalParameter("input", "T")],
        outputs=[onnx.defs.OpSchema.FormalParameter("output", "T")],
        type_constraints=[("T", ["tensor(float)"], "")],
    )
    return onnxscript.values.Op(onnxscript.values.Opset("com.microsoft", 1), "AllReduce", schema)(x)


def hlo_program(config: Config, folder: Path) -> Any:
    path = folder / f"{_title(config)}.hlo.pb"
    lowered = lowered_by_jax(config)
    if config.tp == 1:
        path.write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
        return path
    with tempfile.TemporaryDirectory() as dumps:
        dump_of_passes(lowered, "spmd-partitioning", Path(dumps))
        (found,) = Path(dumps).glob(PARTITIONED)
        path.write_bytes(found.read_bytes())
    return path


def lowered_by_jax(config: Config) -> Any:
    """The decoder as StableHLO; of several ranks by `shard_map`, over that many devices."""
    function = partial(jax_decoder.forward, config=config)
    inputs = jax_decoder.input_shapes(config)
    if config.tp == 1:
        return jax.jit(function).lower(**inputs)
    devices = jax.devices()[: config.tp]
    if len(devices) < config.tp:
        raise RuntimeError(f"JAX has {len(devices)} devices, {config.tp} are needed: see XLA_FLAGS above")
    mesh = Mesh(np.array(devices), ("tp",))
    specs = tuple(jax_decoder.input_specs(config).values())
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=jax_decoder.LOGITS, check_vma=False
    )

    def placed(spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(mesh, spec)

    shardings = jax.tree.map(placed, specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
    return jax.jit(mapped, in_shardings=shardings).lower(*inputs.values())


def dump_of_passes(lowered: Any, passes: str, folder: Path, *, text: bool = False) -> None:
    """Compile, with XLA's module before and after every pass that `passes` (a pattern) names in `folder`."""
    lowered.compile(
        compiler_options={
            "xla_dump_to": str(folder),
            "xla_dump_hlo_as_proto": not text,
            "xla_dump_hlo_as_text": text,
            "xla_dump_hlo_pass_re": passes,
        }
    )


def _title(config: Config) -> str:
    return f"decoder.tp{config.tp}.{config.bug or 'right'}"


MAKE: Final[dict[Framework, Callable[[Config, Path], Any]]] = {
    "torch": torch_program,
    "jax": jax_program,
    "onnx": onnx_program,
    "hlo": hlo_program,
}

"""Annotations for several devices: where tensors are, and what is no annotation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import MICROSOFT, model, node, save

from shardproof.frontends.onnx.lower import lower
from shardproof.frontends.onnx.read import read_model
from shardproof.ir.interpret import run as interpret
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.verify import verify as verify_module
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify
from shardproof.tools.command_line import run

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(2)
UP, DOWN = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 8), (8, 8)))


def spec(
    tensor: str,
    dims: Mapping[int, int],
    devices: Sequence[int] = (0, 1),
    groups: Mapping[int, Sequence[int]] | None = None,
) -> Any:
    """A sharding of a tensor: number of shards by axis, devices, and what stands for groups of them."""
    found = onnx.ShardingSpecProto(tensor_name=tensor, device=devices)
    for axis, count in dims.items():
        found.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=count)
    for key, ranks in (groups or {}).items():
        found.index_to_device_group_map.add(key=key, value=ranks)
    return found


def annotated(
    specs: Mapping[str, Sequence[Any]], *, devices: int = 2, nodes: Sequence[Any] | None = None
) -> Any:
    """Two products with a relu between; `specs` are the annotations of the node that gives a value."""
    proto = plain(nodes)
    proto.configuration.add(name="tp", num_devices=devices)
    for n in proto.graph.node:
        found = specs.get(n.output[0])
        if found is not None:
            n.device_configurations.add(configuration_id="tp").sharding_spec.extend(found)
    return proto


def plain(nodes: Sequence[Any] | None = None) -> Any:
    usual = [node("MatMul", "x up", "h"), node("Relu", "h", "a"), node("MatMul", "a down", "y")]
    return model(nodes or usual, {"x": (4, 8)}, {"y": (4, 8)}, {"up": UP, "down": DOWN})


def columns_then_rows() -> Any:
    return annotated(
        {
            "h": [spec("up", {1: 2}), spec("h", {1: 2})],
            "a": [spec("h", {1: 2}), spec("a", {1: 2})],
            "y": [spec("a", {-1: 2}), spec("down", {0: 2}), spec("y", {})],
        }
    )


def read(proto: Any, ranks: int | None = None) -> Module:
    module = lower(read_model(proto.SerializeToString(), Path()), ranks=ranks)
    verify_module(module)
    return module


def test_inputs_become_shards_and_the_devices_ranks(tmp_path: Path) -> None:
    module = read(columns_then_rows())
    assert module.mesh.size == 2
    assert {i.name: (i.value.type.shape, i.sharding) for i in module.inputs} == {
        "x": ((4, 8), None),
        "up": ((8, 4), (1, 2)),
        "down": ((4, 8), (2, 1)),
    }
    own, other = save(plain(), tmp_path / "plain.onnx"), save(columns_then_rows(), tmp_path / "tp.onnx")
    found = verify(own, other)
    assert found.verdict is Verdict.VERIFIED, found.message
    assert {o.name: o.placement for o in found.outputs} == {"y": "replicated"}


def test_one_device_runs_the_model_as_it_is() -> None:
    module = read(columns_then_rows(), ranks=1)
    assert module.mesh.size == 1 and all(i.sharding is None for i in module.inputs)


@pytest.mark.parametrize(
    ("y", "devices", "wanted"),
    [
        (spec("y", {0: 2}), 2, [np.s_[:2], np.s_[2:]]),
        (spec("y", {1: 2}, (1, 0)), 2, [np.s_[:, 4:], np.s_[:, :4]]),
        (spec("y", {}, (-1,), {-1: (0, 1)}), 2, [np.s_[:], np.s_[:]]),
        (spec("y", {}), 2, [np.s_[:], np.s_[:]]),
        (
            spec("y", {0: 2, 1: 2}, (0, 1, 2, 3)),
            4,
            [np.s_[:2, :4], np.s_[:2, 4:], np.s_[2:, :4], np.s_[2:, 4:]],
        ),
        (
            spec("y", {1: 2, 0: 2}, (0, 1, 2, 3)),
            4,
            [np.s_[:2, :4], np.s_[2:, :4], np.s_[:2, 4:], np.s_[2:, 4:]],
        ),
        (
            spec("y", {0: 2}, (7, 9), {7: (0, 3), 9: (2, 1)}),
            4,
            [np.s_[:2], np.s_[2:], np.s_[2:], np.s_[:2]],
        ),
    ],
)
def test_shards_of_a_result(y: Any, devices: int, wanted: Sequence[Any]) -> None:
    """Each rank gives its own shard, and readers of the result read all of it."""
    again = [node("MatMul", "x up", "y"), node("Neg", "y", "z")]
    proto = annotated({"y": [y]}, devices=devices, nodes=again)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, (4, 8)))
    module = read(proto)
    x = RNG.normal(size=(4, 8)).astype(np.float32)
    found = interpret(module, {"x": x, "up": UP, "down": DOWN})
    for r, cut in enumerate(wanted):
        np.testing.assert_allclose(found["y"][r], (x @ UP)[cut], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["z"][r], -(x @ UP), rtol=1e-5, atol=1e-6)


def test_sharded_result_is_verified_as_shards(tmp_path: Path) -> None:
    own = save(plain(), tmp_path / "plain.onnx")
    found = verify(own, save(annotated({"y": [spec("y", {1: 2})]}), tmp_path / "tp.onnx"))
    assert found.verdict is Verdict.VERIFIED
    assert "shards of dim 1" in found.outputs[0].placement
    turned = save(annotated({"y": [spec("y", {1: 2}, (1, 0))]}), tmp_path / "turned.onnx")
    assert verify(own, turned).verdict is Verdict.UNKNOWN
    relation = tmp_path / "relation.toml"
    relation.write_text('[outputs]\ny = "shard(1) | ranks(1, 0)"\n')
    assert verify(own, turned, relation=relation).verdict is Verdict.VERIFIED


def test_another_model_is_refuted(tmp_path: Path) -> None:
    """Annotations do not make an operator right."""
    own = save(plain(), tmp_path / "plain.onnx")
    wrong = columns_then_rows()
    wrong.graph.node[1].op_type = "Neg"
    assert verify(own, save(wrong, tmp_path / "tp.onnx")).verdict is Verdict.REFUTED


def rank(r: int, *, summed: bool) -> Any:
    cut = slice(4 * r, 4 * r + 4)
    last = node("AllReduce", "p", "y", MICROSOFT) if summed else node("Identity", "p", "y")
    nodes = [node("MatMul", "x up", "h"), node("Relu", "h", "a"), node("MatMul", "a down", "p"), last]
    return model(nodes, {"x": (4, 8)}, {"y": (4, 8)}, {"up": UP[:, cut], "down": DOWN[cut]})


BOTH = """
[inputs]
x = "replicate"
up = "shard(1)"
down = "shard(0)"
[reference]
x = "replicate"
up = "shard(1)"
down = "shard(0)"
[outputs]
y = "replicate"
"""


@pytest.mark.parametrize(("summed", "expected"), [(True, Verdict.VERIFIED), (False, Verdict.REFUTED)])
def test_annotated_model_against_its_ranks(summed: bool, expected: Verdict, tmp_path: Path) -> None:
    own = save(columns_then_rows(), tmp_path / "tp.onnx")
    ranks = [save(rank(r, summed=summed), tmp_path / f"rank{r}.onnx") for r in range(2)]
    relation = tmp_path / "relation.toml"
    relation.write_text(BOTH)
    found = verify(own, ranks, relation=relation)
    assert found.verdict is expected, found.message


def test_other_shards_than_those_annotated_are_refuted(tmp_path: Path) -> None:
    """The ranks hold the shards of the first weight in another order than those of the second."""
    own = save(columns_then_rows(), tmp_path / "tp.onnx")
    ranks = [save(rank(r, summed=True), tmp_path / f"rank{r}.onnx") for r in range(2)]
    relation = tmp_path / "relation.toml"
    relation.write_text(BOTH.replace('up = "shard(1)"', 'up = "shard(1) | ranks(1, 0)"', 1))
    assert verify(own, ranks, relation=relation).verdict is Verdict.REFUTED


def first(proto: Any) -> Any:
    return proto.graph.node[0].device_configurations[0]


def also(*more: Any) -> Callable[[Any], object]:
    """Adds annotations to the first node."""
    return lambda m: first(m).sharding_spec.extend(more)


def collective(m: Any) -> None:
    m.graph.node[1].op_type, m.graph.node[1].domain = "AllReduce", MICROSOFT


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "unknown tensor": (also(spec("q", {0: 2})), "neither reads nor gives"),
    "tensor of another node": (also(spec("a", {0: 2})), "neither reads"),
    "annotated twice": (also(spec("h", {0: 2})), "annotates `h` twice"),
    "axis out of range": (also(spec("x", {2: 2})), "axis 2 is out of range"),
    "axis before the first": (also(spec("x", {-3: 2})), "out of range"),
    "axis twice": (also(spec("x", {0: 2, -2: 1})), "divided twice"),
    "shards that do not divide": (
        also(spec("x", {0: 3}, (0, 1))),
        "does not divide into 3 shards",
    ),
    "no shards": (also(spec("x", {0: 0})), "into 0 shards"),
    "unknown configuration": (lambda m: setattr(first(m), "configuration_id", "pp"), "`pp`, which it lacks"),
    "two configurations of a name": (lambda m: m.configuration.add(name="tp", num_devices=2), "of one name"),
    "no devices": (lambda m: setattr(m.configuration[0], "num_devices", 0), "of 0 devices"),
    "device twice": (also(spec("x", {0: 2}, (0, 0))), "a device twice"),
    "groups that overlap": (
        also(spec("x", {0: 2}, (8, 9), {8: (0, 1), 9: (1,)})),
        "a device twice",
    ),
    "device beyond": (also(spec("x", {0: 2}, (0, 2))), "beyond the 2"),
    "negative device": (also(spec("x", {0: 2}, (0, -1))), "beyond the 2"),
    "more shards than devices": (also(spec("x", {0: 4})), "4 shards for 2"),
    "some of the devices": (also(spec("x", {}, (0,))), "1 of 2 devices"),
    "another extent": (
        lambda m: setattr(first(m).sharding_spec[0].sharded_dim[0].simple_sharding[0], "dim_value", 9),
        "of extent 9",
    ),
    "fused shardings": (
        lambda m: first(m).sharding_spec[0].sharded_dim[0].simple_sharding.add(num_shards=1),
        "2 simple shardings",
    ),
    "a collective": (collective, "one of them is supported"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_annotation_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, text = WRONG[name]
    proto = columns_then_rows()
    change(proto)
    own, other = save(plain(), tmp_path / "plain.onnx"), save(proto, tmp_path / "tp.onnx")
    assert run(["verify", own, other]) == 3
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and "tp.onnx" in err and text in err, err


def test_two_configurations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of ranks tells which is meant."""
    proto = columns_then_rows()
    proto.configuration.add(name="wide", num_devices=4)
    for n in proto.graph.node:
        n.device_configurations.add(configuration_id="wide")
    own, other = save(plain(), tmp_path / "plain.onnx"), save(proto, tmp_path / "tp.onnx")
    assert run(["verify", own, other]) == 3
    assert "`tp` of 2 devices, `wide` of 4 devices" in capsys.readouterr().err
    assert run(["verify", own, other, "--mesh", "tp=2"]) == 0
    assert run(["verify", own, other, "--mesh", "tp=4"]) == 0
    capsys.readouterr()
    assert run(["verify", own, other, "--mesh", "tp=3"]) == 3


def test_inputs_that_readers_cut_differently_are_whole() -> None:
    specs = {"h": [spec("x", {0: 2})], "y": [spec("x", {1: 2})]}
    twice = [node("MatMul", "x up", "h"), node("MatMul", "h down", "a"), node("Add", "a x", "y")]
    module = read(annotated(specs, nodes=twice))
    assert module.inputs[0].value.type.shape == (4, 8)


def test_annotations_inside_of_a_function(tmp_path: Path) -> None:
    proto = columns_then_rows()
    inner = node("Neg", "p", "q")
    inner.device_configurations.add(configuration_id="tp")
    opsets = [onnx.helper.make_opsetid("", 18)]
    proto.functions.append(onnx.helper.make_function("own", "f", ["p"], ["q"], [inner], opsets))
    proto.opset_import.append(onnx.helper.make_opsetid("own", 1))
    proto.graph.node[1].op_type, proto.graph.node[1].domain = "f", "own"
    with pytest.raises(ModuleError, match="inside of a function"):
        read(proto)

"""The captured NeuronX dumps, when they are beside the checkout."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from shardproof.frontends.load import load
from shardproof.ir.module import Module, ModuleError

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "real"
DUMPS = sorted((REAL / "hlo").glob("*.hlo.pb.gz")) if REAL.is_dir() else []

pytestmark = pytest.mark.skipif(not DUMPS, reason="the captured dumps (../shared/real/hlo) are not here")

INSTRUCTIONS = {1: (140, 142, 136), 2: (241, 245, 233), 4: (443, 451, 427), 8: (847, 863, 815)}
RING = {1: 11, 2: 20, 4: 38, 8: 74}


@pytest.mark.parametrize("path", DUMPS, ids=lambda p: p.name.removesuffix(".hlo.pb.gz"))
def test_reads(path: Path) -> None:
    module = load(path)
    name = path.name.split(".")[0]
    ranks, layers = int(name[2]), int(name[-1])
    column = {1: 0, 6: 2}.get(ranks, 1)
    assert module.mesh.size == ranks
    assert len(module.inputs) == 8 + 9 * layers
    identities = RING[layers] + 1
    assert len(module.ops) + len(module.inputs) + identities == INSTRUCTIONS[layers][column]
    counted = Counter(op.opcode for op in module.ops)
    assert counted["all_reduce"] == (0 if ranks == 1 else 2 * layers)
    assert counted["custom_call"] == 1 + 2 * layers and counted["dot_general"] == 2 + 7 * layers
    assert not module.warnings
    assert [i.number for i in module.inputs] == list(range(8 + 9 * layers))
    assert [o.updates for o in module.outputs] == [None, *(f"p{6 + k}.{7 + k}" for k in range(2 * layers))]
    for op in module.ops:
        if op.opcode == "all_reduce":
            assert op.attrs == {"kind": "sum", "groups": (tuple(range(ranks)),)}
        if op.opcode == "custom_call":
            assert op.attrs == {"target": "AwsNeuronRmsNorm", "config": "0"}


def _value(module: Module, name: str) -> str:
    (op,) = (op for op in module.ops if op.result.name == name)
    return str(op.location)


def test_locations() -> None:
    broken = load(REAL / "hlo" / "tp2_layer1.broken.hlo.pb.gz")
    assert _value(broken, "slice.54").endswith("layers/attention.py:124")
    assert _value(load(REAL / "hlo" / "tp2_layer1.hlo.pb.gz"), "slice.54").endswith("layers/attention.py:126")
    (op,) = (op for op in broken.ops if op.result.name == "slice.54")
    assert op.location is not None and 12 <= len(op.location.stack) <= 22


def test_text_dumps_leave_out_a_constant() -> None:
    with pytest.raises(ModuleError, match=r"`constant.22` is a large constant .* use the serialised dump"):
        load(REAL / "hlo_text" / "tp2_layer1.hlo.txt.gz")


def test_the_largest_is_read_quickly() -> None:
    path = REAL / "hlo" / "tp8_layer8.hlo.pb.gz"
    seconds = []
    for _ in range(5):
        start = time.process_time()
        load(path)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.06

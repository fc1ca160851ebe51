"""Capturing PyTorch programs: names, groups, placements, messages, what is refused, and files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from shardproof.frontends.fx.live import read_exported, read_module  # noqa: E402
from shardproof.frontends.fx.lowering.lower import lower  # noqa: E402
from shardproof.ir.interpret import run  # noqa: E402
from shardproof.ir.module import ModuleError  # noqa: E402
from shardproof.ir.verify import verify  # noqa: E402
from shardproof.solver.captured import Captured, read_capture  # noqa: E402
from shardproof.torch_api import capture_torch  # noqa: E402

SHAPE = (4, 3)


def captured(program: Any, *shapes: tuple[int, ...], ranks: int = 2, dtype: Any = None) -> Captured:
    """The capture of a function of tensors of these shapes."""
    made = [torch.zeros(s, dtype=dtype or torch.float64) for s in shapes]
    return capture_torch(lambda: (program, tuple(made)), mesh={"x": ranks})


def computed(found: Captured, *inputs: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    """What the captured program gives, for each input one array per rank."""
    module = found.module()
    verify(module)
    if found.is_joined:
        by_name = {}
        for i in module.inputs:
            name, _, rank = i.name.rpartition("@")
            names = [n.name for n in found.graphs[0].placeholders]
            by_name[i.name] = inputs[names.index(name)][int(rank)]
        return run(module, by_name)
    return run(module, {i.name: list(v) for i, v in zip(module.inputs, inputs, strict=True)})


def draws(*shape: int, ranks: int = 2) -> list[np.ndarray]:
    return [np.random.default_rng(r).normal(size=shape) for r in range(ranks)]


def one(found: dict[str, list[np.ndarray]], rank: int) -> np.ndarray:
    """The single result of a rank."""
    for name, arrays in found.items():
        if name == f"output@{rank}":
            return arrays[0]
    return found["output"][rank]


def all_reduce(x: Any) -> Any:
    y = x.clone()
    dist.all_reduce(y)
    return y


def later(x: Any) -> Any:
    y = x.clone()
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1


def gather_list(x: Any) -> Any:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts[0] - 2 * parts[1]


def gather_later(x: Any) -> Any:
    whole = torch.empty(2 * x.shape[0], *x.shape[1:], dtype=x.dtype)
    work = dist.all_gather_into_tensor(whole, x, async_op=True)
    work.wait()
    return whole


def scattered(x: Any) -> Any:
    part = torch.empty(x.shape[0] // 2, *x.shape[1:], dtype=x.dtype)
    dist.reduce_scatter_tensor(part, x, op=dist.ReduceOp.MAX)
    return part


def exchanged(x: Any) -> Any:
    given = [torch.empty_like(x[:2]) for _ in range(2)]
    dist.all_to_all(given, [x[:2].clone(), x[2:].clone()])
    return given[0] - 2 * given[1]


def broadcast(x: Any) -> Any:
    y = x.clone()
    dist.broadcast(y, 1)
    return y


def reduced_to_one(x: Any) -> Any:
    y = x.clone()
    dist.reduce(y, 1)
    return y


def gathered_on_one(x: Any) -> Any:
    first = dist.get_rank() == 0
    parts = [torch.zeros_like(x) for _ in range(2)] if first else None
    dist.gather(x, parts, dst=0)
    return parts[0] - parts[1] if parts is not None else x


def scattered_by_one(x: Any) -> Any:
    part = torch.empty_like(x[:2])
    dist.scatter(part, [x[:2].clone(), x[2:].clone()] if dist.get_rank() == 1 else None, src=1)
    return part


def ring(x: Any) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, (rank + 1) % size),
        dist.P2POp(dist.irecv, y, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return x - 2 * y


A, B = draws(*SHAPE)
MEANT = {
    all_reduce: (A + B, A + B),
    later: (A + B + 1, A + B + 1),
    gather_list: (A - 2 * B, A - 2 * B),
    gather_later: (np.concatenate([A, B]), np.concatenate([A, B])),
    scattered: (np.maximum(A, B)[:2], np.maximum(A, B)[2:]),
    exchanged: (A[:2] - 2 * B[:2], A[2:] - 2 * B[2:]),
    broadcast: (B, B),
    reduced_to_one: (A, A + B),
    gathered_on_one: (A - B, B),
    scattered_by_one: (B[:2], B[2:]),
    ring: (A - 2 * B, B - 2 * A),
}


@pytest.mark.parametrize("program", MEANT, ids=lambda f: f.__name__)
def test_collective(program: Any) -> None:
    found = computed(captured(program, SHAPE), [A, B])
    for rank, want in enumerate(MEANT[program]):
        np.testing.assert_allclose(one(found, rank), want, err_msg=f"rank {rank}")


@pytest.mark.parametrize("program", MEANT, ids=lambda f: f.__name__)
def test_collective_in_a_program_of_ranks_that_differ(program: Any) -> None:
    def uneven(x: Any) -> Any:
        y = program(x)
        return y if dist.get_rank() == 0 else torch.sin(y)

    capture = captured(uneven, SHAPE)
    assert capture.is_joined
    found = computed(capture, [A, B])
    for rank, want in enumerate(MEANT[program]):
        np.testing.assert_allclose(one(found, rank), np.sin(want) if rank else want, err_msg=f"rank {rank}")


def test_result_read_before_its_wait_is_refused() -> None:
    def early(x: Any) -> Any:
        y = x.clone()
        work = dist.all_reduce(y, async_op=True)
        z = y + 1
        work.wait()
        return z

    def never(x: Any) -> Any:
        y = x.clone()
        dist.all_reduce(y, async_op=True)
        return y

    for program in (early, never):
        with pytest.raises(ModuleError, match="before its wait"):
            captured(program, SHAPE).module()


def test_ranks_that_wait_for_each_other_are_refused() -> None:
    def stuck(x: Any) -> Any:
        y = torch.empty_like(x)
        dist.recv(y, 1 - dist.get_rank())
        dist.send(y, 1 - dist.get_rank())
        return y

    with pytest.raises(ModuleError, match="the run would hang"):
        captured(stuck, SHAPE).module()


def test_message_of_another_type_is_refused() -> None:
    def program(x: Any) -> Any:
        if dist.get_rank() == 0:
            dist.send(x[:2].clone(), 1)
            return x
        y = torch.empty_like(x)
        dist.recv(y, 0)
        return y

    with pytest.raises(ModuleError, match=r"receives f64\[4,3\], rank 0 sends f64\[2,3\]"):
        captured(program, SHAPE).module()


def test_message_that_nobody_receives_is_a_warning() -> None:
    def program(x: Any) -> Any:
        if dist.get_rank() == 0:
            dist.send(x, 1)
        return x * 2

    assert any("not received" in w for w in captured(program, SHAPE).module().warnings)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Any, more: dict[str, Any]) -> Any:
        return {"a": self.inner(x) * self.scale, "b": [more["y"] + 1]}


def test_names_and_locations() -> None:
    found = capture_torch(lambda: (Net(), (torch.zeros(2, 3), {"y": torch.zeros(2)})))
    module = found.module()
    assert [i.name for i in module.inputs] == ["inner.weight", "inner.bias", "scale", "x", "more.y"]
    assert [o.name for o in module.outputs] == ["output.a", "output.b.0"]
    places = {n.location.file for n in found.graphs[0].nodes if n.location is not None}
    assert places == {__file__}


def test_names_of_what_a_function_holds() -> None:
    first, second = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
    weight = torch.ones(3, requires_grad=True)
    fixed = torch.arange(3.0)

    def program(x: Any) -> Any:
        return second(first(x)) * weight + fixed

    found = capture_torch(lambda: (program, (torch.zeros(2, 3),)))
    names = {i.name for i in found.module().inputs}
    assert names == {"first.weight", "second.weight", "weight", "x"}
    (constant,) = (v for v in found.graphs[0].constants.values() if v is not None)
    np.testing.assert_array_equal(constant, [0, 1, 2])


def test_everything_is_as_before_afterwards() -> None:
    net, functions = Net(), (dist.all_reduce, dist.send, dist.P2POp, sys.excepthook)
    before = net.inner.weight.detach().clone()
    state = torch.random.get_rng_state()
    environment = dict(os.environ)
    for _ in range(2):
        capture_torch(lambda: (net, (torch.zeros(2, 3), {"y": torch.zeros(2)})), mesh={"x": 2}, backward=True)
    assert torch.equal(net.inner.weight, before) and type(net.inner.weight) is torch.nn.Parameter
    assert net.inner.weight.grad is None
    assert functions == (dist.all_reduce, dist.send, dist.P2POp, sys.excepthook)
    assert dict(os.environ) == environment and not dist.is_initialized()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_attributes_of_parameters_are_seen_by_the_program() -> None:
    layer = torch.nn.Linear(3, 3, bias=False)
    layer.weight.doubled = True

    def program(x: Any) -> Any:
        return layer(x) * (2 if getattr(layer.weight, "doubled", False) else 1)

    found = capture_torch(lambda: (program, (torch.zeros(2, 3),)))
    assert any(n.target == "aten.mul.Tensor" for n in found.graphs[0].nodes)
    assert layer.weight.doubled


def test_gradients() -> None:
    layer = torch.nn.Linear(3, 2, bias=False, dtype=torch.float64)

    def program(x: Any) -> Any:
        return torch.tanh(layer(x))

    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    tangent = torch.randn(4, 2, dtype=torch.float64)
    y = program(x)
    want = torch.autograd.grad(y, [layer.weight, x], tangent)
    weight = layer.weight.detach().clone()
    del y
    fresh = torch.nn.Linear(3, 2, bias=False, dtype=torch.float64)
    layer = fresh
    found = capture_torch(
        lambda: (program, (torch.zeros_like(x, requires_grad=True),)), backward=True
    ).module()
    assert [i.name for i in found.inputs] == ["weight", "x", "tangent"]
    assert [o.name for o in found.outputs] == ["output", "grad.weight", "grad.x"]
    inputs = {"weight": weight.numpy(), "x": x.detach().numpy(), "tangent": tangent.numpy()}
    got = run(found, inputs)
    for name, value in zip(("grad.weight", "grad.x"), want, strict=True):
        np.testing.assert_allclose(got[name][0], value.numpy())


def test_optimizer_step_updates_its_inputs() -> None:
    def make() -> Any:
        layer = torch.nn.Linear(3, 2, dtype=torch.float64)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.5)

        def program(x: Any) -> Any:
            layer(x).square().sum().backward()
            optimizer.step()

        return program, (torch.zeros(4, 3, dtype=torch.float64),)

    module = capture_torch(make).module()
    assert {o.updates for o in module.outputs} == {"weight", "bias"}
    layer = torch.nn.Linear(3, 2, dtype=torch.float64)
    x = torch.randn(4, 3, dtype=torch.float64)
    inputs = {n: p.detach().numpy().copy() for n, p in layer.named_parameters()}
    layer(x).square().sum().backward()
    torch.optim.Adam(layer.parameters(), lr=0.5).step()
    got = run(module, inputs | {"x": x.numpy()})
    for name, p in layer.named_parameters():
        np.testing.assert_allclose(got[name][0], p.detach().numpy(), rtol=1e-6)


def test_groups_and_placements_on_a_mesh_of_two_dims() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    def make() -> Any:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                whole = torch.randn(8, 3)
                self.w = torch.nn.Parameter(distribute_tensor(whole, mesh, [Replicate(), Shard(0)]))
                self.v = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0), Shard(0)]))

            def forward(self, x: Any) -> Any:
                y = x.clone()
                dist.all_reduce(y, group=mesh.get_group("inner"))
                return y + (self.w.full_tensor() + self.v.full_tensor()).sum()

        return Model(), (torch.zeros(3),)

    found = capture_torch(make, mesh={"dp": 2, "tp": 2})
    assert found.inputs() == {"w": "shard(0, tp)", "v": "shard(0, dp, tp)"}
    assert not found.is_joined
    members = {m for g in found.graphs for m in g.groups.values()}
    assert {(0, 1), (2, 3), (0, 2), (1, 3)} <= members
    reduce = next(op for op in found.module().ops if op.opcode == "all_reduce")
    assert sorted(reduce.attrs["groups"]) == [(0, 1), (2, 3)]


def test_elements_that_decide_are_refused_at_their_line() -> None:
    def program(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    line = program.__code__.co_firstlineno + 1
    with pytest.raises(ModuleError, match=rf"{Path(__file__).name}:{line} lets the elements"):
        captured(program, SHAPE)


def test_constant_of_a_collective_outside_the_program_is_refused() -> None:
    def make() -> Any:
        mask = torch.ones(3)
        dist.broadcast(mask, 0)
        twice = mask * 2
        return (lambda x: x + twice), (torch.zeros(3),)

    with pytest.raises(ModuleError, match="a constant that a collective in make"):
        capture_torch(make, mesh={"x": 2})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: 3, r"make\(\) must return"),
        (lambda: (Net(), {"x": 1}), "example inputs are a tuple"),
        (lambda: (lambda x: [x, "text"], (torch.zeros(2),)), "return tensors only"),
        (lambda: (lambda x: dist.all_gather_object([0, 0], x) or x, (torch.zeros(2),)), "all_gather_object"),
    ],
)
def test_what_can_not_be_captured(make: Any, message: str) -> None:
    with pytest.raises(ModuleError, match=message):
        capture_torch(make, mesh={"x": 2})


def test_wrapper_of_data_parallelism_names_parameters_as_the_model_does() -> None:
    def make() -> Any:
        inner = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
        return torch.nn.Sequential(inner, torch.nn.Linear(3, 3)), (torch.zeros(2, 3),)

    found = capture_torch(make, mesh={"dp": 2}).module()
    assert [i.name for i in found.inputs] == ["0.weight", "0.bias", "1.weight", "1.bias", "input"]


def test_parameters_that_fsdp_shards_are_refused() -> None:
    def make() -> Any:
        from torch.distributed.fsdp import fully_shard

        return fully_shard(torch.nn.Linear(4, 4)), (torch.zeros(2, 4),)

    with pytest.raises(ModuleError, match="sharded by FSDP"):
        capture_torch(make, mesh={"dp": 2})


def test_exported_program_computes_the_same() -> None:
    net, inputs = Net().double(), (torch.randn(2, 3).double(), {"y": torch.randn(2).double()})
    exported = torch.export.export(net, inputs).run_decompositions({})
    graph = read_exported(exported)
    module = lower(graph).module
    verify(module)
    names = [i.name for i in module.inputs]
    assert names[:3] == ["inner.weight", "inner.bias", "scale"]
    values = [
        *(p.detach().numpy() for p in (*net.parameters(), net.scale)),
        inputs[0].numpy(),
        inputs[1]["y"].numpy(),
    ]
    got = [arrays[0] for arrays in run(module, dict(zip(names, values, strict=True))).values()]
    want = net(*inputs)
    np.testing.assert_allclose(got[0], want["a"].detach().numpy())
    np.testing.assert_allclose(got[1], want["b"][0].numpy())


def test_graph_module_and_one_that_is_not_of_operators() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def program(x: Any) -> Any:
        return torch.softmax(x, -1)

    x = torch.randn(2, 3).double()
    module = lower(read_module(make_fx(program)(x))).module
    got = next(iter(run(module, {module.inputs[0].name: x.numpy()}).values()))[0]
    np.testing.assert_allclose(got, program(x).numpy())
    with pytest.raises(ModuleError, match=r"linear.*no operator: trace to operators first"):
        read_module(torch.fx.symbolic_trace(Net().inner))


@pytest.mark.parametrize("program", [all_reduce, ring, gathered_on_one])
def test_files_without_torch(program: Any, tmp_path: Path) -> None:
    fixed = torch.tensor([1.0, float("inf"), -0.0], dtype=torch.bfloat16)

    def extended(x: Any) -> Any:
        return program(x) * fixed

    found = captured(extended, SHAPE)
    paths = found.save(tmp_path / "folder")
    assert [p.name for p in paths] == ["rank0.json", "rank1.json"]
    again = read_capture(tmp_path / "folder")
    assert again.mesh == found.mesh
    for mine, theirs in zip(again.ranks, found.ranks, strict=True):
        assert mine.graph.nodes == theirs.graph.nodes and mine.graph.groups == theirs.graph.groups
        assert mine.outputs == theirs.outputs and mine.inputs_placed == theirs.inputs_placed
        for name, value in theirs.graph.constants.items():
            np.testing.assert_array_equal(mine.graph.constants[name], value)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from shardproof.solver.captured import read_capture\n"
        f"print(len(read_capture({str(tmp_path / 'folder')!r}).module().ops))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == str(len(found.module().ops)), result.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"shardproof_capture": 1', '"shardproof_capture": 2', "version 2"),
        ('{"ref": "x"}', '{"ref": "nowhere"}', "nothing before defines"),
        ('{"ref": "x"}', '{"eval": "1"}', "argument of kind 'eval'"),
        ('{"ref": "x"}', "[" * 100_000 + "]" * 100_000, "can't? be read|not a capture that can be read"),
        ('"shape": [4, 3]', '"shape": [4, -3]', "extent"),
        ('"dtype": "f64"', '"dtype": "object"', "element type 'object'"),
        ('"at": 0', '"at": 99', "no location"),
        ('"nodes": [', '"nodes": [}', "not a capture"),
    ],
)
def test_damaged_files_are_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    captured(all_reduce, SHAPE).save(tmp_path)
    path = tmp_path / "rank1.json"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ModuleError, match=message) as caught:
        read_capture(tmp_path)
    assert "rank1.json" in str(caught.value) and "\n" not in str(caught.value)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from shardproof.tools.capture_command import capture
    from shardproof.tools.failure import BAD_INPUT

    source = "import torch\n\ndef make():\n    return torch.nn.Linear(3, 3), (torch.zeros(2, 3),)\n"
    (tmp_path / "captured_model.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "saved"
    assert capture("captured_model:make", folder, "tp=2", True) == 0
    assert "rank1.json" in capsys.readouterr().out
    assert [o.name for o in read_capture(folder).module().outputs][1:] == ["grad.weight", "grad.bias"]
    for spelled in ("captured_model", "captured_model:absent", "absent_module:make"):
        assert capture(spelled, folder, None, False) == BAD_INPUT
    failing = "def make():\n    raise ValueError('a\\nb')\n"
    (tmp_path / "failing_model.py").write_text(failing, encoding="utf-8")
    (tmp_path / "broken_model.py").write_text("def (\n", encoding="utf-8")
    capsys.readouterr()
    assert capture("failing_model:make", folder, None, False) == BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"failing_model:make raised ValueError at {tmp_path / 'failing_model.py'}:2: a b")
    assert capture("broken_model:make", folder, None, False) == BAD_INPUT

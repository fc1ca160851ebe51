"""Pairs of PyTorch programs, each with a bug that can be put in; as a script, the implementations on gloo.

`python torch_cases.py RANK WORLD STORE FOLDER` writes what this rank's programs give, for random weights and
inputs that all ranks share, to FOLDER.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

HIDDEN, INNER, HEADS, BATCH, TIME = 8, 16, 2, 2, 4
EXPERTS, VOCABULARY, TOKENS = 4, 8, 4

LIMIT = timedelta(seconds=20)

wrong = False
"""Whether the implementations are built with their bugs."""


class Case(NamedTuple):
    """A reference and an implementation on two ranks of an axis."""

    reference: Callable[[], Any]
    implementation: Callable[[], Any]
    axis: str = "tp"
    relation: str = ""
    ranks: int = 2


def size() -> int:
    return dist.get_world_size()


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def linear(taken: int, given: int) -> nn.Linear:
    return nn.Linear(taken, given, bias=False)


class Spread(torch.autograd.Function):
    """The same on every rank; gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        g = g.clone()
        dist.all_reduce(g)
        return g


class Summed(torch.autograd.Function):
    """The sum over the ranks; its gradient is the same on every rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class Block(nn.Module):
    """A transformer block over `tp` ranks, written by hand."""

    def __init__(self, tp: int = 1) -> None:
        super().__init__()
        self.tp = tp
        self.norm = nn.LayerNorm(HIDDEN)
        self.q, self.k, self.v = (linear(HIDDEN, HIDDEN // tp) for _ in range(3))
        self.o = linear(HIDDEN // tp, HIDDEN)
        self.up, self.down = linear(HIDDEN, INNER // tp), linear(INNER // tp, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        summed: Any = Summed.apply if self.tp > 1 else lambda t: t
        spread: Any = Spread.apply if self.tp > 1 else lambda t: t
        h = spread(self.norm(x))
        q, k, v = (
            layer(h).view(BATCH, TIME, HEADS // self.tp, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        a = self.o(a.reshape(BATCH, TIME, -1))
        x = x + (a if wrong and self.tp > 1 else summed(a))
        return x + summed(self.down(F.gelu(self.up(spread(x)))))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))


def block_alone() -> Any:
    return Block(), (rows(BATCH, TIME, HIDDEN),)


def block() -> Any:
    return Block(size()), (rows(BATCH, TIME, HIDDEN),)


def mlp_alone() -> Any:
    return Mlp(), (rows(BATCH, TIME, HIDDEN),)


def dtensor_tp() -> Any:
    mesh = init_device_mesh("cpu", (size(),), mesh_dim_names=("tp",))
    layouts = Partial() if wrong else Replicate()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=layouts)}
    return parallelize_module(Mlp(), mesh, plan), (rows(BATCH, TIME, HIDDEN),)


def dtensor_sp() -> Any:
    mesh = init_device_mesh("cpu", (size(),), mesh_dim_names=("tp",))
    plan = {
        "norm": SequenceParallel(use_local_output=False),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    model = parallelize_module(Mlp(), mesh, plan)
    if wrong:
        model.norm.eps = 1e-2
    return model, (rows(BATCH, TIME // size(), HIDDEN),)


def _trained(model: nn.Module, parts: int = 1, after: Callable[[], None] | None = None) -> Any:
    """A training step over `parts` micro-batches: loss and gradients."""

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        total: Any = 0.0
        for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
            loss = F.mse_loss(model(xs), ys)
            (loss if wrong and parts > 1 else loss / parts).backward()
            total = total + loss.detach() / parts
        if after is not None:
            after()
            dist.all_reduce(total)
            total = total / size()
        return {"loss": total, **{name: p.grad for name, p in model.named_parameters()}}

    return step


def trained_alone() -> Any:
    return _trained(Mlp()), (rows(8, HIDDEN), rows(8, HIDDEN))


def data_parallel() -> Any:
    model = Mlp()

    def average() -> None:
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
        for p in model.parameters():
            if not wrong:
                p.grad /= size()

    return _trained(model, after=average), (rows(8 // size(), HIDDEN), rows(8 // size(), HIDDEN))


def wrapped() -> Any:
    """The averaging of PyTorch's own wrapper, over two micro-batches."""
    model = nn.parallel.DistributedDataParallel(Mlp())

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        total: Any = 0.0
        for number, (xs, ys) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
            with model.no_sync() if number == 0 or wrong else nullcontext():
                loss = F.mse_loss(model(xs), ys) / 2
                loss.backward()
            total = total + loss.detach()
        dist.all_reduce(total)
        return {"loss": total / size(), **{name: p.grad for name, p in model.module.named_parameters()}}

    return step, (rows(8 // size(), HIDDEN), rows(8 // size(), HIDDEN))


def accumulated() -> Any:
    return _trained(Mlp(), parts=2), (rows(8, HIDDEN), rows(8, HIDDEN))


def _updated(after: Callable[[nn.Module], None], kind: str = "SGD", **settings: Any) -> Any:
    model = Mlp()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **settings)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        after(model)
        optimizer.step()
        return model.up.bias * 1

    return step


def updated_alone() -> Any:
    return _updated(lambda model: None, momentum=0.9), (rows(8, HIDDEN), rows(8, HIDDEN))


def _average(model: nn.Module) -> None:
    for p in model.parameters():
        if not wrong:
            dist.all_reduce(p.grad)
            p.grad /= size()


def updated() -> Any:
    return _updated(_average, momentum=0.9), (rows(8 // size(), HIDDEN), rows(8 // size(), HIDDEN))


def adam_alone() -> Any:
    return _updated(lambda model: None, "AdamW"), (rows(8, HIDDEN), rows(8, HIDDEN))


def adam() -> Any:
    return _updated(_average, "AdamW"), (rows(8 // size(), HIDDEN), rows(8 // size(), HIDDEN))


def told_alone() -> Any:
    model = Mlp()
    return (lambda x: 3 * model(x)), (rows(BATCH, TIME, HIDDEN),)


def told() -> Any:
    """Rank 1 computes and tells the others."""
    model = Mlp()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = 3 * model(x) if dist.get_rank() == 1 else torch.zeros_like(x)
        dist.broadcast(y, 0 if wrong else 1)
        return y

    return program, (rows(BATCH, TIME, HIDDEN),)


class Gathered(torch.autograd.Function):
    """A whole weight from the ranks' rows; gradients are averaged and scattered."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(w.shape[0] * size(), *w.shape[1:])
        dist.all_gather_into_tensor(whole, w.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        part = torch.empty(g.shape[0] // size(), *g.shape[1:])
        dist.reduce_scatter_tensor(part, g.contiguous())
        return part if wrong else part / size()


class Two(nn.Module):
    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        self.a, self.b = (
            nn.Parameter(rows(INNER // ranks, HIDDEN)),
            nn.Parameter(rows(HIDDEN // ranks, INNER)),
        )
        self.ranks = ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = (self.a, self.b) if self.ranks == 1 else (Gathered.apply(self.a), Gathered.apply(self.b))
        return F.gelu(x @ a.t()) @ b.t()


class Redistributed(nn.Module):
    """Weights that are DTensors in rows, put together where they are used."""

    def __init__(self) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (size(),), mesh_dim_names=("dp",))
        self.a = nn.Parameter(distribute_tensor(rows(INNER, HIDDEN), mesh, [Shard(0)]))
        self.b = nn.Parameter(distribute_tensor(rows(HIDDEN, INNER), mesh, [Shard(0)]))
        self.ranks = size()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def whole(w: Any) -> torch.Tensor:
            return w.redistribute(placements=[Replicate()]).to_local(
                grad_placements=[Partial("sum" if wrong else "avg")]
            )

        return F.gelu(x @ whole(self.a).t()) @ whole(self.b).t()


def _differentiated(model: Any) -> Any:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.mse_loss(model(x), y)
        a, b = torch.autograd.grad(loss, [model.a, model.b])
        loss = loss.detach().clone()
        if model.ranks > 1:
            dist.all_reduce(loss)
            loss = loss / size()
        return loss, a, b

    return step


def whole_weights() -> Any:
    return _differentiated(Two()), (rows(8, HIDDEN), rows(8, HIDDEN))


def gathered_weights() -> Any:
    return _differentiated(Two(size())), (rows(8 // size(), HIDDEN), rows(8 // size(), HIDDEN))


def redistributed_weights() -> Any:
    return _differentiated(Redistributed()), (rows(8 // size(), HIDDEN), rows(8 // size(), HIDDEN))


class Stages(nn.Module):
    """Layers of the given numbers."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(n): linear(HIDDEN, HIDDEN) for n in numbers})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = x + F.gelu(layer(x))
        return x


def stages_alone() -> Any:
    model = Stages(0, 1)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.mse_loss(model(x), y)
        first, second = torch.autograd.grad(loss, [layer.weight for layer in model.layers.values()])
        return {"loss": loss, "first": first, "second": second}

    return step, (rows(4, HIDDEN), rows(4, HIDDEN))


def stages_by_hand() -> Any:
    rank = dist.get_rank()
    model = Stages(rank)
    weight = model.layers[str(rank)].weight

    def first(x: torch.Tensor) -> Any:
        sent, works = [], []
        for part in x.chunk(2):
            sent.append(model(part))
            works.append(dist.isend(sent[-1].detach(), 1))
        for value in sent:
            gradient = torch.empty_like(value)
            dist.recv(gradient, 1)
            value.backward(gradient)
        for work in works:
            work.wait()
        return {"first": weight.grad}

    def second(y: torch.Tensor) -> Any:
        total: Any = 0.0
        for part in y.chunk(2):
            x = torch.empty(2, HIDDEN)
            dist.recv(x, 0)
            x.requires_grad_()
            loss = F.mse_loss(model(x), part) / (1 if wrong else 2)
            loss.backward()
            dist.send(x.grad, 0)
            total = total + loss.detach()
        return {"loss": total, "second": weight.grad}

    return (first if rank == 0 else second), (rows(4, HIDDEN),)


def stages_scheduled() -> Any:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    model = Stages(rank)
    weight = model.layers[str(rank)].weight
    part = rows(2, HIDDEN).requires_grad_()
    stage = PipelineStage(
        model,
        rank,
        2,
        torch.device("cpu"),
        input_args=(part,),
        output_args=(part,),
        output_grads=(part,) if rank == 0 else None,
        input_grads=(part,) if rank == 1 else None,
    )
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=F.mse_loss, scale_grads=not wrong)

    def first(x: torch.Tensor) -> Any:
        schedule.step(x)
        return {"first": weight.grad}

    def second(y: torch.Tensor) -> Any:
        losses: list[torch.Tensor] = []
        schedule.step(target=y, losses=losses)
        return {"loss": sum(loss.detach() for loss in losses) / 2, "second": weight.grad}

    return (first if rank == 0 else second), (rows(4, HIDDEN),)


class Experts(nn.Module):
    """Tokens to their best expert, as many places as there are tokens, over `ranks` ranks."""

    def __init__(self, ranks: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.ranks, self.groups = ranks, groups
        self.router = linear(HIDDEN, EXPERTS)
        self.experts = nn.Parameter(rows(EXPERTS // ranks, HIDDEN, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.routed(part) for part in x.chunk(self.groups)])

    def routed(self, x: torch.Tensor) -> torch.Tensor:
        places = x.shape[0]
        weight = F.softmax(self.router(x), -1)
        best = weight.argmax(-1)
        chosen = F.one_hot(best, EXPERTS).to(x.dtype)
        place = ((torch.cumsum(chosen, 0) - 1) * chosen).sum(-1).long()
        sent = chosen[:, :, None] * F.one_hot(place, places).to(x.dtype)[:, None, :]
        taken = torch.einsum("tec,th->ech", sent, x)
        given = torch.bmm(taken, self.experts) if self.ranks == 1 else self.exchanged(taken, places)
        return torch.einsum("tec,ech->th", sent * weight.gather(1, best[:, None])[:, :, None], given)

    def exchanged(self, taken: torch.Tensor, places: int) -> torch.Tensor:
        own = EXPERTS // self.ranks
        here = torch.empty_like(taken)
        dist.all_to_all_single(here, taken)
        here = here.view(self.ranks, own, places, HIDDEN).transpose(0, 1).reshape(own, -1, HIDDEN)
        done = torch.bmm(here, self.experts).view(own, self.ranks, places, HIDDEN)
        done = (done if wrong else done.transpose(0, 1)).reshape(EXPERTS, places, HIDDEN)
        back = torch.empty_like(done)
        dist.all_to_all_single(back, done)
        return back


def experts_alone() -> Any:
    return Experts(groups=2), (rows(2 * TOKENS, HIDDEN),)


def experts() -> Any:
    return Experts(size()), (rows(TOKENS, HIDDEN),)


class Attention(nn.Module):
    """Causal attention, every rank with a run of the positions and the keys and values of all."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks, own = (size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        count = q.shape[2]
        if ranks > 1:
            k, v = (torch.cat(self.all_of(t, ranks), 2) for t in (k, v))
        first = 0 if wrong else own * count
        seen = torch.ones(ranks * count, ranks * count, dtype=torch.bool).tril()[first : first + count]
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.o(a.transpose(1, 2).flatten(-2))

    def all_of(self, t: torch.Tensor, ranks: int) -> list[torch.Tensor]:
        parts = [torch.empty_like(t) for _ in range(ranks)]
        dist.all_gather(parts, t.contiguous())
        return parts


def attention_alone() -> Any:
    return Attention(), (rows(BATCH, TIME, HIDDEN),)


def attention() -> Any:
    return Attention(), (rows(BATCH, TIME // size(), HIDDEN),)


def entropy_alone() -> Any:
    weight = nn.Parameter(rows(VOCABULARY, HIDDEN))

    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x @ weight.t(), labels, reduction="none")

    return loss, (rows(TOKENS, HIDDEN), torch.tensor([0, 3, 4, 7]))


def entropy() -> Any:
    own = VOCABULARY // size()
    start = dist.get_rank() * own + (1 if wrong and dist.get_rank() == 1 else 0)
    weight = nn.Parameter(rows(own, HIDDEN))

    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = x @ weight.t()
        top = scores.max(-1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        scores = scores - top[:, None]
        absent = (labels < start) | (labels >= start + own)
        picked = scores.gather(1, (labels - start).masked_fill(absent, 0)[:, None])[:, 0]
        picked = funcol.all_reduce(picked.masked_fill(absent, 0.0), "sum", dist.group.WORLD)
        total = funcol.all_reduce(scores.exp().sum(-1), "sum", dist.group.WORLD)
        return total.log() - picked

    return loss, (rows(TOKENS, HIDDEN), torch.tensor([0, 3, 4, 7]))


CASES = {
    "block": Case(block_alone, block),
    "dtensor_tp": Case(mlp_alone, dtensor_tp),
    "dtensor_sp": Case(mlp_alone, dtensor_sp),
    "data_parallel": Case(trained_alone, data_parallel, "dp"),
    "wrapped": Case(trained_alone, wrapped, "dp"),
    "updated": Case(updated_alone, updated, "dp"),
    "adam": Case(adam_alone, adam, "dp"),
    "told": Case(told_alone, told),
    "gathered": Case(whole_weights, gathered_weights, "dp"),
    "redistributed": Case(whole_weights, redistributed_weights, "dp"),
    "accumulated": Case(trained_alone, accumulated, "dp", ranks=1),
    "stages_by_hand": Case(stages_alone, stages_by_hand, "pp"),
    "stages_scheduled": Case(stages_alone, stages_scheduled, "pp"),
    "experts": Case(
        experts_alone,
        experts,
        "ep",
        '[inputs]\nx = "shard(0)"\nexperts = "shard(0)"\n"router.weight" = "replicate"',
    ),
    "attention": Case(attention_alone, attention, "cp"),
    "entropy_of_any_labels": Case(entropy_alone, entropy),
    "entropy": Case(entropy_alone, entropy, "tp", f"[ranges]\nlabels = [0, {VOCABULARY}]"),
}


def part(whole: np.ndarray, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """The rank's share of `whole`, along the dims in which the shapes differ."""
    for dim, (n, m) in enumerate(zip(whole.shape, shape, strict=True)):
        if n != m:
            whole = np.split(whole, n // m, dim)[rank]
    return whole


def tensors(target: Any, given: tuple[Any, ...]) -> dict[str, Any]:
    """Parameters and inputs of a program by name, each the part that this rank holds."""
    from shardproof.frontends.fx.capture.state import find
    from shardproof.frontends.fx.capture.trace import _input_names, _leaves

    found = dict(find(target).tensors)
    found |= dict(zip(_input_names(target, _leaves(given)), given, strict=True))
    return {n: t._local_tensor if isinstance(t, DTensor) else t.detach() for n, t in found.items()}


def results(value: Any) -> dict[str, np.ndarray]:
    """What a program returned, by the names of a capture."""
    from shardproof.frontends.fx.capture.trace import _leaves, _path

    return {
        _path("output", path): (leaf.to_local() if isinstance(leaf, DTensor) else leaf).detach().numpy()
        for path, leaf in _leaves(value)
    }


def reference(case: Case) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and results of a reference, for seeded random numbers."""
    torch.manual_seed(1)
    target, given = case.reference()
    held = {name: t.numpy().copy() for name, t in tensors(target, given).items()}
    return held, results(target(*given))


def main(rank: int, world: int, store: str, folder: str) -> None:
    """Run this rank of every implementation, without its bug and with it."""
    global wrong
    torch.set_num_threads(1)
    whole = {name: reference(case)[0] for name, case in CASES.items()}
    where = f"file://{store}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world, timeout=LIMIT)
    for name, case in CASES.items():
        for wrong in (False, True):
            if case.ranks == 1 and rank:
                continue
            target, given = case.implementation()
            with torch.no_grad():
                for key, tensor in tensors(target, given).items():
                    tensor.copy_(torch.from_numpy(part(whole[name][key], tuple(tensor.shape), rank).copy()))
            np.savez(Path(folder) / f"{name}-{wrong}-{rank}.npz", **results(target(*given)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
    os._exit(0)

"""One rank of a distributed run, alone in this process: a process group that never communicates."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import _lru_cache_wrapper
from typing import Any, Final

from shardproof.frontends.fx.capture.collectives import replaced
from shardproof.ir.module import ModuleError

_ADDRESS: Final = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@contextmanager
def rank_of(rank: int, size: int) -> Iterator[None]:
    """Make this process rank `rank` of `size` for the time of the block, as `torchrun` would.

    Collectives of `torch.distributed` then are operators that a tracer records. Random numbers start from
    the same seed on every rank, and the caller's generator is left as it was.
    Raises ModuleError when a process group is up already.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise ModuleError("capture: this torch is built without torch.distributed")
    if dist.is_initialized():
        raise ModuleError("capture: a process group is up already: call destroy_process_group() first")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with ExitStack() as stack:
        stack.enter_context(_environment(rank, size))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(0)
        stack.callback(setattr, sys, "excepthook", sys.excepthook)
        _forget()
        stack.callback(_forget)
        world: Any = dist.distributed_c10d._world
        world.group_count = rank * GROUPS
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        stack.callback(_down)
        stack.enter_context(replaced())
        yield


GROUPS: Final = 1 << 20
"""Names of groups are numbers from the rank times this on: no rank's name means a group of another."""


def _forget() -> None:
    """Drop what DTensors cached: it names meshes and groups of the rank before."""
    import torch

    if "torch.distributed.tensor" not in sys.modules:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith(("torch.distributed.tensor", "torch.distributed.device_mesh")):
            for value in list(vars(module).values()):
                if isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()
    from torch.distributed.tensor import DTensor, _redistribute

    _redistribute.clear_redistribute_planner_cache()
    dispatcher: Any = DTensor._op_dispatcher
    dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()


def _down() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


class Unread:
    """The results of collectives in `make()`: their elements mean nothing."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}

    def add(self, tensor: Any) -> None:
        """Note a result; a real one becomes nan, so that what is computed of it can be told."""
        if tensor.is_floating_point() and tensor.device.type != "meta":
            tensor.fill_(float("nan"))
        storage = tensor.untyped_storage()
        self._kept[storage._cdata] = storage

    def made(self, tensor: Any) -> bool:
        """Whether a tensor is, or was computed of, such a result."""
        if tensor.untyped_storage()._cdata in self._kept:
            return True
        return bool(self._kept) and tensor.is_floating_point() and bool(tensor.isnan().any())


@contextmanager
def unread() -> Iterator[Unread]:
    """Note what collectives give while `make()` runs."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    found = Unread()

    class Noting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd", "shardproof"):
                for leaf in tree_leaves(result):
                    if isinstance(leaf, torch.Tensor):
                        found.add(leaf)
            return result

    with Noting():
        yield found


@contextmanager
def _environment(rank: int, size: int) -> Iterator[None]:
    wanted = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, **_ADDRESS}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: str(value) for name, value in wanted.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def groups() -> dict[str, tuple[int, ...]]:
    """The members, in order, of every process group that this rank is in, by name."""
    from torch.distributed import distributed_c10d as c10d

    world: Any = c10d._world
    return {str(g.group_name): tuple(c10d.get_process_group_ranks(g)) for g in world.pg_map}

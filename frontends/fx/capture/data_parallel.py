"""`DistributedDataParallel`, which averages gradients in C++ where no tracer sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from shardproof.ir.module import ModuleError


def wrapped_in(top: Any) -> Iterator[tuple[str, Any]]:
    """The `DistributedDataParallel` modules in a module, with their paths.

    Raises ModuleError for modules that divide their parameters in ways that no tracer follows.
    """
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    for path, module in top.named_modules():
        if isinstance(module, FSDPModule | FullyShardedDataParallel):
            raise ModuleError(
                f"capture: `{path or type(module).__name__}` is sharded by FSDP, whose storage no tracer "
                "follows: gather parameters with DTensor.redistribute where they are used"
            )
        if isinstance(module, DistributedDataParallel):
            yield path, module


def plain_name(name: str, wrappers: Sequence[str]) -> str:
    """A parameter's name without the `module.` that wrappers at these paths put in."""
    for path in sorted(wrappers, key=len, reverse=True):
        start = f"{path}.module." if path else "module."
        if name.startswith(start):
            name = f"{path}.{name[len(start):]}" if path else name[len(start) :]
    return name


@contextmanager
def averaging(modules: Sequence[Any]) -> Iterator[None]:
    """Let `DistributedDataParallel` modules average each gradient over their group when it is accumulated.

    That is what their reducer does at the end of a backward pass, unless `no_sync()` is in effect.
    Raises ModuleError for one with communication hooks.
    """
    found = {id(m): m for top in modules for _, m in wrapped_in(top)}
    undo: list[Callable[[], object]] = []
    try:
        for module in found.values():
            if module._comm_hooks:
                raise ModuleError("capture: DistributedDataParallel with a communication hook is not read")
            module.__dict__["forward"] = module.module
            undo.append(partial(module.__dict__.pop, "forward"))
            ignored = set(module.parameters_to_ignore)
            for name, parameter in module.module.named_parameters():
                if parameter.requires_grad and name not in ignored:
                    undo.append(parameter.register_post_accumulate_grad_hook(_hook(module)).remove)
        yield
    finally:
        for step in undo:
            step()


def _hook(module: Any) -> Callable[[Any], None]:
    def average(parameter: Any) -> None:
        import torch.distributed as dist

        if module.require_backward_grad_sync:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=module.process_group)

    return average

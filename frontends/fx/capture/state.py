"""The parameters and buffers that a captured function reads, found, named and made inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import getclosurevars, ismethod
from types import FunctionType, ModuleType
from typing import Any, Final

from shardproof.frontends.fx.capture.data_parallel import plain_name, wrapped_in
from shardproof.ir.module import ModuleError

DEPTH: Final = 3
"""How many attributes deep an object that is no module is searched for modules and optimizers."""


@dataclass(slots=True)
class State:
    """Tensors that become inputs: by name, `tensors` the user's objects and `local` this rank's part.

    `modules` are the outermost modules that hold tensors.
    """

    tensors: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)

    @property
    def parameters(self) -> dict[str, Any]:
        """Those that a gradient can be taken of."""
        return {name: t for name, t in self.tensors.items() if t.requires_grad and t.is_leaf}


def find(target: Any) -> State:
    """The parameters and buffers that calling `target` can reach.

    A module's are named as by `named_parameters`; of several modules the name of each, where the function
    holds it, comes before. Modules are found in closures, globals that the function names, default
    arguments, the object of a method, and attributes of other objects. A tensor that needs a gradient and
    is held by name is a parameter too.
    """
    import torch

    state, seen = State(), set[int]()
    modules: list[tuple[str, Any]] = []
    tensors: list[tuple[str, Any]] = []
    for name, value in _reached(target):
        _collect(name, value, modules, tensors, seen, 0)
    tops = _outermost(modules)
    state.modules = [module for _, module in tops]
    named: list[tuple[str, Any]] = []
    for prefix, module in tops:
        wrappers = [path for path, _ in wrapped_in(module)]
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if isinstance(tensor, torch.Tensor):
                plain = plain_name(name, wrappers)
                named.append((f"{prefix}.{plain}" if len(tops) > 1 else plain, tensor))
    taken: set[int] = set()
    for name, tensor in (*named, *tensors):
        if id(tensor) in taken:
            continue
        taken.add(id(tensor))
        if name in state.tensors:
            raise ModuleError(f"capture: two parameters are called `{name}`")
        state.tensors[name] = tensor
    return state


def _outermost(modules: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Modules that hold tensors and are not parts of another, each once."""
    holding = {id(m): (n, m) for n, m in reversed(modules) if any(True for _ in _tensors(m))}
    parts = {id(part) for _, m in holding.values() for part in m.modules() if part is not m}
    return [pair for key, pair in reversed(holding.items()) if key not in parts]


def _tensors(module: Any) -> Iterator[Any]:
    yield from module.parameters()
    yield from module.buffers()


def _reached(target: Any) -> Iterator[tuple[str, Any]]:
    """What a call of `target` starts from, by the names that it has there."""
    import torch

    if isinstance(target, torch.nn.Module):
        yield "model", target
    elif isinstance(target, partial):
        yield from _reached(target.func)
        for at, value in enumerate((*target.args, *target.keywords.values())):
            yield f"argument{at}", value
    elif ismethod(target):
        yield "self", target.__self__
        yield from _reached(target.__func__)
    elif isinstance(target, FunctionType):
        held = getclosurevars(target)
        for name, value in (*held.nonlocals.items(), *held.globals.items()):
            yield name, value
        for at, value in enumerate(target.__defaults__ or ()):
            yield f"default{at}", value
    else:
        yield "self", target


def _collect(
    name: str,
    value: Any,
    modules: list[tuple[str, Any]],
    tensors: list[tuple[str, Any]],
    seen: set[int],
    depth: int,
) -> None:
    """Modules, and tensors that need a gradient, in a value that a function holds by `name`."""
    import torch

    if isinstance(value, type | ModuleType):
        return
    if isinstance(value, torch.nn.Module):
        modules.append((name, value))
        return
    if isinstance(value, torch.Tensor):
        if value.requires_grad and value.is_leaf:
            tensors.append((name, value))
        return
    if isinstance(value, torch.optim.Optimizer):
        for group in value.param_groups:
            group.update({key: False for key in ("foreach", "fused") if key in group})
        return
    if id(value) in seen or depth >= DEPTH:
        return
    seen.add(id(value))
    for inner, held in _held(name, value):
        _collect(inner, held, modules, tensors, seen, depth + 1)


def _held(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an object that is no tensor or module holds."""
    if isinstance(value, FunctionType | partial) or ismethod(value):
        yield from _reached(value)
    elif isinstance(value, list | tuple):
        yield from ((f"{name}.{at}", part) for at, part in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((f"{name}.{key}", part) for key, part in list(value.items()))
    elif hasattr(value, "__dict__"):
        yield from ((f"{name}.{key}", part) for key, part in list(vars(value).items()))


def make_fake(state: State, mode: Any) -> None:
    """Give every tensor of the state no elements but a type, in place: all who hold it see the change.

    Attributes that a model gave them stay. `state.local` then has what to trace with: the tensor itself, or
    the local part of a DTensor. Undone by `restore`. Raises ModuleError for a tensor that a computation still
    needs.
    """
    import torch
    from torch.distributed.tensor import DTensor

    for name, tensor in state.tensors.items():
        if isinstance(tensor, DTensor):
            state.kept.append((tensor, tensor._local_tensor, tensor.grad))
            tensor._local_tensor = fake_of(tensor._local_tensor, mode)
            state.local[name] = tensor._local_tensor
            continue
        fake = fake_of(tensor, mode)
        if isinstance(tensor, torch.nn.Parameter):
            fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad:
            fake.requires_grad_()
        fake.__dict__ |= {k: v for k, v in vars(tensor).items() if k not in vars(fake)}
        try:
            _exchange(tensor, fake)
        except RuntimeError as error:
            text = str(error).partition("\n")[0]
            raise ModuleError(f"capture: `{name}` is in use by an earlier computation: {text}") from None
        state.kept.append((tensor, fake, None))
        state.local[name] = tensor


def restore(state: State) -> None:
    """Give the tensors back what they were."""
    from torch.distributed.tensor import DTensor

    for tensor, other, grad in reversed(state.kept):
        if isinstance(tensor, DTensor):
            tensor._local_tensor = other
            tensor.grad = grad
        else:
            _exchange(tensor, other)
    state.kept.clear()


def _exchange(first: Any, second: Any) -> None:
    """Swap what two tensor objects are, as `torch.utils.swap_tensors` does, weak references or not."""
    import torch

    torch._C._swap_tensor_impl(first, second)
    first.__class__, second.__class__ = second.__class__, first.__class__
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__


def fake_of(tensor: Any, mode: Any) -> Any:
    """A tensor of the same type and strides without elements."""
    import torch

    with mode:
        return torch.empty_strided(
            tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )

"""One rank's program, traced: `make()` is called, its parameters become inputs, its calls a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final

from shardproof.frontends.fx.capture import world
from shardproof.frontends.fx.capture.collectives import kept
from shardproof.frontends.fx.capture.data_parallel import averaging
from shardproof.frontends.fx.capture.pipeline import fixed_shapes
from shardproof.frontends.fx.capture.state import State, fake_of, find, make_fake, restore
from shardproof.frontends.fx.live import read_module
from shardproof.frontends.fx.traced import Placed, Traced
from shardproof.frontends.locate import Locator, configured_wrapper_files, innermost
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Frame

Make = Callable[[], tuple[Any, Any]]

_MACHINERY: Final = (
    *("fx/", "_dynamo/", "_compile.py", "_ops.py", "_decomp/", "_subclasses/", "utils/_stats.py"),
    *("utils/_python_dispatch.py", "utils/_contextlib.py", "_library/"),
)
"""Files of torch that dispatch and trace, below its folder."""


@dataclass(slots=True)
class _Call:
    """What is traced: the user's target on its inputs, tensors taken out of them and put back."""

    target: Any
    arguments: tuple[Any, ...]
    state: State
    backward: bool
    unread: world.Unread
    names: dict[str, Any] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    sharded: dict[str, Any] = field(default_factory=dict)


def trace(make: Make, rank: int, size: int, *, backward: bool) -> Traced:
    """The graph of what `make()` gives on one rank.

    Parameters and buffers come first, by the model's names, then the tensors among the example inputs.
    With `backward`, then a tangent for every output that has a gradient, and the results are the outputs
    and the gradients of parameters and of inputs that need one.
    Raises ModuleError for programs that can't be captured; what `make` or the program raises passes.
    """
    with world.rank_of(rank, size), fixed_shapes():
        with world.unread() as unread:
            made = make()
        if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]):
            raise ModuleError("capture: make() must return (module or function, example inputs)")
        target, given = made
        arguments = _arguments(given)
        found = find(target)
        try:
            return _traced(_Call(target, arguments, found, backward, unread), rank)
        except Exception as error:
            raise _explained(error) from error
        finally:
            restore(found)


def _explained(error: Exception) -> Exception:
    """A read of a tensor's elements, as one line that says where; other errors as they are."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    reads = isinstance(error, DataDependentOutputException | DynamicOutputShapeException)
    if not reads and "value out of a tracing tensor" not in str(error):
        return error
    frames = [Frame(f.filename, f.lineno or 0, f.name) for f in extract_tb(error.__traceback__)]
    place = innermost(frames, _wrappers())
    return ModuleError(
        f"capture: {place} lets the elements of a tensor decide what to do (if, int(), .item(), a mask as "
        "index): compute with tensors of fixed shape instead"
    )


def _arguments(given: Any) -> tuple[Any, ...]:
    import torch

    if isinstance(given, torch.Tensor):
        return (given,)
    if isinstance(given, list | tuple):
        return tuple(given)
    raise ModuleError(f"capture: example inputs are a tuple of arguments, not {type(given).__name__}")


def _traced(call: _Call, rank: int) -> Traced:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.tensor import DTensor
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils import _pytree as pytree

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    inputs_placed = {n: p for n, t in call.state.tensors.items() if (p := placed(t)) is not None}
    make_fake(call.state, mode)
    leaves, shape = pytree.tree_flatten_with_path(call.arguments)
    taken: dict[str, Any] = dict(call.state.local)
    fakes: list[Any] = []
    for name, (_, leaf) in zip(_input_names(call.target, leaves), leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            fakes.append(leaf)
            continue
        held = next((n for n, t in call.state.tensors.items() if t is leaf), None)
        if held is not None:
            fakes.append(leaf)
            continue
        name = _free(name, taken)
        if isinstance(leaf, DTensor):
            where = placed(leaf)
            assert where is not None
            inputs_placed[name] = where
            leaf._local_tensor = taken[name] = fake_of(leaf._local_tensor, mode)
            fakes.append(leaf)
        else:
            fake = fake_of(leaf, mode).requires_grad_(leaf.requires_grad)
            taken[name] = fake
            fakes.append(fake)
        call.names[name] = fakes[-1]
    arguments = pytree.tree_unflatten(fakes, shape)
    with mode, sdpa_kernel(SDPBackend.MATH), averaging(call.state.modules):
        tangents = _tangents(call, arguments, mode) if call.backward else {}
        for name in list(tangents):
            taken[_free(name, taken)] = tangents[name]

        def run(inputs: list[Any]) -> list[Any]:
            return _run(call, arguments, list(tangents.values()))

        grad = nullcontext() if call.backward or not _is_module(call.target) else torch.no_grad()
        with grad, _user_frames(), kept():
            module = make_fx(
                run,
                decomposition_table=_spelled_out(),
                tracing_mode="real",
                record_stack_traces=True,
                _allow_non_fake_inputs=True,
            )(list(taken.values()))
    _check_constants(module, call.unread)
    names = [n.name for n in module.graph.nodes if n.op == "placeholder"]
    graph = read_module(
        module,
        rank=rank,
        groups=world.groups(),
        titles=dict(zip(names, taken, strict=True)),
        source="capture",
        name=getattr(call.target, "__name__", type(call.target).__name__),
        locator=Locator(_wrappers()),
    )
    outputs_placed = {n: p for n, t in call.sharded.items() if (p := placed(t)) is not None}
    data = tuple(name for name in taken if name not in call.state.local)
    return Traced(graph, tuple(call.outputs), inputs_placed, outputs_placed, data)


def _wrappers() -> tuple[str, ...]:
    """Files whose frames are not shown."""
    return (*configured_wrapper_files(Path.cwd()), "shardproof/frontends/fx/capture/")


@contextmanager
def _user_frames() -> Iterator[None]:
    """Let the tracer record every frame of the user's program, not those of `forward` only."""
    from traceback import StackSummary

    import torch
    from torch.fx.proxy import TracerBase

    root = str(Path(torch.__file__).parent)
    machinery = tuple(f"{root}/{part}" for part in _MACHINERY)

    def inside(tracer: Any, stack: Any) -> Any:
        own = [at for at, frame in enumerate(stack) if frame.filename == __file__]
        frames = stack[own[-1] + 1 :] if own else []
        return StackSummary.from_list([f for f in frames if not f.filename.startswith(machinery)])

    original: Any = TracerBase._filter_traceback_frames
    replacement: Any = inside
    TracerBase._filter_traceback_frames = replacement
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = original


def _spelled_out() -> dict[Any, Any]:
    """Operators that are replaced by others which mean the same."""
    import torch

    def softmax(x: Any, dim: int, dtype: Any = None) -> Any:
        out = torch.softmax(x, dim, dtype=dtype)
        masked = torch.all(x.eq(float("-inf")), dim=dim, keepdim=True)
        return torch.where(masked, torch.zeros_like(out), out)

    return {torch.ops.aten._safe_softmax.default: softmax}


def _is_module(target: Any) -> bool:
    import torch

    return isinstance(target, torch.nn.Module)


def _run(call: _Call, arguments: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """The flat results; their names and placements are left in `call`."""
    from torch.utils import _pytree as pytree

    result = call.target(*arguments)
    leaves, _ = pytree.tree_flatten_with_path(result)
    named = [(_path("output", path), leaf) for path, leaf in leaves]
    if call.backward:
        named += _gradients(call, [leaf for _, leaf in named], tangents)
    call.outputs.clear()
    call.sharded.clear()
    return [_taken_out(call, name, leaf) for name, leaf in named if leaf is not None]


def _taken_out(call: _Call, name: str, leaf: Any) -> Any:
    import torch
    from torch.distributed.tensor import DTensor

    if not isinstance(leaf, torch.Tensor):
        raise ModuleError(f"capture: {name} is a {type(leaf).__name__}, return tensors only")
    call.outputs.append(name)
    if isinstance(leaf, DTensor):
        call.sharded[name] = leaf
        return leaf.to_local()
    if hasattr(leaf, "wait") and type(leaf).__name__ == "AsyncCollectiveTensor":
        return leaf.wait()
    return leaf


def _tangents(call: _Call, arguments: Sequence[Any], mode: Any) -> dict[str, Any]:
    """One for each result with a gradient, found by a run without a tracer."""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils import _pytree as pytree

    leaves, _ = pytree.tree_flatten_with_path(call.target(*arguments))
    found = {}
    for path, leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            local = leaf._local_tensor if isinstance(leaf, DTensor) else leaf
            found[_path("tangent", path)] = fake_of(local.contiguous(), mode)
    if not found:
        raise ModuleError("capture: backward was asked for, but no result has a gradient")
    return found


def _gradients(call: _Call, results: Sequence[Any], tangents: Sequence[Any]) -> list[tuple[str, Any]]:
    import torch
    from torch.distributed.tensor import DTensor

    wanted = {**call.state.parameters, **{n: t for n, t in call.names.items() if t.requires_grad}}
    differentiable = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    seeds = [
        DTensor.from_local(t, r.device_mesh, r.placements, run_check=False, shape=r.shape, stride=r.stride())
        if isinstance(r, DTensor)
        else t
        for r, t in zip(differentiable, tangents, strict=True)
    ]
    found = torch.autograd.grad(differentiable, list(wanted.values()), seeds, allow_unused=True)
    return [(f"grad.{name}", g) for name, g in zip(wanted, found, strict=True)]


def _input_names(target: Any, leaves: Sequence[tuple[Any, Any]]) -> list[str]:
    """Names of the leaves of the arguments: the parameter's, and the path inside it."""
    call = target.forward if _is_module(target) else target
    try:
        parameters = [
            p.name
            for p in inspect.signature(call).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        parameters = []
    found = []
    for path, _ in leaves:
        at = path[0].idx
        found.append(_path(parameters[at] if at < len(parameters) else f"input{at}", path[1:]))
    return found


def _leaves(value: Any) -> list[tuple[Any, Any]]:
    """The path and value of every leaf of nested containers."""
    from torch.utils import _pytree as pytree

    return list(pytree.tree_flatten_with_path(value)[0])


def _path(start: str, path: Sequence[Any]) -> str:
    """`output.0.loss` for the path of a leaf."""
    parts = [getattr(key, name) for key in path for name in ("idx", "key", "name") if hasattr(key, name)]
    return ".".join((start, *map(str, parts)))


def _free(name: str, taken: Mapping[str, Any]) -> str:
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    return found


def placed(tensor: Any) -> Placed | None:
    """How a DTensor lies on its mesh; None for other tensors."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return None
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names or tuple(f"dim{d}" for d in range(mesh.ndim))
    sizes = tuple(int(n) for n in mesh.mesh.shape)
    return Placed(
        tuple(int(n) for n in tensor.shape),
        tuple(zip(names, sizes, strict=True)),
        tuple(int(r) for r in mesh.mesh.flatten()),
        tuple(_placement(p) for p in tensor.placements),
    )


def _placement(placement: Any) -> str | None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if type(placement) is Replicate:
        return "replicate"
    if type(placement) is Shard:
        return f"shard({placement.dim})"
    if type(placement) is Partial and placement.reduce_op == "sum":
        return "partial"
    return None


def _check_constants(module: Any, unread: world.Unread) -> None:
    """A parameter that was not found, or a tensor without elements, must not become a constant."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        value = getattr(module, node.target, None)
        if not isinstance(value, torch.Tensor):
            raise ModuleError(
                f"capture: `{node.name}` is a {type(value).__name__}: call collectives by their functions in "
                "torch.distributed"
            )
        if value.requires_grad or (isinstance(value, FakeTensor) and value.constant is None):
            raise ModuleError(
                f"capture: the program reads a parameter of shape {list(value.shape)} that was not found: "
                "pass its module, or make it an example input"
            )
        if unread.made(value):
            raise ModuleError(
                f"capture: `{node.name}` is a constant that a collective in make() gave: no rank "
                "communicates there, communicate in the program or make it an example input"
            )

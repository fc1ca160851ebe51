"""Eager collectives of `torch.distributed` as functional operators, so that a tracer sees them.

Every function here stands for the one of the same name: a call that is waited for at once writes its result
to the caller's tensor; with `async_op` the result is written when the work is waited for, and an all-reduce
or broadcast in place may not be read before. Work that is never waited for has no effect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from types import FunctionType, ModuleType
from typing import Any, Final, NoReturn

from shardproof.ir.module import ModuleError

SEND: Final = "shardproof.send.default"
RECEIVE: Final = "shardproof.recv.default"

Finish = Callable[[], None]


class Work:
    """What an asynchronous call returns: `finish` writes the result."""

    def __init__(self, finish: Finish) -> None:
        self._finish: Finish | None = finish

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        """Write the result, once."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    block_current_stream = synchronize = wait

    def is_completed(self) -> bool:
        return self._finish is None

    def get_future(self) -> Any:
        """A future that is done; to take it is to wait."""
        import torch

        self.wait()
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


def _done(finish: Finish, later: bool) -> Work | None:
    work = Work(finish)
    if later:
        return work
    work.wait()
    return None


@cache
def _point_to_point() -> Any:
    """The operators of sends and receives; a send gives a number that nothing reads."""
    import torch

    library = torch.library.Library("shardproof", "DEF")
    library.define("send(Tensor x, int peer, int tag, str group) -> Tensor")
    library.define("recv(Tensor like, int peer, int tag, str group) -> Tensor")
    kind = "CompositeExplicitAutograd"
    library.impl("send", lambda x, peer, tag, group: x.new_zeros(()), kind)
    library.impl("recv", lambda like, peer, tag, group: torch.empty_like(like), kind)
    torch.fx.node.has_side_effect(torch.ops.shardproof.send.default)
    torch.fx.node.has_side_effect(torch.ops.shardproof.recv.default)
    return library


def _group(group: Any) -> Any:
    import torch.distributed as dist

    return dist.group.WORLD if group is None else group


def _name(group: Any) -> str:
    return str(_group(group).group_name)


def _kind(op: Any) -> str:
    import torch.distributed as dist

    kinds = dist.ReduceOp
    for kind, name in (
        (kinds.SUM, "sum"),
        (kinds.AVG, "avg"),
        (kinds.MAX, "max"),
        (kinds.MIN, "min"),
        (kinds.PRODUCT, "product"),
    ):
        if op == kind:
            return name
    raise ModuleError(f"capture: a reduction by {op}, sum, avg, max, min and product are read")


def _functional() -> Any:
    import torch
    import torch.distributed._functional_collectives

    return torch.ops._c10d_functional


def _flat(tensor: Any) -> Any:
    return tensor.detach().contiguous()


def _write(output: Any, result: Any) -> None:
    """Wait for a result and put it where the caller wants it."""
    output.detach().copy_(_functional().wait_tensor(result).view(output.shape))


def _in_place(
    tensor: Any, start: Callable[[Any], Any], result: Callable[[], Any], later: bool
) -> Work | None:
    if not later:
        _write(tensor, result())
        return None
    pending = start(tensor.detach())
    return Work(lambda: _functional().wait_tensor(pending))


def all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Work | None:
    f, kind, name = _functional(), _kind(_sum(op)), _name(group)
    return _in_place(
        tensor,
        lambda x: f.all_reduce_(x, kind, name),
        lambda: f.all_reduce(_flat(tensor), kind, name),
        async_op,
    )


def broadcast(
    tensor: Any, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None
) -> Work | None:
    f, name, at = _functional(), _name(group), _member(group, src, group_src)
    return _in_place(
        tensor,
        lambda x: f.broadcast_(x, at, name),
        lambda: f.broadcast(_flat(tensor), at, name),
        async_op,
    )


def reduce(
    tensor: Any,
    dst: Any = None,
    op: Any = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: Any = None,
) -> Work | None:
    result = _functional().all_reduce(_flat(tensor), _kind(_sum(op)), _name(group))
    mine = _member(group, dst, group_dst) == _group(group).rank()
    return _done(lambda: _write(tensor, result) if mine else None, async_op)


def _sum(op: Any) -> Any:
    import torch.distributed as dist

    return dist.ReduceOp.SUM if op is None else op


def _member(group: Any, rank: Any, position: Any) -> int:
    """The position in the group, of a rank of the world or given as such."""
    import torch.distributed as dist

    if position is not None:
        return int(position)
    return int(dist.get_group_rank(_group(group), 0 if rank is None else rank))


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Work | None:
    size = _group(group).size()
    result = _functional().all_gather_into_tensor(_flat(input_tensor), size, _name(group))
    return _done(lambda: _write(output_tensor, result), async_op)


def all_gather(tensor_list: Sequence[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    size = _group(group).size()
    result = _functional().all_gather_into_tensor(_flat(tensor)[None], size, _name(group))
    return _done(lambda: _spread(tensor_list, result), async_op)


def _spread(outputs: Sequence[Any], result: Any) -> None:
    whole = _functional().wait_tensor(result)
    for at, output in enumerate(outputs):
        output.detach().copy_(whole[at].view(output.shape))


def reduce_scatter_tensor(
    output: Any, input: Any, op: Any = None, group: Any = None, async_op: bool = False
) -> Work | None:
    size = _group(group).size()
    result = _functional().reduce_scatter_tensor(_flat(input), _kind(_sum(op)), size, _name(group))
    return _done(lambda: _write(output, result), async_op)


def reduce_scatter(
    output: Any, input_list: Sequence[Any], op: Any = None, group: Any = None, async_op: bool = False
) -> Work | None:
    import torch

    whole = torch.stack([x.detach() for x in input_list])
    result = _functional().reduce_scatter_tensor(whole, _kind(_sum(op)), len(input_list), _name(group))
    return _done(lambda: _write(output, result), async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    size = _group(group).size()
    received = list(output_split_sizes or [output.shape[0] // size] * size)
    sent = list(input_split_sizes or [input.shape[0] // size] * size)
    result = _functional().all_to_all_single(_flat(input), received, sent, _name(group))
    return _done(lambda: _write(output, result), async_op)


def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    import torch

    shapes = {tuple(x.shape) for x in (*output_tensor_list, *input_tensor_list)}
    if len(shapes) != 1:
        raise ModuleError("capture: all_to_all of tensors of different shapes, equal ones are read")
    ones = [1] * len(input_tensor_list)
    whole = torch.stack([x.detach() for x in input_tensor_list])
    result = _functional().all_to_all_single(whole, ones, ones, _name(group))
    return _done(lambda: _spread(output_tensor_list, result), async_op)


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: Any = None,
    group: Any = None,
    async_op: bool = False,
    group_src: Any = None,
) -> Work | None:
    """A broadcast of all parts, of which every member keeps its own."""
    import torch

    size, mine, at = _group(group).size(), _group(group).rank(), _member(group, src, group_src)
    if at == mine and scatter_list:
        whole = torch.stack([x.detach() for x in scatter_list])
    else:
        whole = tensor.detach().new_zeros((size, *tensor.shape))
    result = _functional().broadcast(whole, at, _name(group))

    def finish() -> None:
        tensor.detach().copy_(_functional().wait_tensor(result)[mine])

    return _done(finish, async_op)


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: Any = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: Any = None,
) -> Work | None:
    """A gather on every member, whose result one of them keeps."""
    size = _group(group).size()
    result = _functional().all_gather_into_tensor(_flat(tensor)[None], size, _name(group))
    kept = list(gather_list or ()) if _member(group, dst, group_dst) == _group(group).rank() else []
    return _done(lambda: _spread(kept, result), async_op)


def _peer(group: Any, rank: Any, position: Any) -> int:
    """The rank of the world."""
    import torch.distributed as dist

    return int(rank) if position is None else int(dist.get_global_rank(_group(group), position))


def send(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> None:
    import torch

    _point_to_point()
    torch.ops.shardproof.send(tensor.detach(), _peer(group, dst, group_dst), tag, _name(group))


def isend(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> Work:
    send(tensor, dst, group, tag, group_dst)
    return Work(lambda: None)


def recv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> int:
    irecv(tensor, src, group, tag, group_src).wait()
    return _peer(group, src, group_src)


def irecv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Work:
    import torch

    if src is None and group_src is None:
        raise ModuleError("capture: a receive from any rank, name the rank that sends")
    _point_to_point()
    result = torch.ops.shardproof.recv(tensor.detach(), _peer(group, src, group_src), tag, _name(group))
    return Work(lambda: tensor.detach().copy_(result))


def batch_isend_irecv(p2p_op_list: Sequence[Any]) -> list[Work]:
    starts = {"isend": isend, "irecv": irecv}
    return [starts[p.op.__name__](p.tensor, p.peer, p.group, p.tag) for p in p2p_op_list]


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    return _done(lambda: None, async_op)


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    return None


_REPLACED: Final[dict[str, Callable[..., Any]]] = {
    **{
        f.__name__: f
        for f in (
            *(
                all_reduce,
                broadcast,
                reduce,
                gather,
                scatter,
                all_gather,
                all_gather_into_tensor,
                reduce_scatter,
            ),
            *(reduce_scatter_tensor, all_to_all, all_to_all_single, send, recv, isend, irecv),
            *(batch_isend_irecv, barrier, monitored_barrier),
        )
    },
    "all_gather_single": all_gather_into_tensor,
    "_all_gather_base": all_gather_into_tensor,
    "reduce_scatter_single": reduce_scatter_tensor,
    "_reduce_scatter_base": reduce_scatter_tensor,
}
_REFUSED: Final = (
    *("all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list"),
    *("send_object_list", "recv_object_list", "all_reduce_coalesced"),
    "all_gather_coalesced",
)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise ModuleError(f"capture: torch.distributed.{name} is not read, use a collective on tensors")

    return refused


@contextmanager
def kept() -> Iterator[None]:
    """Keep a tracer from dropping collectives whose result this rank does not read: others wait for them."""
    from torch.fx import node

    effects: Any = node._side_effectful_functions
    own = {getattr(_functional(), name).default for name in _COLLECTIVES} - set(effects)
    effects.update(own)
    try:
        yield
    finally:
        effects.difference_update(own)


_COLLECTIVES: Final = (
    *("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_gather_into_tensor"),
    *("all_gather_into_tensor_coalesced", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
    *("all_to_all_single", "broadcast", "broadcast_", "wait_tensor"),
)


@contextmanager
def replaced() -> Iterator[None]:
    """Put these functions in place of those of `torch.distributed`, wherever a module holds them by name."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    ours = {**{name: _refusing(name) for name in _REFUSED}, **_REPLACED}
    by_original: dict[int, tuple[Any, Any]] = {}
    for name, ours_of in ours.items():
        original = getattr(c10d, name, None)
        if original is not None:
            by_original[id(original)] = (original, wraps(original)(_same(ours_of)))
    undo: list[tuple[dict[str, Any], str, Any]] = []
    modules: list[ModuleType] = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
    try:
        for module in dict.fromkeys([dist, c10d, *modules]):
            held = vars(module)
            for name, value in list(held.items()):
                found = by_original.get(id(value)) if type(value) is FunctionType else None
                if found is not None and found[0] is value:
                    undo.append((held, name, value))
                    held[name] = found[1]
        yield
    finally:
        for held, name, value in undo:
            held[name] = value


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)

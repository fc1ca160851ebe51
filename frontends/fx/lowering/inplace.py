"""In-place forms of operators, by the operators that give what they write."""

from __future__ import annotations

from typing import Any, Final

from shardproof.frontends.fx.lowering.call import Table, entries
from shardproof.frontends.fx.lowering.create import kept
from shardproof.frontends.fx.lowering.state import Arguments, Lowering
from shardproof.ir.module import Value

REFUSED: Final = frozenset(
    f"aten.{name}_"
    for name in (
        "t",
        "transpose",
        "swapaxes",
        "squeeze",
        "unsqueeze",
        "as_strided",
        "resize",
        "resize_as",
        "set",
    )
)
"""In-place forms that change the shape or the memory of a tensor, not its elements."""
_KEPT: Final = frozenset({"aten.detach_", "aten.requires_grad_"})


def is_inplace(target: str) -> bool:
    """Whether a PyTorch operator writes to its first argument."""
    parts = target.split(".")
    return (
        len(parts) == 3 and parts[0] in ("aten", "prims") and parts[1].endswith("_") and parts[1][-2:] != "__"
    )


def writes_out(target: str) -> bool:
    """Whether a PyTorch operator writes its result to its argument `out`."""
    namespace, _, overload = target.rpartition(".")
    return namespace.startswith("aten.") and (overload == "out" or overload.endswith("_out"))


def without_out(target: str) -> tuple[str, ...]:
    """The operators that may have the same result as one that writes to `out`, the likeliest first."""
    name, _, overload = target.rpartition(".")
    kinds = ("default", "Tensor") if overload == "out" else (overload.removesuffix("_out"),)
    return tuple(f"{name}.{kind}" for kind in kinds)


def functional(s: Lowering, target: str) -> str | None:
    """The operator whose result the in-place form writes; None for one that changes no element."""
    namespace, name, overload = target.split(".")
    if f"{namespace}.{name}" in REFUSED:
        s.fail("changes the shape or the memory of a tensor in place, which is not supported")
    if f"{namespace}.{name}" in _KEPT:
        return None
    return f"{namespace}.{name[:-1]}.{overload}"


def _zero(s: Lowering, a: Arguments) -> Value:
    return s.like(a["self"], 0)


def _own_generator(s: Lowering, generator: Any) -> None:
    if generator is not None:
        s.fail("draws from a generator of its own, which is not supported")


def _uniform(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    _own_generator(s, a["generator"])
    scaled = s.pair("multiply", s.draw(x.type.dtype, x.type.shape), a["to"] - a["from"])
    return s.pair("add", scaled, a["from"])


def _normal(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    _own_generator(s, a["generator"])
    scaled = s.pair("multiply", s.draw(x.type.dtype, x.type.shape, "normal"), a["std"])
    return s.pair("add", scaled, a["mean"])


def _bernoulli(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    _own_generator(s, a["generator"])
    return s.convert(kept(s, x.type.shape, 1 - a["p"]), x.type.dtype)


TABLE: Final[Table] = {
    **entries("self", _zero, "aten.zero"),
    **entries("self from=0 to=1 generator=None", _uniform, "aten.uniform"),
    **entries("self mean=0 std=1 generator=None", _normal, "aten.normal"),
    **entries("self p=0.5 generator=None", _bernoulli, "aten.bernoulli.float"),
}
"""What in-place forms write that have no functional form of the same meaning in the other tables."""

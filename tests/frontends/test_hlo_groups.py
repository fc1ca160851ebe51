"""Replica groups: every encoding means the same explicit groups, in text and in the serialised form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hlo_programs import ADD
from hlo_writer import to_proto

from shardproof.ir.module import Module, ModuleError

EVEN = ((0, 1, 2, 3), (4, 5, 6, 7))
STRIDED = ((0, 4), (1, 5), (2, 6), (3, 7))
QUARTERS = ((0, 2, 4, 6), (1, 3, 5, 7))

FORMS: dict[str, tuple[tuple[int, ...], ...]] = {
    "{}": (tuple(range(8)),),
    "{{0,1,2,3},{4,5,6,7}}": EVEN,
    "{{3,1},{0,2},{4,5},{7,6}}": ((3, 1), (0, 2), (4, 5), (7, 6)),
    "[2,4]<=[8]": EVEN,
    "[1,8]<=[8]": (tuple(range(8)),),
    "[2,4]<=[4,2]T(1,0)": QUARTERS,
    "[4,2]<=[2,2,2]T(2,1,0)": ((0, 4), (2, 6), (1, 5), (3, 7)),
    "mesh['a'=2,'b'=4] {'b'}": EVEN,
    "mesh['a'=2,'b'=4] {'a'}": STRIDED,
    "mesh['a'=2,'b'=4] {'a','b'}": (tuple(range(8)),),
    "mesh['a'=2,'b'=4] {'b','a'}": ((0, 4, 1, 5, 2, 6, 3, 7),),
    "mesh['a'=2,'b'=4] {'b':(1)2}": ((0, 2), (1, 3), (4, 6), (5, 7)),
    "mesh['a'=2,'b'=4] {'b':(2)2}": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "mesh['a'=8] {'a':(2)2}": ((0, 2), (1, 3), (4, 6), (5, 7)),
    "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}": QUARTERS,
    "mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'b'}": QUARTERS,
}


def _text(groups: str, attrs: str = ", channel_id=1, use_global_device_ids=true", header: str = "") -> str:
    return f"""HloModule m{header}
{ADD}
ENTRY e {{
  x = f32[8] parameter(0)
  ROOT r = f32[8] all-reduce(x), replica_groups={groups}{attrs}, to_apply=add
}}
"""


@pytest.mark.parametrize("form", FORMS)
def test_text_forms(form: str, load_text: Callable[..., Module]) -> None:
    module = load_text(_text(form, header=", num_partitions=8"))
    assert module.ops[0].attrs["groups"] == FORMS[form]
    assert str(module.mesh) == "rank=8"


def _legacy(i: Any) -> None:
    for group in EVEN:
        i.replica_groups.add(replica_ids=group)


def _device_list(i: Any) -> None:
    for group in EVEN:
        i.collective_device_list.replica_groups.add(replica_ids=group)


def _device_list_iota(i: Any) -> None:
    iota = i.collective_device_list.iota_replica_group_list
    iota.num_replica_groups, iota.num_devices_per_group = 2, 4
    iota.iota_reshape_dims.extend([4, 2])
    iota.iota_transpose_perm.extend([1, 0])


def _iota(i: Any) -> None:
    iota = i.iota_collective_device_list
    iota.num_replica_groups, iota.num_devices_per_group = 2, 4
    iota.iota_reshape_dims.append(8)


def _mesh(i: Any) -> Any:
    message = i.mesh_axes_replica_group_list
    message.mesh.axes.add(name="a", size=2)
    message.mesh.axes.add(name="b", size=4)
    return message


def _mesh_axis_zero(i: Any) -> None:
    _mesh(i).axes.add()


def _mesh_sub_axis(i: Any) -> None:
    ref = _mesh(i).axes.add(mesh_axis_index=1)
    ref.sub_axis_info.pre_size, ref.sub_axis_info.size = 2, 2


def _mesh_iota_devices(i: Any) -> None:
    message = _mesh(i)
    message.mesh.iota_device_assignment.reshape_dims.extend([4, 2])
    message.mesh.iota_device_assignment.transpose_perm.extend([1, 0])
    message.axes.add(mesh_axis_index=1)


def _mesh_devices(i: Any) -> None:
    message = _mesh(i)
    message.mesh.device_ids.extend([0, 2, 4, 6, 1, 3, 5, 7])
    message.axes.add(mesh_axis_index=1)


@pytest.mark.parametrize(
    ("encode", "expected"),
    [
        (lambda i: None, (tuple(range(8)),)),
        (_legacy, EVEN),
        (_device_list, EVEN),
        (_device_list_iota, QUARTERS),
        (_iota, EVEN),
        (_mesh_axis_zero, STRIDED),
        (_mesh_sub_axis, ((0, 1), (2, 3), (4, 5), (6, 7))),
        (_mesh_iota_devices, QUARTERS),
        (_mesh_devices, QUARTERS),
    ],
)
def test_serialised_forms(
    encode: Callable[[Any], None], expected: object, load_text: Callable[..., Module]
) -> None:
    message = to_proto(_text("{}", header=", num_partitions=8"))
    encode(message.computations[1].instructions[1])
    assert load_text(message.SerializeToString()).ops[0].attrs["groups"] == expected


def test_two_encodings_must_agree(load_text: Callable[..., Module]) -> None:
    message = to_proto(_text("{{0,1},{2,3}}", header=", num_partitions=4"))
    _iota(message.computations[1].instructions[1])
    with pytest.raises(ModuleError, match="gives its replica groups twice"):
        load_text(message.SerializeToString())


@pytest.mark.parametrize(
    ("text", "ranks", "expected"),
    [
        (_text("{{0,1},{2,3}}", ""), None, ((0, 1), (2, 3))),
        (_text("{}", ""), 4, ((0, 1, 2, 3),)),
        (_text("{}", "", ", replica_count=2"), None, ((0, 1),)),
        (_text("{{0,1}}", "", ", replica_count=2, num_partitions=1"), None, ((0, 1),)),
        (_text("{{0}}", "", ", num_partitions=4"), None, ((0,), (1,), (2,), (3,))),
        (_text("{{0}}", ", channel_id=1", ", num_partitions=4"), None, ((0, 1, 2, 3),)),
        (_text("{}", ", channel_id=1", ", num_partitions=4"), None, ((0, 1, 2, 3),)),
        (_text("{{0,1}}", ", channel_id=1", ", replica_count=2"), None, ((0, 1),)),
        (_text("{{0}}", ", channel_id=1"), 4, ((0, 1, 2, 3),)),
    ],
)
def test_what_ids_mean(
    text: str, ranks: int | None, expected: object, load_text: Callable[..., Module]
) -> None:
    assert load_text(text, ranks=ranks).ops[0].attrs["groups"] == expected


@pytest.mark.parametrize(
    ("text", "ranks", "expected"),
    [
        (_text("{}", ""), None, "the file doesn't say"),
        (_text("{{0,1}}", ""), 4, "rank 2 in no replica group"),
        (_text("{{0,1},{2,3}}", ""), 2, "names rank 2, but there are 2"),
        (_text("{{0,1},{1,2}}", ""), None, "names rank 1 twice"),
        (_text("{{0,2}}", ""), None, "rank 1 in no replica group"),
        (_text("{{0,1}}", "", ", replica_count=2"), 4, "4 ranks were asked for, but the file says"),
        (_text("{{0,1}}", "", ", replica_count=2, num_partitions=2"), None, "which is not supported"),
        (_text("{{0,1}}", ", channel_id=1"), 2, "its groups name replicas"),
        (_text("{{0}}", ", channel_id=1"), None, "the file doesn't say"),
        (_text("{{0,1}}", "", ", num_partitions=2"), None, "names rank 1, but there are 1"),
        (_text("{{0,1}}", ", channel_id=1", ", num_partitions=2"), None, "names rank 1, but there are 1"),
        (_text("{{0,1}}", ", use_global_device_ids=true"), None, "no channel"),
        (_text("[2,3]<=[8]"), None, "cuts 8 devices"),
        (_text("[2,4]<=[4,2]T(1,1)"), None, "transposes"),
        (_text("mesh['a'=2,'b'=4] {'c'}"), None, "not understood"),
        (_text("mesh['a'=2,'b'=4] {'b':(3)2}"), None, "cuts an axis of 4"),
        (_text("mesh['a'=2,'b'=4] {'b','b'}"), None, "overlapping"),
        (_text("everyone"), None, "not understood"),
        (_text("{{0,1},{}}", ""), None, "empty replica group"),
    ],
)
def test_what_is_refused(
    text: str, ranks: int | None, expected: str, load_text: Callable[..., Module]
) -> None:
    with pytest.raises(ModuleError, match=expected):
        load_text(text, ranks=ranks)

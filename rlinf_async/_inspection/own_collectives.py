"""Collective operations of torch.distributed on this process's threads, with the ranks that they await."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

from rlinf_async._core.root_cause import name_ranks
from rlinf_async._inspection.code_frames import stack_of
from rlinf_async._inspection.state.collectives import collective_of
from rlinf_async._inspection.state.run_report import Target, TargetKind, Wait

_MODULE: Final = "torch.distributed.distributed_c10d"

# Maps each operation to the variables that hold the rank of its only partner, in the world and in the group.
_PARTNERS: Final = {
    **dict.fromkeys(("send", "send_object_list"), ("dst", "group_dst")),
    **dict.fromkeys(("recv", "recv_object_list"), ("src", "group_src")),
}


def collective_wait(frames: Sequence[FrameType]) -> Wait | None:
    """Return the wait for other ranks in a collective, without its age, or None; ``frames`` start at the outermost."""
    c10d: Any = sys.modules.get(_MODULE)
    if c10d is None or not any(frame.f_globals.get("__name__") == _MODULE for frame in frames):
        return None
    name = collective_of(stack_of(frames))
    if name is None:
        return None
    frame = next(frame for frame in frames if frame.f_code.co_name == name and frame.f_globals is vars(c10d))
    group, every = "", True
    ranks: list[int] = []
    with contextlib.suppress(Exception):  # torch's version may be unknown, or no process group may exist yet
        group, ranks, every = _partners(c10d, name, frame.f_locals)
    of = f" of process group {group}" if group else ""
    what = f"{name_ranks(ranks)} in {name}{of}" if ranks else f"{name}{of}"
    targets = [Target(TargetKind.COLLECTIVE, number=rank, name=f"{name}#{group}") for rank in ranks]
    return Wait(name, what, 0.0, targets, every)


def _partners(c10d: Any, name: str, variables: Any) -> tuple[str, list[int], bool]:
    if name == "init_process_group":
        size = _given(variables["world_size"], "WORLD_SIZE")
        return "", [each for each in range(size) if each != _given(variables["rank"], "RANK")], True
    if name == "batch_isend_irecv":
        return "", sorted({int(operation.peer) for operation in variables["p2p_op_list"]}), True
    group = variables.get("group") or c10d.GroupMember.WORLD
    members, me = list(map(int, c10d.get_process_group_ranks(group))), int(c10d.get_rank())
    others = [rank for rank in members if rank != me]
    title = str(group.group_name)
    if name not in _PARTNERS:
        return title, others, True
    of_world, of_group = (variables.get(variable) for variable in _PARTNERS[name])
    if of_world is None and of_group is None:
        return title, others, False  # receives from any rank
    return title, [int(of_world) if of_world is not None else members[int(of_group)]], True


def _given(argument: int, variable: str) -> int:
    """Return an argument of ``init_process_group``, or the value of the environment variable that replaces it."""
    return argument if argument >= 0 else int(os.environ[variable])

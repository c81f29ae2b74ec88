"""What became of a call on one rank, and of whom it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlinf_async.core import failures, frames
from rlinf_async.core.body import Body
from rlinf_async.core.frames import Status
from rlinf_async.core.root_cause import choose_root_cause
from rlinf_async.errors import ClosedError, NodeLost, WorkerDied
from rlinf_async.seat.client import NodeClient


class Callee(Protocol):
    """What a handle knows of the group that it calls."""

    @property
    def client(self) -> NodeClient: ...

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> Sequence[int]: ...

    @property
    def targets(self) -> Sequence[int]: ...

    def describe_slot(self, slot: int) -> str: ...

    def call_finished(self, call: object) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What became of a call on one rank: a value, or an error."""

    rank: int
    value: Any = None
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def error_of(callee: Callee, slot: int, status: int, body: Body) -> BaseException:
    """The error that one rank's answer stands for."""
    if status == Status.ERROR:
        return failures.rebuild(failures.unpack(bytes(body)))
    facts = frames.unpack(body)
    if status == Status.DIED:
        return WorkerDied.from_story(facts)
    if status == Status.LOST:
        node, reason = facts
        lost = callee.client.lost_nodes.get(node)
        error = NodeLost(f"{callee.describe_slot(slot)}: {lost or reason}")
        error.node_rank, error.reason = node, str(reason)
        return error
    return ClosedError(f"{callee.describe_slot(slot)}: {facts}")


def root_error(callee: Callee, failed: Sequence[tuple[int, int, Body]]) -> BaseException:
    """The error to raise for a call of which these slots have failed."""
    hear(callee, failed)
    errors = [(callee.ranks[slot], error_of(callee, slot, status, body)) for slot, status, body in failed]
    return choose_root_cause(errors)


def death_key(endpoint: int) -> str:
    return f"death of {endpoint:x}"


def hear(callee: Callee, failed: Sequence[tuple[int, int, Body]]) -> None:
    """The user's code gets these errors; deaths among them are no news any more."""
    for slot, status, _ in failed:
        if status == Status.DIED:
            callee.client.heard(death_key(callee.targets[slot]))


def summary_of(callee: Callee, failed: Sequence[tuple[int, int, Body]]) -> str:
    """One line about failed slots, for people."""
    slot, status, body = failed[0]
    if status == Status.ERROR:
        failure = failures.unpack(bytes(body))
        text = f"{failure.type_name}: {failure.text}".partition("\n")[0]
    else:
        text = str(error_of(callee, slot, status, body)).partition("\n")[0]
    return text[:300]

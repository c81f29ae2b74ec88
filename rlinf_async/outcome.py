"""Outcomes of a call on each rank, for ``Handle`` and ``Stream``: errors to raise and report, deadlines, ``Callee``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Protocol

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._core import failures, frames
from rlinf_async._core.frames import Status
from rlinf_async._core.payload import Body
from rlinf_async._core.process import is_in_editor
from rlinf_async._core.root_cause import choose_root_cause, is_death, name_ranks, root_cause
from rlinf_async._waits import slow_waits
from rlinf_async._waits.unobserved_errors import UnobservedError, cause_of
from rlinf_async.errors import ClosedError, DeadlineExceeded, NodeLost, WorkerDied

_MAX_NAMED: Final = 8


@dataclass(frozen=True)
class CallDeadline:
    """The deadline for every call to a group.

    Attributes:
        seconds: seconds from the call, or from the end of the workers' constructors if that is later.
        origin: where the deadline was set, for the error message.
    """

    seconds: float
    origin: str

    @classmethod
    def of(cls, given: Any) -> CallDeadline | None:
        """Return the deadline given as ``launch(call_timeout=)``, or else the setting's; None if it is 0.

        Raises:
            ValueError: the argument is not a number of seconds.
        """
        variable = settings.CALL_TIMEOUT_S.variable
        if given is None:
            seconds, origin = settings.CALL_TIMEOUT_S(), f"{variable} in the environment"
        elif isinstance(given, bool) or not isinstance(given, Real) or not 0 <= float(given) < math.inf:
            raise ValueError(
                f"call_timeout={given!r} of launch() is no number of seconds: write a number above 0, 0 for no "
                f"deadline, or None for what {variable} says"
            )
        else:
            seconds, origin = float(given), "call_timeout= of launch()"
        # Under an editor's debugger there is no deadline, because time at a breakpoint would count.
        return cls(seconds, origin) if seconds and not is_in_editor() else None


class Callee(Protocol):
    """The part of a group that a handle needs for its call."""

    @property
    def client(self) -> NodeClient: ...

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> Sequence[int]: ...

    @property
    def targets(self) -> Sequence[int]: ...

    def restart_of(self, slot: int) -> tuple[bool, str]: ...

    @property
    def deadline(self) -> CallDeadline | None: ...

    def describe_slot(self, slot: int) -> str: ...

    def peer_activity(self, slots: Sequence[int]) -> slow_waits.PeerActivity | None: ...

    def holds(self, call: Any, slot: int) -> bool: ...

    def repeats(self, call: Any, slot: int, status: int, report: bytes) -> bool: ...

    def call_failed(self, call: Any) -> None: ...

    def call_finished(self, call: Any, *, failed: bool) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """One rank's result of a call: a value, or an error."""

    rank: int
    value: Any = None
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def error_of(callee: Callee, slot: int, status: int, body: Body) -> BaseException:
    """Return the error contained in one rank's answer."""
    if status == Status.ERROR:
        return failures.rebuild(failures.unpack(bytes(body)))
    facts = frames.unpack(body)
    if status == Status.DIED:
        return WorkerDied.from_exit_report(facts)
    if status == Status.LOST:
        node, reason = facts
        lost = callee.client.lost_nodes.get(node)
        returns, why_not = (False, "") if lost is None else callee.restart_of(slot)
        reason_lost = f"; it {why_not}" if why_not else ""
        error = NodeLost(f"{callee.describe_slot(slot)}: {lost or reason}{reason_lost}")
        error.node_rank, error.reason = node, str(reason)
        error.returns = returns
        return error
    return ClosedError(f"{callee.describe_slot(slot)}: {facts}")


def describe_failure(callee: Callee, method: str, slot: int, status: int, body: Body) -> str:
    """Return a line that names the failed rank and its error."""
    if status != Status.ERROR:
        return str(error_of(callee, slot, status, body)).partition("\n")[0]
    failure = failures.unpack(bytes(body))
    error = f"{failure.type_name}: {failure.text}".partition("\n")[0][:300]
    return f"rank {callee.ranks[slot]} of group '{callee.name}' failed in {method}() ({error})"


def root_error(callee: Callee, failed: Sequence[tuple[int, int, Body]]) -> BaseException:
    """Return the error to raise for a call that has failed on these slots."""
    mark_observed(callee, failed)
    errors = [(callee.ranks[slot], error_of(callee, slot, status, body)) for slot, status, body in failed]
    return choose_root_cause(errors)


def death_cause(facts: Mapping[str, Any]) -> str:
    """Return the key shared by all failures due to one worker's death, from its exit report or a ``WorkerDied``."""
    return f"death of pid {facts['pid']} on {facts['node']}"


def loss_cause(node: int) -> str:
    """Return the key shared by all failures due to the loss of one node."""
    return f"loss of node {node}"


def overdue(callee: Callee, method: str, slots: Sequence[int], doing: str) -> DeadlineExceeded:
    """Return the error for a call that these slots have not answered in time.

    Args:
        doing: the ranks' activity as reported by their daemons; empty if unknown.
    """
    assert callee.deadline is not None
    clock = time.strftime("%H:%M:%S")
    limit = f"{callee.deadline.seconds:g} s ({callee.deadline.origin})"
    ranks = f"{name_ranks(callee.ranks[slot] for slot in slots)} of '{callee.name}'"
    named = [callee.describe_slot(slot) for slot in slots[:_MAX_NAMED]]
    more = [f"and {len(slots) - _MAX_NAMED} more"] if len(slots) > _MAX_NAMED else []
    lines = [
        f"{callee.name}.{method}() was not done within {limit}: {ranks} had not answered by {clock}",
        *named,
        *more,
        *filter(None, [doing]),
        "the call is cancelled there: coroutines and generators end, a def method that has begun runs to its end",
        "fix: see where they are (py-spy dump --pid PID); where calls take longer give them more time: "
        f"launch(call_timeout=...) or {settings.CALL_TIMEOUT_S.variable}, 0 for no deadline",
    ]
    return DeadlineExceeded("\n  ".join(lines))


def mark_observed(callee: Callee, failed: Sequence[tuple[int, int, Body]]) -> None:
    """Record that the user's code has received these errors."""
    for answer in failed:
        callee.client.unobserved.observed(_cause_of(callee, *answer))


def _cause_of(callee: Callee, slot: int, status: int, body: Body) -> str:
    if status == Status.ERROR:
        failure = failures.unpack(bytes(body))
        if not is_death(failure.type_name):
            return failures.identity_of(failure)
        error: BaseException = failures.rebuild(failure)
    else:
        error = error_of(callee, slot, status, body)
    if isinstance(error, WorkerDied):
        return death_cause({"pid": error.pid, "node": error.node})
    return loss_cause(error.node_rank) if isinstance(error, NodeLost) else cause_of(error)


def unobserved(
    callee: Callee, method: str, what: str, failed: Sequence[tuple[int, int, Body]], *, awaited: bool
) -> UnobservedError:
    """Return the root cause of a call's failures as an unobserved error.

    Args:
        what: text that names the call and its ranks.
    """
    roots: list[tuple[int, BaseException | failures.Failure]] = []
    for slot, status, body in failed:
        is_error = status == Status.ERROR
        root = failures.unpack(bytes(body)) if is_error else error_of(callee, slot, status, body)
        roots.append((callee.ranks[slot], root))
    index, _ = root_cause(roots)
    rank, root = roots[index]
    if isinstance(root, failures.Failure):
        text, details = f"rank {rank}: {root.type_name}: {root.text}", failures.origin_of(root)
    else:
        text, _, details = str(root).partition("\n")
    return UnobservedError(
        cause=_cause_of(callee, *failed[index]),
        of=f"{callee.name}.{method}()",
        text=f"{what}: {text}".partition("\n")[0][:400],
        details=details.strip("\n"),
        make=lambda: root_error(callee, failed),
        awaited=awaited,
    )


def unobserved_refusal(callee: Callee, method: str, error: BaseException, *, awaited: bool) -> UnobservedError:
    """Return the unobserved error for a call that could not be sent because its group failed to launch."""
    type_name = failures.type_name_of(type(error))
    return UnobservedError(
        cause=cause_of(error),
        of=f"{callee.name}.{method}()",
        text=f"{callee.name}.{method}(): {type_name}: {failures.text_of(error)}".partition("\n")[0][:400],
        details=failures.text_of(error).partition("\n")[2],
        make=lambda: _observe(callee, error),
        awaited=awaited,
    )


def _observe(callee: Callee, error: BaseException) -> BaseException:
    callee.client.unobserved.observed(cause_of(error))
    return error

"""``Members``: a group's members in a caller's process, shared by the group's views. Queues and sends calls, ends late
calls, and handles deaths."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rlinf_async._client import peer_activity
from rlinf_async._client.client import NodeClient
from rlinf_async._client.reply_handler import NOWHERE
from rlinf_async._client.tasks import Task
from rlinf_async._core import clock, codec, frames
from rlinf_async._core.encoded import Encoded
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.frames import Status
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.payload import pack_body
from rlinf_async._core.root_cause import name_ranks
from rlinf_async._core.segment import close_fds, copy_fds
from rlinf_async._core.worker_facts import read_worker
from rlinf_async._group.call_deadlines import CallDeadlines
from rlinf_async._group.failure_notices import FailureNotices, RankFailure
from rlinf_async._group.restart_rounds import Restart
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._waits import loop_watch
from rlinf_async._waits.unobserved_errors import UnobservedError, cause_of
from rlinf_async.address import WorkerInfo
from rlinf_async.errors import ClosedError, ForkedProcessError, WorkerDied, told_log
from rlinf_async.handle import Handle
from rlinf_async.outcome import CallDeadline, death_cause, describe_failure, loss_cause
from rlinf_async.placement import Placement
from rlinf_async.stream import StreamCall
from rlinf_async.work import Work

logger = own_logger(__name__)

_CALL: Final = EventKind.CALL

CallHandle = Handle | StreamCall

# Encoded arguments and their descriptors: one body for all ranks, or one per rank.
Bodies = Sequence[tuple[bytes | int, Sequence[int]]]


class Supervisor(Protocol):
    """The owner's side of a group's restarts; ``port`` is the port of the group's store."""

    port: int

    @property
    def away(self) -> set[int]:
        """Return the ranks that are being restarted."""

    def rank_died(self, rank: int, facts: dict[str, Any]) -> None:
        """Handle the death of a rank that will be restarted; called on the answer-handling thread."""

    def restart_wanted(self, rank: int) -> None:
        """Exempt the rank's next death from the limits; called on the answer-handling thread."""

    def restart(self, ranks: Sequence[int]) -> Work[None]:
        """Kill these ranks if they are alive, and restart them."""

    def end(self) -> None:
        """Stop, because the group is being closed."""


class PoolOfCalls(Protocol):
    """The members' interface to the calls that any rank may take (``rlinf_async/any_rank.py``)."""

    def look(self) -> None:
        """Update the ranks' standing, and send the calls that can now be sent."""

    def unfinished(self) -> Sequence[CallHandle]:
        """Return the open calls, oldest first."""

    def waiting(self) -> Sequence[CallHandle]:
        """Return the calls that wait for a rank."""

    def fail(self, error: BaseException) -> None:
        """End the waiting calls with an error."""


@dataclass
class WaitingCall:
    """A call that has not been sent to some of its ranks, whose slots are in ``slots``."""

    callee: GroupCallee
    handler: CallHandle
    method: str
    bodies: Bodies
    same: bool
    slots: list[int]


# This class is not split, although it has 40 methods, because queued, open and repeated calls change together under one
# lock, and each of the client's events has a handler.
class Members:
    """The ranks of a group and their endpoints; until the endpoints are known, calls wait in order.

    Lifecycle: launching (calls are queued) -> running -> closed (calls raise ``ClosedError``), or failed at launch.
    During a restart, ranks are held (all of them, or with ``by_rank`` only those being restarted). Calls to held ranks
    are queued as during the launch, so that each rank gets its calls in order.

    Attributes:
        restarts: number of restarts of each rank.
        placements: placement of each rank, at the group's owner.
        close_grace: seconds that the workers have for their shutdown.
        supervisor: object that restarts dead ranks; None except at the owner of a supervised group.
        pool: calls that any rank may take; None until the first such call.
        on_restart: the driver's callbacks for restarts.
        on_death: the driver's callbacks for deaths.
        deadlines: deadlines of the calls.
        by_rank: True if a rank that is being restarted delays only its own calls.
        number: number of the group's entry in the name table; 0 until the name is reserved.
    """

    def __init__(self, client: NodeClient, name: str, size: int) -> None:
        self.number = 0
        self.client = client
        self.name = name
        self.size = size
        self.infos: list[WorkerInfo] = []
        self.logs: list[str] = []
        self.endpoints: list[int] | None = None
        self.deadlines = CallDeadlines(client, self._calls_by_age, lambda: not self.by_rank)
        self.deaths: dict[int, dict[str, Any]] = {}
        self.open: dict[int, CallHandle] = {}
        self.notices = FailureNotices(client, self.open)
        self.launching: Task | None = None
        self.closed = False
        self.restarts = [0] * size
        self.placements: list[Placement] = []
        self.close_grace = 0.0
        self.supervisor: Supervisor | None = None
        self.pool: PoolOfCalls | None = None
        self.on_restart: list[Callable[[Restart], object]] = []
        self.on_death: list[Callable[[WorkerDied], object]] = []
        # Maps each rank to its last death reported to the callbacks: pid, and True if the rank was expected to return.
        self._reported: dict[int, tuple[int, bool]] = {}
        self.by_rank = False
        self.version = 0  # incremented whenever a rank gets a new endpoint
        # Reentrant: in the middle of a call, a signal handler may close the group, and a finalizer may make a call.
        self._lock = threading.RLock()
        self._pending: list[WaitingCall] = []
        # Calls, each with its slot, that a rank's death left unanswered and that must be sent again.
        self._repeats: list[tuple[GroupCallee, Handle, int]] = []
        # Ranks whose calls must wait; ranks are added without the lock and removed under it.
        self._held = set(range(size))
        self._started = False
        self._failure: BaseException | None = None
        self.closing: Work[None] | None = None
        client.listen("died", self._on_death)
        client.listen("node_lost", self._on_node_lost)
        client.listen("rank_returned", self._on_returned)
        client.listen("restart_wanted", self._on_restart_wanted)

    def callee(self, ranks: Sequence[int]) -> GroupCallee:
        return GroupCallee(self, ranks)

    # -- launch and restarts ------------------------------------------------------------------------------------

    def start(self, endpoints: list[int], infos: list[WorkerInfo], logs: list[str]) -> None:
        """Record the endpoints of the started processes, and send the waiting calls in order."""
        with self._lock:
            self.infos, self.logs = infos, logs
            self.endpoints = endpoints
            # A group that was looked up may be built from an outdated roster after the report of a rank's return has
            # already arrived. tests/simulation/test_sim_cluster.py::
            # test_a_group_that_was_found_while_its_rank_died_means_the_next_one
            for rank in range(len(endpoints)):
                while (facts := self.client.events.returned.get(endpoints[rank])) is not None:
                    self.replace(rank, *_place_of(facts["entry"]))
            self._held.clear()
            self._send_waiting()
        if self.pool is not None:
            self.pool.look()

    def _send_waiting(self) -> None:
        """Send the waiting calls of ranks that are not held, in order; the caller holds the lock."""
        for callee, handler, slot in self._take_repeats():
            if callee.ranks[slot] in self._held:
                self._repeats.append((callee, handler, slot))
            else:
                self._repeat(callee, handler, slot)
        self._pending = [waiting for waiting in self._pending if not self._leave(waiting)]
        # Set _started before testing _held. If the frame-handling thread adds a rank at the same time, either this
        # thread sees the rank, or that thread clears _started.
        self._started = True
        if self._held:
            self._started = False
        if any(
            callee.ranks[slot] not in self._held for callee, _, slot in self._repeats
        ):  # that thread has added a rank
            self.client.later(0, self._repeat_now)

    def _take_repeats(self) -> list[tuple[GroupCallee, Handle, int]]:
        # The frame-handling thread may have read the attribute and be about to append, so keep the list.
        taken = self._repeats[:]
        del self._repeats[: len(taken)]
        return taken

    def _leave(self, waiting: WaitingCall) -> bool:
        """Send a call to its ranks that are not held. The caller holds the lock. Return True once no rank is left."""
        callee, handler = waiting.callee, waiting.handler
        if handler._cancel_wanted and not handler._call:
            # Do not send a cancelled call, because a rank could start it before the cancel arrives.
            close_fds(fd for _, fds in waiting.bodies for fd in fds)
            return True
        held = [slot for slot in waiting.slots if callee.ranks[slot] in self._held]
        if len(held) < len(waiting.slots):
            if not handler._call:
                try:
                    self._send(callee, handler, waiting.method, waiting.bodies, waiting.same, held)
                except OSError as error:  # no descriptor is free
                    if held and waiting.same:
                        close_fds(waiting.bodies[0][1])
                    # Fail the call later, without the lock, because its callbacks may make calls.
                    self.client.later(0, functools.partial(handler._fail, error))
                    return True
            else:
                for slot in set(waiting.slots).difference(held):
                    self._send_late(waiting, slot)
                if waiting.same and not held:
                    close_fds(waiting.bodies[0][1])
            waiting.slots = held
        return not held

    def _send_late(self, waiting: WaitingCall, slot: int) -> None:
        handler, (body, fds) = waiting.handler, waiting.bodies[0 if waiting.same else slot]
        if handler._cancel_sent:  # the call was cancelled, or has failed at another rank
            if not waiting.same:
                close_fds(fds)
            self.client.answer_for(handler._call, slot, Status.CANCELLED, b"")
            return
        try:
            self._send_again(waiting.callee, handler, slot, body, copy_fds(fds) if waiting.same else fds)
        except OSError as error:  # no descriptor is free
            self.client.answer_for(handler._call, slot, Status.UNKNOWN, frames.pack(str(error)))

    def hold(self, ranks: Iterable[int] | None = None) -> None:
        """Hold calls to these ranks, by default to all, until ``release``."""
        self._held.update(range(self.size) if ranks is None else ranks)
        self._started = False

    def release(self, ranks: Iterable[int] | None = None) -> None:
        """Send the waiting calls to these ranks, by default to all, in order."""
        with self._lock:
            self._held.difference_update(range(self.size) if ranks is None else ranks)
            self._send_waiting()
        if self.pool is not None:
            self.pool.look()

    def is_held(self, rank: int) -> bool:
        return rank in self._held

    def report_death(self, rank: int, facts: dict[str, Any]) -> None:
        """Call the death callbacks once per death, and again if the rank is given up later.

        Called on the frame-handling thread. The same death is reported several times: by the daemon, by open
        calls, and by the loss of a node.
        """
        report = (facts["pid"], bool(facts.get("returns")))
        if self.on_death and self._reported.get(rank) != report:
            self._reported[rank] = report
            died = WorkerDied.from_exit_report(facts)
            self.client.later(0, lambda: self.call_back("on_death", self.on_death, died))

    def call_back(self, what: str, callbacks: Sequence[Callable[[Any], object]], fact: Any) -> None:
        for callback in tuple(callbacks):
            try:
                callback(fact)
            except (Exception, asyncio.CancelledError):  # a future that the callback looks at may be cancelled
                logger.exception("a callback of %s() of group '%s' failed", what, self.name)
            except (SystemExit, KeyboardInterrupt) as error:
                # If raised here, the exception would abort the restart and end the framework's loop thread.
                if self.client.user_loop is None:
                    logger.exception(
                        "%s in a callback of %s() of group '%s' ends no program: it runs on the thread of the "
                        "cluster's loop; fix: have it set an event that the main thread looks at",
                        type(error).__name__, what, self.name,
                    )  # fmt: skip
                else:
                    self.client.later(0, functools.partial(_raise, error))

    def replace(self, rank: int, endpoint: int, info: WorkerInfo, log: str) -> None:
        assert self.endpoints is not None
        self.infos[rank], self.logs[rank], self.endpoints[rank] = info, log, endpoint
        self.deaths.pop(rank, None)
        self.restarts[rank] += 1
        self.version += 1

    def _on_restart_wanted(self, facts: dict[str, Any]) -> None:
        if self.supervisor is not None and self.endpoints and facts["endpoint"] in self.endpoints:
            self.supervisor.restart_wanted(self.endpoints.index(facts["endpoint"]))

    def _on_returned(self, facts: dict[str, Any]) -> None:
        entry, rank = facts["entry"], facts["rank"]
        if entry is None or facts["group"] != self.name or self.closed or not self.endpoints:
            return
        if rank < self.size and self.endpoints[rank] == facts["was"]:
            self.replace(rank, *_place_of(entry))

    def fail(self, error: BaseException) -> None:
        """Fail all waiting calls, because there will be no processes to take them."""
        with self._lock:
            self._failure = error
            pending, self._pending = self._pending, []
            repeats = self._take_repeats()
        for _, repeated, slot in repeats:
            self.client.answer_for(repeated._call, slot, Status.UNKNOWN, frames.pack(str(error)))
        for waiting in pending:
            handler = waiting.handler
            left = waiting.bodies if waiting.same or not handler._call else [waiting.bodies[i] for i in waiting.slots]
            close_fds(fd for _, fds in left for fd in fds)
            if not handler._call:
                handler._fail(error)  # the same object, because an error seen at one call counts as seen
                continue
            for slot in waiting.slots:
                self.client.answer_for(handler._call, slot, Status.UNKNOWN, frames.pack(str(error)))
        if self.pool is not None:
            self.pool.fail(error)

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def close(self) -> None:
        self.closed = True
        if self.pool is not None:
            self.pool.fail(ClosedError(f"group '{self.name}' was closed before a rank had room for the call"))
        if self.endpoints is None:
            self.fail(ClosedError(f"group '{self.name}' was closed while it was being launched"))
            return
        if self.supervisor is not None:
            self.supervisor.end()
        with self._lock:
            is_held = not self._started
        if is_held:
            self.fail(ClosedError(f"group '{self.name}' was closed while ranks of it were started again"))

    def _on_death(self, facts: dict[str, Any]) -> None:
        if not self.closed and self.endpoints is not None and facts["endpoint"] in self.endpoints:
            rank = self.endpoints.index(facts["endpoint"])
            self.deaths[rank] = facts
            self.report_death(rank, facts)
            died = f"rank {rank} of group '{self.name}' {facts['verdict']}"
            self.notices.failed(RankFailure(rank, facts["endpoint"], 0, lambda: died), None)
            who = f"rank {rank} of group '{self.name}' on {facts['node']}"
            log = " ".join(told_log(facts))
            if self.supervisor is not None and facts.get("returns"):
                self.supervisor.rank_died(rank, facts)
                logger.warning("%s (pid %d) %s, and is started again; %s", who, facts["pid"], facts["verdict"], log)
                return
            text = f"{who} {facts['verdict']}; {log}"
            # ``is_due`` is true because the caller has already logged the death.
            death = UnobservedError(death_cause(facts), who, text, is_due=True)
            self.client.unobserved.arrived(death)
            logger.warning("%s (pid %d) %s; %s", who, facts["pid"], facts["verdict"], log)

    def _on_node_lost(self, facts: dict[str, Any]) -> None:
        node = facts["node"]
        on_node = [rank for rank, endpoint in enumerate(self.endpoints or ()) if frames.node_of(endpoint) == node]
        ranks = [rank for rank in on_node if not self._was_lost(rank, node) and not self._is_given_up(rank)]
        if ranks and not self.closed:
            where = f"{name_ranks(ranks)} of group '{self.name}'"
            error = self.client.lost_nodes[node]
            if self.supervisor is not None:
                for rank in ranks:
                    self._lose_rank(rank, node)
                logger.warning("%s; %s were there, and are started again elsewhere", error, where)
                return
            for rank in ranks:
                self.report_death(rank, self._loss_of(rank, node))
            self.client.unobserved.arrived(UnobservedError(loss_cause(node), where, f"{error}; {where} were there"))

    def look_for_losses(self) -> None:
        """Handle node losses that were reported before the launch knew the endpoints of its ranks."""
        for node in [*self.client.lost_nodes]:
            self._on_node_lost({"node": node})

    def _was_lost(self, rank: int, node: int) -> bool:
        return self.deaths.get(rank, {}).get("lost_node") == node

    def _is_given_up(self, rank: int) -> bool:
        return "reason" in self.deaths.get(rank, {})

    def look_for_loss(self, rank: int) -> None:
        """Handle the loss of a restarted rank's node, if it was reported before the rank's endpoint was known."""
        assert self.endpoints is not None
        node = frames.node_of(self.endpoints[rank])
        if node in self.client.lost_nodes and not self._was_lost(rank, node):
            self._lose_rank(rank, node)

    def _lose_rank(self, rank: int, node: int) -> None:
        assert self.supervisor is not None
        facts = self.deaths[rank] = self._loss_of(rank, node)
        died = f"rank {rank} of group '{self.name}' {facts['verdict']}"
        assert self.endpoints is not None
        self.notices.failed(RankFailure(rank, self.endpoints[rank], 0, lambda: died), None)
        self.supervisor.rank_died(rank, facts)

    def _loss_of(self, rank: int, node: int) -> dict[str, Any]:
        info, lost = self.infos[rank], self.client.lost_nodes[node]
        return {
            "group": self.name, "rank": rank, "node": info.node_name, "pid": info.pid, "lost_node": node,
            "verdict": f"was lost with its node ({lost.reason})", "returns": self.supervisor is not None,
        }  # fmt: skip

    def forgotten_calls(self) -> list[str]:
        """Return open calls that were never awaited, with their ranks; omits constructors."""
        with self._lock:
            waiting = [each.handler for each in self._pending if not each.handler._call]
        waiting += self.pool.waiting() if self.pool is not None else ()
        return [
            handler._title()
            for handler in (*list(self.open.values()), *waiting)
            if isinstance(handler, Handle) and handler._method != "__init__" and handler._is_forgotten()
        ]

    def _calls_by_age(self) -> Iterator[Sequence[CallHandle]]:
        """Yield sequences of open calls, each oldest first; pooled calls form a separate sequence.

        A pooled call that waited for a rank, or lost its rank, is sent later than younger calls.
        """
        yield (*list(self.open.values()), *(each.handler for each in list(self._pending)))
        if self.pool is not None:
            yield self.pool.unfinished()

    # -- calls --------------------------------------------------------------------------------------------------

    def call(
        self,
        callee: GroupCallee,
        handler: CallHandle,
        method: str,
        encoded: Sequence[Encoded | bytes],
        *,
        same: bool = True,
        repeats: bool = False,
    ) -> None:
        """Send a call, or queue it until its ranks are ready. The arguments are already encoded.

        Args:
            encoded: one body for all ranks if it is the ``same`` for all, else one per rank.
            repeats: True if the call is resent to the next process of a rank that dies without answering.

        Raises:
            ClosedError: the group or its cluster is closed. If this machine's daemon has exited, the call fails like
                earlier calls.
        """
        if not self.admits(handler, method):
            return
        bodies: Bodies = (pack_body(encoded[0]),) if len(encoded) == 1 else _pack_each(encoded)
        self.record(handler, method, len(callee.ranks))
        if repeats and isinstance(handler, Handle):
            handler._again = encoded
        try:
            if self._started or not self._queue(callee, handler, method, bodies, same):
                self._send(callee, handler, method, bodies, same)
        except BaseException as error:
            if handler._ended._event:
                recording.end(handler._ended._event, type(error).__name__)
            raise

    def _queue(self, callee: GroupCallee, handler: CallHandle, method: str, bodies: Bodies, same: bool) -> bool:
        """Queue a call whose ranks are held. Return False if no rank is held, so that the call may be sent now."""
        with self._lock:
            if self._failure is not None:
                close_fds(fd for _, fds in bodies for fd in fds)
                self.client.unobserved.observed(cause_of(self._failure))
                raise copy_of(self._failure)
            # The group has been closed since this call was admitted, so a queued call would never be sent.
            if self.closed:
                close_fds(fd for _, fds in bodies for fd in fds)
                raise self._is_closed(method)
            if self._held.isdisjoint(callee.ranks):
                return False
            waiting = WaitingCall(callee, handler, method, bodies, same, list(range(len(callee.ranks))))
            if not self._leave(waiting):
                self._pending.append(waiting)
            self.deadlines.watch()  # the call may wait for a restarting rank, so watch its deadline
            return True

    def admits(self, handler: CallHandle, method: str) -> bool:
        """Return True if a call may be sent. If this machine's daemon has exited, fail the call and return False.

        Raises:
            ClosedError: the group or its cluster is closed.
        """
        client = self.client
        if self.closed:
            raise self._is_closed(method)
        if (end := client.closed) is not None:
            if isinstance(end, ClosedError | ForkedProcessError):
                raise copy_of(end)
            handler._fail(copy_of(end))
            return False
        if client.loop.is_closed():
            raise loop_watch.closed(client.loop, f"{self.name}.{method}() was called")
        if self.deadlines.limit is not None and isinstance(handler, Handle):
            handler._since = clock.monotonic()
        return True

    def _is_closed(self, method: str) -> ClosedError:
        return ClosedError(f"group '{self.name}' is closed: {method}() cannot be called any more")

    def record(self, handler: CallHandle, method: str, ranks: int) -> None:
        if recording.admits():
            handler._ended._event = recording.begin(_CALL, f"{self.name}.{method}", ranks, handler)

    def call_now(self, ranks: Sequence[int], method: str, encoded: Encoded | bytes) -> Handle:
        callee = self.callee(ranks)
        handle: Handle = Handle(callee, method)
        handle._since = clock.monotonic()
        if ranks:
            self._send(callee, handle, method, [pack_body(encoded)], same=True)
        else:
            handle._finish()  # because no answer will end it
        return handle

    def _send(
        self,
        callee: GroupCallee,
        handler: CallHandle,
        method: str,
        bodies: Bodies,
        same: bool,
        held: Sequence[int] = (),
    ) -> None:
        credit = handler._window if isinstance(handler, StreamCall) else 0
        self.open[id(handler)] = handler
        if self.deadlines.limit is not None:
            self.deadlines.watch()
        try:
            if same:
                body, fds = bodies[0]
                if held:
                    fds = copy_fds(fds)
                self.client.call(handler, callee.route_to, method, body, fds, credit, held)
            else:
                self.client.call_each(handler, method, bodies, credit, held)
        except BaseException:
            self.open.pop(id(handler), None)
            self.notices.finished(handler)
            raise

    def repeats(self, callee: GroupCallee, handler: Handle, slot: int, status: int, report: bytes) -> bool:
        """True if a call to an ended rank will be resent."""
        if self.supervisor is None or handler._again is None or self.client.closed is not None:
            return False
        if self.closed or self._failure is not None:  # the call would never be sent
            return False
        rank, facts = callee.ranks[slot], frames.unpack(report)
        if status == Status.LOST:
            node, _ = facts
            if node not in self.client.lost_nodes or not callee.restart_of(slot)[0]:
                return False
            # A call sent while its node is being lost gets two notices: one when it is sent, and one from the loss.
            is_new = handler._note_death(slot, {"node": node})
            if is_new and not any(each is handler and at == slot for _, each, at in self._repeats):
                self._repeats.append((callee, handler, slot))
            if rank not in self._held and not self._was_lost(rank, node):
                # This answer arrived before the report of the loss.
                self._lose_rank(rank, node)
            return True
        if not facts.get("returns"):
            return False
        # The daemon answers a second time for a call that the caller reports when the dead worker's socket ends.
        # tests/simulation/test_sim_restarts.py::test_a_call_is_made_again_once_on_the_next_incarnation
        if not handler._note_death(slot, facts):
            return True
        self._repeats.append((callee, handler, slot))
        if self.endpoints is None:
            return True
        # Check this even while other ranks are being restarted, because their hooks do not report this death.
        # tests/simulation/test_sim_restarts.py::test_a_death_at_the_launch_is_heard_of_while_another_rank_is_away
        # If the pid is unchanged, the rank's death has not been reported yet.
        if self.infos[rank].pid == facts["pid"] and not self._is_given_up(rank):
            self.supervisor.rank_died(rank, facts)
        elif rank not in self._held:
            # The rank has already been restarted, but the daemon received the call only now.
            self.client.later(0, self._repeat_now)
        return True

    def _repeat_now(self) -> None:
        with self._lock:
            self._send_waiting()

    def _repeat(self, callee: GroupCallee, handler: Handle, slot: int) -> None:
        method, encoded = handler._method, handler._again
        # The call was cancelled, or has failed at another rank.
        if encoded is None or handler._cancelled or handler._cancel_sent:
            self.client.answer_for(handler._call, slot, Status.CANCELLED, b"")
            return
        if method == "__init__" and callee.ranks[slot] not in self.deaths:
            # The supervisor has already run the new process's constructor.
            self.client.answer_for(handler._call, slot, Status.OK, codec.encode(None).to_bytes())
            return
        try:
            body, fds = pack_body(encoded[slot if len(encoded) > 1 else 0])
        except (MemoryError, OSError) as error:
            # Without memory or a descriptor for the arguments, only this call fails: those behind it are still sent.
            self.client.answer_for(handler._call, slot, Status.UNKNOWN, frames.pack(str(error)))
            return
        self._send_again(callee, handler, slot, body, fds)

    def _send_again(
        self, callee: GroupCallee, handler: CallHandle, slot: int, body: bytes | int, fds: Sequence[int]
    ) -> None:
        # Replace the list with a copy, because answers of the other ranks are matched against the old targets.
        targets = handler._targets = [*handler._targets]
        targets[slot] = callee.targets[slot]
        credit = handler._window if isinstance(handler, StreamCall) else 0
        self.client.call_again(handler._call, targets, slot, handler._method, body, fds, credit)
        if handler._cancel_sent:  # another thread may have cancelled the call, perhaps before it was resent
            self.client.cancel(handler._call, [targets[slot]])

    def call_failed(self, callee: GroupCallee, handler: CallHandle) -> None:
        failed = [failure for failure in handler._tally.failures() if failure[1] != Status.UNKNOWN]
        if failed and not self.closed:
            slot, status, body = failed[0]
            self.notices.failed(
                RankFailure(
                    callee.ranks[slot],
                    callee.targets[slot],
                    handler._call,
                    lambda: describe_failure(callee, handler._method, slot, status, body),
                ),
                handler,
            )


class GroupCallee:
    """Some or all of the members, as the target of a call."""

    def __init__(self, members: Members, ranks: Sequence[int]) -> None:
        self._members = members
        self.ranks = ranks
        # Replace each pair as a whole, because calling threads and the restart-handling thread access it concurrently.
        # tests/_group/test_calls_between_steps.py::test_a_route_that_is_made_while_a_rank_is_replaced_is_not_kept
        self._targets: tuple[int, Sequence[int]] = (-1, ())
        self._route: tuple[Sequence[int], list[list[Any]]] = ((), [])

    @property
    def client(self) -> NodeClient:
        return self._members.client

    @property
    def name(self) -> str:
        return self._members.name

    @property
    def deadline(self) -> CallDeadline | None:
        return self._members.deadlines.now()

    @property
    def targets(self) -> Sequence[int]:
        version, targets = self._targets
        if version != self._members.version:
            version, endpoints = self._members.version, self._members.endpoints
            if endpoints is None:
                return ()
            targets = [endpoints[rank] for rank in self.ranks]
            self._targets = version, targets
        return targets

    def route_to(self, targets: Sequence[int]) -> list[list[Any]]:
        of, route = self._route
        if of is not targets:
            route = frames.route_to(targets)
            self._route = targets, route
        return route

    def describe_slot(self, slot: int) -> str:
        rank = self.ranks[slot]
        infos = self._members.infos
        where = f" on {infos[rank].node_name} (pid {infos[rank].pid})" if infos else ""
        return f"rank {rank} of group '{self.name}'{where}"

    def peer_activity(self, slots: Sequence[int]) -> Work[str] | None:
        """Describe the activity of the ranks in these slots or, during the launch, of the launch."""
        targets = self.targets
        if targets:
            who = {targets[slot]: (self.name, self.ranks[slot]) for slot in slots}
            return peer_activity.workers(self.client, who)
        launching = self._members.launching
        return None if launching is None else launching._peer_activity()

    def restart_of(self, slot: int) -> tuple[bool, str]:
        death = self._members.deaths.get(self.ranks[slot], {})
        returns = self._members.supervisor is not None and death.get("returns", True)
        return returns, "" if returns else death.get("reason", "")

    def holds(self, call: CallHandle, slot: int) -> bool:
        """True if the call waits to be sent, or resent, to this rank."""
        members = self._members
        if members.endpoints is None or not members.is_held(self.ranks[slot]):
            return False
        if not call._call or call._targets[slot] == NOWHERE:
            return True
        return any(each is call and at == slot for _, each, at in list(members._repeats))

    def repeats(self, call: Handle, slot: int, status: int, report: bytes) -> bool:
        return self._members.repeats(self, call, slot, status, report)

    def call_failed(self, call: CallHandle) -> None:
        self._members.call_failed(self, call)

    def call_finished(self, call: CallHandle, *, failed: bool) -> None:
        members = self._members
        members.open.pop(id(call), None)
        if members.notices.concerns:
            members.notices.finished(call)
        if failed:
            members.call_failed(self, call)

    def describe(self) -> str:
        return f"{name_ranks(self.ranks)} of '{self.name}'"


def _pack_each(encoded: Sequence[Encoded | bytes]) -> Bodies:
    bodies: list[tuple[bytes | int, Sequence[int]]] = []
    try:
        for value in encoded:
            bodies.append(pack_body(value))
    except BaseException:  # packing the next body fails if no descriptor is free
        close_fds(fd for _, fds in bodies for fd in fds)
        raise
    return bodies


def _raise(error: BaseException) -> None:
    raise error


def _place_of(entry: dict[str, Any]) -> tuple[int, WorkerInfo, str]:
    return entry["endpoint"], read_worker({**entry["info"], "pid": entry["pid"]}), entry["log"]

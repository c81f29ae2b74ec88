"""``Supervision``: restarts a group's dead ranks; runs in the process of the group's owner."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._client.tasks import Task
from rlinf_async._cluster.launch import Plan, open_store, spawn
from rlinf_async._cluster.launch_config import LaunchConfig
from rlinf_async._core import clock, codec, frames, operations
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.root_cause import name_ranks
from rlinf_async._group.failure_notices import RankFailure
from rlinf_async._group.members import Members
from rlinf_async._group.restart_budget import RestartBudget
from rlinf_async._group.restart_rounds import Restart, RestartRounds
from rlinf_async._group.substitutes import Resident, Substitutes
from rlinf_async._inspection.state.run_report import Activity, ActivityState, Wait
from rlinf_async._inspection.state.wait_graph import RESTART, supervision
from rlinf_async._waits.unobserved_errors import UnobservedError
from rlinf_async._worker.methods import MOVE_STORE, ON_RESTART
from rlinf_async.configuration import ACCELERATOR
from rlinf_async.errors import ClosedError, DeadlineExceeded, LaunchError, NodeLost, PeerLost, WorkerDied, told_log
from rlinf_async.group import info_from
from rlinf_async.handle import Handle
from rlinf_async.outcome import Outcome, death_cause
from rlinf_async.placement import Placement
from rlinf_async.work import Work

logger = own_logger(__name__)

# Seconds to wait for the report of a killed rank's death; a daemon that takes longer is itself shutting down.
_DEATH_TIMEOUT_S: Final = 10.0

# Seconds to wait until a lost node's processes have ended; a disconnected node shuts down by its own clock.
_NODE_END_S: Final = 5.0

_MAX_CAUSES: Final = 4

_WHOLE_GROUP: Final = -1


# This class is not split, although it has 35 methods: they are the steps of one restart, and run in one task on one
# ``RestartRounds`` and one ``RestartBudget``.
class Supervision:
    """The restarts of one group's ranks.

    died ──► calls wait ──► pause ──► spawn ──► every node is told ──► constructor ──► on_restart ──► calls go on
      ▲                                                                      │              │
      └──────────────────────────── it raises, or the rank dies again ───────┘   any rank dies, which ends the hooks

    A rank whose node is lost is started on another node (``Substitutes``) once the lost node's processes have ended.

    By default, all ranks' calls wait, and ranks that died together are restarted together. With ``order="rank"``, each
    rank has its own pause and restart, and only its own calls wait. The other ranks' calls wait only while hooks run,
    because hooks may have to meet on all ranks; hooks start once all ranks are back.

    All methods except ``rank_died`` run on the client's loop, in one task at a time.

    Args:
        construct: the encoded arguments of the constructors' call.
        substitutes: the cluster's substitutes.
        residents: returns the living ranks of all of this process's groups.
        setting_for: returns the interpreter and the variables for a placement.
        hook: True if the worker class defines ``on_restart``.

    Attributes:
        port: port of the group's store; set once the group is launched.
    """

    def __init__(
        self,
        client: NodeClient,
        members: Members,
        plan: Plan,
        construct: bytes,
        substitutes: Substitutes,
        residents: Callable[[], list[Resident]],
        setting_for: Callable[[Placement], LaunchConfig],
        *,
        hook: bool,
    ) -> None:
        self._client = client
        self._members = members
        self._plan = plan
        self._construct = construct
        self._substitutes = substitutes
        self._residents = residents
        self._setting_for = setting_for
        self._paid: set[int] = set()  # ranks whose restart was counted but has not been possible so far
        self._hook = hook
        self._store_node = plan.placements[0].cluster_node_rank
        self._has_moved = False  # True until the living ranks know that the store has moved to another node
        self.port = 0
        self._budget = RestartBudget(plan.policy)
        self._rounds = RestartRounds()
        self._away = self._rounds.away
        self._by_rank = members.by_rank = plan.policy.by_rank
        # Ranks that were killed on purpose, whose next restart is not counted.
        self._free: set[int] = set()
        # Maps each rank to the deaths and failures that led to its restarts, oldest first.
        self._causes: dict[int, list[str]] = {}
        self._changed = asyncio.Event()
        self._working: Task | None = None

    def __repr__(self) -> str:
        away = f"away: {sorted(self._away)}" if self._away else "all there"
        return f"<Supervision of '{self._plan.name}' [{away}]>"

    # -- events -------------------------------------------------------------------------------------------

    def rank_died(self, rank: int, facts: dict[str, Any]) -> None:
        """Handle a rank's death; called on the frame-handling thread."""
        # Record the death before holding calls, because a task that releases calls first clears the held ranks and then
        # checks for dead ranks.
        self._rounds.died(rank, facts)
        self._members.hold(self._held_with([rank]))
        self._client.later(0, self._look)
        self._members.report_death(rank, facts)

    @property
    def away(self) -> set[int]:
        return self._rounds.coming_back

    def _held_with(self, ranks: Iterable[int]) -> Iterable[int]:
        return ranks if self._by_rank else range(self._members.size)

    def restart_wanted(self, rank: int) -> None:
        """Exempt the rank's next death from the limits; called on the frame-handling thread."""
        self._free.add(rank)

    def _look(self) -> None:
        self._changed.set()
        if self._away and self._members.closed:
            # Close again, because calls may wait for a death that was reported during the first close().
            self._members.close()
        elif self._away and self._working is None:
            self._working = self._client.run(self._bring_all_back(), what=f"restarts of group '{self._plan.name}'")

    def end(self) -> None:
        """Stop restarting, because the group is being closed."""
        if self._working is not None:
            self._working.cancel()
        self._client.later(0, self._changed.set)  # ends manual restarts, which would otherwise wait forever for deaths

    def restart(self, ranks: Sequence[int]) -> Work[None]:
        what = f"the restart of {name_ranks(ranks)} of group '{self._plan.name}'"
        return self._client.run(self._restart(list(ranks)), what=what)

    async def _restart(self, ranks: list[int]) -> None:
        members = self._members
        if members.launching is not None:
            await members.launching.async_wait()
        before = {rank: members.restarts[rank] for rank in ranks}
        self._free.update(ranks)
        held = self._held_with(ranks)
        members.hold(held)
        for rank in ranks:
            if rank in members.deaths:
                self._rounds.missed(rank, members.deaths[rank])
        try:
            await self._kill((rank for rank in ranks if rank not in self._away), "restarted by hand")
        finally:
            self._look()
            if self._working is None:  # the ranks are already back, or no death could be reported
                members.release(held)
        await self._until(lambda: members.closed or not any(map(members.is_held, held)))
        for rank in ranks:
            # If the constructor failed again, the restart was counted, but the rank's death has a ``reason``.
            if members.restarts[rank] == before[rank] or "reason" in members.deaths.get(rank, {}):
                if members.closed:
                    raise ClosedError(f"group '{members.name}' was closed while it was restarted")
                if self._client.closed is not None:  # no death was reported
                    raise copy_of(self._client.closed)
                raise WorkerDied.from_exit_report(members.deaths[rank])

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # -- restarting ----------------------------------------------------------------------------------------------

    async def _bring_all_back(self) -> None:
        try:
            while self._has_moved or not self._rounds.is_over:
                if not self._away:
                    await self._run_hooks()
                elif self._by_rank:
                    await self._bring_each_back()
                else:
                    await self._bring_back()
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError | ClosedError) and self._client.closed is None:
                logger.exception("ranks of group '%s' could not be started again", self._plan.name)
                with contextlib.suppress(Exception):  # waiting calls must fail instead of hanging
                    await self._lose(sorted(self._away), f"could not be started again: {error}")
            self._working = None
            self._away.clear()
            self._changed.set()
            self._members.release()
            raise
        self._working = None
        self._release(range(self._members.size))
        self._changed.set()

    def _release(self, ranks: Iterable[int]) -> None:
        self._members.release(ranks)
        if self._away:
            # Another rank has just died, so hold its calls again.
            self._members.hold(self._held_with(list(self._away)))

    async def _bring_each_back(self) -> None:
        """Restart every dead rank, including ranks that die during the restarts, each in its own task."""
        tasks: dict[int, asyncio.Task[None]] = {}

        def end(rank: int) -> None:
            del tasks[rank]
            self._changed.set()

        try:
            async with asyncio.TaskGroup() as group:
                while more := self._away.keys() - tasks.keys():
                    for rank in more:
                        tasks[rank] = group.create_task(self._bring_rank_back(rank))
                        tasks[rank].add_done_callback(functools.partial(lambda rank, task: end(rank), rank))
                    await self._until(lambda: not tasks or bool(self._away.keys() - tasks.keys()))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _bring_rank_back(self, rank: int) -> None:
        await self._bring_back([rank])
        if self._hook or rank in self._away or rank not in self._rounds.coming_back:
            return
        self._move_store()
        self._announce(self._rounds.go_on(rank, self._members.restarts))
        self._release([rank])

    async def _bring_back(self, ranks: Sequence[int] = ()) -> None:
        with self._shown_in_reports(
            f"the restart of {name_ranks(ranks or sorted(self._away))} of group '{self._members.name}'"
        ):
            back = await self._start_all(ranks)
        if back:
            await self._construct_all(back)

    @contextlib.contextmanager
    def _shown_in_reports(self, what: str, call: Handle[Any] | None = None) -> Iterator[None]:
        """Context manager: reports show the block as an activity, which counts as running if there is no call."""
        since, name = clock.monotonic(), supervision(self._members.name)

        def activity() -> Activity:
            age = clock.monotonic() - since
            targets = [] if call is None else call._needs()[0]
            state = ActivityState.WAITING if targets else ActivityState.RUNNING
            return Activity(name, state, age, wait=Wait(RESTART, what, age, targets))

        self._client.restarts[what] = activity
        try:
            yield
        finally:
            del self._client.restarts[what]

    async def _start_all(self, ranks: Sequence[int]) -> list[int]:
        """Start these ranks, or all dead ranks, after their pause. Return the ranks that have started."""
        if self._plan.policy.restarts_group:
            await self._end_others()
        ranks, pause = await self._afford(list(ranks) or sorted(self._away))
        if not ranks:
            return []
        await _pause(pause)
        ranks = await self._move(ranks)
        results = await asyncio.gather(*map(self._start, ranks), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):  # the cluster is being closed
                raise result
        return [rank for rank, result in zip(ranks, results, strict=True) if result]

    async def _start(self, rank: int) -> bool:
        members = self._members
        try:
            counts, store_node = [count + 1 for count in members.restarts], self._store_node
            entry = (await spawn(self._client, members, self._plan, [rank], self.port, counts))[rank]
            self._has_moved |= store_node != self._store_node
        except NodeLost as error:
            if self._client.closed is not None:
                # The lost node is this machine's own, so the client is closed.
                raise
            self._note(rank, f"rank {rank} could not be started: {error}")
            # The rank is still down, and will be started on another node.
            return False
        except LaunchError as error:
            await self._lose([rank], f"could not be started again: {error}")
            return False
        assert members.endpoints is not None
        was = members.endpoints[rank]
        report = self._rounds.returned(rank)
        self._free.discard(rank)
        self._paid.discard(rank)
        members.replace(rank, entry["endpoint"], info_from(entry["info"], entry["pid"]), entry["log"])
        members.look_for_loss(rank)
        await self._announce_to_nodes(rank, was, entry, report)
        return True

    async def _move(self, ranks: list[int]) -> list[int]:
        lost = self._client.lost_nodes
        homeless = [rank for rank in ranks if self._members.placements[rank].cluster_node_rank in lost]
        if homeless:
            await _pause(_NODE_END_S)
        if self._by_rank and 0 not in ranks:
            # Wait until the store has moved; otherwise, these ranks would be constructed with the address of the lost
            # store. tests/simulation/test_sim_order.py::test_ranks_of_a_lost_node_are_constructed_with_the_new_store
            await self._until(lambda: self._store_node not in lost or 0 not in self._away)
        placements = self._members.placements
        for rank in homeless:
            node = self._substitutes.choose(placements[rank], lost, self._residents())
            if node is None:
                await self._lose([rank], f"was lost with its node, and {self._wants(placements[rank])}")
                continue
            neighbours = sum(each.cluster_node_rank == node for each in placements)
            placements[rank] = self._substitutes.moved(placements[rank], node, neighbours)
        settings = [self._setting_for(placement) for placement in placements]
        self._plan = replace(self._plan, placements=placements, settings=settings)
        if 0 in homeless and placements[0].cluster_node_rank not in lost:
            try:
                self.port = await open_store(self._client, self._members, self._plan)
                self._store_node, self._has_moved = placements[0].cluster_node_rank, True
                self._changed.set()
            except NodeLost:  # the next node is lost, too, so the rank moves again
                if self._client.closed is not None:
                    raise
            except LaunchError as error:
                await self._lose([0], f"could not be started again: {error}")
                ranks = [rank for rank in ranks if rank]
        return [rank for rank in ranks if placements[rank].cluster_node_rank not in lost]

    def _wants(self, placement: Placement) -> str:
        if not placement.local_hardware_ranks:
            return f"no node of its node group '{placement.node_group_label}' is left"
        if placement.hardware_type != ACCELERATOR:
            return f"its {placement.hardware_type} was there"
        old = self._plan.nodes[placement.cluster_node_rank]
        return (
            f"no other node has {old.num_accelerators} x {old.accelerator_model or old.accelerator_type} that no rank "
            "uses (fix: add a spare node to the hosts)"
        )

    async def _afford(self, ranks: list[int]) -> tuple[list[int], float]:
        """Count the restarts. Return the ranks to restart and the pause before restarting; give up the others."""
        for rank in ranks:
            facts = self._away[rank]
            self._note(rank, f"rank {rank} (pid {facts['pid']}) {facts['verdict']}")
        free = self._free | self._paid
        if self._plan.policy.restarts_group:
            pause = 0.0 if free >= set(ranks) else self._budget.spend(_WHOLE_GROUP, clock.monotonic())
            pauses = dict.fromkeys(ranks, pause)
        else:
            now = clock.monotonic()
            pauses = {rank: 0.0 if rank in free else self._budget.spend(rank, now) for rank in ranks}
        if lost := [rank for rank in ranks if pauses[rank] is None]:
            policy = self._plan.policy
            times = f"more than {policy.max_restarts} time{'s' * (policy.max_restarts != 1)} within {policy.window:g} s"
            last = "; ".join(cause for rank in lost for cause in self._causes[rank][-_MAX_CAUSES:])
            await self._lose(lost, f"died {times}, and is not started again; the last: {last}")
        left = {rank: pause for rank, pause in pauses.items() if pause is not None}
        self._paid.update(left)
        return list(left), max(left.values(), default=0.0)

    def _note(self, rank: int, cause: str) -> None:
        self._causes[rank] = [*self._causes.get(rank, ())[-_MAX_CAUSES:], cause]

    async def _end_others(self) -> None:
        everyone = range(self._members.size)
        first = next(iter(self._away))
        others = [rank for rank in everyone if rank not in self._away]
        self._free.update(others)
        await self._kill(others, f"was ended to restart with rank {first} of its group, which had died")

    async def _kill(self, ranks: Iterable[int], reason: str) -> None:
        members = self._members
        assert members.endpoints is not None
        killed = {rank: members.endpoints[rank] for rank in ranks}
        for node, numbers in frames.route_to(list(killed.values())) if killed else ():
            with contextlib.suppress(NodeLost, ClosedError):
                await self._client.request(operations.KillRanks(numbers[::2], reason), node=node)

        def silent() -> list[int]:
            # A rank whose death was reported may already be back.
            assert members.endpoints is not None
            return [rank for rank in killed if rank not in self._away and members.endpoints[rank] == killed[rank]]

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_TIMEOUT_S):
                await self._until(lambda: members.closed or not silent())
        for rank in silent():
            info = members.infos[rank]
            unknown = {"pid": info.pid, "verdict": "was not told dead", "node": info.node_name}
            self._rounds.missed(rank, {"group": members.name, "rank": rank, **unknown})

    async def _construct_all(self, ranks: list[int]) -> None:
        """Run the constructors. Kill ranks whose constructor failed, so that they are restarted again."""
        try:
            outcomes = await self._members.call_now(ranks, "__init__", self._construct).outcomes()
        except (OSError, MemoryError) as caught:  # until it is constructed, a worker answers no call
            outcomes = [Outcome(rank, error=caught) for rank in ranks]
        raised = {outcome.rank: outcome.error for outcome in outcomes if outcome.error is not None}
        failed = {rank: error for rank, error in raised.items() if not isinstance(error, WorkerDied | NodeLost)}
        for rank, error in failed.items():
            self._note(rank, f"the constructor of rank {rank} failed: {type(error).__name__}: {error}")
        await self._kill((rank for rank in failed if rank not in self._away), "could not be constructed again")
        self._look_for_deaths(outcomes)

    def _look_for_deaths(self, outcomes: Iterable[Outcome]) -> None:
        """Record deaths that were reported as answers to this supervision's calls.

        If a rank dies before its new endpoint is known here, only such an answer reports its death. For other deaths,
        the report may arrive later than the answer.
        """
        for outcome in outcomes:
            error = outcome.error
            if isinstance(error, WorkerDied) and error.pid == self._members.infos[outcome.rank].pid:
                self._rounds.missed(outcome.rank, vars(error))
                self._members.report_death(outcome.rank, vars(error))
            elif isinstance(error, NodeLost):
                self._members.look_for_loss(outcome.rank)

    async def _run_hooks(self) -> None:
        """Run the workers' and the driver's hooks for restarted ranks; skip the driver's hooks if a worker dies."""
        members, rounds = self._members, self._rounds
        self._move_store()
        members.hold()
        restart = rounds.begin(members.restarts)
        outcomes = await self._call_hooks(self._living(), restart) if self._hook else []
        self._look_for_deaths(outcomes)
        if not rounds.end():
            if self._hook:
                who = name_ranks(sorted(self._away))
                logger.warning("on_restart() of group '%s' has ended unfinished: %s died meanwhile", members.name, who)
            if self._by_rank:  # the other ranks continue until the next attempt
                self._release(set(range(members.size)) - rounds.coming_back)
            return
        for outcome in outcomes:
            if outcome.error is not None and not isinstance(outcome.error, PeerLost):
                logger.error("on_restart() of rank %d of group '%s' failed", outcome.rank, members.name)
                self._report(f"on_restart() of rank {outcome.rank}", f"{outcome.error!r}")
        if restart.ranks:  # there are none if only the store has moved
            self._announce(restart)

    def _living(self) -> list[int]:
        return [rank for rank in range(self._members.size) if rank not in self._members.deaths]

    def _move_store(self) -> None:
        if not self._has_moved:
            return
        self._has_moved = False
        members = self._members
        body = codec.encode(((self._plan.nodes[self._store_node].node_ip, self.port), {}))
        # Do not wait for the answers, because a rank may be in a method that ends only with a call that waits for
        # this restart. Later calls from this process arrive after this one.
        moving = members.call_now(self._living(), MOVE_STORE, body).outcomes().async_wait()
        self._client.run(moving, what=f"the store of group '{members.name}' on another node")

    def _announce(self, restart: Restart) -> None:
        members, ranks = self._members, restart.ranks
        members.call_back("on_restart", members.on_restart, restart)
        logger.warning("%s of group '%s' %s back", name_ranks(ranks), members.name, "is" if not ranks[1:] else "are")

    async def _call_hooks(self, living: list[int], restart: Restart) -> list[Outcome]:
        """Run the workers' hooks until all have ended or a rank dies, for which the others would wait forever."""
        members = self._members
        body = codec.encode(((restart,), {}), describe="argument of on_restart()", root="args")
        call = members.call_now(living, ON_RESTART, body)
        outcomes = call.outcomes()
        outcomes._follow(lambda: self._client.later(0, self._changed.set))
        try:
            with self._shown_in_reports(f"on_restart() on {len(living)} ranks of group '{members.name}'", call):
                await self._until(lambda: outcomes.done() or bool(self._away))
            if not outcomes.done():
                assert members.endpoints is not None
                rank, report = next(iter(self._away.items()))
                text = f"rank {rank} of group '{members.name}' {report['verdict']} while on_restart() ran"
                members.notices.end(call, RankFailure(rank, members.endpoints[rank], call._call, lambda: text))
                with contextlib.suppress(DeadlineExceeded):  # a hook that computes or sleeps cannot be ended
                    await outcomes.async_wait(settings.ABORT_GRACE_S())
        finally:
            call.cancel()
        return outcomes.wait() if outcomes.done() else []

    # -- lost ranks ----------------------------------------------------------------------------------------------

    async def _lose(self, ranks: Sequence[int], reason: str) -> None:
        """Give up these ranks: from now on, calls and messages to them fail."""
        members = self._members
        assert members.endpoints is not None
        for rank in ranks:
            report = {**self._rounds.abandon(rank), "returns": False, "reason": reason}
            members.deaths[rank] = report
            self._changed.set()
            self._free.discard(rank)
            self._paid.discard(rank)
            members.report_death(rank, report)
            await self._announce_to_nodes(rank, members.endpoints[rank], None, report)
            if self._by_rank:
                self._release([rank])
        facts = members.deaths[ranks[0]]
        who = f"{name_ranks(ranks)} of group '{members.name}'"
        log = " ".join(told_log(facts)) if "log_path" in facts else ""
        cause = death_cause(facts) if "pid" in facts else who
        self._client.unobserved.arrived(UnobservedError(cause, who, f"{who} {reason}; {log}", is_due=True))

    def _report(self, who: str, text: str) -> None:
        where = f"{who} of group '{self._members.name}'"
        self._client.unobserved.arrived(UnobservedError(where, where, f"{where} failed: {text}", is_due=True))

    async def _announce_to_nodes(
        self, rank: int, was: int, entry: dict[str, Any] | None, report: dict[str, Any]
    ) -> None:
        """Notify all nodes through node 0. On return, node 0 and the rank's own node have been notified."""
        operation = operations.RankReturned(self._members.name, self._members.number, rank, was, entry, report)
        await self._client.request(operation, node=0)


async def _pause(seconds: float) -> None:
    over = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()

"""Experiences that this daemon hosts: queues in ``Channels`` with deadlines, a trainer, and optionally a file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final

from rlinf_async._core import clock, frames, operations
from rlinf_async._experience.state.experience_changes import Change
from rlinf_async._experience.state.experience_options import ExperienceOptions
from rlinf_async._experience.state.experience_queue import ExperienceQueue
from rlinf_async.errors import ClosedError, LeaseLost, WorkerDied

from .channel_replies import HostedChannel
from .channels import Channels
from .handlers import Requester
from .router import Router
from .sample_store import SampleStore, dropped_of

_PUBLICATIONS_TIMEOUT_S: Final = 2.0


class HostedExperience(HostedChannel):
    """An experience hosted on this node; it also serves as its queue's ``Keeper``."""

    noun = "experience"
    fewer = "fewer groups"

    queue: ExperienceQueue

    def __init__(
        self,
        number: int,
        name: str,
        owner: int,
        options: ExperienceOptions,
        channels: Channels,
        router: Router,
        gone: Container[int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(number, name, owner, ExperienceQueue(name, options, self, gone))
        self.options = options
        self.store: SampleStore | None = None
        self._channels = channels
        self._router = router
        self._loop = loop
        self._at: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._question: asyncio.Future[Any] | None = None
        self._has_ended = False
        self._away = 0  # endpoint of the last trainer process to end, or of its replacement
        self._is_closed = False  # whether the group of the _away process is closed
        if options.durable:
            description = f"experience '{name}' on node {router.node}"
            self.store = SampleStore(options.durable, description, loop, self._written)

    async def open(self) -> None:
        """Load an earlier run's samples.  Raises ConfigError if the file cannot be used."""
        if self.store is not None:
            counts, rows = await self.store.open()
            self.queue.pool.count_earlier(counts.get("version"), counts.get("taken", 0), dropped_of(counts))
            self.queue.pool.restore(rows, clock.monotonic())

    def follow(self, steps: list[Any]) -> None:
        self._channels.follow(self, steps)

    # -- as a keeper --------------------------------------------------------------------------------------------

    @property
    def is_durable(self) -> bool:
        return self.store is not None

    def write(self, change: Change) -> None:
        assert self.store is not None
        self.store.write(change)

    def _written(self, changes: list[tuple[Change, Exception | None]]) -> None:
        for change, error in changes:
            self.follow(self.queue.written(change, error))

    def wake_at(self, deadline: float | None) -> None:
        if deadline != self._at and not self._has_ended:
            if self._alarm is not None:
                self._alarm.cancel()
            self._at = deadline
            wait_s = 0.0 if deadline is None else max(0.0, deadline - clock.monotonic())
            self._alarm = None if deadline is None else self._loop.call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._at = None
        self.follow(self.queue.expire())

    def trainer_gone(self, endpoint: int) -> None:
        self._is_closed &= endpoint == self._away
        self._away, node = endpoint, frames.node_of(endpoint)
        node_link = self._router.node_links.get(node)
        if self._question is not None:
            self._question.cancel()
        if node_link is None or node_link.lost is None:
            self._question = self._router.ask(node, operations.HowEnded(frames.number_of(endpoint)))
            self._question.add_done_callback(self._note_end)
        else:
            story = f"node {node} ({node_link.name}) is lost: {node_link.lost}"
            self._question = self._router.ask(0, operations.ComesBack(endpoint))
            self._question.add_done_callback(partial(self._note_loss, story))

    def _note_end(self, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        report = answer.result() if error is None else None
        if report is None:
            self._end_wishes("it has ended in order" if error is None else str(error))
        elif self._is_closed or not report.get("returns"):
            self._end_wishes(str(WorkerDied.from_exit_report({**report, "returns": False})))

    def _note_loss(self, story: str, answer: asyncio.Future[bool]) -> None:
        if not answer.cancelled() and (self._is_closed or answer.exception() is not None or not answer.result()):
            self._end_wishes(story)

    def node_lost(self, node: int) -> None:
        """Repeat an open question about the trainer's end, because a lost node will not answer it."""
        if frames.node_of(self._away) == node and self._question is not None and not self._question.done():
            self.trainer_gone(self._away)

    def note_return(self, op: operations.RankReturned) -> None:
        if op.was != self._away:
            return
        if self._question is not None:
            self._question.cancel()
        if op.entry is not None:
            self._away = op.entry["endpoint"]
        elif "pid" in op.report:
            self._end_wishes(str(WorkerDied.from_exit_report({**op.report, "returns": False})))
        else:  # the node was lost, so nobody observed the exit
            self._end_wishes(f"rank {op.rank} of group '{op.group}' {op.report['reason']}")

    def note_close(self, endpoint: int) -> None:
        if endpoint == self._away:
            self._is_closed = True  # if a question is open, its answer will report how the process ended
            if self._question is None or self._question.done():
                self._end_wishes("its group was closed")

    def _end_wishes(self, story: str) -> None:
        text = f"wanted() of experience '{self.name}' waited for {self.queue.trainer}, which is gone: {story}"
        self.follow(self.queue.end_wishes(text))

    # -- as a channel -------------------------------------------------------------------------------------------

    def describe(self, key: bytes) -> str:
        return self.queue.describe(key)

    def ledger(self) -> dict[str, int]:
        return self.queue.pool.ledger().summary()

    async def written(self) -> None:
        # Without the wait, a run killed after the close would leave discarded samples in the file for the next run.
        # tests/launcher/daemon/test_experiences.py::test_a_close_is_done_when_the_disk_has_it
        if self.store is not None and not self._has_ended:
            settled, done = _settling(self._loop)
            self.follow(self.queue.when_written(done))
            await settled

    def ended(self) -> None:
        self.wake_at(None)
        self._has_ended = True
        if self._question is not None:
            self._question.cancel()
        if self.store is not None:
            self.store.close()


class Experiences:
    """Handlers for operations on experiences; ``budget`` is the default ``max_bytes``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, router: Router, channels: Channels, gone: Container[int], budget: int
    ) -> None:
        self._loop = loop
        self._router = router
        self._channels = channels
        self._gone = gone
        self._budget = budget
        self._published: dict[str, tuple[int, str, int]] = {}
        """Maps each group, local or followed by a local experience, to publisher, weights name and version."""
        self._followers: dict[str, set[int]] = {}  # maps each group to other nodes that host its experiences

    def _find(self, number: int) -> HostedExperience:
        hosted = self._channels.hosted(number)
        if not isinstance(hosted, HostedExperience):
            raise ClosedError("the experience is closed, or the process that created it is gone")
        return hosted

    def all(self) -> list[HostedExperience]:
        return [hosted for hosted in self._channels.all_hosted() if isinstance(hosted, HostedExperience)]

    async def host_experience(self, requester: Requester, op: operations.HostExperience) -> None:
        """Create an experience on this node, or reopen one from an earlier run."""
        options = ExperienceOptions.from_data({**op.options, "max_bytes": op.options.get("max_bytes") or self._budget})
        hosted = HostedExperience(
            op.number, op.name, requester.endpoint, options, self._channels, self._router, self._gone, self._loop
        )
        try:
            await hosted.open()
            if options.of:
                await self._ask_for_publications(options.of)
            if requester.endpoint in self._gone:
                raise ClosedError(f"experience '{op.name}': the process that has asked for it is gone")
            self._channels.host(hosted)
        except BaseException:
            hosted.ended()  # otherwise, the file would stay locked
            raise
        setter, name, version = self._published.get(options.of, (0, "", 0))
        if setter and setter not in self._gone:
            self._follow_publication(hosted, setter, name, version, restart=False)

    async def set_version(self, requester: Requester, op: operations.SetVersion) -> None:
        """Set the trainer's version.  Raises ValueError if it decreases, or if another trainer or a group sets it."""
        hosted = self._find(op.number)
        if of := hosted.options.of:
            raise ValueError(
                f"set_version({op.version}) of experience '{hosted.name}' by {op.trainer}: it has the version that "
                f"group '{of}' publishes (of={of!r}): leave out the call, or of="
            )
        hosted.follow(hosted.queue.set_version(requester.endpoint, op.trainer, op.version, restart=op.restart))

    async def _ask_for_publications(self, group: str) -> None:
        """Follow the group's publications on other nodes; a node that answers too late reports its next version."""
        nodes = [node_link.node for node_link in self._router.node_links.values() if node_link.over is None]
        answers = [self._router.ask(node, operations.FollowPublications(group)) for node in nodes]
        if answers:
            await asyncio.wait(answers, timeout=_PUBLICATIONS_TIMEOUT_S)
        for answer in answers:
            is_refused = answer.cancel() or answer.cancelled() or answer.exception()
            if not is_refused and isinstance(found := answer.result(), list):
                self._published.setdefault(group, (found[0], found[1], found[2]))

    async def follow_publications(self, requester: Requester, op: operations.FollowPublications) -> Any:
        """Follow a group's publications for the requester's node; return the latest one."""
        self._followers.setdefault(op.group, set()).add(frames.node_of(requester.endpoint))
        return self._published.get(op.group)

    async def published(self, requester: Requester, op: operations.Published) -> list[int]:
        """Record a version of weights that a process has published, for experiences ``of`` its group.

        Returns:
            Nodes with such experiences, which the publishing process informs.
        """
        if requester.endpoint in self._gone:
            return []
        setter, name, _ = self._published.get(op.group, (0, op.name, 0))
        if name != op.name and setter not in self._gone:
            return []  # if a group publishes several models, only the first counts
        self._published[op.group] = (requester.endpoint, op.name, op.version)
        nodes = set(self._followers.get(op.group, ()))
        for hosted in self.all():
            if hosted.options.of == op.group:
                self._follow_publication(hosted, requester.endpoint, op.name, op.version, restart=op.restart)
                nodes.add(self._router.node)
        return sorted(nodes)

    def _follow_publication(
        self, hosted: HostedExperience, setter: int, name: str, version: int, *, restart: bool
    ) -> None:
        trainer = f"the publisher of '{name}' in group '{hosted.options.of}'"
        hosted.follow(hosted.queue.set_version(setter, trainer, version, restart=restart))

    async def settle_groups(self, requester: Requester, op: operations.SettleGroups) -> None:
        """Remove a lease's groups permanently; return after a durable experience has written the removal.

        Raises LeaseLost, or OSError if the write failed, in which case the groups are back in the queue.
        """
        hosted = self._find(op.number)
        settled, done = _settling(self._loop)
        steps = hosted.queue.settle(requester.endpoint, op.take, op.groups, done)
        if steps is None:
            raise LeaseLost(
                f"the lease of experience '{hosted.name}' is over, and its groups have gone back, perhaps to another "
                "consumer: what was done with them counts for nothing; give create() a longer lease="
            )
        hosted.follow(steps)
        await settled

    async def count_samples(self, requester: Requester, op: operations.CountSamples) -> dict[str, Any]:
        return self._find(op.number).queue.pool.ledger().to_data()

    async def count_earlier(self, requester: Requester, op: operations.CountEarlier) -> None:
        hosted = self._find(op.number)
        hosted.follow(hosted.queue.count_earlier(op.version, op.taken, op.dropped))

    def note_return(self, op: operations.RankReturned) -> None:
        for hosted in self.all():
            hosted.note_return(op)

    def drop_owner(self, gone: int) -> None:
        node_link = self._router.node_links.get(frames.node_of(gone))
        if node_link is None or node_link.lost is None:  # a lost node's rank may be restarted elsewhere
            for hosted in self.all():
                hosted.note_close(gone)

    def drop_node(self, node: int) -> None:
        for hosted in self.all():
            hosted.node_lost(node)

    def drop_client(self, gone: int) -> None:
        for group in [group for group, (setter, *_) in self._published.items() if setter == gone]:
            del self._published[group]


def _settling(loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Future[None], Callable[[Exception | None], None]]:
    settled: asyncio.Future[None] = loop.create_future()

    def done(error: Exception | None) -> None:
        if settled.done():
            return  # the daemon is shutting down and has cancelled the handler
        if error is None:
            settled.set_result(None)
        else:
            settled.set_exception(error)

    return settled, done

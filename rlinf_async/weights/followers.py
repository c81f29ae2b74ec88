"""The workers that follow a publication. Each is a receiver of its publisher from its JOIN until its link ends.

group found ──► a link to each rank ──► JOIN: Publisher.add ──► end of the link: Publisher.remove
                ▲                                                        │
                ├──── the worker is alive, and may follow again ◄──────┘
introduction of a restarted worker of that group
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from rlinf_async._core import clock
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.own_logger import own_logger
from rlinf_async._worker.context import require_exchange
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost
from rlinf_async.weights.links.weight_link import LinkMessage
from rlinf_async.weights.links.worker_link import WorkerLink
from rlinf_async.weights.plane.publisher import Publisher
from rlinf_async.weights.state import messages
from rlinf_async.weights.waiting.conditions import ConditionVar
from rlinf_async.work import Work

logger = own_logger(__name__)


class _FollowerLink(WorkerLink):
    """A link to a worker that may follow; it listens to itself until the JOIN, then the publisher listens."""

    def __init__(self, followers: Followers, group: str, rank: int, name: str) -> None:
        self.group, self.rank, self.worker = group, rank, f"{group}:{rank}"
        self.has_joined = False
        self._followers = followers
        super().__init__(group, rank, name)

    def on_message(self, message: LinkMessage) -> None:
        if message == [messages.JOIN]:
            self._followers._joined(self)

    def on_end(self, error: Exception) -> None:
        """Do nothing, because ``_end`` handles the end for all listeners."""

    def _end(self, error: Exception) -> None:
        # Remove a follower that has ended from the receivers before the current version learns of its end, so that the
        # version counts it as a removed receiver, and only ``check`` reports the death.
        # tests/weights/test_publish.py::test_a_follower_that_dies_is_named_once_and_the_others_go_on
        self._followers._ended(self, error)
        super()._end(error)


class Followers:
    """The ranks of some groups that follow a publication. Callbacks run in the threads that read the links.

    Args:
        name: name of the weights.
        patience: seconds that ranks of an existing group may take to follow, if ``gather`` has no timeout.
    """

    def __init__(self, publisher: Publisher, name: str, groups: Sequence[str], patience: float) -> None:
        self._publisher = publisher
        self._name = name
        self._patience = patience
        self._exchange = require_exchange()
        self._lock = threading.Lock()
        self._links: dict[str, _FollowerLink | None] = {}
        """Maps each worker's name to its link; None while the link is being created."""
        self._sizes: dict[str, int | None] = dict.fromkeys(groups)
        self._met: set[str] = set()
        """Ranks that have followed at least once."""
        self._failures: dict[str, Exception] = {}
        """Maps the name of each group that was not found, and of each worker that ended, to an unreported error."""
        self._changes = ConditionVar(name)
        self._is_closed = False
        self._forget_introductions = self._exchange.watch_introductions(self._introduced)
        for group in self._sizes:
            self._find(group)
        for group, rank in self._exchange.known_members:
            if self._is_below(group):  # the worker may have joined before this publication
                self._open(group, rank)

    # -- coming and going ---------------------------------------------------------------------------------------

    def _find(self, group: str) -> None:
        finding = self._exchange.find_group(group)
        finding._follow(lambda: self._found(group, finding))

    def _found(self, group: str, finding: Work[int]) -> None:
        try:
            size = self._sizes[group] = finding._result()
        except Exception as error:
            self._failures[group] = error
        else:
            for rank in range(size):
                self._open(group, rank)
        self._changes.notify()

    def _introduced(self, group: str, rank: int) -> None:
        if group in self._sizes or self._is_below(group):
            self._open(group, rank)

    def _is_below(self, group: str) -> bool:
        """True if a rank of the groups launched this group, whose workers may follow but are not waited for."""
        return any(group.startswith(f"{above}:") for above in self._sizes)

    def _open(self, group: str, rank: int) -> None:
        worker = f"{group}:{rank}"
        with self._lock:
            if self._is_closed or worker in self._links:
                return
            self._links[worker] = None
        # Create the link without the lock: the reading thread may deliver a message immediately, and needs the lock to
        # do so.
        link = _FollowerLink(self, group, rank, self._name)
        with self._lock:
            self._links[worker] = link
            is_closed = self._is_closed
        if is_closed:
            link.close()
        elif link.error is not None:  # the link ended before it was in the table
            self._ended(link, link.error)
        else:
            link.listen(link)

    def _joined(self, link: _FollowerLink) -> None:
        link.has_joined = True
        try:
            self._publisher.add(link.worker, link)
        except ClosedError:
            link.close()
        # Record the worker only now, because a task that waits for it continues with the publisher's receivers.
        self._met.add(link.worker)
        # A recorded failure means that the group appeared after the deadline for its name.
        if self._failures.pop(link.group, None) is not None:
            self._find(link.group)
        self._changes.notify()

    def _ended(self, link: _FollowerLink, error: Exception) -> None:
        """Handle the end of a worker's link; the next link to that worker may already exist."""
        with self._lock:
            if self._is_closed or self._links.get(link.worker) is not link:
                return
            del self._links[link.worker]
        lives = isinstance(error, (ClosedError, PeerLost)) and self._exchange.is_alive(link.group, link.rank)
        returns = self._exchange.is_restarting(link.group, link.rank)  # if so, the next link waits for the restart
        counts = link.has_joined or not lives
        if not isinstance(error, ClosedError) and counts and not returns:
            if self._is_below(link.group):
                # The rank that launched the group is responsible for it, and may launch another group.
                logger.warning("%s follows '%s' no more: %s", link.worker, self._name, error)
            else:
                self._failures[link.worker] = error
        if link.has_joined:
            # Without a JOIN, the publisher's receiver of that name may belong to the next link.
            with contextlib.suppress(ValueError):  # the publisher is closed
                self._publisher.remove(link.worker)
        if lives or returns:
            self._open(link.group, link.rank)
        self._changes.notify()

    def close(self) -> None:
        """Accept no more followers; the publisher owns current followers' links."""
        with self._lock:
            self._is_closed = True
            links, self._links = list(self._links.values()), {}
        self._forget_introductions()
        for link in links:
            if link is not None and not link.has_joined:
                link.close()
        self._changes.notify()

    # -- reports to the trainer ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise one error that was not raised before, if any; search again for a group that was not found.

        Raises:
            DeadlineExceeded, ClosedError: there is no group of that name, or it was closed.
            WorkerDied, PeerLost: a rank has died.
        """
        try:
            name, error = self._failures.popitem()
        except KeyError:  # no error, or the thread that reads the links has just removed it
            return
        if name in self._sizes:
            self._find(name)
        raise copy_of(error)

    def _missing(self) -> list[str]:
        """Return the groups that do not exist, and the ranks that have never followed."""
        groups = [f"group '{group}'" for group, size in self._sizes.items() if size is None]
        ranks = (f"{group}:{rank}" for group, size in self._sizes.items() for rank in range(size or 0))
        return [*groups, *(worker for worker in ranks if worker not in self._met)]

    async def gather(self, timeout: float | None) -> None:
        """Wait until every rank of every group has followed at least once.

        Raises:
            DeadlineExceeded: some ranks have not followed; the error names them.
            ClosedError: the followers were closed during the wait.
            Exception: as for ``check``.
        """

        def is_over() -> bool:
            return self._is_closed or bool(self._failures)

        begun = clock.monotonic()
        what = f"followers of '{self._name}'"
        await self._changes.wait_until(
            lambda: is_over() or None not in self._sizes.values(), timeout, f"the groups of {what}"
        )
        patience = self._patience if timeout is None else clock.rest(timeout, begun)
        await self._changes.wait_until(lambda: is_over() or not self._missing(), patience, what)
        if self._is_closed:
            raise ClosedError(f"the publication of '{self._name}' is closed")
        self.check()
        if missing := self._missing():
            links = {name: self._links.get(name) for name in missing}
            who = ", ".join(name if link is None else name + link.mismatch for name, link in links.items())
            raise DeadlineExceeded(
                f"{who} did not follow '{self._name}' within {clock.monotonic() - begun:.3g} s: each "
                f"rank of the groups enters follow(model, of=..., name='{self._name}')"
            )

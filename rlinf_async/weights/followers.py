"""Workers that follow a publication: its receivers from their JOIN until their link ends.

group found ──► a line to each rank ──► JOIN: Publisher.add ──► end of the line: Publisher.remove
                ▲                                                        │
                ├──── the worker lives, and may follow once more ◄───────┘
introduction of a worker of that group, which has been launched again
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence

from rlinf_async._core.error_copy import copy_of
from rlinf_async._worker.context import require_exchange
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost
from rlinf_async.weights.links.link import Words
from rlinf_async.weights.links.worker_link import WorkerLink
from rlinf_async.weights.plane.publisher import Publisher
from rlinf_async.weights.state import words as say
from rlinf_async.weights.waiting.changes import Changes
from rlinf_async.work import Work


class _Line(WorkerLink):
    """A link to a worker that may follow.  It hears the JOIN itself; from then on the publisher listens."""

    def __init__(self, followers: Followers, group: str, rank: int, name: str) -> None:
        self.member = (group, rank)
        self.has_joined = False
        self._followers = followers
        super().__init__(group, rank, name)

    def hear(self, words: Words) -> None:
        if words == [say.JOIN]:
            self._followers._joined(self)

    def hear_end(self, error: Exception) -> None:
        """Heard in ``_end``, whoever listens."""

    def _end(self, error: Exception) -> None:
        # A follower that has left is no receiver any more before the version under way hears of its end, and is not
        # among those that ``delivered`` waits for; one that has died is named there first.
        # tests/weights/test_publish.py::test_a_follower_that_leaves_while_a_version_is_under_way_is_no_failure
        if isinstance(error, ClosedError):
            self._followers._ended(self, error)
            super()._end(error)
        else:
            super()._end(error)
            self._followers._ended(self, error)


class Followers:
    """Those of some groups' ranks that follow.  Called back in whatever thread reads the links.

    Args:
        name: of the weights.
        patience: seconds that ranks of a group that is there have to follow, where ``gather`` is not told.
    """

    def __init__(self, publisher: Publisher, name: str, groups: Sequence[str], patience: float) -> None:
        self._publisher = publisher
        self._name = name
        self._patience = patience
        self._exchange = require_exchange()
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, int], _Line | None] = {}
        """None: it is being made."""
        self._sizes: dict[str, int | None] = dict.fromkeys(groups)
        self._met: set[tuple[str, int]] = set()
        """Ranks that have followed once."""
        self._failures: dict[str, Exception] = {}
        """Not told yet: why a group was not found, by its name; how a rank has ended, by its own."""
        self._changes = Changes()
        self._is_closed = False
        self._forget_introductions = self._exchange.watch_introductions(self._introduced)
        for group in groups:
            self._find(group)

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
                self._open((group, rank))
        self._changes.notify()

    def _introduced(self, group: str, rank: int) -> None:
        if group in self._sizes:
            self._open((group, rank))

    def _open(self, member: tuple[str, int]) -> None:
        """Makes a line to a worker that has none."""
        with self._lock:
            if self._is_closed or member in self._lines:
                return
            self._lines[member] = None
        # Not under the lock: a word that has come is heard by now in the thread that reads it, and asks for the lock.
        line = _Line(self, *member, self._name)
        with self._lock:
            is_over = self._is_closed or line.error is not None
            if not is_over:
                self._lines[member] = line
            else:
                del self._lines[member]
        if not is_over:
            line.listen(line)
        elif line.error is None:
            line.close()
        else:
            self._over(line.member, line.error)

    def _joined(self, line: _Line) -> None:
        line.has_joined = True
        try:
            self._publisher.add(_name_of(line.member), line)
        except ClosedError:
            line.close()
        self._met.add(line.member)  # only now: whoever waits for it goes on with the publisher's receivers
        self._failures.pop(line.member[0], None)
        self._changes.notify()

    def _ended(self, line: _Line, error: Exception) -> None:
        with self._lock:
            if self._is_closed or self._lines.get(line.member) is not line:
                return
            del self._lines[line.member]
        with contextlib.suppress(ValueError):  # it had not joined; or the publisher is closed
            self._publisher.remove(_name_of(line.member))
        self._over(line.member, error)

    def _over(self, member: tuple[str, int], error: Exception) -> None:
        """A line has ended: its worker has left, or has ended, and then one of that name may be there already."""
        if isinstance(error, (ClosedError, PeerLost)) and self._exchange.is_there(*member):
            self._met.add(member)
            self._open(member)
        elif not isinstance(error, ClosedError) or member not in self._met:
            self._failures[_name_of(member)] = error
        self._changes.notify()

    # -- what the trainer hears of it ---------------------------------------------------------------------------

    def check(self) -> None:
        """Raises what has happened since the last time, once; a group that was not found is looked for again.

        Raises:
            DeadlineExceeded, ClosedError: there is no group of that name, or it was closed.
            WorkerDied, PeerLost: a rank has ended.
        """
        if self._failures:
            name, error = self._failures.popitem()
            if name in self._sizes:
                self._find(name)
            raise copy_of(error)

    def told(self, names: Iterable[str]) -> None:
        """Of the ends of these ranks the trainer hears elsewhere."""
        for name in names:
            self._failures.pop(name, None)

    @property
    def missing(self) -> list[str]:
        """Groups that are not there, and ranks that have never followed."""
        groups = [f"group '{group}'" for group, size in self._sizes.items() if size is None]
        members = ((group, rank) for group, size in self._sizes.items() for rank in range(size or 0))
        return [*groups, *(_name_of(member) for member in members if member not in self._met)]

    async def gather(self, timeout: float | None) -> None:
        """Waits until every rank of every group has followed once.

        Raises:
            DeadlineExceeded: some have not; names them.
            Exception: as ``check``.
        """
        begun = time.monotonic()
        await self._changes.wait_until(lambda: bool(self._failures) or None not in self._sizes.values(), timeout)
        patience = self._patience if timeout is None else max(0.0, timeout - (time.monotonic() - begun))
        await self._changes.wait_until(lambda: bool(self._failures) or not self.missing, patience)
        self.check()
        if missing := self.missing:
            raise DeadlineExceeded(
                f"{', '.join(missing)} did not follow '{self._name}' within {time.monotonic() - begun:.3g} s: each "
                f"rank of the groups enters follow(model, of=..., name='{self._name}')"
            )

    def close(self) -> None:
        """No more followers; the lines of those that there are belong to the publisher."""
        with self._lock:
            self._is_closed = True
            lines, self._lines = list(self._lines.values()), {}
        self._forget_introductions()
        for line in lines:
            if line is not None and not line.has_joined:
                line.close()


def _name_of(member: tuple[str, int]) -> str:
    return f"{member[0]}:{member[1]}"

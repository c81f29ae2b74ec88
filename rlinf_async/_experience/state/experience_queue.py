"""``ExperienceQueue``: an experience's queue in its daemon, with numbered requests and the trainer's versions.

To senders of frames, it is a channel's ``Queue``, which handles the order of requests, cancels, deaths and leases. Puts
enter a ``SamplePool`` instead of a key's FIFO. Gets are takes of whole groups, or *wishes*, which wait until samples
are wanted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from typing import Any, Final

from rlinf_async._channels.state.actions import ACCEPTED, DELIVER, QueueAction, Step
from rlinf_async._channels.state.queue import Queue
from rlinf_async._channels.state.queue_client import Demand, Item, QueueClient
from rlinf_async._core import clock, frames
from rlinf_async._core.encoded import plain_body
from rlinf_async._experience.state.experience_changes import Advance, Change, Drop, Earlier, Insert, Keeper, Settle
from rlinf_async._experience.state.experience_options import ExperienceOptions
from rlinf_async._experience.state.ledger import STALE, WITHDRAWN
from rlinf_async._experience.state.sample_pool import SampleGroup, SamplePool

TAKE: Final = 0
TAKE_STALE_TOO: Final = 1
WISH: Final = 2
"""Kinds of gets: for fresh groups, for groups including stale ones, and to wait until samples are wanted."""

Name = tuple[bytes | None, bytes]


def pack_name(key: bytes | None, group: bytes) -> bytes:
    return frames.pack([key, group])


def pack_kind(kind: int, key: bytes | None) -> bytes:
    return frames.pack([kind, key])


def _name_of(packed: bytes) -> Name | None:
    key, group = _parts(packed)
    return (key, group) if _is_key(key) and type(group) is bytes else None


def _kind_of(packed: bytes) -> tuple[int, bytes | None] | None:
    kind, key = _parts(packed)
    return (kind, key) if kind in (TAKE, TAKE_STALE_TOO, WISH) and _is_key(key) else None


def _parts(packed: bytes) -> tuple[Any, Any]:
    try:
        first, second = frames.unpack(packed)
    except (frames.FrameError, TypeError, ValueError):
        return 0, 0
    return first, second


def _is_key(key: Any) -> bool:
    return key is None or type(key) is bytes


# This class is not split, although it has more than 30 methods, because its owner treats it as a channel's queue; the
# other methods are for the trainer.
class ExperienceQueue(Queue):
    """The samples of one experience, and the processes that use it.

    Args:
        name: the experience's name, for errors.
        gone: dead clients.
        now: clock that returns seconds.

    Attributes:
        trainer: description of the trainer; empty until it has set a version.
        setters: maps each live process of the trainer to the version that it last set.
        story: description of how the trainer ended, if it will not return.
    """

    def __init__(
        self,
        name: str,
        options: ExperienceOptions,
        keeper: Keeper,
        gone: Container[int] = (),
        now: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(options.maxsize, options.max_bytes, gone)
        self.pool = SamplePool(options)
        self.trainer = ""
        self.setters: dict[int, int] = {}
        self.story = ""
        self._name = name
        self._options = options
        self._keeper = keeper
        self._now = now or clock.monotonic
        self._waiting: OrderedDict[Name, dict[Item, None]] = OrderedDict()
        """Maps each group's name to its puts that wait for room. Groups that already have samples come first."""
        self._takes: dict[Demand, tuple[int, bytes | None]] = {}
        self._wishes: dict[Demand, None] = {}
        self._leases: dict[Demand, list[SampleGroup]] = {}
        self._unwritten = 0
        self._inserts: dict[tuple[int, int], Insert] = {}
        self._producers: set[int] = set()
        self._stale_before = 0

    def __repr__(self) -> str:
        return f"<ExperienceQueue {self._name} [{self.pool!r}, {len(self._leases)} leases]>"

    @property
    def finished(self) -> bool:
        return self.closed and self.pool.is_empty and not self._leases and not self._unwritten

    # -- puts ---------------------------------------------------------------------------------------------------

    def _put(self, client: QueueClient, item: Item, steps: list[Step]) -> None:
        name = _name_of(item.key)
        size, most = self._options.group * item.nbytes, self._options.max_bytes
        if name is None:
            self._fail(item.producer, item.number, "ValueError", f"no group has the name {item.key!r}", steps)
        elif self.closed:
            self._fail(item.producer, item.number, "ClosedError", self._closed_text(), steps)
        elif most and size > most:
            text = (
                f"a group of {self._options.group} samples of {item.nbytes} bytes can never enter experience "
                f"'{self._name}', whose samples may have {most} bytes together: give it a larger max_bytes="
            )
            self._fail(item.producer, item.number, "ValueError", text, steps)
        elif self.pool.is_open(*name) or (not self._waiting and self.pool.has_room(item.nbytes)):
            self._let_in(item, name, steps)
            self._serve(steps)
        elif item.nowait:
            text = f"experience '{self._name}' is full: put() waits for room, with timeout= for so long"
            self._fail(item.producer, item.number, "QueueFull", text, steps)
        else:
            self._waiting.setdefault(name, {})[item] = None
            client.puts[item.number] = item
            self._serve(steps)

    def _let_in(self, item: Item, name: Name, steps: list[Step]) -> None:
        key, group = name
        entered = self.pool.enter(key, group, version=item.weight, nbytes=item.nbytes, body=item.body, now=self._now())
        insert = self._inserts[item.producer, item.number] = Insert(item, *entered)
        self._write(insert, steps)

    def _admit_waiting(self, steps: list[Step]) -> bool:
        for name, items in self._waiting.items():
            item = next(iter(items))
            if not self.pool.is_open(*name) and not self.pool.has_room(item.nbytes):
                return False
            self._forget_waiting(item)
            self._let_in(item, name, steps)
            return True
        return False

    def _forget_waiting(self, item: Item) -> None:
        name = _name_of(item.key)
        assert name is not None
        items = self._waiting[name]
        del items[item]
        if not items:
            del self._waiting[name]
        if (client := self.clients.get(item.producer)) is not None:
            client.puts.pop(item.number, None)

    # -- takes and wishes ---------------------------------------------------------------------------------------

    def _enter(self, get: Demand, steps: list[Step]) -> None:
        kind, key = _kind_of(get.key) or (None, None)
        count, maxsize = get.target or 1, self._options.maxsize
        if kind == WISH:
            self._wishes[get] = None
        elif kind is None or get.lease_s is None:
            self._refuse(get, "ValueError", f"a take with key {get.key!r}", steps)
        elif maxsize and count * self._options.group > maxsize:
            text = (
                f"take(groups={count}) of experience '{self._name}' needs {count * self._options.group} samples, and "
                f"maxsize={maxsize} lets fewer in: take fewer groups, or give it a larger maxsize="
            )
            self._refuse(get, "ValueError", text, steps)
        else:
            get.lease_s = self._options.lease_s
            self._takes[get] = (kind, key)
        self._serve(steps)

    def _serve(self, steps: list[Step]) -> None:
        """Admit puts and serve takes until nothing changes; then grant wishes."""
        self.pool.expire(self._now())
        while self._admit_waiting(steps) or self._serve_takes(steps) or self._avoid_standstill(steps):
            pass
        if self.closed:
            self._end_requests(steps)
        elif self._wishes and (self._takes or self.pool.wants()):
            for get in list(self._wishes):
                self._grant(get, steps)
        elif self.story:
            for get in list(self._wishes):
                self._refuse(get, "PeerLost", self.story, steps)
        removals, self.pool.removals = self.pool.removals, []
        for places, reason in removals:
            self._write(Drop(places, reason), steps)
        self.budget.used = self.pool.nbytes
        self._keeper.wake_at(self.pool.next_deadline)

    def _serve_takes(self, steps: list[Step]) -> bool:
        is_served, shared = False, True
        for get, (kind, key) in list(self._takes.items()):
            if kind == TAKE:
                self.pool.drop_stale()
            groups = self.pool.take(get.target or 1, key, shared=shared)
            if groups is None:
                # This take waits. Later takes must leave the groups without a key to it; otherwise large takes would
                # starve.
                shared = False
                continue
            is_served = True
            del self._takes[get]
            self._leases[get] = groups
            self._stale_before = self._stale
            samples = [sample for group in groups for sample in group.samples]
            facts = [[group.name, [sample.weight for sample in group.samples]] for group in groups]
            self._deliver(get, [self.pool.version, self._options.max_staleness, facts], samples, steps)
        return is_served

    def _deliver(self, get: Demand, facts: Any, samples: Iterable[Item], steps: list[Step]) -> None:
        """Answer a get with an item that describes the samples, followed by the samples themselves."""
        get.items = [_item(plain_body(facts)), *samples]
        get.delivered = True
        steps.append((DELIVER, get))

    def _grant(self, get: Demand, steps: list[Step]) -> None:
        del self._wishes[get]
        del self.clients[get.consumer].gets[get.number]
        self._deliver(get, self.pool.version, (), steps)

    def _avoid_standstill(self, steps: list[Step]) -> bool:
        """Refuse a take that can never be served for lack of room; otherwise it and the puts would wait forever."""
        if not self._takes or not self._waiting or self._leases or self._unwritten or self.pool.has_open:
            return False
        for get, (_, key) in self._takes.items():
            if self.pool.available(key) == self.pool.ready:
                text = (
                    f"take(groups={get.target}) of experience '{self._name}' found {self.pool.ready} groups, which "
                    f"fill max_bytes={self._options.max_bytes}: make that larger, or take fewer groups"
                )
                self._refuse(get, "ValueError", text, steps)
                return True
        return False

    def _end_requests(self, steps: list[Step]) -> None:
        for get in list(self._wishes):
            self._refuse(get, "ClosedError", self._closed_text(), steps)
        if (self._leases or self._unwritten) and not self.pool.is_discarded:
            return  # the leased groups may still be returned
        for get, (_, key) in list(self._takes.items()):
            if not self.pool.available(key):
                text = f"experience '{self._name}' is closed, and no groups are left to take"
                self._refuse(get, "EndOfChannel", text, steps)

    def _fail(self, client_id: int, number: int, kind: str, text: str, steps: list[Step]) -> None:
        steps.append((QueueAction.FAILED, (client_id, number, kind, text)))

    def _refuse(self, get: Demand, kind: str, text: str, steps: list[Step]) -> None:
        self._wishes.pop(get, None)
        self._takes.pop(get, None)
        self.clients[get.consumer].gets.pop(get.number, None)
        self._fail(get.consumer, get.number, kind, text, steps)

    def _closed_text(self) -> str:
        return f"experience '{self._name}' is closed; nothing can be put there any more"

    def _withdraw(self, puts: Iterable[Item], gets: Iterable[Demand], steps: list[Step]) -> None:
        for item in puts:
            self._forget_waiting(item)
        for get in gets:
            self._takes.pop(get, None)
            self._wishes.pop(get, None)
            self.pool.give_back(self._leases.pop(get, ()))
        self._serve(steps)

    def cancel(self, client_id: int, *numbers: int) -> list[Step]:
        for number in numbers:
            if (insert := self._inserts.get((client_id, number))) is not None:
                insert.is_withdrawn = True  # the producer sees a withdrawn put, whatever the disk reports
        return super().cancel(client_id, *numbers)

    def confirm(self, consumer: int, number: int, count: int, steps: list[Step]) -> bool:
        return False  # ``settle`` confirms instead, because its answer may have to wait for a disk

    def settle(
        self, holder: int, number: int, count: int, done: Callable[[Exception | None], None]
    ) -> list[Step] | None:
        """Confirm the first ``count`` groups of a lease. Return None if the lease has ended or has fewer groups."""
        client = self.clients.get(holder)
        get = None if client is None else client.gets.get(number)
        groups = None if get is None else self._leases.get(get)
        if client is None or get is None or groups is None or not 0 < count <= len(groups):
            return None
        settled = groups[:count]
        del groups[:count]
        get.items.clear()  # drop the delivered samples; the groups keep those that may return
        if not groups:
            del self._leases[get]
            del client.gets[number]
        steps: list[Step] = []
        self._write(Settle(settled, done), steps)
        self._serve(steps)
        return steps

    # -- writing ------------------------------------------------------------------------------------------------

    def _write(self, change: Change, steps: list[Step]) -> None:
        if self._keeper.is_durable:
            self._unwritten += 1
            self._keeper.write(change)
        else:
            self._apply(change, None, steps)

    def when_written(self, done: Callable[[Exception | None], None]) -> list[Step]:
        """Call ``done`` once all earlier changes are on disk."""
        steps: list[Step] = []
        self._write(Settle([], done), steps)
        return steps

    def written(self, change: Change, error: Exception | None) -> list[Step]:
        """Apply a change that is on disk, or handle the failure to write it."""
        steps: list[Step] = []
        self._unwritten -= 1
        self._apply(change, error, steps)
        self._serve(steps)
        return steps

    def _apply(self, change: Change, error: Exception | None, steps: list[Step]) -> None:
        match change:
            case Insert(item, group, sample, is_withdrawn):
                del self._inserts[item.producer, item.number]
                if error is None and not is_withdrawn:
                    self.pool.accept((group, sample))
                    if item.producer not in self._gone:
                        self._producers.add(item.producer)
                    steps.append((ACCEPTED, item))
                    return
                self.pool.withdraw((group, sample), WITHDRAWN if error is None else "")
                # A full group that lost a sample is incomplete again, and might wait behind puts that find no room, so
                # its puts go first. tests/_experience/state/test_experience_queue.py::
                # test_a_group_that_is_open_again_has_the_next_put_for_it
                if self.pool.is_open(*(name := (group.key, group.name))) and name in self._waiting:
                    self._waiting.move_to_end(name, last=False)
                if error is not None:
                    self._fail(item.producer, item.number, "OSError", f"{error}; the sample was not put", steps)
            case Settle(groups, done):
                if error is None:
                    self.pool.confirm(groups)
                else:
                    self.pool.give_back(groups)
                done(error)

    # -- the trainer --------------------------------------------------------------------------------------------

    def set_version(self, setter: int, trainer: str, version: int, *, restart: bool) -> list[Step]:
        """Record the version of one of the trainer's processes.

        Raises:
            ValueError: the version decreases without ``restart``, or another trainer sets the versions.
        """
        steps: list[Step] = []
        if self.client(setter) is None:
            return steps
        where = f"experience '{self._name}'"
        if self.setters and trainer != self.trainer:
            raise ValueError(
                f"set_version({version}) of {where} by {trainer}: {self.trainer} sets its versions, and an experience "
                "has one trainer: give each an experience of its own"
            )
        if version < (before := self.setters.get(setter, -1)) and not restart:
            raise ValueError(
                f"set_version({version}) of {where} by {trainer}: it has set version {before}, and versions rise; "
                f"where it has gone back to a checkpoint, write set_version({version}, restart=True)"
            )
        if restart:
            # The other ranks have not yet set the version to which they return.
            self.setters = dict.fromkeys(self.setters, -1)
        self.trainer, self.story = trainer, ""
        self.setters[setter] = version
        self._advance(steps)
        return steps

    def _advance(self, steps: list[Step]) -> None:
        version = max(self.setters.values())  # some ranks may lag briefly
        if version not in (-1, self.pool.version):
            self.pool.set_version(version)
            self._write(Advance(version), steps)
        self._serve(steps)

    def end_wishes(self, story: str) -> list[Step]:
        """Refuse all wishes, because the trainer has ended and will not return."""
        steps: list[Step] = []
        if not self.setters:
            self.story = self.story or story  # the first report contains the last output
            self._serve(steps)
        return steps

    def count_earlier(self, version: int | None, taken: int, dropped: dict[str, int]) -> list[Step]:
        """Load the counts of another experience; keep a version that the trainer has already set.

        Raises:
            ValueError: this experience already has samples.
        """
        steps: list[Step] = []
        earlier = Earlier(self.pool.version if self.setters else version, taken, dropped)
        self.pool.count_earlier(earlier.version, taken, dropped)
        self._write(earlier, steps)
        self._serve(steps)
        return steps

    # -- ends ---------------------------------------------------------------------------------------------------

    def drop(self, client_id: int, *, is_lost: bool = False) -> list[Step]:
        self._producers.discard(client_id)
        steps = super().drop(client_id, is_lost=is_lost)
        if self.setters.pop(client_id, None) is not None:
            if self.setters:
                # The replacement process may have set a lower version before this node learned about the death.
                # tests/_experience/state/test_experience_queue.py::test_the_version_of_a_dead_process_counts_no_more
                self._advance(steps)
            else:
                self._keeper.trainer_gone(client_id)
        return steps

    def expire(self) -> list[Step]:
        steps: list[Step] = []
        self._serve(steps)
        return steps

    def close(self, *, discard: bool = False) -> list[Step]:
        steps: list[Step] = []
        waiting = [] if self.closed else [item for items in self._waiting.values() for item in items]
        self.closed = True
        for item in waiting:
            self._forget_waiting(item)
            self._fail(item.producer, item.number, "ClosedError", self._closed_text(), steps)
        self.pool.close(discard=discard)
        self._serve(steps)
        return steps

    # -- queries ------------------------------------------------------------------------------------------------

    @property
    def used(self) -> list[bytes]:
        return [b""]

    def size(self, key: bytes) -> int:
        return self.pool.ledger().present

    def waiting(self, key: bytes) -> tuple[int, int]:
        return sum(map(len, self._waiting.values())), len(self._takes)

    def peek(self, key: bytes) -> list[Item]:
        """Return the content: an item with counts and names, then all samples, including leased ones."""
        entries = [*self.pool.samples(), *((group, sample) for groups in self._leases.values() for group in groups
                                       for sample in group.samples)]  # fmt: skip
        entries.sort(key=lambda each: (each[0].serial, each[1].place))
        ledger = self.pool.ledger()
        facts = [[group.serial, group.key, group.name, sample.weight] for group, sample in entries]
        head = plain_body([ledger.version, ledger.taken, ledger.dropped, facts])
        return [_item(head), *(sample for _, sample in entries)]

    @property
    def _stale(self) -> int:
        return self.pool.ledger().dropped.get(STALE, 0)

    def describe(self, key: bytes) -> str:
        """Describe why a take, a put or a wish waits."""
        kind, of_key = _kind_of(key) or (None, None)
        ready = self.pool.available(of_key)
        groups, lack = self.pool.lacking()
        words = [f"{ready} group{'s' * (ready != 1)} can be taken"]
        if kind == WISH:
            words.append(f"more would be stale before its turn: the trainer has version {self.pool.version}")
            words.append(f"{self.trainer} has not asked for the next groups" if self.setters else "no trainer is there")
            return "; ".join(words)
        if not self._producers:
            words.append("no producer is left" if self.pool.ledger().put else "no producer has put anything")
        if groups:
            words.append(f"{groups} group{'s are' if groups != 1 else ' is'} incomplete and lack{'s' * (groups == 1)} "
                         f"{lack} sample{'s' * (lack != 1)}")  # fmt: skip
        if stale := self._stale - self._stale_before:
            words.append(
                f"{stale} sample{'s were' if stale != 1 else ' was'} dropped since the last take, as more than "
                f"{self._options.max_staleness} versions behind the trainer's version {self.pool.version}"
            )
        puts, takes = self.waiting(key)
        return "; ".join([*words, f"{puts} put{'s' * (puts != 1)} and {takes} take{'s' * (takes != 1)} wait"])


def _item(body: bytes) -> Item:
    return Item(0, 0, b"", 0, len(body), body, False)

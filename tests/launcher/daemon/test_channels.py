"""Channels of one daemon, with recording processes."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_async._channels.state import put_window
from rlinf_async._channels.state.channel_keys import key_of
from rlinf_async._channels.state.put_window import ITEM_OVERHEAD_BYTES
from rlinf_async._core import frames, operations
from rlinf_async._core.frames import FrameError
from rlinf_async._core.segment import write_segment
from rlinf_async._inspection.state.run_report import QueueReport
from rlinf_launcher.daemon import channel_replies, routed_frames
from rlinf_launcher.daemon.channel_replies import HostedChannel
from rlinf_launcher.daemon.channels import Channels
from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.router import Router

NUMBER = 5
"""Of the one channel."""

SIZE = 100_000


class Process:
    """A process of this node with an endpoint; records the frames that it gets."""

    def __init__(self, channels: Daemon, role: str = "worker") -> None:
        self.endpoint: Endpoint = channels.router.new_endpoint(role)
        self.endpoint.connection = self  # type: ignore[assignment]
        self.sent: list[Any] = []
        self.queued_bytes = 0
        self.unread: list[bytes] = []
        self._daemon = channels
        self._said = 0

    @property
    def id(self) -> int:
        return self.endpoint.id

    def send(self, frame: Any, fds: Any = ()) -> None:
        self.sent.append(list(frame))
        for fd in fds:
            os.close(fd)

    def heard(self) -> list[Any]:
        """Return new messages as (word, facts), and single items as ("give", number, body)."""
        sent, self.sent = self.sent, []
        heard: list[Any] = []
        for frame in sent:
            if frame[0] == frames.GIVE:
                heard.append(("give", frame[5], frame[9]))
            elif frame[5] == "replies":
                heard.append(("replies", frame[6][:2] + ([frame[6][2]] if frame[6][2] else [])))
            else:
                heard.append((frame[5], frame[6]))
        return heard

    def read_available(self) -> None:
        """Send the frames that were queued on its socket."""
        unread, self.unread = self.unread, []
        for body in unread:
            self.put(body, frames.SENT)

    def say(self, frame: list[Any], fds: list[int] | None = None) -> None:
        self._daemon.router.from_endpoint(self.endpoint, frame, fds or [])

    def put(
        self, body: Any, mode: int = frames.WAIT, fds: list[int] | None = None, key: Any = b"k", weight: Any = 0
    ) -> int:
        self._said += 1
        self.say([frames.PUT, len(fds or ()), 0, 0, NUMBER, self._said, key, weight, mode, body], fds)
        return self._said

    def put_large(self) -> int:
        return self.put(SIZE, fds=[write_segment([bytes(SIZE)], SIZE)])

    def get(self, target: Any = None, key: Any = b"k", taken: Any = None) -> int:
        self._said += 1
        self.say([frames.GET, 0, 0, 0, NUMBER, self._said, key, target, taken])
        return self._said

    def takes(self, *gets: int) -> None:
        """Confirm all items of these gets."""
        self.tell("taken", [[get, 1 << 20] for get in gets])

    def tell(self, what: str, facts: Any) -> None:
        self.say([frames.QUEUE, 0, 0, 0, NUMBER, what, facts])


class Daemon:
    def __init__(self) -> None:
        self.gone: set[int] = set()
        loop = asyncio.get_running_loop()
        self.asked: list[tuple[str, Any]] = []
        """Of node 0's daemon, which is this one."""
        self.router = Router(loop, 0, lambda source, ask, operation, facts: self.asked.append((operation, facts)))
        self.channels = Channels(loop, self.router, self.gone, budget=1 << 30)

    async def host(self, owner: int, *, maxsize: int = 0, max_bytes: int = 0) -> None:
        await self.channels.host_channel(Requester(owner, 1), operations.HostChannel(NUMBER, "obs", maxsize, max_bytes))

    async def close(self, closer: Process, *, discard: bool = False) -> Any:
        return await self.channels.close_channel(Requester(closer.id, 9), operations.CloseChannel(NUMBER, discard))

    def die(self, process: Process, *, ended: bool = False) -> None:
        self.gone.add(process.id)
        self.channels.drop_client(process.id)
        if ended:
            self.channels.drop_owner(process.id)


@pytest.fixture
async def daemon() -> Daemon:
    return Daemon()


async def turn() -> None:
    """Let the loop's turn end."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def open_segments() -> int:
    return sum("memfd:rlinf" in os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())


async def test_what_happens_in_one_turn_is_told_in_one_frame(daemon: Daemon) -> None:
    producer, consumer = Process(daemon), Process(daemon)
    await daemon.host(producer.id)
    for _ in range(3):
        producer.put(b"x")
        consumer.get()
    assert producer.sent == consumer.sent == []
    await turn()
    assert producer.heard() == [("replies", [[1, 2, 3], []])]
    given = [(number, False, False, b"x") for number in (1, 2, 3)]
    assert consumer.heard() == [("replies", [[], given])]


async def test_a_large_item_does_not_overtake_a_small_one(daemon: Daemon) -> None:
    producer, consumer = Process(daemon), Process(daemon)
    await daemon.host(producer.id)
    consumer.get()
    consumer.get()
    producer.put(b"small")
    producer.put_large()
    await turn()
    assert consumer.heard() == [("replies", [[], [(1, False, False, b"small")]]), ("give", 2, SIZE)]
    consumer.takes(1, 2)


@pytest.mark.parametrize(
    "take",
    [
        lambda consumer, get: consumer.takes(get),
        lambda consumer, get: consumer.tell("requests", [[], [], [[get, 1]]]),
        lambda consumer, get: consumer.get(taken=[[get, 1]]),
    ],
    ids=["by itself", "with other requests", "with the next get"],
)
async def test_a_segment_is_held_until_it_is_taken(daemon: Daemon, take: Callable[[Process, int], None]) -> None:
    producer, consumer = Process(daemon), Process(daemon)
    await daemon.host(producer.id)
    before = open_segments()
    producer.put_large()
    daemon.die(producer)
    get = consumer.get()
    assert open_segments() == before + 1
    assert consumer.heard()[-1] == ("give", get, SIZE)
    take(consumer, get)
    assert open_segments() == before
    assert daemon.channels.status()["obs"]["bytes"] == 0


async def test_without_descriptors_a_daemon_reports_and_keeps_the_items(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer, other = Process(daemon), Process(daemon), Process(daemon)
    await daemon.host(producer.id)
    before = open_segments()
    waiting = other.get()
    producer.put(b"small", weight=1)
    for _ in range(2):
        producer.put(SIZE, fds=[write_segment([bytes(SIZE)], SIZE)], weight=1)
    with monkeypatch.context() as patch:
        copies = [os.dup(0), OSError(errno.EMFILE, "no more"), OSError(errno.EMFILE, "no more"), OSError()]
        patch.setattr(os, "dup", Mock(side_effect=copies))
        batch = consumer.get(target=2)  # its first item could be sent
        later = consumer.get()
        consumer.tell("peek", [1, b"k"])
        await turn()
    refused = [(word, facts[:2]) for word, facts in consumer.heard()]
    assert refused == [("failed", [number, "OSError"]) for number in (batch, later, -1)]
    assert other.heard() == [("replies", [[], [(waiting, False, False, b"small")]])]  # the others are none the worse
    assert open_segments() == before + 2
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copies[0])
    batch = consumer.get(target=2)
    assert [word for word, *_ in consumer.heard()] == ["give", "give"]
    consumer.takes(batch)


@pytest.mark.parametrize("end", ["cancel", "death", "owner"])
async def test_no_segment_of_a_waiting_put_outlives_the_wish(daemon: Daemon, end: str) -> None:
    owner, producer = Process(daemon, "driver"), Process(daemon)
    await daemon.host(owner.id, maxsize=1)
    before = open_segments()
    producer.put(b"first")
    number = producer.put_large()
    assert open_segments() == before + 1
    if end == "cancel":
        producer.tell("cancel", [number])
    else:
        daemon.die(producer if end == "death" else owner, ended=end == "owner")
    assert open_segments() == before


async def test_a_dead_consumers_item_goes_to_the_next_flagged(daemon: Daemon) -> None:
    producer, first, second = Process(daemon), Process(daemon), Process(daemon)
    await daemon.host(producer.id)
    first.get()
    second.get()
    producer.put(b"x")
    daemon.die(first)
    await turn()
    assert second.heard() == [("replies", [[], [(1, False, True, b"x")]])]


async def test_a_queues_report_names_producers_and_consumers(daemon: Daemon) -> None:
    owner, producer, consumer, onlooker = (Process(daemon) for _ in range(4))
    await daemon.host(owner.id, maxsize=2)
    onlooker.tell("size", [1, b"k"])
    get = consumer.get()
    for key in (b"k", b"k", b"k", b"other"):
        producer.put(b"x", key=key)
    await turn()
    consumer.takes(get)
    clients = [producer.id, consumer.id, onlooker.id]
    (report,) = daemon.channels.reports()
    nbytes = 3 * (1 + ITEM_OVERHEAD_BYTES)
    assert report == QueueReport(
        NUMBER, "obs", 0, 3, nbytes, 2, False, producers=clients[:1], consumers=clients[1:2], clients=clients
    )
    daemon.die(producer)
    daemon.die(consumer)
    (report,) = daemon.channels.reports()
    assert (report.items, report.producers, report.consumers, report.clients) == (3, [], [], clients[2:])


async def test_an_empty_key_is_described_with_keys_that_have_items(daemon: Daemon) -> None:
    owner, producer, consumer = (Process(daemon) for _ in range(3))
    await daemon.host(owner.id)
    for key in (b"sobs", *(b"sk%d" % number for number in range(5))):
        producer.put(b"x", key=key)
    consumer.get(key=b"strain_obs")
    await turn()
    words = daemon.channels.describe(NUMBER, b"strain_obs")
    assert words.startswith("0 items under this key, 0 puts and 1 get wait; ")
    assert words.endswith("; there are items under 'obs', 'k0', 'k1', 'k2' and 2 more")
    assert "there are items" not in daemon.channels.describe(NUMBER, b"sobs")


async def test_a_report_counts_those_that_wait_although_nothing_has_moved(daemon: Daemon) -> None:
    producer, consumer, batching = (Process(daemon) for _ in range(3))
    await daemon.host(producer.id, max_bytes=SIZE + 1000)
    consumer.get(key=b"elsewhere")
    batching.get(key=b"elsewhere", target=5)
    producer.put_large()
    (before,) = daemon.channels.reports()
    producer.put_large()
    (report,) = daemon.channels.reports()
    assert (before.full, report.full, report.items) == (False, True, 1)
    assert report.producers == [producer.id]
    assert report.consumers == [consumer.id, batching.id]
    for _ in range(2):
        batching.takes(batching.get())


@pytest.mark.parametrize("large", [False, True])
async def test_receivers_of_large_or_many_items_are_consumers(daemon: Daemon, large: bool) -> None:
    producer, consumer = Process(daemon), Process(daemon)
    await daemon.host(producer.id)
    gets = []
    for _ in range(1 if large else 1024):
        producer.put_large() if large else producer.put(b"x")
        gets.append(consumer.get())
    consumer.takes(*gets)
    (report,) = daemon.channels.reports()
    assert report.consumers == [consumer.id]
    await turn()
    (report,) = daemon.channels.reports()
    assert report.producers == [producer.id]


async def test_who_puts_without_an_answer_is_known_as_a_producer(daemon: Daemon) -> None:
    producer = Process(daemon)
    await daemon.host(producer.id)
    await known(daemon, producer)
    producer.put(b"y", frames.SENT)
    await turn()
    (report,) = daemon.channels.reports()
    assert (report.items, report.producers) == (2, [producer.id])


async def test_a_refusal_says_what_of_which_channel(daemon: Daemon) -> None:
    process = Process(daemon)
    await daemon.host(process.id, maxsize=1, max_bytes=10_000)
    process.get(target=frames.NOW)
    process.put(b"x")
    process.put(b"y", frames.NOWAIT)
    process.put(bytes(10_000))
    await turn()
    heard = [facts[:2] for word, facts in process.heard() if word == "failed"]
    assert heard == [[1, "QueueEmpty"], [3, "QueueFull"], [4, "ValueError"]]


async def test_who_uses_a_channel_that_is_gone_is_told(daemon: Daemon) -> None:
    process = Process(daemon)
    process.put(b"x")
    process.get()
    process.tell("size", [1, b"k"])
    process.takes(1)  # needs no answer
    assert process.heard() == [("gone", "")] * 3


async def test_a_closed_channel_is_gone_with_its_last_item(daemon: Daemon) -> None:
    process = Process(daemon)
    await daemon.host(process.id, maxsize=2)
    process.put(b"x")
    assert await daemon.close(process) is True
    get = process.get()
    await turn()
    assert "obs" in daemon.channels.status()
    process.heard()
    process.takes(get)
    assert process.heard() == [("gone", "")]
    assert daemon.channels.status() == {}


async def known(daemon: Daemon, process: Process) -> None:
    """Put an item, so that the process's socket is read before questions are answered."""
    process.put(b"first")
    await turn()
    process.heard()


async def test_sent_items_are_acknowledged_by_half_a_window(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_window, "WINDOW_BYTES", 4 * ITEM_OVERHEAD_BYTES)
    process = Process(daemon)
    await daemon.host(process.id)
    await known(daemon, process)
    process.put(b"x", frames.SENT)
    await turn()
    assert process.sent == []
    process.put(b"x", frames.SENT)
    await turn()
    assert process.heard() == [("replies", [[], [], 2 * (ITEM_OVERHEAD_BYTES + 1)])]


async def test_items_on_a_producers_socket_precede_the_close(daemon: Daemon) -> None:
    owner, producer = Process(daemon, "driver"), Process(daemon)
    await daemon.host(owner.id)
    await known(daemon, producer)
    producer.unread = [b"on its socket"]
    assert await daemon.close(owner) is True
    assert daemon.channels._hosted[NUMBER].queue.size(b"k") == 2
    assert producer.heard() == [("answer_puts", None)]
    producer.put(b"too late", frames.SENT)
    assert producer.heard() == [("lost", 1)]
    get = owner.get(target=[2, frames.WAIT])
    await turn()
    ((_, (*_, freed)),) = producer.heard()  # of the one that came too late as well: the next put waits for no room
    assert freed == len(b"on its socket" + b"too late") + 2 * ITEM_OVERHEAD_BYTES
    owner.takes(get)
    producer.put(b"much too late", frames.SENT)
    assert producer.heard() == [("gone", ""), ("lost", 1), ("gone", "")]


async def test_a_put_accepted_in_the_turn_of_close_is_told(daemon: Daemon) -> None:
    producer = Process(daemon)
    await daemon.host(producer.id)
    producer.put(b"first")
    assert await daemon.close(producer) is True
    assert [what for what, _ in producer.heard()] == ["replies", "answer_puts"]


async def test_an_expired_lease_goes_back_and_is_told(daemon: Daemon) -> None:
    producer, holder, other = Process(daemon), Process(daemon), Process(daemon)
    await daemon.host(producer.id, maxsize=9)
    for body in (b"a", b"b", b"c"):
        producer.put(body)
    short, long = holder.get(target=[2, frames.LEASE, 0.01]), holder.get(target=[1, frames.LEASE, 0.0])
    waiting = other.get()
    holder.tell("confirm", [1, short, 1])
    await asyncio.sleep(0.05)
    holder.tell("confirm", [2, short, 1])
    holder.tell("confirm", [3, long, 1])
    confirmed, replies, lost, (word, facts), last = holder.heard()
    assert replies[0] == "replies"
    assert (confirmed, lost, last) == (("confirmed", [1]), ("lease_lost", [short]), ("confirmed", [3]))
    assert (word, facts[:2]) == ("failed", [-2, "LeaseLost"])
    assert other.heard() == [("replies", [[], [(waiting, False, True, b"b")]])]


@pytest.mark.parametrize("end", ["confirmed", "cancelled", "dead", "discarded"])
async def test_no_timer_outlives_its_lease(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    loop = asyncio.get_running_loop()
    timer = loop.call_later(600.0, print)
    monkeypatch.setattr(loop, "call_later", lambda *_: timer)
    process = Process(daemon)
    await daemon.host(process.id)
    process.put(b"a")
    lease = process.get(target=[1, frames.LEASE, 600.0])
    assert not timer.cancelled()
    if end == "confirmed":
        process.tell("confirm", [1, lease, 1])
    elif end == "cancelled":
        process.tell("cancel", [lease])
    elif end == "dead":
        daemon.die(process)
    else:
        await daemon.close(process, discard=True)
    assert timer.cancelled()


async def test_a_waiting_put_is_cancelled_and_an_accepted_one_not(daemon: Daemon) -> None:
    process = Process(daemon)
    await daemon.host(process.id, maxsize=1)
    there, waits = process.put(b"a"), process.put(b"b")
    await turn()
    process.heard()
    process.tell("cancel", [there])
    process.tell("cancel", [waits])
    process.tell("skip", [3])
    process._said = 3
    process.put(b"c", frames.NOWAIT)
    waits_too = process.put(b"d")
    assert process.get(frames.NOW)  # makes room in the same turn
    process.tell("cancel", [waits_too])
    await turn()
    heard = [(word, facts[0]) for word, facts in process.heard()]
    assert heard == [
        ("cancelled", there), ("cancelled", waits), ("failed", 4), ("replies", [waits_too]), ("cancelled", waits_too),
    ]  # fmt: skip


async def test_a_question_is_answered_after_producers_sockets_are_read(daemon: Daemon) -> None:
    asker, producer = Process(daemon), Process(daemon)
    await daemon.host(asker.id)
    await known(daemon, producer)
    producer.unread = [b"on its socket"]
    asker.tell("size", [1, b"k"])
    await turn()
    assert asker.heard() == [("size", [1, 2, False])]
    for _ in range(2):
        asker.takes(asker.get())
    await turn()
    asker.heard()
    producer.unread = [b"another"]
    get = asker.get(target=frames.NOW)
    await turn()
    assert asker.heard() == [("replies", [[], [(get, False, False, b"another")]])]


async def test_processes_that_ask_without_a_pause_leave_the_daemon_its_turns(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Process(daemon), Process(daemon)
    await daemon.host(one.id)
    questions = iter(range(1, 100))
    for each in (one, other):
        await known(daemon, each)
        monkeypatch.setattr(each, "read_available", lambda each=each: each.tell("size", [next(questions), b"k"]))
    one.tell("size", [100, b"k"])
    await turn()
    assert len(one.heard() + other.heard()) < 10


async def test_a_malformed_question_does_not_block_other_answers(daemon: Daemon) -> None:
    wild, asker, producer = Process(daemon), Process(daemon), Process(daemon)
    await daemon.host(asker.id)
    await known(daemon, producer)
    wild.get(target=frames.NOW, key=["k"])
    asker.tell("size", [1, b"k"])
    await turn()
    assert asker.heard() == [("size", [1, 1, False])]


async def test_channels_end_with_their_driver_or_the_workers_group(daemon: Daemon) -> None:
    owner, user = Process(daemon), Process(daemon)
    await daemon.host(owner.id)
    user.get()
    daemon.die(owner)
    assert user.heard() == []
    daemon.die(owner, ended=True)
    ((word, why),) = user.heard()
    assert word == "gone"
    assert "its group is closed" in why
    assert daemon.asked == [("QueueEnded", {"number": NUMBER})]


async def test_a_discarded_channel_is_gone_for_all_at_once(daemon: Daemon) -> None:
    owner, producer, consumer = Process(daemon, "driver"), Process(daemon), Process(daemon)
    await daemon.host(owner.id)
    await known(daemon, producer)
    got = consumer.get()
    waiting = consumer.get()
    await turn()
    consumer.heard()
    assert await daemon.close(owner, discard=True) is True
    ended, gone = consumer.heard()
    assert (ended[0], ended[1][:2]) == ("failed", [waiting, "EndOfChannel"])
    assert gone == ("gone", "")
    assert producer.heard() == [("gone", "")]
    producer.put(b"on its way", frames.SENT)
    assert producer.heard() == [("gone", "")], "and nothing is told as lost"
    consumer.takes(got)
    assert daemon.channels.status() == {}
    assert daemon.asked == [("QueueEnded", {"number": NUMBER})]


async def test_a_process_that_only_asked_learns_of_the_end(daemon: Daemon) -> None:
    owner, asker = Process(daemon), Process(daemon)
    await daemon.host(owner.id)
    asker.tell("size", [1, b"k"])
    assert await daemon.close(owner) is True
    assert asker.heard() == [("size", [1, 0, False]), ("gone", "")]


async def test_every_request_to_an_unknown_channel_is_answered(daemon: Daemon) -> None:
    process = Process(daemon)
    for ask in (
        lambda: process.put(b"x"),
        lambda: process.get(),
        lambda: process.get(target=frames.NOW),
        lambda: process.tell("size", [1, b"k"]),
        lambda: process.tell("peek", [1, b"k"]),
        lambda: process.tell("requests", [[(1, b"k", 0, frames.WAIT, b"a")], [], []]),
    ):
        ask()
        assert process.heard() == [("gone", "")]


async def test_nonsense_is_refused_and_harms_nobody_else(daemon: Daemon) -> None:
    wild, process = Process(daemon), Process(daemon)
    await daemon.host(process.id)
    for attempt in (
        lambda: wild.get(target="much"),
        lambda: wild.get(key=["k"]),
        lambda: wild.get(target=-3),
        lambda: wild.get(target=[1.5]),
        lambda: wild.put(-1),
        lambda: wild.put(b"x", weight=1.5),
        lambda: wild.put(b"x", weight=-1),
        lambda: wild.tell("cancel", 7),
    ):
        with pytest.raises(TypeError):
            attempt()
    with pytest.raises(FrameError):  # no body
        wild.put(None)
    with pytest.raises(FrameError):  # descriptors that are no sealed memory
        wild.put(10, fds=[os.open("/dev/null", os.O_RDONLY)])
    with pytest.raises(FrameError):  # for another process
        wild.say([frames.QUEUE, 0, 0, process.id, NUMBER, "replies", [[1], []]])
    process.put(b"x")
    process.get()
    await turn()
    assert process.heard() == [("replies", [[1], [(2, False, False, b"x")]])]


async def test_a_malformed_request_is_answered_and_the_next_one_done(daemon: Daemon) -> None:
    process = Process(daemon)
    await daemon.host(process.id)
    nonsenses: list[Callable[[], int]] = [lambda: process.put(b"x", weight="3"), lambda: process.get(target=True)]
    for nonsense in nonsenses:
        with pytest.raises(TypeError, match="channel 'obs' can make nothing of a"):
            nonsense()
    process.put(b"x")
    process.get()
    await turn()
    failed, also_failed, news = process.heard()
    for number, (word, (refused, kind, text)) in enumerate((failed, also_failed), 1):
        assert (word, refused, kind) == ("failed", number, "ValueError")
        assert text.startswith("channel 'obs' can make nothing of a ")
    assert news == ("replies", [[3], [(4, False, False, b"x")]])


@pytest.mark.parametrize(
    ("mode", "told"), [(frames.WAIT, ("failed", "[1, 'OSError', ")), (frames.SENT, ("lost", "1"))], ids=str
)
async def test_a_put_that_lost_its_content_is_refused(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, mode: int, told: tuple[str, str]
) -> None:
    monkeypatch.setattr(
        routed_frames, "write_segment", Mock(side_effect=OSError(errno.EMFILE, "no descriptor is free"))
    )
    monkeypatch.setattr(frames, "MAX_UNSEALED_BYTES", 8)
    process = Process(daemon)
    await daemon.host(process.id)
    process.put(memoryview(bytes(9)), mode)
    process.put(b"x")
    await turn()
    (word, facts), news = process.heard()
    assert (word, str(facts)[: len(told[1])]) == told
    assert news == ("replies", [[2], []])


async def test_of_what_is_asked_together_only_the_nonsense_is_refused(daemon: Daemon) -> None:
    process = Process(daemon)
    await daemon.host(process.id)
    puts = [(1, b"k", 0, frames.WAIT, b"a"), (2, b"k", 1.5, frames.WAIT, b"b"), (3, b"k", 0, frames.WAIT, b"c")]
    with pytest.raises(TypeError, match=r"weight 1\.5 and 1 bytes"):
        process.tell("requests", [puts, [(4, b"k", "much"), (5, b"k", None)], []])
    await turn()
    heard = process.heard()
    assert [facts[0] for word, facts in heard if word == "failed"] == [2, 4]
    assert heard[-1] == ("replies", [[1, 3], [(5, False, False, b"a")]])


async def test_a_present_batch_is_given_and_a_missing_one_refused(daemon: Daemon) -> None:
    process = Process(daemon)
    await daemon.host(process.id)
    process.put(b"a", weight=2)
    process.get(target=[3])
    await turn()
    assert [word for word, _ in process.heard()] == ["failed", "replies"]
    process.put(b"b", weight=1)
    get = process.get(target=[3])
    await turn()
    given = [(get, True, False, b"a"), (get, False, False, b"b")]
    ((word, (_, had)),) = process.heard()
    assert (word, had) == ("replies", given)


async def test_small_items_share_frames_and_large_ones_do_not(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_replies, "_MAX_ITEMS_PER_FRAME", 2)
    producer, consumer = Process(daemon), Process(daemon)
    await daemon.host(producer.id)
    for body in (b"a", b"b", b"c", b"d"):
        producer.put(body)
    producer.put_large()
    several = consumer.get(target=[3, frames.SOME])
    others = consumer.get(target=[3, frames.SOME])
    nothing = consumer.get(target=[3, frames.SOME])
    await turn()
    *heard, refused = consumer.heard()
    assert heard == [
        ("replies", [[], [(several, True, False, b"a"), (several, True, False, b"b")]]),
        ("replies", [[], [(several, False, False, b"c")]]),
        ("give", others, b"d"),
        ("give", others, SIZE),
    ]
    assert refused[0] == "failed"
    assert refused[1][:2] == [nothing, "QueueEmpty"]
    consumer.takes(several, others)
    assert daemon.channels.status()["obs"]["keys"] == 0


async def test_what_only_daemons_say_does_not_come_from_a_process(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    wild, process = Process(daemon), Process(daemon)
    wild.say([frames.GIVE, 0, 0, process.id, NUMBER, 1, False, 0, False, b"x"])
    assert process.sent == []
    assert "is not its to send" in caplog.text


def test_a_get_that_waits_hears_of_the_keys_that_have_items() -> None:
    sizes = {b"sfull": 2, b"sused up": 0, b"swanted": 0}
    queue: Any = SimpleNamespace(
        size=sizes.__getitem__, waiting=lambda key: (0, 1), used=list(sizes), clients={1: None}
    )
    text = HostedChannel(1, "x", 1, queue, is_bounded=False).describe(b"swanted")
    assert text.startswith("0 items under this key, 0 puts and 1 get wait; ")
    assert text.partition("there are items under ")[2] == repr(key_of(b"sfull"))

"""Cleanup after a process: complete, also where one part of it raises."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import frames, operations
from rlinf_async._core.frames import FrameError
from rlinf_async._core.operations import OPERATIONS, Operation
from rlinf_async.errors import AuthError
from rlinf_launcher.daemon.cleanup import run_all
from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.router import Router
from rlinf_launcher.daemon.service import DaemonService
from rlinf_launcher.daemon.worker_groups import LocalGroup, Site

NODE = 3
"""Of the daemon: so that endpoint ids are large numbers, which stand for nothing else."""

CHANNEL = 1
HERE = NODE << 32
NONSENSE = [b"k", b"", "obs", "", 0, 1, 2, 5, 1.5, -1, None, True, [], [1], [[1]], {}, {"a": 1}, 1 << 40]
HARMLESS = sorted(
    OPERATIONS.keys() - {"Spawn", "FindHardware", "OpenTrace"}  # these start processes, and write files
)
SEEDS = int(os.environ.get("SEEDS", "300"))
"""More of them take longer, and find more."""


class Client:
    """A process of the node, as far as a daemon knows it; it remembers what it is sent."""

    def __init__(self, daemon: Daemon) -> None:
        self.endpoint: Endpoint = daemon.router.new_endpoint("driver")
        self.endpoint.connection = self  # type: ignore[assignment]
        self.sent: list[Any] = []
        self._daemon = daemon

    @property
    def id(self) -> int:
        return self.endpoint.id

    def send(self, frame: Any, fds: Any = ()) -> None:
        frames.pack(frame)
        self.sent.append(list(frame))

    def read_available(self) -> None:
        return

    def close(self) -> None:
        return

    def say(self, frame: list[Any]) -> bool:
        """Whether it made sense; a daemon ends a connection that makes none."""
        try:
            self._daemon.router.from_endpoint(self.endpoint, frame, [])
        except (FrameError, TypeError, ValueError, IndexError, AttributeError):
            return False
        except Exception:
            logging.getLogger(__name__).exception("a frame could not be handled")  # and the connection goes on
        return True

    def request(self, number: int, operation: Operation[Any]) -> bool:
        return self.say([frames.REQUEST, 0, 0, NODE, number, type(operation).__name__, vars(operation)])


class Daemon:
    """A daemon without IO."""

    def __init__(self, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        self.requests: set[asyncio.Task[None]] = set()
        self.router = Router(loop, NODE, self._on_request)
        site = Site("cafecafe", NODE, "here", "127.0.0.1", folder, {}, 4)
        templates: Any = None
        self.service = DaemonService(loop, site, templates, self.router, self._abandon)

    def _abandon(self, group: LocalGroup) -> None:
        self.requests.add(asyncio.ensure_future(self.service.groups.close_group(group, 0.0)))

    def _on_request(self, source: int, number: int, operation: str, fields: Any) -> None:
        handling = self.service.handlers.handle(Requester(source, number), operation, fields)
        self.requests.add(asyncio.ensure_future(handling))

    async def settle(self) -> None:
        """Returns when everything that was asked has been done, or waits."""
        while self.requests:
            requests, self.requests = self.requests, set()
            await asyncio.wait(requests)
        await asyncio.sleep(0)

    async def end(self, client: Client) -> None:
        """The client's process has ended."""
        self.router.endpoints.pop(client.endpoint.number, None)
        self.service.forget_endpoint(client.id)
        await self.settle()

    def left_of(self, client: Client) -> list[str]:
        """Where the daemon's state still names a client.

        It may know that the client is gone, whose items these were, which channel was promised by it, and which of its
        errors the script has never got: the end of the run tells of these.
        """
        found = find(self.service, client.id, "service", set())
        items = ("items[].producer", "returned[].producer")
        known = (
            "service.gone",
            "service.unobserved",
            "service.names.channels.kept",
            "service.names._gone",
        )
        return [
            place
            for place in found
            if not place.startswith(known) and not place.endswith(items) and ".promises[]" not in place
        ]


def find(inside: Any, number: int, path: str, seen: set[int]) -> Iterator[str]:
    """The paths by which a number is reached from an object of the daemon's."""
    if type(inside) is int:
        if inside == number:
            yield path
        return
    if id(inside) in seen or isinstance(inside, str | bytes | float | Path | asyncio.AbstractEventLoop):
        return
    seen.add(id(inside))
    if isinstance(inside, dict):
        for key, value in list(inside.items()):
            yield from find(key, number, f"{path}, a key", seen)
            yield from find(value, number, f"{path}[{key!r}]", seen)
    elif isinstance(inside, list | tuple | set | frozenset) or type(inside).__name__ in ("deque", "odict_values"):
        for value in list(inside):
            yield from find(value, number, f"{path}[]", seen)
    elif type(inside).__module__.startswith("rlinf_"):
        slots = [name for kind in type(inside).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [*vars(inside), *slots] if hasattr(inside, "__dict__") else slots
        for name in names:
            yield from find(getattr(inside, name, None), number, f"{path}.{name}", seen)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.service.groups.close_stores()


async def with_channel(daemon: Daemon) -> Client:
    """An honest process that has made a channel."""
    honest = Client(daemon)
    honest.request(1, operations.Reserve("channel", "obs"))
    honest.request(2, operations.HostChannel(CHANNEL, "obs", 0, 1 << 30))
    honest.request(3, operations.Publish("channel", "obs", CHANNEL, {"number": CHANNEL, "nodes": [NODE]}))
    await daemon.settle()
    assert [frame[5:] for frame in honest.sent] == [[True, CHANNEL], [True, None], [True, None]]
    honest.sent.clear()
    return honest


def test_a_part_that_raises_keeps_no_other_from_being_done(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def fail() -> None:
        raise RuntimeError("stray")

    run_all("a test", [lambda: done.append(1), fail, lambda: done.append(2)])
    assert done == [1, 2]
    assert caplog.text.count("cleaning up after a test") == caplog.text.count("RuntimeError: stray") == 1


PARTS = [
    "channels.drop_client", "channels.drop_owner", "names.drop_client", "names.drop_owner",
    "death_watch.forget", "locks.drop", "ports.drop", "router.drop_caller", "groups.drop",
]  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
async def test_whichever_part_of_a_cleanup_raises_the_others_are_done_and_it_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    daemon = Daemon(tmp_path)
    done: list[str] = []
    for name in PARTS:
        attribute, method = name.split(".")
        owner = getattr(daemon.service, attribute)
        cleans = getattr(owner, method)

        def clean(gone: int, name: str = name, really: Any = cleans) -> None:
            done.append(name)
            really(gone)
            if name == part:
                raise RuntimeError("stray")

        monkeypatch.setattr(owner, method, clean)
    await daemon.end(Client(daemon))
    assert sorted(done) == sorted(PARTS)
    assert caplog.text.count("RuntimeError: stray") == 1


async def test_of_several_queues_one_that_raises_keeps_the_others_from_nothing(
    daemon: Daemon, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = Client(daemon), Client(daemon)
    for number in range(3):
        client.request(number, operations.HostChannel(number, f"c{number}", 1, 0))
    await daemon.settle()
    for number in range(3):
        other.say([frames.GET, 0, 0, HERE, number, 1, b"k", None, None])
    first = daemon.service.channels._hosted[0].queue

    def fail(who: int, **_: Any) -> Any:
        raise RuntimeError("stray")

    monkeypatch.setattr(first, "drop", fail)
    await daemon.end(other)
    clients = [list(hosted.queue.clients) for hosted in daemon.service.channels._hosted.values()]
    assert clients == [[other.id], [], []]
    assert caplog.text.count("RuntimeError: stray") == 1


# -- what had kept a cleanup from its end ---------------------------------------------------------------------------


ODD_REQUESTS: dict[str, list[Operation[Any]]] = {
    "a trace of a run that has none": [operations.CollectTrace(), operations.WriteSpans(["x"])],
    "a number for a channel": [operations.Reserve("channel", "a")],
    "a watch": [operations.Watch([1])],
    "a lookup of a channel": [operations.Find("channel", "never", None, 0)],
    "two stores for one group": [operations.OpenStore("g", 1), operations.OpenStore("g", 1)],
}


@pytest.mark.parametrize("requests", ODD_REQUESTS.values(), ids=ODD_REQUESTS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_a_process_requests_before_or_after_its_end_leaves_nothing(
    daemon: Daemon, caplog: pytest.LogCaptureFixture, when: str, requests: list[Operation[Any]]
) -> None:
    """A frame is read before its connection ends; what it asks for begins in a task of its own, maybe later."""
    client = Client(daemon)
    client.endpoint.is_known = True
    for number, operation in enumerate(requests):
        client.request(number, operation)
    if when == "before":
        await daemon.settle()
    await daemon.end(client)
    assert daemon.left_of(client) == []
    assert "cleaning up" not in caplog.text


@pytest.mark.parametrize("number", [[], {}, "1", None, 1.5], ids=repr)
async def test_a_request_has_a_number(daemon: Daemon, number: Any) -> None:
    client = Client(daemon)
    assert not client.say([frames.REQUEST, 0, 0, NODE, number, "Find", {"name": "a", "rank": 0}])


@pytest.mark.parametrize("name", [5, ["a"], b"a"], ids=repr)
async def test_names_are_texts(daemon: Daemon, name: Any) -> None:
    """Others that ask which names there are would have theirs sorted among them."""
    client = Client(daemon)
    client.request(1, operations.Reserve("group", name))
    await daemon.settle()
    assert client.sent[0][5:] == [False, ["ValueError", f"Reserve: field 'name' must be str, got {name!r}"]]


@pytest.mark.parametrize("address", ["w:0:x", "w:0:", "w:0:1:", "w:0", "w:01", "w:0:-1", 7], ids=repr)
async def test_a_subprocess_of_a_worker_joins_under_ranks_only(daemon: Daemon, address: Any) -> None:
    """Its rank is read when it ends."""
    root: Any = daemon.router.new_endpoint("worker")
    root.process = SimpleNamespace(exit_status=None, pid=os.getppid(), setup=SimpleNamespace(name="w:0"))
    endpoint = Client(daemon).endpoint
    endpoint.pid = os.getpid()
    with pytest.raises(AuthError, match=r"descends from worker 'w:0' and wants to be"):
        daemon.service.sub_workers.admit(endpoint, {"address": address})


class Liar:
    """Frames that are nearly what they should be, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, *usual: Any) -> Any:
        return self._random.choice(usual if self._random.random() < 0.85 else NONSENSE)

    def frame(self) -> list[Any]:
        return self._random.choice([self._put, self._get, self._word, self._request])()

    def _put(self) -> list[Any]:
        mode = self.pick(frames.WAIT, frames.SENT, frames.NOWAIT)
        number, key, weight = self.pick(*range(1, 8)), self.pick(b"k", b"j"), self.pick(0, 1)
        return [frames.PUT, 0, 0, HERE, CHANNEL, number, key, weight, mode, b"body"]

    def _get(self) -> list[Any]:
        number, key = self.pick(*range(1, 8)), self.pick(b"k", b"j")
        target = self.pick(None, 1, frames.NOW, [1], [2, frames.READ], [2, frames.READ_SHARED], [1, frames.LEASE, 0.0])
        taken = self.pick(None, [[number, self.pick(1, 2)]])
        return [frames.GET, 0, 0, HERE, CHANNEL, number, key, target, taken]

    def _word(self) -> list[Any]:
        number, key = self.pick(*range(1, 8)), self.pick(b"k", b"j")
        put, get = [number, key, 0, self.pick(0, 1, 2), b"x"], [self.pick(2, 3), key, self.pick(None)]
        facts = {
            "requests": [[put], [get], []],
            "taken": [[number, self.pick(1)], self.pick([2, 1])],
            "skip": [number],
            "confirm": [self.pick(1), number, self.pick(1)],
            "cancel": [number, self.pick(1, 2)],
            "size": [number, key],
            "peek": [number, key],
        }
        what = self._random.choice(list(facts))
        return [frames.QUEUE, 0, 0, HERE, CHANNEL, what, self.pick(facts[what])]

    def _request(self) -> list[Any]:
        values = {
            "kind": self.pick("group", "channel", "promise"), "after": self.pick(0, 7),
            "name": self.pick("a", "b", "obs", f"{HERE + 2}.1", f"{HERE + 3}.2"), "number": self.pick(CHANNEL, 2, 3, 9),
            "group": self.pick("a", "b"), "rank": self.pick(0, 1, None),
            "size": self.pick(1, 2), "entry": self.pick({"endpoint": 7}),
            "roster": self.pick(*({"number": number, "nodes": [NODE]} for number in (9, CHANNEL)), [{"endpoint": 3}]),
            "finished": self.pick([[1, 2]]), "check": self.pick(1), "text": self.pick("t"), "verdict": self.pick("v"),
            "maxsize": self.pick(0), "max_bytes": self.pick(0), "key": self.pick(b"k"), "node": self.pick(NODE),
            "numbers": self.pick([1, 2, 3]), "endpoints": self.pick([HERE + 1, 9]), "devices": self.pick([0, 1], [1]),
            "max_port": self.pick(None), "discard": self.pick(True, False),
            "round": self.pick("r"), "processes": self.pick([1, HERE + 1]),
        }  # fmt: skip
        operation = self._random.choice(HARMLESS)
        fields = {field: values.get(field) for field in OPERATIONS[operation].checks}
        return [frames.REQUEST, 0, 0, NODE, self.pick(*range(3, 20)), operation, self.pick(fields)]


async def test_whatever_a_process_says_nothing_is_left_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for seed in range(SEEDS):
        daemon = Daemon(tmp_path)
        honest, liar = await with_channel(daemon), Liar(seed)
        liars = [Client(daemon), Client(daemon)]
        for client in liars:
            for turn in range(10):
                if not client.say(liar.frame()):
                    break
                if turn % 3 == 2:
                    await daemon.settle()
        for client in (*liars, honest):
            await daemon.end(client)
            assert daemon.left_of(client) == [], f"seed {seed}"
        daemon.service.groups.close_stores()
    assert "cleaning up" not in caplog.text


async def test_nothing_is_kept_for_a_process_whose_request_is_read_just_before_its_node_is_lost(daemon: Daemon) -> None:
    far = frames.endpoint(7, 4)
    for number, operation in enumerate(
        (operations.Reserve("group", "g"), operations.LockDevices("actor:0", [1]), operations.LeasePort(None))
    ):
        daemon._on_request(far, number, type(operation).__name__, vars(operation))
    daemon.service.drop_node(7)
    await daemon.settle()
    assert daemon.service.names.clients() == daemon.service.locks.holders() == daemon.service.ports.owners() == set()

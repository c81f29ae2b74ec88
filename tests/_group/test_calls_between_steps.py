"""Calls that are given up, answered or refused between two steps of being sent; callbacks that go their own way."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._client.reply_handler import NOWHERE
from rlinf_async._cluster.supervision import Supervision
from rlinf_async._core import codec, frames
from rlinf_async._core.frames import Status
from rlinf_async._core.pending_calls import Tally
from rlinf_async._group import members as module
from rlinf_async._group.members import GroupCallee, Members
from rlinf_async._group.pool_calls import PoolCalls
from rlinf_async._group.rank_pool import PoolRequest, Standing
from rlinf_async._recorder import recording
from rlinf_async.any_rank import _AnyCall, _AnyStreamCall
from rlinf_async.errors import ClosedError, DeadlineExceeded, NodeLost, SerializationError
from rlinf_async.group import start_closing
from rlinf_async.handle import Handle
from rlinf_async.outcome import CallDeadline
from rlinf_async.stream import StreamCall
from rlinf_async.work import Work

CallHandle = Handle[Any] | StreamCall


class Client:
    """A client that sends nothing: it notes what it is told, and lets a test act in the midst of a call."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.meanwhile: Callable[[Any], None] = lambda handler: None
        self.pending: list[Callable[[], None]] = []
        self.closed: Exception | None = None
        self.user_loop: Any = None
        self.loop = SimpleNamespace(is_closed=lambda: False)
        self.lost_nodes: dict[int, Any] = {}
        self.unobserved = SimpleNamespace(arrived=lambda error: None, observed=lambda cause: None)
        self.events = SimpleNamespace(returned={}, counts_from=lambda since: since)

    def listen(self, what: str, listener: Any) -> None: ...

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.pending.append(callback)

    def call(self, handler: Any, route: Any, method: str, *rest: Any) -> None:
        handler._begin(7)
        handler._targets = [NOWHERE if slot in rest[-1] else target for slot, target in enumerate(handler._targets)]
        self.meanwhile(handler)
        self.sent.append(method)
        handler._mark_departed()

    def cancel(self, call: int, targets: Sequence[int]) -> None:
        self.sent.append(("cancel", [*targets]))


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def members(client: Client) -> Members:
    members = Members(client, "ring", 2)  # type: ignore[arg-type]
    members.endpoints, members.infos, members.logs = [10, 11], [None, None], ["", ""]  # type: ignore[list-item]
    return members


def _call(members: Members, kind: type[CallHandle], method: str = "step") -> CallHandle:
    callee = members.callee([0, 1])
    call = kind(callee, method)
    members.call(callee, call, method, [codec.encode(None)])
    return call


@pytest.mark.parametrize(
    ("kind", "gives_up"),
    [
        (Handle, Handle.cancel),
        (Handle, Handle._stop_others),
        (StreamCall, StreamCall.close),
        (StreamCall, lambda call: call._answer(1, Status.ERROR, b"")),
    ],
)
def test_no_cancel_leaves_before_its_call(
    client: Client, members: Members, monkeypatch: pytest.MonkeyPatch, kind: Any, gives_up: Any
) -> None:
    monkeypatch.setattr(members, "call_failed", lambda *_: None)
    monkeypatch.setattr(StreamCall, "_arrive", lambda self: None)
    members.release()
    client.meanwhile = gives_up
    _call(members, kind)
    assert [what if isinstance(what, str) else what[0] for what in client.sent] == ["step", "cancel"]


@pytest.mark.parametrize(("kind", "give_up"), [(Handle, "cancel"), (StreamCall, "close")])
def test_a_call_that_is_given_up_while_it_waits_for_its_group_never_leaves(
    client: Client, members: Members, kind: Any, give_up: str
) -> None:
    call = _call(members, kind)
    getattr(call, give_up)()
    assert call._ended.done()  # or the close of a stream would wait for ranks that do not know it
    _call(members, kind, "next")
    members.release()
    assert client.sent == ["next"]


def test_the_close_of_a_stream_does_not_wait_for_a_rank_that_is_away(client: Client, members: Members) -> None:
    members.release([0])
    stream: Any = _call(members, StreamCall)
    answered: list[tuple[int, int, Status]] = []
    client.answer_for = lambda call, slot, status, body: answered.append((call, slot, status))  # type: ignore[attr-defined]
    stream.close()
    assert answered == [(7, 1, Status.CANCELLED)]


class Looked(deque[Any]):
    """The items of a stream, which another thread closes once it is known that there are some."""

    def __init__(self, stream: StreamCall, items: Sequence[Any]) -> None:
        super().__init__(items)
        self._closing = threading.Thread(target=stream.close)

    def __bool__(self) -> bool:
        self._closing.start()
        self._closing.join(0.1)
        return True


def test_a_stream_closed_in_another_thread_has_no_error(client: Client, members: Members) -> None:
    members.release()
    stream: Any = _call(members, StreamCall)
    stream._items = Looked(stream, [(1, codec.encode("item").to_bytes())])
    assert stream._next() == (1, "item")
    stream._items._closing.join()


@pytest.mark.parametrize("ends", ["cancel", "_expire"])
def test_a_launch_that_fails_changes_no_outcome(client: Client, members: Members, ends: str) -> None:
    members.deadlines.limit = CallDeadline(5.0, "here")
    members.endpoints, members.infos = None, []
    handle: Any = _call(members, Handle)
    getattr(handle, ends)()
    members.fail(ValueError("there is no such node"))
    with pytest.raises(ClosedError if ends == "cancel" else DeadlineExceeded):
        handle.wait()


class Late(Tally):
    """A tally whose last answer comes, in another thread, after it was asked for its failures."""

    def __init__(self, last: Callable[[], None]) -> None:
        super().__init__(2)
        self.last = [last]

    def failures(self) -> list[tuple[int, int, Any]]:
        found = super().failures()
        for last in self.last:
            self.last = []
            last()
        return found


def test_a_failure_that_ends_a_stream_while_it_is_looked_at_is_no_end_of_its_items(
    client: Client, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "call_failed", lambda *_: None)
    monkeypatch.setattr(StreamCall, "_arrive", lambda self: None)
    monkeypatch.setattr("rlinf_async.stream.root_error", lambda callee, failed: ValueError("the real one"))
    members.release()
    stream: Any = _call(members, StreamCall)
    stream._tally = Late(lambda: stream._tally.answer(1, Status.ERROR, b""))
    stream._answer(0, Status.END, b"")
    assert stream._next() is not None  # it waits for the thread that answers, which is about to wake it
    stream._wake()
    with pytest.raises(ValueError, match="the real one"):
        stream._next()


def test_a_tally_that_misses_nothing_knows_how_it_has_ended() -> None:
    class Watched(Tally):
        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "missing" and value == 0:
                assert self.failed
                assert not self.whole

    Watched(1).answer(0, Status.ERROR, b"")


def test_a_route_that_is_made_while_a_rank_is_replaced_is_not_kept(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    callee = GroupCallee(members, [0, 1])
    again = frames.endpoint(1, 5)
    route_to = frames.route_to

    def slow(targets: Sequence[int]) -> Any:
        monkeypatch.setattr(module.frames, "route_to", route_to)
        members.replace(1, again, None, "")  # type: ignore[arg-type]
        assert callee.targets == [10, again]  # another thread calls
        return route_to(targets)

    monkeypatch.setattr(module.frames, "route_to", slow)
    assert callee.route_to(callee.targets) == route_to([10, 11])
    assert callee.route_to(callee.targets) == route_to([10, again])


def test_a_call_that_was_admitted_before_the_close_waits_for_nothing_after_it(
    client: Client, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    members.release()

    def close(*_: Any) -> None:
        members.close()
        members.hold()  # a death that was being told

    monkeypatch.setattr(members, "record", close)
    with pytest.raises(ClosedError, match=r"step\(\) cannot be called any more"):
        _call(members, Handle)


@pytest.mark.parametrize("on_user_loop", [True, False])
def test_callbacks_that_call_again_or_exit_keep_nobody_from_hearing(
    client: Client, members: Members, on_user_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    callbacks: list[Callable[[Any], object]] = []

    def again(fact: str) -> None:
        heard.append(fact)
        callbacks.append(again)

    def leave(fact: str) -> None:
        raise SystemExit(3)

    def look(fact: str) -> None:
        raise asyncio.CancelledError

    callbacks[:] = [again, look, leave, heard.append]
    client.user_loop = object() if on_user_loop else None
    members.call_back("on_death", callbacks, "it died")
    assert heard == ["it died", "it died"]
    if on_user_loop:
        with pytest.raises(SystemExit):
            client.pending.pop()()
    else:
        assert "SystemExit in a callback of on_death() of group 'ring' ends no program" in caplog.text


def pool_of(members: Members) -> PoolCalls:
    members.pool = pool = PoolCalls(members)
    return pool


def test_a_pooled_call_that_could_not_be_sent_is_no_call_that_is_late(
    client: Client, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[tuple[int, str]] = []
    monkeypatch.setattr(recording, "end", lambda event, failed: ends.append((event, failed)))
    monkeypatch.setattr(members, "record", lambda handler, method, ranks: setattr(handler._ended, "_event", 7))
    members.deadlines.limit = CallDeadline(5.0, "here")
    members.release()
    pool = pool_of(members)

    def refuse(handler: Any) -> None:
        raise OSError("no descriptor is left")

    client.meanwhile = refuse
    method: Any = SimpleNamespace(name="step", streams=False, is_idempotent=False)
    call = _AnyCall(pool, PoolRequest((0, 1)), method)
    with pytest.raises(OSError, match="descriptor"):
        pool.submit(call, codec.encode(None))
    assert pool.unfinished() == []
    assert ends == [(7, "OSError")]


def test_a_pooled_call_that_is_late_before_it_leaves_takes_no_room(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    members.release()
    pool = pool_of(members)
    method: Any = SimpleNamespace(name="step", streams=False, is_idempotent=False)
    call, place = _AnyCall(pool, PoolRequest((0, 1)), method), pool._state.place

    def expire(request: PoolRequest, now: float) -> Any:
        call._expired = True  # as by the timer, on the loop's thread
        return place(request, now)

    monkeypatch.setattr(pool._state, "place", expire)
    pool.submit(call, codec.encode(None))
    assert pool._state.open == [{}, {}]


def test_the_last_look_at_the_ranks_is_the_one_that_counts(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    members.release()
    pool = pool_of(members)
    locked: list[bool] = []
    standing_of = pool._standing_of
    monkeypatch.setattr(pool, "_standing_of", lambda rank: locked.append(pool._lock.locked()) or standing_of(rank))
    members.deaths[1] = {"returns": False}
    pool.look()
    assert locked == [True, True]
    assert pool._state.standing == [Standing.LIVE, Standing.GONE]


def test_a_pool_that_is_made_while_a_rank_is_away_calls_the_others(members: Members) -> None:
    members.supervisor = SimpleNamespace(away={1})  # type: ignore[assignment]
    members.hold()  # all of them: so it is by default
    assert pool_of(members)._state.standing == [Standing.LIVE, Standing.AWAY]


@pytest.mark.parametrize("comes_late", [False, True])
def test_a_stream_whose_item_came_as_its_rank_was_given_up_for_stalled_is_watched_on(
    members: Members, monkeypatch: pytest.MonkeyPatch, comes_late: bool
) -> None:
    members.release()
    pool, asked = pool_of(members), Work[str]()
    method: Any = SimpleNamespace(name="stream", streams=True, is_idempotent=False)
    stream = _AnyStreamCall(pool, PoolRequest((0,), stall_timeout=60.0), method)
    monkeypatch.setattr(stream, "_peer_activity", lambda: asked)
    pool.submit(stream, codec.encode(None))
    attempt: Any = stream._attempt
    assert isinstance(stream._next(), Work)
    if comes_late:
        stream._stall(attempt)  # daemons are asked where the rank is
        stream._answer(0, Status.ITEM, codec.encode("item").to_bytes())
    else:
        stream._answer(0, Status.ITEM, codec.encode("item").to_bytes())
        stream._stall(attempt)
    asked._settle("in stream()")
    assert stream._next() == (0, "item")
    assert isinstance(stream._next(), Work)
    assert (attempt.request, attempt.since is not None) == (stream._request, True)


class Moody:
    """An item that cannot be rebuilt while ``is_ill``."""

    is_ill = False

    def __getstate__(self) -> Any:
        return "state"

    def __setstate__(self, state: Any) -> None:
        if Moody.is_ill:
            raise ValueError("not now")


def test_a_stream_whose_items_cannot_be_rebuilt_for_its_next_rank_tries_again(
    client: Client, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    members.release()
    method: Any = SimpleNamespace(name="stream", streams=True, is_idempotent=True)
    pool = pool_of(members)
    stream = _AnyStreamCall(pool, PoolRequest((0, 1)), method)
    pool.submit(stream, codec.encode_arguments((), {}, describe="", root=("args", "kwargs")))
    stream._answer(0, Status.ITEM, codec.encode(Moody()).to_bytes())
    assert isinstance(stream._next(), tuple)
    stream._answer(0, Status.DIED, frames.pack({"returns": False}))
    monkeypatch.setattr(Moody, "is_ill", True)
    for _ in range(2):
        with pytest.raises(SerializationError, match="not now"):
            stream._next()
    monkeypatch.setattr(Moody, "is_ill", False)
    assert isinstance(stream._next(), Work)
    assert client.sent == ["stream", "stream"]


def test_a_group_can_be_closed_in_the_midst_of_a_call_that_waits(client: Client, members: Members) -> None:
    client.run = lambda closing, what: closing.close()  # type: ignore[attr-defined]
    client.meanwhile = lambda handler: start_closing(members)  # as by a signal handler
    members.release([0])
    calling = threading.Thread(target=_call, args=(members, Handle), daemon=True)
    calling.start()
    calling.join(5.0)
    assert client.sent == ["step"]


def test_a_death_that_is_told_at_the_moment_of_the_close_holds_no_call(client: Client, members: Members) -> None:
    members.supervisor = SimpleNamespace(away={1}, end=lambda: None)  # type: ignore[assignment]
    members.release()
    members.close()
    members.hold()
    again: Any = SimpleNamespace(_call=7)
    members._repeats.append((members.callee([0, 1]), again, 1))
    answered: list[tuple[int, int, Status]] = []
    client.answer_for = lambda call, slot, status, body: answered.append((call, slot, status))  # type: ignore[attr-defined]
    supervision: Any = SimpleNamespace(_changed=asyncio.Event(), _away={1: {}}, _working=None, _members=members)
    Supervision._look(supervision)
    assert answered == [(7, 1, Status.UNKNOWN)]


def test_a_repeat_that_is_noted_while_others_are_sent_is_sent_later(client: Client, members: Members) -> None:
    noted = members._repeats  # as by the thread that handles frames, in the middle of its append
    members.release()
    call: Any = SimpleNamespace(_call=7, _method="step", _again=None)
    noted.append((members.callee([0, 1]), call, 1))
    answered: list[tuple[int, int, Status]] = []
    client.answer_for = lambda call, slot, status, body: answered.append((call, slot, status))  # type: ignore[attr-defined]
    members.release()
    assert answered == [(7, 1, Status.CANCELLED)]


def test_what_follows_a_call_that_cannot_leave_may_make_calls(client: Client, members: Members) -> None:
    def refuse(handler: Any) -> None:
        raise OSError("no descriptor is left")

    members.infos = []
    handle: Any = _call(members, Handle)
    locked: list[bool] = []
    following = handle.outcomes().then(lambda: locked.append(members._lock._is_owned()))  # type: ignore[attr-defined]
    client.meanwhile = refuse
    members.release()
    for callback in client.pending:
        callback()
    assert following.done()
    assert locked == [False]


async def test_a_restart_by_hand_that_loses_its_daemon_says_so() -> None:
    async def end(*_: Any) -> None: ...

    members: Any = SimpleNamespace(
        launching=None, restarts=[0], deaths={}, closed=False, hold=lambda held: None, is_held=lambda rank: False
    )
    supervision: Any = SimpleNamespace(
        _members=members, _client=SimpleNamespace(closed=NodeLost("its daemon is gone")), _kill=end, _until=end,
        _look=lambda: None, _working=object(), _free=set(), _away={}, _held_with=lambda ranks: ranks,
    )  # fmt: skip
    with pytest.raises(NodeLost, match="its daemon is gone"):
        await Supervision._restart(supervision, [0])


def test_an_endpoint_of_a_rank_that_is_back_is_forgotten(members: Members) -> None:
    pool = pool_of(members)
    pool._gone[10] = True
    pool._on_returned({"group": "ring", "was": 10, "entry": {}})
    assert pool._gone == {}

"""``AnyRank``: makes calls that any rank of a group may serve; ``AnyStream``: a stream from such a rank."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from functools import partial
from numbers import Real
from typing import Any, Final, Protocol

from rlinf_async._core import clock, codec, frames
from rlinf_async._core.encoded import Encoded
from rlinf_async._core.frames import Status
from rlinf_async._core.payload import Body, pack_body
from rlinf_async._core.pending_calls import Tally
from rlinf_async._core.process import is_in_editor
from rlinf_async._core.root_cause import name_ranks
from rlinf_async._group.each import per_rank
from rlinf_async._group.pool_calls import GONE, PoolCalls
from rlinf_async._group.rank_pool import UNBOUNDED, Attempt, PoolRequest
from rlinf_async._waits import slow_waits
from rlinf_async.errors import DeadlineExceeded
from rlinf_async.handle import Handle
from rlinf_async.outcome import overdue
from rlinf_async.stream import Stream, StreamCall
from rlinf_async.work import Work

_NO_ARGUMENTS: Final = codec.encode_arguments((), {}, describe="no argument", root="args")


class _Method(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def streams(self) -> bool: ...
    @property
    def is_idempotent(self) -> bool: ...


class AnyRank:
    """Makes calls that any rank of a group may serve; each goes to the live rank with the fewest open calls.

    ``group.any()`` returns such an object, which has every public method of the worker class. A call returns a
    ``Handle`` for a single result, not a list; an async generator method returns a ``Stream`` of items without ranks.

    Example:
        pool = rollout.any(in_flight=8, stall_timeout=60)
        answers = await wait_all(*(pool.generate(prompt) for prompt in prompts))
        async for token in rollout.any(key=conversation).stream(prompt): ...
    """

    def __init__(
        self,
        calls: PoolCalls,
        methods: Callable[[str], _Method],
        ranks: Sequence[int],
        in_flight: int | None,
        key: Hashable,
        stall_timeout: float | None,
    ) -> None:
        """Internal; use ``group.any()`` to create an instance."""
        self._calls = calls
        self._methods = methods
        self._ranks = tuple(ranks)
        self._in_flight = UNBOUNDED if in_flight is None else in_flight
        self._key = key
        # Time spent at an editor's breakpoint must not count as a stall.
        self._stall_timeout = None if is_in_editor() else stall_timeout

    def __repr__(self) -> str:
        return f"<any of {name_ranks(self._ranks)} of '{self._calls.members.name}': {self._calls!r}>"

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, self._methods(name))

    def __reduce__(self) -> Any:
        raise TypeError("calls on any rank belong to the process that makes them: pass their results on")

    def _call(self, method: _Method, /, *args: Any, **kwargs: Any) -> Any:
        calls = self._calls
        encoded: Encoded | bytes = _NO_ARGUMENTS
        if args or kwargs:
            describe = f"argument of {calls.members.name}.{method.name}()"
            shares = per_rank(args, kwargs, 1)
            share = (args, kwargs) if shares is None else shares[0]
            encoded = codec.encode_arguments(*share, describe=describe, root=("args", "kwargs"))
        request = PoolRequest(self._ranks, self._in_flight, self._stall_timeout, self._key)
        call = (_AnyStreamCall if method.streams else _AnyCall)(calls, request, method)
        # Encode the arguments now, because the call may be sent again later, after they have changed.
        if method.is_idempotent and not isinstance(encoded, bytes):
            encoded = encoded.to_bytes()
        calls.submit(call, encoded)
        return AnyStream(call) if isinstance(call, _AnyStreamCall) else call


def check_options(in_flight: Any, key: Any, stall_timeout: Any) -> None:
    """Check the arguments of ``group.any()``.

    Raises:
        TypeError: ``key`` cannot be hashed.
        ValueError: another argument is out of bounds.
    """
    if in_flight is not None and (isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1):
        raise ValueError(
            f"in_flight={in_flight!r} of any() is no number of calls: write a whole number from 1 on, or None for any"
        )
    if stall_timeout is not None:
        is_number = isinstance(stall_timeout, Real) and not isinstance(stall_timeout, bool)
        if not (is_number and 0 < float(stall_timeout) < math.inf):
            raise ValueError(
                f"stall_timeout={stall_timeout!r} of any() is no number of seconds: write one above 0, or None for none"
            )
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"key={key!r} of any() cannot be hashed ({type(key).__name__}): pass a name, a number or a tuple of these"
        ) from None


class _Pooled:
    # Mixin for ``Handle`` and ``StreamCall``: a call that belongs to a rank only during an attempt. A silent rank may
    # still answer late, under the call's old number. ``_Leftover`` receives that answer, because the call gets a new
    # number.

    _callee: Any
    _call: int
    _targets: Sequence[int]
    _tally: Tally
    _method: str
    _cancel_sent: bool
    _departed: bool

    def _join(self, calls: PoolCalls, request: PoolRequest, method: _Method) -> None:
        self._calls = calls
        self._request = request
        request.owner = self
        self._body: Encoded | bytes = b""
        self._attempt: Attempt | None = None
        self._has_spare = method.is_idempotent  # whether the call may still be restarted once on another rank
        self._stalled_s = 0.0

    def _title(self) -> str:
        return f"{self._callee.name}.{self._method}() on any rank"

    def _is_over(self) -> bool:
        raise NotImplementedError

    def _start(self, attempt: Attempt) -> bool:
        """Send the call to the rank chosen by the pool. Return False if the call was cancelled."""
        if self._is_over():
            return False
        self._attempt = attempt
        callee = self._callee = self._calls.callee(attempt.rank)
        handler: Any = self
        self._calls.members._send(callee, handler, self._method, [pack_body(self._body)], same=True)
        if not self._has_spare:
            self._body = b""
        if self._request.stall_timeout is not None and attempt.since is not None:
            self._calls.watch(self._request.stall_timeout)
        return True

    def _take_last(self, status: int, body: Body) -> bool:
        """Detach from the rank after its last answer. Return True if the rank was lost and the call starts again."""
        attempt, target = self._attempt, self._targets[0]
        assert attempt is not None
        is_moved = status in GONE and self._may_move()
        if is_moved:
            self._note_loss(frames.unpack(body) if status == Status.DIED else {})
            self._leave()
        else:
            # Break the cycle, which would keep the result alive until the next garbage collection.
            self._request.owner = None
        self._calls.ended(attempt, target, status, body)
        if is_moved:
            self._start_again()
        return is_moved

    def _may_move(self) -> bool:
        members = self._calls.members
        return self._has_spare and not (self._is_over() or members.closed or members.client.closed is not None)

    def _note_loss(self, report: dict[str, Any]) -> None:
        pass

    def _leave(self) -> None:
        self._has_spare = False
        self._callee.call_finished(self, failed=False)
        self._attempt = None
        self._tally = Tally(1)
        self._call, self._targets, self._cancel_sent, self._departed = 0, (), False, False

    def _start_again(self) -> None:
        call: Any = self  # the whole object, not only this mixin's part
        self._calls.wait(call)

    def _stall(self, attempt: Attempt) -> None:
        """Handle a silent rank: restart the call on another rank, or abandon the call."""
        client, limit = self._calls.members.client, self._request.stall_timeout
        assert limit is not None
        if not self._departed:  # another thread is still sending the call
            attempt.since = clock.monotonic()
        elif self._is_over():
            attempt.detach()
        elif not self._may_move():
            attempt.since = None  # a new wait sets it again, because an answer may arrive while the daemons are queried
            self._stalled_s = limit
            self._abandon_stalled()
        elif client.hand_over(self._call, _Leftover(self._calls, attempt, self._method, self._targets)):
            attempt.detach()
            client.cancel(self._call, self._targets)
            self._leave()
            self._start_again()

    def _abandon_stalled(self) -> None:
        raise NotImplementedError

    # -- descriptions --------------------------------------------------------------------------------------------

    def _waits(self) -> bool:
        return self._attempt is None

    def _overdue(self, slots: Sequence[int], doing: str) -> DeadlineExceeded:
        what = f"{self._callee.name}.{self._method}()"
        if self._stalled_s:
            rank = f"rank {self._callee.ranks[0]} of '{self._callee.name}'"
            lines = [
                f"{what} was given up: {rank} had given no answer and no item for {self._stalled_s:g} s "
                "(stall_timeout= of any())",
                self._callee.describe_slot(0),
                *filter(None, [doing]),
                "the call is cancelled there: a coroutine or generator ends, a def method that runs goes on to its end",
                "fix: see where it is (rlinf-ctl stuck); where it may be silent for longer, give any() a longer "
                "stall_timeout; a method that is marked @idempotent is begun anew at another rank, once",
            ]
            return DeadlineExceeded("\n  ".join(lines))
        if self._waits() and (deadline := self._callee.deadline) is not None:
            lines = [
                f"{what} was not done within {deadline.seconds:g} s ({deadline.origin}): it had not been sent, and "
                f"{self._calls.describe_room(self._request)}",
                *filter(None, [doing]),
                "fix: more ranks, a larger in_flight, or more time: launch(call_timeout=...)",
            ]
            return DeadlineExceeded("\n  ".join(lines))
        return overdue(self._callee, self._method, slots, doing)

    def _whom(self) -> str:
        ranks = self._request.ranks if self._waits() else self._callee.ranks
        return f"{name_ranks(ranks)} of '{self._callee.name}'"

    def _peer_activity(self) -> slow_waits.PeerActivity | None:
        if self._waits():
            return self._calls.members.callee(self._request.ranks).peer_activity(range(len(self._request.ranks)))
        return self._callee.peer_activity([0])  # type: ignore[no-any-return]


class _AnyCall(_Pooled, Handle[Any]):
    # A call that any rank may serve; ``await`` returns its single result.

    def __init__(self, calls: PoolCalls, request: PoolRequest, method: _Method) -> None:
        Handle.__init__(self, calls.callee(request.ranks[0]), method.name)
        self._join(calls, request, method)

    def _is_over(self) -> bool:
        return self._done or self._cancelled or self._expired

    def _answer(self, slot: int, status: int, body: Body) -> bool:
        return self._take_last(status, body) or super()._answer(slot, status, body)

    def _note_loss(self, report: dict[str, Any]) -> None:
        self._note_death(0, report)

    def _abandon_stalled(self) -> None:
        self._expire()

    def _cancel_open(self) -> None:
        self._calls.withdraw(self)
        super()._cancel_open()

    def _describe(self) -> str:
        if self._waits() and not self._done:
            return f"{self._title()}, which {self._calls.describe_room(self._request)}"
        return super()._describe()

    def _needs(self) -> slow_waits.Needs:
        return self._calls.needs(self._request) if self._waits() else super()._needs()

    def _result(self) -> Any:
        return super()._result()[0]


class _AnyStreamCall(_Pooled, StreamCall):
    # A stream that any rank may serve. If its method is ``@idempotent`` and its rank is lost, the next request for an
    # item sends the call again, with the items received so far. This happens in the consumer's thread, because decoding
    # items runs user code.

    def __init__(self, calls: PoolCalls, request: PoolRequest, method: _Method) -> None:
        StreamCall.__init__(self, calls.callee(request.ranks[0]), method.name)
        self._join(calls, request, method)
        # Received items, kept while another rank may need them to resume the stream.
        self._came: list[Body] | None = [] if method.is_idempotent else None
        self._is_lost = False  # true from the loss of the rank until the call is repeated

    def _is_over(self) -> bool:
        return self._closed or self._error is not None

    def _start(self, attempt: Attempt) -> bool:
        if self._tick is None:
            attempt.since = None
        if super()._start(attempt):
            return True
        self._ended._settle()
        return False

    def _answer(self, slot: int, status: int, body: Body) -> bool:
        if status == Status.ITEM:
            self._stalled_s = 0.0
            if self._attempt is not None:
                self._calls.item_arrived(self._attempt)
            if self._came is not None:
                self._came.append(body)
        elif self._take_last(status, body):
            return True
        return super()._answer(slot, status, body)

    def _start_again(self) -> None:
        with self._lock:
            self._consumed = [-len(self._items)]  # the lost rank's items must not become credit for the next rank
            self._is_lost = True
        self._wake()

    def _resume(self) -> None:
        assert isinstance(self._body, bytes)
        args, kwargs = codec.decode(self._body)
        kwargs["resume"] = [*kwargs.get("resume", ()), *map(codec.decode, self._came or ())]
        describe = f"argument of {self._title()}"
        encoded = codec.encode_arguments(args, kwargs, describe=describe, root=("args", "kwargs"))
        self._body = encoded if isinstance(encoded, bytes) else encoded.to_bytes()
        # Change the state only now: if user code has raised above, the next request for an item tries again.
        self._came, self._is_lost = None, False
        self._calls.wait(self)

    def _next(self) -> tuple[int, Any] | Work[None] | None:
        if self._is_lost and not self._items and not self._closed:
            self._resume()
        found = super()._next()
        if (attempt := self._attempt) is not None:
            if not isinstance(found, Work):
                attempt.since = None
            elif attempt.since is None and attempt.request is not None:
                attempt.since = clock.monotonic()
                if self._request.stall_timeout is not None:
                    self._calls.watch(self._request.stall_timeout)
        return found

    async def _await_item(self) -> Any:
        return (await super()._await_item())[1]

    def _block_for_item(self) -> Any:
        return super()._block_for_item()[1]

    def _abandon_stalled(self) -> None:
        if (tick := self._tick) is not None:
            tick._expire()

    def _cancel_open(self) -> None:
        self._calls.withdraw(self)
        super()._cancel_open()

    def _describe_next(self) -> str:
        if self._waits():
            return f"the first item of {self._title()}, which {self._calls.describe_room(self._request)}"
        return super()._describe_next()

    def _needs(self) -> slow_waits.Needs:
        return self._calls.needs(self._request) if self._waits() else super()._needs()


class _Leftover:
    # Receives a silent rank's late answers to a call that another rank has taken over.

    def __init__(self, calls: PoolCalls, attempt: Attempt, method: str, targets: Sequence[int]) -> None:
        self._calls = calls
        self._attempt = attempt
        self._method = method
        self._targets = targets

    def _begin(self, call: int) -> Sequence[int]:
        return self._targets

    def _mark_departed(self) -> None:
        pass

    def _unanswered(self) -> Sequence[int]:
        return (0,)

    def _answer(self, slot: int, status: int, body: Body) -> bool:
        if status == Status.ITEM:
            return False
        self._calls.ended(self._attempt, self._targets[0], status, body)
        return True


class AnyStream(Stream[Any]):
    """A stream of the items that one rank yields from an async generator method.

    It is like ``Stream``, except that a loop over it yields items without ranks. If the rank is lost, another rank may
    continue.
    """

    def __aiter__(self) -> AsyncIterator[Any]:
        return super().__aiter__()

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()

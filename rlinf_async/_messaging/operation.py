"""Operations of messaging: ``SendWork`` and ``ReceiveWork`` (deadline, withdrawal, result), and their ``Member``s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from rlinf_async._client import peer_activity, registry
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._messaging.message_content import Content, Payload
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.state.matching import Message
from rlinf_async._transports.memory import GivenMemory
from rlinf_async._waits import slow_waits
from rlinf_async.errors import ClosedError
from rlinf_async.work import Returnable, Work

T = TypeVar("T")


class Member(NamedTuple):
    """A rank in a group. A worker's own subprocesses form the group ``<its group>:<its rank>``."""

    group: str
    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank} of group '{self.group}'"

    @classmethod
    def of(cls, group: Any, rank: Any) -> Member:
        """Create a member from a group's name and a rank, or from a root group's name and a path of ranks."""
        if type(rank) is int and type(group) is str:
            return cls(group, rank)
        if not isinstance(group, str):
            raise TypeError(f"a group is named by a str, got {group!r} ({type(group).__name__})")
        if _is_rank(rank):
            return cls(group, rank)
        if not isinstance(rank, Sequence) or isinstance(rank, str) or not all(map(_is_rank, rank)):
            raise TypeError(f"a rank of '{group}' is an int, or a path of ints, got {rank!r}")
        if not rank:
            raise ValueError(f"the path of ranks below '{group}' is empty")
        *path, last = rank
        return cls(":".join((group, *map(str, path))), last)


class MessageOperation(Work[T]):
    """A send or receive whose effects are undone if it is abandoned.

    Attributes:
        what: description of the operation, without the peer.
        peer: the peer; until it is known, an object whose ``str`` names it.
        others: receivers of a broadcast.
        missing: member whose group is being looked up.
        is_away: True if the missing member has died and is being restarted.
        withdraw: function that undoes the effects so far; None before there are any.
        explain: called at the deadline instead of raising a plain timeout error.
    """

    others: Sequence[Peer] = ()
    missing: Member | None = None
    is_away = False

    def __init__(self, what: str, peer: object, timeout: float | None) -> None:
        super().__init__()
        self.what = what
        self.peer = peer
        self.withdraw: Callable[[Exception], None] | None = None
        self.explain: Callable[[], None] | None = None
        self._limit(timeout)

    def _describe(self) -> str:
        return f"{self.what} {self.peer}"

    def _whom(self) -> str:
        return str(self.missing or self.peer)

    def _peer_activity(self) -> Work[str] | None:
        client = registry.first_active()
        if client is None:
            return None
        if self.missing is not None:
            return peer_activity.name(client, self.missing.group)
        return peer_activity.workers(client, {peer.endpoint: (peer.group, peer.rank) for peer in self._known_peers()})

    def _needs(self) -> slow_waits.Needs:
        if (missing := self.missing) is not None:
            return [Target(TargetKind.RESTART if self.is_away else TargetKind.NAME, name=missing.group)], True
        return [Target(TargetKind.MESSAGE, peer.endpoint) for peer in self._known_peers()], True

    def _known_peers(self) -> Sequence[Peer]:
        return (self.peer,) if isinstance(self.peer, Peer) else self.others

    # -- deadlines ----------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        if self.explain is not None:
            self.explain()
        else:
            self.abandon(self._late(self._timeout))

    # -- ends ---------------------------------------------------------------------------------------------------

    def _settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        if not super()._settle(value, error):
            return False
        self.forget()
        return True

    def forget(self) -> None:
        # Break the cycle through the callbacks, which would keep the payload alive until a garbage collection.
        self.withdraw = self.explain = None

    def fail(self, error: BaseException) -> bool:
        """Fail the operation. Return False if it was already done."""
        return self._settle(error=error)

    def abandon(self, error: Exception) -> None:
        """Fail the operation unless it is done, and undo its effects.

        The sending thread sets ``withdraw`` and then checks for done; this method marks the operation as done and then
        reads ``withdraw``. Whatever the interleaving, at least one of the two withdraws a message that was sent.

        tests/test_exchange.py::test_a_send_that_is_given_up_in_the_middle_was_never_made
        """
        if not super()._settle(error=error):
            return
        withdraw = self.withdraw
        self.forget()
        if withdraw is not None:
            withdraw(error)

    def _abandon(self) -> None:
        self.abandon(ClosedError(f"{self._describe()} was withdrawn: nobody waited for it any more"))


class SendWork(MessageOperation[Any]):
    """The send of one message; done once the caller may change the value."""

    _kind = "send"

    def __init__(self, what: str, peer: object, timeout: float | None, payload: Payload) -> None:
        super().__init__(what, peer, timeout)
        self.payload = payload
        self.result: Any = None

    @property
    def has_failed(self) -> bool:
        return self._done and self._error is not None

    def finish(self) -> bool:
        """Settle the operation: the caller may now change the value. Return False if it was already done."""
        return self._settle(self.result)


class Acceptor(Protocol):
    """The part of a receive that accepts or refuses messages, and stores their content."""

    def refuses(self, message: Message) -> str | None:
        """Return the reason why the message is not acceptable; None if it is acceptable."""

    def place(self) -> GivenMemory | None:
        """Return memory for arriving content, if any; the user must not touch it before the content is complete."""

    def arrived(self, content: Content) -> None:
        """Store the content, on the socket-reading thread and before the operation is done. May raise."""

    def value(self, message: Message) -> Any:
        """Return the result, on the waiter's thread."""


class ReceiveWork(Returnable[T], MessageOperation[T]):
    """The receive of one message; done once a message has been delivered.

    If the last waiter is cancelled before its wait returns, ``back`` returns the message to the head of its stream, as
    if it had never been received.
    """

    _kind = "recv"

    def __init__(self, what: str, peer: object, timeout: float | None, acceptor: Acceptor) -> None:
        super().__init__(what, peer, timeout)
        self.acceptor = acceptor
        self.back: Callable[[Message], None] | None = None
        self._message: Message | None = None

    def deliver(self, message: Message) -> bool:
        """Take the message. Return False if the receive is already done; raise if the message does not fit."""
        try:
            self.acceptor.arrived(message.content)
        except Exception as error:
            if not self.fail(error):
                return False
            raise
        self._message = message
        if self._settle():
            return True
        # Another thread may have abandoned the operation, perhaps after the message was stored here. In that case the
        # thread has already returned the message, and returning it a second time would duplicate it.
        # tests/_messaging/test_operation.py::test_a_message_goes_back_once_whenever_its_receive_is_given_up
        with self._lock:
            kept, self._message = self._message, None
        return kept is None

    def _result(self) -> T:
        if self._message is not None:
            with self._lock:
                # Clear ``_message`` last: a waiter on another thread that finds None reads the value, which must
                # already be set. tests/_messaging/test_operation.py::
                # test_who_asks_for_the_result_while_another_thread_rebuilds_it_has_the_same
                if self._message is not None:
                    try:
                        self._value = self.acceptor.value(self._message)
                    except Exception as error:
                        self._error = error
                    self._message = None
        return super()._result()

    def _return(self) -> None:
        with self._lock:
            message = None if self._interested else self._message
            if message is None:
                return
            self._message = None
            self._error = ClosedError(f"{self._describe()} was cancelled, and the message that was here went back")
        assert self.back is not None
        self.back(message)


def expand(groups: Any, src: Any) -> tuple[list[Member], Member]:
    """Return the members of a broadcast, each once and in order, and its source.

    Args:
        groups: ``(name, ranks)`` pairs; ranks are an int, a list of ints, a path (tuple), or a list of paths.
        src: a ``(name, rank or path)`` pair; by default the first member.
    """
    if groups is None or (isinstance(groups, list) and not groups):
        raise ValueError("broadcast() needs groups=: a list of (group name, ranks) pairs, the same on every member")
    if not isinstance(groups, list):
        raise TypeError(f"groups= takes a list of (group name, ranks) pairs, got {type(groups).__name__}")
    members: dict[Member, None] = {}
    for entry in groups:
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise TypeError(f"groups= takes (group name, ranks) pairs, got {entry!r}")
        name, ranks = entry
        if isinstance(ranks, list):
            members.update(dict.fromkeys(Member.of(name, rank) for rank in ranks))
        elif isinstance(ranks, tuple) or _is_rank(ranks):
            members[Member.of(name, ranks)] = None
        else:
            raise TypeError(f"the ranks of '{name}' are an int, a list of ints, a path or a list of paths: {ranks!r}")
    if not members:
        raise ValueError("broadcast() has no members: every list of ranks in groups= is empty")
    source = next(iter(members))
    if src is not None:
        if not isinstance(src, tuple) or len(src) != 2:
            raise TypeError(f"src= takes a (group name, rank) pair, got {src!r}")
        source = Member.of(*src)
        if source not in members:
            raise ValueError(f"src= is {source}, which is not in groups=: {', '.join(map(str, members))}")
    return list(members), source


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

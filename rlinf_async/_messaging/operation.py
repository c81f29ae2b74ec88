"""Awaitable operations of messaging, ``Sending`` and ``Receiving``: deadline, withdrawal, delivery, result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from rlinf_async._client import peer_activity, registry
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._messaging.message_content import Content, Payload
from rlinf_async._messaging.participants import Member
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.state.matching import Message
from rlinf_async._transports.memory import Place
from rlinf_async._waits import slow_waits
from rlinf_async.errors import ClosedError
from rlinf_async.work import Returnable, Work

T = TypeVar("T")


class Operation(Work[T]):
    """A send or receive, withdrawn where it is given up.

    Attributes:
        what: in words, without the peer.
        peer: as a text, or something that makes one, as far as it is known.
        others: those whom it is for, where they are several.
        missing: whose group is looked for.
        is_away: that one has died, and is started again.
        withdraw: undoes what has been done for it; None before anything was.
        explain: called in place of failing at the deadline: there is more to say than that it was late.
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
            self.give_up(self._late(self._timeout))

    # -- ends ---------------------------------------------------------------------------------------------------

    def _settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        if not super()._settle(value, error):
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Once it is done: these refer to this object, which would live, and hold what it carries, until the
        collector comes."""
        self.withdraw = self.explain = None

    def fail(self, error: BaseException) -> bool:
        """False if it was done before."""
        return self._settle(error=error)

    def give_up(self, error: Exception) -> None:
        """Ends it with an error, unless it is done, and undoes what can be undone.

        The sender sets ``withdraw`` and looks afterwards whether it is done; this one is done first, and looks for
        ``withdraw`` afterwards.  In whichever threads they are, one of the two sees the other: a message that has left
        is taken back once it is given up, by at least one of them.

        tests/test_exchange.py::test_a_send_that_is_given_up_in_the_middle_was_never_made
        """
        if not super()._settle(error=error):
            return
        withdraw = self.withdraw
        self.forget()
        if withdraw is not None:
            withdraw(error)

    def _abandon(self) -> None:
        self.give_up(ClosedError(f"{self._describe()} was withdrawn: nobody waited for it any more"))


class Sending(Operation[Any]):
    """A send; done when what is sent may change."""

    _kind = "send"

    def __init__(self, what: str, peer: object, timeout: float | None, payload: Payload) -> None:
        super().__init__(what, peer, timeout)
        self.payload = payload
        self.result: Any = None
        """What it is done with."""

    @property
    def has_failed(self) -> bool:
        return self._done and self._error is not None

    def finish(self) -> bool:
        """What is sent may change.  False if it was given up before."""
        return self._settle(self.result)


class Taking(Protocol):
    """The kind of a receive: which messages it refuses, and what becomes of the content of others."""

    def refuses(self, message: Message) -> str | None:
        """Why that message is not what is wanted."""

    def place(self) -> Place | None:
        """Where the content may be written while it comes; then the memory is not the user's until all of it has."""

    def arrived(self, content: Content) -> None:
        """Before anybody hears of it, in the thread that reads the socket; may raise."""

    def value(self, message: Message) -> Any:
        """The result, in the thread of its waiter."""


class Receiving(Returnable[T], Operation[T]):
    """A receive; done when its message has been delivered to it.

    Its waiter has it once a wait returns.  If the last waiter is cancelled before that, the message goes back
    to the head of its line, as if it had not been received.

    Attributes:
        back: puts a message back.
    """

    _kind = "recv"

    def __init__(self, what: str, peer: object, timeout: float | None, taking: Taking) -> None:
        super().__init__(what, peer, timeout)
        self.taking = taking
        self.back: Callable[[Message], None] | None = None
        self._message: Message | None = None

    def deliver(self, message: Message) -> bool:
        """The message is this one's.  False if it has been given up, and the message is to go back.

        Raises:
            Exception: it is not as was said; the operation has failed with that.
        """
        try:
            self.taking.arrived(message.content)
        except Exception as error:
            if not self.fail(error):
                return False
            raise
        self._message = message
        if self._settle():
            return True
        # It was given up, by another thread perhaps, and perhaps when the message was here already: then that thread
        # has given it back, and a second time would make two of it.
        # tests/_messaging/test_operation.py::test_a_message_goes_back_once_whenever_its_receive_is_given_up
        with self._lock:
            kept, self._message = self._message, None
        return kept is None

    def _result(self) -> T:
        if self._message is not None:
            with self._lock:
                # It is let go of last: another waiter's thread that finds none takes the value, which has to be there.
                # tests/_messaging/test_operation.py::
                # test_who_asks_for_the_result_while_another_thread_rebuilds_it_has_the_same
                if self._message is not None:
                    try:
                        self._value = self.taking.value(self._message)
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

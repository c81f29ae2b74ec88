"""``MPTransport``: weights over one end of a ``multiprocessing.Pipe``, in TorchRL's message format."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import DeadlineExceeded, PeerLost, RemoteError, RLinfAsyncError, WrongAcknowledgement
from rlinf_async.weights.links.pipe_mail import UPDATE, PipeMail
from rlinf_async.weights.links.socket_link import OWN, Notice, SocketLink
from rlinf_async.weights.links.weight_link import no_match
from rlinf_async.weights.transports.calls import detached
from rlinf_async.weights.transports.transport import LinkTransport
from rlinf_async.weights.waiting.execution import SyncAdapter

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

logger = own_logger(__name__)

_REGISTER: Final = "register_shared_weights"
_FAILED: Final = "failed"


class MPTransport(LinkTransport):
    """A transport between the sender and one process, over a pipe that both may also use for other messages.

    The sender writes ``((model_id, weights), "update_weights")``; the receiver answers ``(None, "updated")``, or
    ``(facts, "failed")`` if it could not apply them. A user's loop may read and write these messages with
    ``pipe.recv()`` and ``pipe.send()``. Weights are copied into the message, so the receiver does not see later
    changes. Within a scheme, both ends switch to shared memory, and the pipe carries notices instead of weights.

    Args:
        pipe_connection: one end of a duplex pipe.
        timeout: seconds to wait for the other side to read a message or to send an acknowledgement.
        registered: models whose receivers are first notified of a registration.

    Raises:
        ConfigError: the pipe is not duplex.
    """

    def __init__(
        self, pipe_connection: Connection[Any, Any], timeout: float = 10.0, registered: Collection[str] = ()
    ) -> None:
        self.timeout = timeout
        self.pipe = pipe_connection
        self._mail = PipeMail.of(pipe_connection)
        self._adapter = SyncAdapter()
        self._registered = registered
        self._link: SocketLink | None = None
        self._invites = False
        self._posts: list[tuple[Notice, str]] = []
        """Notices not yet written, each with its message's text."""
        self._has_posted = self._has_announced = self._awaits_answer = False
        self._named: set[bytes] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'closed' if self.pipe.closed else f'pipe {self.pipe.fileno()}'}>"

    # -- weights as messages ------------------------------------------------------------------------------------

    def send_weights(self, model_id: str, weights: Any) -> Any:
        """Send a copy, and wait until the receiver has applied it.

        Raises:
            DeadlineExceeded: the other side does not read, or does not answer.
            PeerLost: the other side has exited.
            WrongAcknowledgement: the other side sent an unexpected answer.
            RemoteError: the other side could not apply the weights; the error says why.
        """

        async def send() -> None:
            await self._send((model_id, detached(weights)), UPDATE)
            await self._check("updated")

        return self._adapter.run(send(), f"the sending to {self!r}")

    def send_weights_async(self, model_id: str, weights: Any) -> Any:
        """Send a copy; ``wait_ack`` waits for the receiver."""
        return self._adapter.run(self._send((model_id, detached(weights)), UPDATE), f"the sending to {self!r}")

    def wait_ack(self) -> Any:
        """Wait for the receiver, as ``check_ack()`` does."""
        return self.check_ack()

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """Return ``(model_id, weights)``; None if nothing arrives within ``timeout`` seconds.

        Raises:
            ValueError: another kind of message arrived.
            PeerLost: the other side has exited.
        """
        return self._adapter.run(self._receive(timeout), f"weights from {self!r}")

    async def _receive(self, timeout: float) -> Any:
        message = await self._mail.receive(timeout)
        if message is None:
            return None
        data, text = message
        if text != UPDATE:
            raise ValueError(f"Expected '{UPDATE}' but got {text!r}")
        return data

    def send_ack(self, message: str = "updated") -> Any:
        """Report to the sender that the received weights were applied."""
        return self._adapter.run(self._send(None, message), f"the answer of {self!r}")

    def send_error(self, error: BaseException) -> Any:
        """Report to the sender that the received weights could not be applied."""
        return self._adapter.run(self._send((type(error).__name__, str(error)), _FAILED), f"the answer of {self!r}")

    def check_ack(self, message: str = "updated") -> Any:
        """Wait for the receiver's acknowledgement.

        Raises:
            WrongAcknowledgement: another message arrived; this is a ``RuntimeError``.
            DeadlineExceeded: no acknowledgement arrived within the transport's ``timeout``.
            PeerLost: the other side has exited.
        """
        return self._adapter.run(self._check(message), f"the answer to {self!r}")

    async def _send(self, data: Any, text: str) -> None:
        await self._mail.send((data, text), self.timeout)

    async def _check(self, text: str) -> None:
        found = await self._mail.receive(self.timeout)
        if found is None:
            raise DeadlineExceeded(f"no acknowledgement '{text}' has come within {self.timeout:g} s")
        data, said = found
        if said == _FAILED:
            type_name, why = data
            raise RemoteError.from_facts(type_name, why, "")
        if said != text:
            raise WrongAcknowledgement(f"Expected acknowledgment '{text}', got '{said}'")

    def check_connection(self) -> bool:
        return not self.pipe.closed

    # -- the link and its notices -----------------------------------------------------------------------------------

    def invite(self, name: str) -> SocketLink:
        if self._link is None:
            self._link, self._invites = SocketLink.invite(name), True
        return self._link

    def _make_link(self, name: str) -> SocketLink:
        return SocketLink(name)

    def register(self, name: str) -> None:
        """Immediately notify the receiver's loop of a registered model, before there is a version."""
        link = self.invite(name)
        if name in self._registered and not self._has_posted:
            self._posts = [(link.notice(0), _REGISTER)]
            self._look()

    def announce(self, version: int) -> None:
        """Put a notice into the pipe, unless the pipe contains an unread notice or the receiver waits on the link."""
        link = self._link
        if link is None or link.error is not None or link.mode == OWN:
            return
        if link.mode is None and self._has_announced and not self.pipe.closed and not self._mail.is_all_read():
            return
        registers = link.name in self._registered and not self._has_posted
        self._posts = [(link.notice(version), text) for text in ([_REGISTER, UPDATE] if registers else [UPDATE])]
        self._look()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        stop = self._mail.watch(self._look) if self._look() else None
        try:
            yield
        finally:
            if stop is not None:
                stop()
            self._look()
            self._name_others()

    def _look(self) -> bool:
        """Write and read as much as possible without waiting. Return False if no more messages are expected."""
        link = self._link
        if link is None or link.error is not None:
            return False
        try:
            (self._post if self._invites else self._meet)(link)
        except (RLinfAsyncError, OSError) as error:  # the other side has exited, or the pipe is closed here
            link.close(error)
        return link.error is None and (bool(self._posts) or not link.is_joined)

    def _post(self, link: SocketLink) -> None:
        while self._posts and self._mail.post(*self._posts[0]):
            text = self._posts.pop(0)[1]
            self._awaits_answer |= text == _REGISTER
            self._has_announced |= text == UPDATE
            self._has_posted = True
        if self._awaits_answer and link.mode != OWN:
            self._awaits_answer = not self._mail.take((None, "registered"))
        elif not link.is_joined:
            self._mail.check()

    def _meet(self, link: SocketLink) -> None:
        if link.is_joined:
            return
        if (notice := self._mail.take_notice(link.name)) is not None:
            try:
                link.join(notice, OWN)
            except PeerLost as error:
                logger.info("a notice is passed over: %s", error)
        elif self._mail.notices:
            link.label = "the other end of the pipe" + no_match("sends weights of", self._mail.notices, link.name)

    def _name_others(self) -> None:
        """Tell each sender of another model, once, that its notice was found while searching for this model's."""
        link = self._link
        if link is not None and not self._invites and not link.is_joined:
            for other in list(self._mail.notices.values()):
                if other.address not in self._named:
                    self._named.add(other.address)
                    other.name_other(link.name)

    def close(self) -> Any:
        """Drop the pipe without closing it; in a coroutine, return a ``Work``."""
        self._adapter.release()
        return super().close()

    def __getstate__(self) -> dict[str, Any]:
        return {"timeout": self.timeout, "pipe": self.pipe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["pipe"], state["timeout"])  # type: ignore[misc]

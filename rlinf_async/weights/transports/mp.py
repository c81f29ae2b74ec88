"""Weights over one end of a ``multiprocessing.Pipe``, in TorchRL's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rlinf_async.errors import DeadlineExceeded, RemoteError, WrongAcknowledgement
from rlinf_async.weights.links.pipe_line import PipeLine
from rlinf_async.weights.links.pipe_mail import PipeMail
from rlinf_async.weights.links.shared_pipe_link import SharedPipeLink
from rlinf_async.weights.transports.calls import detached, nothing
from rlinf_async.weights.transports.link_transport import LinkTransport
from rlinf_async.weights.waiting.bridge import Bridge

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_UPDATE: Final = "update_weights"
_FAILED: Final = "failed"


class MPTransport(LinkTransport):
    """The way to one process, or in that process from the sender, over a pipe that both may use for other things.

    The sender says ``((model_id, weights), "update_weights")``, the receiver ``(None, "updated")``, or
    ``(facts, "failed")`` where it could not apply them; a loop of the user's own may read and write these messages by
    ``pipe.recv()`` and ``pipe.send()``.  Weights are copied into the message: what becomes of them afterwards is not
    seen by the receiver.  Within a ``MultiProcessWeightSyncScheme`` both ends go over to shared memory.

    Args:
        pipe_connection: one end of a pipe that goes both ways.
        timeout: seconds for which the other side may keep a message, or an acknowledgement, waiting.

    Raises:
        ConfigError: the pipe goes one way only.
    """

    def __init__(self, pipe_connection: Connection[Any, Any], timeout: float = 10.0) -> None:
        self.timeout = timeout
        self.pipe = pipe_connection
        self._mail = PipeMail(pipe_connection)
        self._bridge = Bridge()
        self._link: SharedPipeLink | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'closed' if self.pipe.closed else f'pipe {self.pipe.fileno()}'}>"

    def send_weights(self, model_id: str, weights: Any) -> Any:
        """Sends a copy, and waits until the receiver has applied it.

        Raises:
            DeadlineExceeded: the other side does not read, or does not answer.
            PeerLost: it is gone.
            WrongAcknowledgement: it says something else.
            RemoteError: it could not apply them; says why.
        """
        return self._bridge.run(self._send_and_wait(model_id, weights), f"the sending to {self!r}")

    async def _send_and_wait(self, model_id: str, weights: Any) -> None:
        await self._send(model_id, weights)
        await self._check("updated")

    def send_weights_async(self, model_id: str, weights: Any) -> Any:
        """Sends a copy; ``wait_ack`` waits for the receiver."""
        return self._bridge.run(self._send(model_id, weights), f"the sending to {self!r}")

    async def _send(self, model_id: str, weights: Any) -> None:
        await self._mail.send(((model_id, detached(weights)), _UPDATE), self.timeout)

    def wait_ack(self) -> Any:
        """``check_ack()``"""
        return self.check_ack()

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """``(model_id, weights)``; None if nothing comes within ``timeout`` seconds, or something else comes first,
        which stays in the pipe."""
        return self._bridge.run(self._receive(timeout), f"weights from {self!r}")

    async def _receive(self, timeout: float) -> Any:
        message = await self._mail.receive(timeout, _UPDATE)
        return None if message is None or message[1] != _UPDATE else message[0]

    def send_ack(self, message: str = "updated") -> Any:
        """The receiver's word that it has applied what it has received."""
        return self._bridge.run(self._mail.send((None, message), self.timeout), f"the answer of {self!r}")

    def send_error(self, error: BaseException) -> Any:
        """The receiver's word that it could not."""
        facts = (type(error).__name__, str(error))
        return self._bridge.run(self._mail.send((facts, _FAILED), self.timeout), f"the answer of {self!r}")

    def check_ack(self, message: str = "updated") -> Any:
        """Waits for the receiver's word.

        Raises:
            WrongAcknowledgement: it is another one; that is a ``RuntimeError``.
            DeadlineExceeded: there is none within the transport's ``timeout``.
            PeerLost: the other side is gone.
        """
        return self._bridge.run(self._check(message), f"the answer to {self!r}")

    async def _check(self, text: str) -> None:
        found = await self._mail.receive(self.timeout, text, bare=True)
        if found is None:
            other = " (something else is in the pipe, which nobody reads)" if self.pipe.poll(0) else ""
            raise DeadlineExceeded(f"no acknowledgement '{text}' has come within {self.timeout:g} s{other}")
        data, said = found
        if said == _FAILED:
            type_name, why = data
            raise RemoteError.from_facts(type_name, why, "")
        if said != text:
            raise WrongAcknowledgement(f"Expected acknowledgment '{text}', got '{said}'")

    def check_connection(self) -> bool:
        return not self.pipe.closed

    # -- in a scheme --------------------------------------------------------------------------------------------

    def open_link(self, name: str) -> SharedPipeLink:
        if self._link is None:
            self._link = SharedPipeLink(self.pipe, name)
        return self._link

    async def leads_to_link(self, timeout: float | None) -> bool:
        if self._link is not None or PipeLine.has_news(self.pipe):
            return True
        return await self._mail.wait(timeout) and self._mail.speaks_words()

    def look(self) -> None:
        if self._link is not None:
            self._link.look()

    def close(self) -> Any:
        """Lets go of the pipe, which stays open; in a coroutine a ``Work``."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._mail.close()
        work = self._bridge.run(nothing(), "nothing")
        self._bridge.release()
        return work

    def __getstate__(self) -> dict[str, Any]:
        return {"timeout": self.timeout, "pipe": self.pipe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["pipe"], state["timeout"])  # type: ignore[misc]

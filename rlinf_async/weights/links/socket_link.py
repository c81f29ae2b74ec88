"""``SocketLink``, a link over a private UNIX socket between two processes of one user, and ``Notice``, its invitation.

The sender's end *invites*: it listens at its own abstract address until one receiver has joined. A ``Notice`` carries
the address to the receiver through a pipe. If the sender's end is already closed or taken, the kernel immediately
refuses the receiver. Each end watches the other process by the pid that the kernel reports: a link ends with that
process, even if other processes have inherited its socket.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._core import frames, process
from rlinf_async._core.own_logger import own_logger
from rlinf_async._transports.lazy_thread import LazyThread
from rlinf_async._wire import local_socket
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import AuthError, ConfigError, PeerLost, RLinfAsyncError, TransferFailed
from rlinf_async.weights.links.weight_link import LinkMessage, WeightLink, no_match
from rlinf_async.weights.waiting.ownership import OwnerProcess

logger = own_logger(__name__)

MAX_WAITING_BYTES: Final = 64 << 20
"""Limit on unread bytes, above which messages are refused."""

_PART_BYTES: Final = 4 << 20
"""Limit on one frame; a longer message takes several frames."""

_EXIT_STATUS_S: Final = 0.5
"""Seconds to wait for a process's exit after its socket was closed, so that the error can report the exit."""

_ACCEPT_AGAIN_S: Final = 0.1  # pause after an accept that failed for lack of descriptors or memory

_MORE, _LAST, _JOIN, _BYE = range(4)
"""Kinds of frames: part of a message, last part of a message, the receiver's model and mode, end of the link."""

OWN: Final = "own"
"""Mode of a receiver that waits for versions on the link."""

LOOP: Final = "loop"
"""Mode of a receiver to which the user's own loop passes on a notice for every version."""


@dataclass(frozen=True)
class Notice:
    """The address of a waiting version, sent over a user's pipe instead of the weights.

    Attributes:
        address: address of the sender's private socket.
        namespace: network namespace to which the address belongs.
    """

    address: bytes
    namespace: int
    model_id: str
    version: int

    def name_other(self, model_id: str) -> None:
        """Tell the sender that a receiver with another id has read this notice; its timeout error will say so."""
        with contextlib.suppress(OSError, RLinfAsyncError):
            sock, _ = _connect(self)
            with sock:
                sock.send(frames.pack([frames.HELLO, 0, _JOIN, frames.pack([model_id, OWN])]))


class SocketLink(WeightLink):
    """One end of the link; a copy in a forked child is closed.

    Args:
        name: the model's id, the same at both ends.
        label: name of the other side in errors.

    Attributes:
        mode: the receiver's mode, ``OWN`` or ``LOOP``; None until the receiver has joined.
    """

    def __init__(self, name: str, label: str | None = None) -> None:
        self._role = label or f"the process at the other end of the pipe for '{name}'"
        super().__init__(self._role)
        self.name = name
        self.mode: str | None = None
        self._address = b""
        self._sockets: _Sockets | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._sending = threading.Lock()
        """Lock held while a message is sent, so that its parts are not interleaved with those of other messages."""

    @classmethod
    def invite(cls, name: str, label: str | None = None) -> SocketLink:
        """Return the sender's end, which is ``opened`` once a receiver has joined."""
        link = cls(name, label)
        link._address = b"\0rlinf-weights-" + secrets.token_hex(16).encode()
        sockets = link._begin()
        sockets.listener = local_socket.listen(link._address)
        sockets.hub.call(sockets.listen)
        return link

    def notice(self, version: int) -> Notice:
        """Return the notice with which a receiver joins."""
        return Notice(self._address, _network(), self.name, version)

    def join(self, notice: Notice, mode: str) -> None:
        """Connect the receiver's end. A later call only changes the mode, unless the mode is already ``LOOP``.

        Raises:
            PeerLost: the sender's end is closed or taken; or this end is closed, or belongs to another sender.
            ConfigError: the sender is in another network namespace.
            AuthError: the sender belongs to another user.
        OSError: no descriptor is free.
        """
        is_read = threading.Event()
        # Two threads that join at once must share one connection; otherwise the sender would refuse the second and end
        # the link.  tests/weights/links/test_socket_link.py::test_threads_that_join_at_once_make_one_connection
        with self._order:
            if self.error is not None:
                raise self._told()
            if self._sockets is None:
                found = _connect(notice)
                self._address = notice.address
                self._begin().join(*found, is_read.set)
            elif notice.address != self._address:
                raise PeerLost(f"{notice} is of another sender than {self.label}, which this link has joined")
            else:
                is_read.set()
            if self.mode not in (mode, LOOP):
                self.mode = mode
                self._send_parts([self.name, mode], _JOIN)
        is_read.wait()  # once the socket is being read, messages are sent even if this process exits

    @property
    def is_joined(self) -> bool:
        return self.mode is not None

    def _begin(self) -> _Sockets:
        self._sockets = sockets = _Hub.add(self)
        self._finalizer = weakref.finalize(self, sockets.hub.call, sockets.close)
        self._finalizer.atexit = False
        return sockets

    def _send(self, message: LinkMessage) -> None:
        if not self.is_joined:
            raise TransferFailed(f"{self.label} has not joined the link")
        self._send_parts(message, _LAST)

    def _send_parts(self, message: LinkMessage, kind: int) -> None:
        connection = None if self._sockets is None else self._sockets.connection
        assert connection is not None
        if connection.queued_bytes > MAX_WAITING_BYTES and kind == _LAST:
            mib = MAX_WAITING_BYTES >> 20
            raise TransferFailed(f"{self.label} does not read what it is sent: {mib} MiB wait for it")
        data = frames.pack(message)
        with self._sending:
            for start in range(0, len(data), _PART_BYTES):
                is_last = start + _PART_BYTES >= len(data)
                part = data[start : start + _PART_BYTES]
                connection.send([frames.HELLO, 0, kind if is_last else _MORE, part])

    def _close(self) -> None:
        if self._finalizer is not None and self._finalizer.alive:
            if self.is_joined:
                self._send_parts([], _BYE)
            self._finalizer()


class _Hub(LoopThread):
    """The thread that runs the event loop for this process's private sockets as long as there are links.

    Attributes:
        sockets: sockets of each link, without references to the links, so that dropped links are collected.
    """

    current: ClassVar[_Hub | None] = None
    lock: ClassVar[threading.Lock] = threading.Lock()
    inherited: ClassVar[list[_Hub]] = []
    """Hubs of this forked child's ancestors, whose loops were running and cannot be freed."""

    def __init__(self) -> None:
        super().__init__("rlinf-weights")
        self.process = OwnerProcess()
        self.sockets: set[_Sockets] = set()

    def call(self, callback: Callable[[], object]) -> None:
        """Run the callback on the loop, except in a forked child. Take no lock: the garbage collector may call this."""
        if self.process.is_here:
            with contextlib.suppress(RuntimeError):  # the loop has ended because all links are closed
                super().call(callback)

    @classmethod
    def add(cls, link: SocketLink) -> _Sockets:
        with cls.lock:
            cls.current = hub = cls.current or cls()
            sockets = _Sockets(hub, link)
            hub.sockets.add(sockets)
            return sockets

    def remove(self, sockets: _Sockets) -> None:
        with self.lock:
            self.sockets.discard(sockets)
            if not self.sockets and _Hub.current is self:
                with contextlib.suppress(RuntimeError):  # no thread can start for now, so the next link uses this hub
                    # In a thread, because stopping blocks until this thread has left its loop.
                    LazyThread("rlinf-weights end").submit(self.stop)
                    _Hub.current = None

    @classmethod
    def forget(cls) -> None:
        """Forget the parent's hub without notifying listeners, whose locks may be held by threads of the parent."""
        cls.lock = threading.Lock()
        hub, cls.current = cls.current, None
        if hub is not None:
            cls.inherited.append(hub)
            for sockets in hub.sockets:
                sockets.forget()


class _Sockets:
    """The sockets of one link, with a weak reference to the link. All methods except ``join`` run on the hub's loop.

    Attributes:
        connection: connection to the other end, or to a candidate that has not named its model yet.
    """

    def __init__(self, hub: _Hub, link: SocketLink) -> None:
        self.hub = hub
        self.listener: socket.socket | None = None
        self.connection: Connection | None = None
        self._link = weakref.ref(link)
        self._process: int | None = None
        """Pidfd of the other process."""
        self._parts: list[bytes] = []

    # -- the beginning ----------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Accept one connection at a time, which becomes the link's connection or is closed."""
        if self.listener is not None:
            self.hub.loop.add_reader(self.listener.fileno(), self._accept)

    def _accept(self) -> None:
        assert self.listener is not None
        try:
            sock, _ = self.listener.accept()
        except OSError:
            # The socket stays readable, so without a pause the loop would spin until a descriptor is free.
            self.hub.loop.remove_reader(self.listener.fileno())
            self.hub.loop.call_later(_ACCEPT_AGAIN_S, self.listen)
            return
        try:
            self._connect(sock, local_socket.check_peer(sock)).open()
            self.hub.loop.remove_reader(self.listener.fileno())
        except AuthError as error:
            sock.close()
            logger.warning("a connection to %r was refused: %s", self._link(), error)

    def join(self, sock: socket.socket, pid: int, then: Callable[[], None]) -> None:
        """Connect, from any thread; call ``then`` once the connection is being read."""
        connection = self._connect(sock, pid)

        def begin() -> None:
            connection.open()
            self._meet(pid)
            then()

        self.hub.call(begin)

    def _connect(self, sock: socket.socket, pid: int) -> Connection:
        self.connection = connection = Connection(
            sock,
            self.hub.loop,
            on_frame=lambda frame, fds: self._on_frame(pid, *frame[2:]),
            on_closed=lambda reason: self._ended(f"is gone: its socket has ended ({reason})"),
        )
        return connection

    def _meet(self, pid: int) -> None:
        """Open the link, and start watching the other process."""
        link = self._link()
        if link is not None:
            link.is_here = pid == process.pid
            link.label = link._role if link.is_here else f"{link._role} (pid {pid})"
            link.opened._settle()
        if pid != process.pid:
            try:
                self._process = os.pidfd_open(pid)
            except ProcessLookupError:
                self._exited()
            except OSError:
                pass  # another pid namespace: rely on the socket's end
            else:
                self.hub.loop.add_reader(self._process, self._exited)

    def _on_frame(self, pid: int, kind: int, part: bytes) -> None:
        link = self._link()
        if link is None:
            return  # the socket is about to be closed
        if kind == _JOIN:
            name, mode = frames.unpack(part)
            if name != link.name:
                link.label = link._role + no_match("has a receiver of", [name], link.name)
                return
            link.mode = mode
            if self.listener is not None:
                self._close_listener()
                self._meet(pid)
        elif kind == _BYE:
            self._lose("has closed its end of the link")
        else:
            self._parts.append(part)
            if kind == _LAST:
                message = frames.unpack(b"".join(self._parts))
                self._parts.clear()
                link._arrive(message)

    # -- close -----------------------------------------------------------------------------------------------------

    def _exited(self) -> None:
        """Handle the other process's end after reading its last messages."""
        if self.connection is not None:
            self.connection.drain()
        self._lose(f"is gone: its process has ended{_exit_status(self._process)}")

    def _ended(self, why: str) -> None:
        if self.listener is not None:  # the connection did not name this link's model
            self.connection = None
            self.listen()
        elif self._process is None:
            self._lose(why)
        else:
            # A dying process closes its socket before it exits.
            self.hub.loop.call_later(_EXIT_STATUS_S, self._lose, why)

    def _lose(self, why: str) -> None:
        link = self._link()
        if link is not None:
            link._end(PeerLost(f"{link.label} {why}"))
        self.close()

    def close(self) -> None:
        if self not in self.hub.sockets:
            return
        self._close_listener()
        if self.connection is not None:
            self.connection.close()
        handle, self._process = self._process, None
        if handle is not None:
            self.hub.loop.remove_reader(handle)
            os.close(handle)
        self.hub.remove(self)

    def _close_listener(self) -> None:
        listener, self.listener = self.listener, None
        if listener is not None:
            self.hub.loop.remove_reader(listener.fileno())
            listener.close()

    def forget(self) -> None:
        if self.listener is not None:
            self.listener.close()
        if self.connection is not None:
            self.connection.forget()
        if self._process is not None:
            os.close(self._process)
        link = self._link()
        if link is not None:
            link._order = threading.RLock()  # another thread may have held the lock
            link._sockets = link._finalizer = None
            link.error = link.error or self.hub.process.forked(f"the link to {link.label}")


def _connect(notice: Notice) -> tuple[socket.socket, int]:
    """Return a socket connected to the sender, and the sender's pid.

    Raises:
        PeerLost: no process listens at the address any more.
        ConfigError: the address is not reachable from here.
        AuthError: the sender belongs to another user.
    """
    try:
        sock = local_socket.connect(notice.address)
        return sock, local_socket.check_peer(sock)
    except ConnectionError as error:
        if notice.namespace != _network():
            raise ConfigError(
                f"weights of '{notice.model_id}' wait at a socket of another network namespace, which cannot be "
                "reached from here: run both sides in one container, or let them share the host's network"
            ) from error
        why = f"has closed its end, or another receiver has joined it ({error.strerror})"
        raise PeerLost(f"the sender of version {notice.version} of '{notice.model_id}' {why}") from error


def _network() -> int:
    return Path("/proc/self/ns/net").stat().st_ino


def _exit_status(handle: int | None) -> str:
    """Describe how a child of this process exited, without reaping it."""
    with contextlib.suppress(OSError, ValueError):  # it is not a child of this process, or the signal has no name
        if handle is not None and (ended := os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            exited = ended.si_code == os.CLD_EXITED
            return f": exit code {ended.si_status}" if exited else f": killed by {signal.Signals(ended.si_status).name}"
    return ""


os.register_at_fork(after_in_child=_Hub.forget)

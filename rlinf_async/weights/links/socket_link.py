"""Links over a private UNIX socket between two processes of one user.

The sender's end *invites*: it listens at an abstract address of its own, which a ``Notice`` carries to the receiver by
any way, until one has joined.  So a notice of an end that is closed or taken is refused by the kernel, at once.  Each
end watches the other process by its pid, as the kernel vouches for it: a link ends with that process, whoever else has
inherited its socket.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._core import frames, process
from rlinf_async._transports.lazy_thread import LazyThread
from rlinf_async._wire.local_socket import check_peer
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import AuthError, ConfigError, PeerLost, TransferFailed
from rlinf_async.weights.links.link import Link, Words

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES: Final = 64 << 20
"""Bytes that wait for the other side at most; with that many there, no further word is taken."""

_PART_BYTES: Final = 4 << 20
"""Bytes of one frame at most; a longer word takes several."""

_EXIT_STATUS_S: Final = 0.5
"""Seconds between the ends of a socket and of its process, within which the one is a part of the other."""

_MORE, _WORDS, _JOIN, _BYE = range(4)
"""What a frame brings: a part of a word; the last part; or what the ends say to each other: the receiver's model and
mode, and that the link is closed."""

OWN: Final = "own"
"""Mode of a receiver that waits for versions at the link."""

LOOP: Final = "loop"
"""Mode of a receiver that is handed a notice of every version, by a loop of the user's."""


@dataclass(frozen=True)
class Notice:
    """Which version waits where: what travels over a user's pipe in the place of weights.

    Attributes:
        address: of the private socket at which the sender listens.
        namespace: of the network, in which alone there is such an address.
    """

    address: bytes
    namespace: int
    model_id: str
    version: int

    def name_other(self, model_id: str) -> None:
        """Tells the sender that a receiver of another id has met this, for the error of its deadline."""
        with contextlib.suppress(OSError, PeerLost, ConfigError), _connect(self) as sock:
            sock.send(frames.pack([frames.HELLO, 0, _JOIN, frames.pack([model_id, OWN])]))


class SocketLink(Link):
    """One end.  A forked process has copies of it that have ended.

    Args:
        name: the model's id, the same at both ends.
        label: the other side, as errors call it.

    Attributes:
        mode: the receiver's, ``OWN`` or ``LOOP``; None until it has joined.
    """

    def __init__(self, name: str, label: str | None = None) -> None:
        self._role = label or f"the process at the other end of the pipe for '{name}'"
        super().__init__(self._role)
        self.name = name
        self.mode: str | None = None
        self._address = b""
        self._joining = threading.Lock()
        self._end_here: _End | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @classmethod
    def invite(cls, name: str, label: str | None = None) -> SocketLink:
        """The sender's end; it is ``opened`` when a receiver has joined."""
        link = cls(name, label)
        link._address = b"\0rlinf-weights-" + secrets.token_hex(16).encode()
        listener = _new_socket()
        listener.bind(link._address)
        listener.listen(16)
        listener.setblocking(False)
        end = link._begin()
        end.call(partial(end.listen, listener))
        return link

    def notice(self, version: int) -> Notice:
        """What a receiver joins by."""
        return Notice(self._address, _network(), self.name, version)

    def join(self, notice: Notice, mode: str) -> None:
        """Connects the receiver's end.  A second time only the mode counts, and ``LOOP`` stays.

        Raises:
            PeerLost: the sender's end is closed, or taken; or this one has ended, or is another sender's.
            ConfigError: the sender's network is another one than this process's.
            AuthError: the sender is another user's.
        """
        # Not under _order, which the hub's loop takes where a word comes or the link ends: it is waited for here, and
        # would never come to what it is waited for.
        with self._joining:
            if self.error is not None:
                raise self._told()
            if self._end_here is None:
                sock = _connect(notice)
                try:
                    pid = check_peer(sock)
                except AuthError:
                    sock.close()
                    raise
                self._address = notice.address
                end = self._begin()
                end.take(end.connect(sock, pid), pid)
                end.wait_open()  # a process that ends after this has joined, and its end is seen
            elif notice.address != self._address:
                raise PeerLost(f"{notice} is of another sender than {self.label}, which this link has joined")
            if self.mode not in (mode, LOOP):
                self.mode = mode
                self._joined().say([self.name, mode], _JOIN)

    @property
    def is_joined(self) -> bool:
        return self._end_here is not None and self._end_here.connection is not None

    def give_up(self, error: Exception) -> None:
        """Nobody will join it, for that reason."""
        self._end(error)
        self._close()

    def _begin(self) -> _End:
        self._end_here = end = _Hub.add(self)
        self._finalizer = weakref.finalize(self, end.call, end.close)
        self._finalizer.atexit = False
        return end

    def _joined(self) -> _End:
        if self._end_here is None or self._end_here.connection is None:
            raise TransferFailed(f"{self.label} has not joined the link")
        return self._end_here

    def _send(self, words: Words) -> None:
        self._joined().say(words)

    def _close(self) -> None:
        if self._finalizer is not None and self._finalizer.alive:
            if self.is_joined:
                self._joined().say([], _BYE)
            self._finalizer()


class _Hub:
    """The loop of this process's private sockets, in a thread that is there while there are links.

    Attributes:
        ends: the sockets of each link; it holds no link itself, so that one that is dropped is found.
    """

    _current: ClassVar[_Hub | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _inherited: ClassVar[list[_Hub]] = []
    """Of the processes that this one was forked from: a loop that has been running cannot be freed."""

    def __init__(self) -> None:
        self.pid = process.pid
        self.thread = LoopThread("rlinf-weights")
        self.ends: set[_End] = set()

    @classmethod
    def add(cls, link: SocketLink) -> _End:
        with cls._lock:
            if cls._current is None:
                cls._current = cls()
            end = _End(cls._current, link)
            cls._current.ends.add(end)
            return end

    def remove(self, end: _End) -> None:
        """On the loop."""
        with self._lock:
            self.ends.discard(end)
            if self.ends or _Hub._current is not self:
                return
            _Hub._current = None
        LazyThread("rlinf-weights end").submit(self.thread.stop)  # which waits for the thread that this is

    @classmethod
    def forget(cls) -> None:
        """In a forked process.  Listeners are not told: their locks may be held by threads that are not there."""
        cls._lock = threading.Lock()
        hub, cls._current = cls._current, None
        if hub is not None:
            cls._inherited.append(hub)
            for end in hub.ends:
                end.forget()


class _End:
    """The sockets of one link, which it knows weakly.  All but ``call`` and ``say`` is for the hub's loop.

    Attributes:
        connection: to the other end; None until that has joined.
    """

    def __init__(self, hub: _Hub, link: SocketLink) -> None:
        self.connection: Connection | None = None
        self._hub = hub
        self._loop = hub.thread.loop
        self._link = weakref.ref(link)
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        """Those too that have not said yet whom they are for."""
        self._parts: list[bytes] = []
        self._whole_words = threading.Lock()
        """Held while a word leaves: nothing comes between its parts."""
        self._pid = 0
        self._process: int | None = None
        """Descriptor of the other process."""
        self._is_open = threading.Event()
        self._has_exited = self._is_left = self._is_closed = False

    def call(self, callback: Callable[[], object]) -> None:
        """From any thread, and in a garbage collection: it takes no lock.  Nothing in a forked process."""
        if self._hub.pid == process.pid:
            with contextlib.suppress(RuntimeError):  # the loop has ended, because this is closed
                self._hub.thread.call(callback)

    def wait_open(self) -> None:
        """Until it is read, or closed: from then on words leave at once, in the thread that says them."""
        self._is_open.wait()

    def say(self, words: Words, kind: int = _WORDS) -> None:
        """From any thread.

        Raises:
            TransferFailed: the other side does not read.
        """
        connection, data = self.connection, frames.pack(words)
        assert connection is not None
        if connection.queued_bytes > MAX_WAITING_BYTES and kind == _WORDS:
            raise TransferFailed(
                f"process {self._pid} does not read what it is sent: {MAX_WAITING_BYTES >> 20} MiB wait for it"
            )
        with self._whole_words:
            for start in range(0, len(data), _PART_BYTES):
                part = data[start : start + _PART_BYTES]
                is_last = start + _PART_BYTES >= len(data)
                connection.send([frames.HELLO, 0, kind if is_last else _MORE, part])

    # -- the beginning ----------------------------------------------------------------------------------------------

    def listen(self, listener: socket.socket) -> None:
        self._listener = listener
        self._loop.add_reader(listener.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError):
            sock, _ = self._listener.accept()
            try:
                self.connect(sock, check_peer(sock))
            except AuthError as error:
                sock.close()
                logger.warning("a connection to %r was refused: %s", self._link(), error)

    def connect(self, sock: socket.socket, pid: int) -> Connection:
        """From any thread."""
        connection: Connection

        def hear(frame: list[Any], fds: list[int]) -> None:
            self._hear(connection, pid, frame)

        connection = Connection(sock, self._loop, on_frame=hear, on_closed=lambda why: self._ended(connection, why))
        self._connections.add(connection)
        self.call(connection.open)
        return connection

    def take(self, connection: Connection, pid: int) -> None:
        """Both ends have met; from any thread."""
        self.connection, self._pid = connection, pid
        self.call(self._watch)
        link = self._link()
        if link is not None:
            link.is_here = pid == process.pid
            link.label = link._role if link.is_here else f"{link._role} (pid {pid})"
            link.opened._settle()

    def _watch(self) -> None:
        self._is_open.set()
        self._stop_listening()
        if self._pid != process.pid and not self._is_closed:
            try:
                self._process = os.pidfd_open(self._pid)
            except ProcessLookupError:
                self._exited()
            except OSError:
                pass  # of a pid namespace that is not seen from here: the socket's end has to do
            else:
                self._loop.add_reader(self._process, self._exited)

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener.fileno())
            listener.close()

    def _hear(self, connection: Connection, pid: int, frame: list[Any]) -> None:
        *_, kind, part = frame
        link = self._link()
        if kind == _JOIN and link is not None:
            name, mode = frames.unpack(part)
            if name != link.name:
                link.label = f"{link._role}, which has a receiver of '{name}' and none of '{link.name}'"
            elif self.connection in (None, connection) and link.error is None:
                link.mode = mode
                if self.connection is None:
                    self.take(connection, pid)
            else:
                connection.close()
        elif kind == _BYE:
            self._is_left = True
        elif connection is self.connection:
            self._parts.append(part)
            if kind == _WORDS:
                words = frames.unpack(b"".join(self._parts))
                self._parts.clear()
                if link is not None:
                    link._arrive(words)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _exited(self) -> None:
        """The other process is no more: all that it has said is here."""
        self._has_exited = True
        if self.connection is not None:
            self.connection.drain()
        self._lose("")

    def _ended(self, connection: Connection, reason: str) -> None:
        """A socket has.  Of a process that dies, this is heard first."""
        self._connections.discard(connection)
        if connection is not self.connection:
            return
        if self._is_left or self._process is None:
            self._lose(reason)
        else:
            self._loop.call_later(_EXIT_STATUS_S, self._lose, reason)

    def _lose(self, reason: str) -> None:
        if self._is_closed:
            return
        why = f"is gone: its socket has ended ({reason})"
        if self._is_left:
            why = "has closed its end of the link"
        elif self._has_exited:
            why = f"is gone: its process has ended{_exit_status(self._process)}"
        self.close()
        link = self._link()
        if link is not None:
            link._end(PeerLost(f"{link.label} {why}"))

    def close(self) -> None:
        """Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_open.set()
        self._stop_listening()
        for connection in self._connections:
            connection.close()
        if self._process is not None:
            self._loop.remove_reader(self._process)
            os.close(self._process)
        self._hub.remove(self)

    def forget(self) -> None:
        """In a forked process."""
        if self._listener is not None:
            self._listener.close()
        for connection in self._connections:
            connection.forget()
        if self._process is not None:
            os.close(self._process)
        link = self._link()
        if link is not None:
            link._order, link._joining = threading.RLock(), threading.Lock()  # another thread may have held them
            link._end_here = link._finalizer = None
            link.error = link.error or process.forked(f"the link to {link.label}", self._hub.pid)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def _connect(notice: Notice) -> socket.socket:
    """
    Raises:
        PeerLost: nobody listens there any more.
        ConfigError: that cannot be reached from here.
    """
    sock = _new_socket()
    try:
        sock.connect(notice.address)
    except OSError as error:
        sock.close()
        if notice.namespace != _network():
            raise ConfigError(
                f"weights of '{notice.model_id}' wait at a socket of another network namespace, which cannot be "
                "reached from here: run both sides in one container, or let them share the host's network"
            ) from error
        why = f"has closed its end, or another receiver has joined it ({error.strerror})"
        raise PeerLost(f"the sender of version {notice.version} of '{notice.model_id}' {why}") from error
    return sock


def _network() -> int:
    return Path("/proc/self/ns/net").stat().st_ino


def _exit_status(handle: int | None) -> str:
    """How a process has ended, where it is a child of this one; it stays to be waited for."""
    with contextlib.suppress(OSError, ValueError):  # it is nobody's child here; a signal without a name
        if handle is not None and (ended := os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            exited = ended.si_code == os.CLD_EXITED
            return f": exit code {ended.si_status}" if exited else f": killed by {signal.Signals(ended.si_status).name}"
    return ""


os.register_at_fork(after_in_child=_Hub.forget)

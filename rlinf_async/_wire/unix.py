"""Frames over a UNIX socket, file descriptors riding on the frame that they belong to.

One plain non-blocking socket, ``add_reader`` and ``recvmsg``: as fast as a transport, and descriptors arrive with
their bytes.  ``send`` may be called from any thread.  What is sent within one turn of the loop leaves in one system
call.  A receiver without a free descriptor gets the content of a frame as bytes (``_core/resend.py``); what a
*resumable* connection still owes when it breaks is handed over to another way.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from rlinf_async import settings
from rlinf_async._core import frames
from rlinf_async._core.frames import Frame, FrameError, FrameReader, new_packer
from rlinf_async._core.resend import Incoming, content_bytes, pack
from rlinf_async._wire.reading.idle_reader import BRISK, IdleReader
from rlinf_async._wire.reading.turns import Turns
from rlinf_async._wire.send_buffer import MOST_FDS, SendBuffer, State, close_all

logger = logging.getLogger(__name__)

_READ: Final = 256 * 1024
_ANCILLARY: Final = socket.CMSG_SPACE(MOST_FDS * 4)
_EMPTY: Final = State.EMPTY
_BURST: Final = 50e-6
"""Seconds; a frame that follows another one sooner than this waits for the end of the loop's turn."""

_ACK: Final = frames.ACK

# As plain numbers: the enum members of `socket` cost microseconds in arithmetic.
_CLOEXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_CTRUNC: Final = int(socket.MSG_CTRUNC)

_AGAIN: Final = 0.005
"""Seconds after which a kernel that was short of something is asked again."""

MAX_FRAME: Final = 8 << 20
"""Bytes of a packed frame; the reader's own limits lie above it.  What is large travels as a descriptor."""

OnFrames = Callable[[list[tuple[list[Any], list[int]]]], None]
Relay = Callable[[list[Any], Sequence[int]], None]


class Connection:
    """One end of a framed UNIX socket.

    ``on_frame(frame, fds)`` is called on the loop for every frame; the callee owns the descriptors.
    ``on_arrival()`` precedes the first frame of what one wake-up brought, when that has been read and not yet handled;
    ``on_batch()`` follows the last one.  ``on_closed(reason)`` is called once, when the
    other end is gone or broke the protocol; not when ``close()`` was called here.

    A second thread may read too (``share``): then all three are called on either thread, though never on both at once;
    connections that are given the same ``turns`` never call at once either.

    Descriptors given to ``send`` belong to the connection from then on and are closed when they have arrived.

    Args:
        resumable: what is sent once it has failed is kept for ``hand_over``.

    Attributes:
        sibling: the other connection between the same two processes, if any: acknowledgements ride there too.
        is_handling: some frame is being handled, further up in the stack.
        on_drained: called on the loop when everything has left after the socket had been full.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        *,
        on_frame: Callable[[list[Any], list[int]], None],
        on_closed: Callable[[str], None],
        on_batch: Callable[[], None] | None = None,
        on_arrival: Callable[[], None] | None = None,
        turns: Turns | None = None,
        resumable: bool = False,
    ) -> None:
        sock.setblocking(False)
        predecessor = _by_number.get(sock.fileno())
        _by_number[sock.fileno()] = self
        if predecessor is not None:
            predecessor._lose_number()
        self._sock = sock
        self._inode = os.fstat(sock.fileno()).st_ino
        self._loop = loop
        self._thread = 0
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_batch = on_batch
        self._on_arrival = on_arrival
        self.is_handling = False
        self._arrived: deque[tuple[list[Any], list[int]]] = deque()
        self._reader = FrameReader()
        self._packer = new_packer()
        self._incoming = Incoming()
        self._ack_timer = False
        self._is_resumable = resumable
        self._relay: Relay | None = None
        self.sibling: Connection | None = None
        self._lock = threading.Lock()
        self._turns = turns or Turns()
        self._departures = SendBuffer()
        self._heard_bytes = 0
        self.on_drained: Callable[[], None] | None = None
        self._scheduled = False
        self._sent_at = 0.0
        self._blocked = False
        self._closed = False
        self._failed = False
        self._idle: IdleReader | None = None
        self._buffer = bytearray(_READ)
        self._view = memoryview(self._buffer)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Connection fd {self._sock.fileno()} {state} [{len(self._departures)} chunks queued]>"

    def open(self) -> None:
        """Starts reading.  Call it on the loop's own thread."""
        if self._closed:
            return
        self._thread = threading.get_ident()
        # Those of a socket which user code has closed, and whose number this one has: a reader would be replaced, and
        # not watched anew; a writer would be called for ever.
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._watch()
        self._flush()

    def share(self, idle: IdleReader) -> None:
        """Lets another thread read what arrives while it waits for something; before ``open``."""
        self._idle = idle
        self._turns.idle = idle.loop
        idle.add(self._sock.fileno(), self._readable_elsewhere)

    def _lose_number(self) -> None:
        """Another connection has the number of this one's descriptor, so user code has closed it; from any thread.

        From here on nothing is written to the other one, or read from it, in the name of this one: that would count as
        frames of the other one, or be heard by the wrong process (test_second_thread.py, "takes_the_number").
        """
        if self._sock.detach() >= 0:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._hear_last)

    @property
    def queued_bytes(self) -> int:
        """Of what was sent and has not left yet."""
        return self._departures.nbytes

    def fileno(self) -> int:
        return self._sock.fileno()

    # -- writing ------------------------------------------------------------------------------------------------

    def send(
        self,
        frame: Frame,
        fds: Sequence[int] = (),
        *,
        later: bool = False,
        hold: bool = False,
        on_left: Callable[[], None] | None = None,
    ) -> None:
        """Sends a frame.

        On the loop's thread a lone frame leaves at once, and those that follow it closely leave together at the end of
        the turn.  From another thread it leaves at once, unless ``later`` says that more will follow.

        Args:
            hold: it leaves with the next one that is not held.
            on_left: called, in any thread, when the kernel has all of it: then it arrives, even if this process dies.

        Raises:
            ValueError: the frame has more than ``MAX_FRAME`` bytes.
        """
        with self._lock:
            if self._closed:
                self._send_closed(frame, fds)
                return
            data = self._packer.pack(frame)
            if len(data) > MAX_FRAME:
                close_all(fds)
                raise _too_large(frame, data)
            sibling = self.sibling
            if self._incoming.is_due or (sibling is not None and sibling._incoming.is_due):
                self._add_acknowledgements(sibling)
            if fds or on_left is not None:
                self._departures.add(data, fds, content_bytes(frame) if fds else 0, on_left)
            else:
                self._departures.add_plain(data)
            if hold or self._scheduled or self._blocked or not self._thread:
                return
            if threading.get_ident() == self._thread:
                now = time.monotonic()
                if now - self._sent_at < _BURST:
                    self._scheduled = True
                    self._loop.call_soon(self._flush)
                    return
                self._sent_at = now
            elif later:
                self._scheduled = True
                self._loop.call_soon_threadsafe(self._flush)
                return
            state, told = self._leave()
        if told or state is not _EMPTY:
            self._follow_up(state, told)

    def send_all(self, sent: Sequence[tuple[Frame, Sequence[int]]]) -> None:
        """Sends several frames in as few system calls as their descriptors allow; on the loop's thread.

        Raises:
            ValueError: as ``send``; then none of them has left.
        """
        with self._lock:
            if self._closed:
                for _, fds in sent:
                    close_all(fds)
                return
            packed = [(self._packer.pack(frame), fds) for frame, fds in sent]
            for index, (data, _) in enumerate(packed):
                if len(data) > MAX_FRAME:
                    for _, fds in sent:
                        close_all(fds)
                    raise _too_large(sent[index][0], data)
            for (data, fds), (frame, _) in zip(packed, sent, strict=True):
                self._departures.add(data, fds, content_bytes(frame) if fds else 0)
            if self._scheduled or self._blocked:
                return
            self._sent_at = time.monotonic()
        self._write()

    def is_behind(self) -> bool:
        """Whether anything waits to leave that cannot leave now: all of it, once this has failed."""
        if self._closed:
            return True
        if self._departures:
            self._write()
        return bool(self._departures)

    def _flush(self) -> None:
        self._scheduled = False
        self._sent_at = time.monotonic()
        if self._departures and not self._blocked:
            self._write()

    def _write(self) -> None:
        """Writes until nothing is left or the socket takes no more."""
        with self._lock:
            if self._closed or self._blocked:
                return
            state, told = self._leave()
        self._follow_up(state, told)

    def _leave(self) -> tuple[State, Sequence[Callable[[], None]]]:
        """Under the lock."""
        state = self._departures.leave(self._sock)
        if state is State.GONE:
            self._departures.stop()
        else:
            self._blocked = state is not _EMPTY
        return state, self._departures.take_told()

    def _follow_up(self, state: State, told: Sequence[Callable[[], None]]) -> None:
        if state is State.FULL:
            self._on_loop(self._await_writable)
        elif state is State.SHORT:
            self._on_loop(self._await_relief)
        elif state is State.GONE:
            # What the other side still said is heard first.  Nothing else may tell of it: where user code has closed
            # the descriptor, the loop does not watch it any more.
            # Never from within: the sender may hold locks, and what is being taken in comes before what is still there.
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._hear_last)
        for tell in told:
            tell()

    def _hear_last(self) -> None:
        if self._closed:
            return
        if self.is_there():
            self._read_all()
        if not self._closed:
            self._fail("nothing can be written to it")

    def _await_writable(self) -> None:
        if not self._closed and self.is_there():
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _await_relief(self) -> None:
        if not self._closed:
            logger.info("the kernel has too many descriptors under way, or no memory: asking again")
            self._loop.call_later(_AGAIN, self._go_on)

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._go_on()

    def _go_on(self) -> None:
        self._blocked = False
        self._write()
        if not self._departures and self.on_drained is not None:
            self.on_drained()

    def _on_loop(self, callback: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            callback()
        else:
            self._loop.call_soon_threadsafe(callback)

    # -- reading ------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._idle is not None and self._idle.is_brisk() and self._sock.fileno() >= 0:
            # The main thread will look in a moment.  What is read here would be handed over there, while both threads
            # want the interpreter.  The socket is not watched for that moment, since it stays readable; the timer has
            # this thread read after all where the main one has gone into user code meanwhile.
            # tests/_wire/reading/test_second_thread.py::test_who_looks_no_more_has_the_other_thread_read
            self._loop.remove_reader(self._sock.fileno())
            self._loop.call_later(BRISK, self._watch)
            return
        with self._turns.lock:
            if self.read() is False:
                self._fail("end of file")
            self._turns.hand_over()

    def _watch(self) -> None:
        if self._closed:
            return
        with contextlib.suppress(OSError):
            if self.is_there():
                self._loop.add_reader(self._sock.fileno(), self._readable)
                return
        self._hear_last()  # user code has closed the descriptor

    def _read_all(self) -> None:
        with self._turns.lock:
            more = self.read()
            while more:
                more = self.read()
            if more is False:
                self._fail("end of file")

    def _readable_here(self) -> None:
        """On the own loop, in the place of the other one."""
        with self._turns.lock:
            self._read_all()
            self._turns.hand_over()

    def _readable_elsewhere(self, in_loop: bool) -> None:
        """On the other thread, whose loop runs or not."""
        # To the last byte: an exclusive wake-up is for one thread, and the other one hears nothing of bytes that are
        # left over; they would lie there until the next frame.
        # tests/_wire/reading/test_second_thread.py::test_the_thread_that_reads_reads_all_that_is_there
        with self._turns.lock:
            if in_loop and not self._turns.may_read:
                self._loop.call_soon_threadsafe(self._readable_here)
                return
            self._read_all()
            if not in_loop:
                self._turns.hand_over()
            if (self._closed or self._failed) and self._idle is not None:
                self._idle.remove(self._sock.fileno())

    def read(self) -> bool | None:
        """Reads what is there, once.  False at the end of the stream, None when nothing is left."""
        if self._closed or self._failed:
            return None
        try:
            size, ancillary, flags, _ = self._sock.recvmsg_into([self._view], _ANCILLARY, _CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            if self._closed:
                return None
            self._fail(f"{type(error).__name__}: {error}")
            return None
        if size == 0:
            return False
        if ancillary or flags & _CTRUNC:
            self._incoming.add_fds(_rights(ancillary), truncated=bool(flags & _CTRUNC))
        self._heard_bytes += size
        broken = None
        try:
            self._take(self._view[:size])
        except FrameError as error:
            broken = str(error)
        # Before the first of these frames is handled, other sockets are read: what is there now was sent before them,
        # and these may tell of it.  After it has been read and not before: what comes later is later.
        # tests/_wire/test_unix.py::
        # test_what_has_arrived_on_another_way_before_is_handled_before_and_after_what_came_before_it
        if self._on_arrival is not None:
            self._on_arrival()
        self._handle()
        if broken is not None:
            self._fail(broken)
        if self._closed or broken is not None:
            return None
        if self._on_batch is not None:
            self._on_batch()
        incoming = self._incoming
        if incoming.received >= incoming.look_at or incoming.descriptors:
            self._consider_ack()
        # What is less than there was room for is all that there was, unless it ends with a descriptor.
        return True if ancillary or size == _READ else None

    def _consider_ack(self) -> None:
        if self._incoming.owes(self._heard_bytes):
            self._acknowledge()
        elif self._incoming.is_due and not self._ack_timer:
            self._ack_timer = True
            self._on_loop(self._set_ack_timer)

    def _take(self, data: memoryview) -> None:
        """Sorts what has been read into frames and their descriptors."""
        incoming, arrived = self._incoming, self._arrived
        strict = incoming.is_strict
        for frame in self._reader.feed(data):
            if not (strict or frame[1] or frame[0] >= _ACK):
                incoming.received += 1
                arrived.append((frame, []))
            elif frame[0] == _ACK:
                self._acknowledged(frame[2], frame[3])
            else:
                strict = True
                if (taken := incoming.take(frame)) is not None:
                    arrived.append(taken)
        if strict and incoming.end_read():
            logger.info("file descriptors were lost on the way (is the limit reached? `ulimit -n`): asking for bytes")
            self._acknowledge(frames.LOST)

    # -- what has arrived, and what has to be sent again --------------------------------------------------------

    def _acknowledged(self, received: int, about: int) -> None:
        """The other side has so many frames."""
        if about == frames.OF_SIBLING:
            sibling = self.sibling
            if sibling is not None:
                with sibling._lock:
                    sibling._departures.kept.acknowledge(received)
            return
        with self._lock:
            self._departures.kept.acknowledge(received)
            if about != frames.LOST:
                return
            try:
                self._departures.restart(received)
            except OSError as error:
                raise FrameError(f"a content that is wanted again cannot be read: {error}") from error
        self._write()

    def _acknowledge(self, about: int = frames.OF_THIS) -> None:
        with self._lock:
            if self._closed:
                return
            self._departures.add_control(pack(self._incoming.acknowledge(self._heard_bytes, about)))
            if self._scheduled:
                return
        self._write()

    def _add_acknowledgements(self, sibling: Connection | None) -> None:
        """Has those that are due leave with the frame that is about to be sent; under the lock."""
        if self._incoming.is_due:
            self._departures.add_control(pack(self._incoming.acknowledge(self._heard_bytes)))
        if sibling is not None and sibling._incoming.is_due:
            self._departures.add_control(pack(sibling._incoming.acknowledge(sibling._heard_bytes, frames.OF_SIBLING)))

    def link(self, sibling: Connection) -> None:
        """Says that both lead to one process: what it sends on one of them can be acknowledged on the other.

        Only the first two sockets between two processes may be linked.  Each side hears by itself when one of them ends
        and another one follows: a number of frames that is said of the old one must not be taken for the new one's.
        """
        self.sibling, sibling.sibling = sibling, self

    def _set_ack_timer(self) -> None:
        if not self._closed:
            self._loop.call_later(settings.DIRECT_ACK_S(), self._ack_late, self._incoming.acknowledged)

    def _ack_late(self, acknowledged: int) -> None:
        """So long after one was due: where no frame has taken an acknowledgement along since, one is sent."""
        self._ack_timer = False  # first: what comes from here on sets another one
        if not self._incoming.is_due:
            return
        if self._incoming.acknowledged != acknowledged:
            self._ack_timer = True
            self._set_ack_timer()
        else:
            self._acknowledge()

    def _send_closed(self, frame: Frame, fds: Sequence[int]) -> None:
        """Under the lock."""
        if self._relay is not None:
            self._relay(list(frame), fds)
        elif self._is_resumable:
            data = self._packer.pack(frame)
            if fds:
                self._departures.kept.add((data, fds, content_bytes(frame)))
            else:
                self._departures.kept.add_plain(data)
        else:
            close_all(fds)

    @property
    def received(self) -> int:
        """Frames that have come from the other side."""
        return self._incoming.received

    def hand_over(self, received: int, relay: Relay) -> None:
        """Sends all that the other side lacks, and whatever is sent from now on, another way; once this has failed.

        Under the lock: a frame that another thread sends meanwhile must not overtake those before it.

        Args:
            received: frames that the other side has.
            relay: takes a frame and its descriptors; it must not send on this connection.

        Raises:
            FrameError: the other side cannot have so many.
        """
        with self._lock:
            for frame, fds in self._departures.kept.take(received):
                relay(frame, fds)
            self._relay = relay

    def _handle(self) -> None:
        inside, self.is_handling = self.is_handling, True
        try:
            while self._arrived:
                frame, fds = self._arrived.popleft()
                try:
                    self._on_frame(frame, fds)
                except Exception:
                    # One frame that cannot be handled must not keep the others from their receivers.
                    logger.exception("a frame of kind %d could not be handled", frame[0])
        finally:  # on a main thread a signal's handler may end a process, or try to
            self.is_handling = inside

    @property
    def is_closed(self) -> bool:
        """Whether it is read and written no more; what is sent is kept for another way."""
        return self._closed

    def drain(self) -> None:
        """Handles what has been read, and reads everything that the other side still said before it went."""
        with self._turns.lock:
            self._handle()
            while not self._closed and self.read():
                pass

    def drain_if_there(self) -> None:
        """The same, of a socket whose descriptor user code may have closed."""
        with self._turns.lock:
            if self.is_there():
                self.drain()
            else:
                self._handle()

    def hear_out(self) -> None:
        """Reads everything that the other side had said by now; it may go on talking."""
        with self._turns.lock:
            self._handle()
            if self._closed:
                return
            # Until it is empty would be too long: a sender that never pauses would hold this thread for ever.  What was
            # there when it was asked is what had been said by then.
            # tests/_wire/test_unix.py::test_what_had_been_said_is_read_at_once_and_no_more_is_waited_for
            there = array.array("i", [0])
            try:
                fcntl.ioctl(self._sock.fileno(), termios.FIONREAD, there)
            except OSError as error:  # user code has closed it
                self._fail(f"{type(error).__name__}: {error}")
                return
            if there[0] and not self.is_there():  # these bytes are another file's
                self._fail("its descriptor was closed")
                return
            heard = self._heard_bytes + there[0]
            while self._heard_bytes < heard and not self._closed and self.read():
                pass

    # -- closing ------------------------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        if threading.get_ident() != self._thread and self._thread:
            self._failed = True
            self._loop.call_soon_threadsafe(self._fail, reason)
        else:
            # The other thread may be resuming this very socket, and making its successor under the same peer.  Told
            # afterwards, ``on_closed`` would end that one.  So the turn is awaited, and only then it is looked whether
            # there is anything left to tell.
            # tests/_wire/test_breaks.py::test_the_late_end_of_a_socket_that_has_been_resumed_is_told_to_nobody
            with self._turns.lock:
                if not self._closed:
                    self.end()
                    self._on_closed(reason)

    def flush_blocking(self, timeout: float) -> None:
        """Last words of a process that is about to end: writes what is queued, waiting at most ``timeout`` seconds."""
        with self._lock, contextlib.suppress(OSError):
            self._sock.settimeout(max(timeout, 0.001))
            while self._departures.leave(self._sock) is State.FULL:
                pass

    def shut(self) -> None:
        """Has both ends see the end of the stream, from any thread; the reader of this one then closes it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """In a forked child: lets go of the parent's socket without touching the parent's loop."""
        self._closed = True
        self._is_resumable = False
        self._departures.drop()
        _by_number.pop(self._sock.fileno(), None)
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())

    def close(self) -> None:
        """Closes the socket and every descriptor that had not been handed over; nothing is sent any more, nor kept.
        Idempotent; on the loop's thread."""
        self.end()
        with self._lock:
            self._is_resumable = False
            self._departures.drop()

    def end(self) -> None:
        """Reads and writes no more; what a resumable connection owes stays kept.  Idempotent; from any thread, the
        loop's or one that reads."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sibling, self.sibling = self.sibling, None
            if sibling is not None:
                sibling.sibling = None
            self._departures.stop()
            if not self._is_resumable:
                self._departures.drop()
            for _, fds in self._arrived:
                close_all(fds)
            self._arrived.clear()
            self._incoming.drop()
        if self._thread and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._on_loop(self._release)
                return
        self._release()

    def _release(self) -> None:
        """On the loop's thread: its selector knows the socket until then, and its number must not come to mean another
        file."""
        fileno = self._sock.fileno()
        if fileno < 0:
            return
        if _by_number.get(fileno) is self:
            del _by_number[fileno]
        # Where user code has closed the descriptor its number may mean a file of the user's, watched by the same loop.
        is_there = self.is_there()
        if self._thread and not self._loop.is_closed() and (is_there or not _is_open(fileno)):
            with contextlib.suppress(OSError):
                self._loop.remove_reader(fileno)
                self._loop.remove_writer(fileno)
        with self._turns.lock:  # so that no thread is about to read
            if self._idle is not None:
                self._idle.remove(fileno)
            if is_there:
                self._sock.close()
            else:
                self._sock.detach()

    def is_there(self) -> bool:
        """Whether the descriptor is still this socket's: user code that closes descriptors may have closed it, and the
        number may be another file's by now."""
        try:
            return os.fstat(self._sock.fileno()).st_ino == self._inode
        except OSError:
            return False


_by_number: Final[WeakValueDictionary[int, Connection]] = WeakValueDictionary()
"""Connections that are not closed, by the number of their descriptor."""


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _rights(ancillary: list[tuple[int, int, bytes]]) -> Sequence[int]:
    """The descriptors that have come with a read."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds


def _too_large(frame: Frame, data: bytes) -> ValueError:
    return ValueError(
        f"a frame of kind {frame[0]} takes {len(data)} bytes, more than {MAX_FRAME}: what is large goes into the "
        "arguments of a call, where it travels on its own"
    )

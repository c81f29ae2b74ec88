"""``Connection`` over a framed UNIX socket: joins its reader and writer, decides which thread reads, and ends it.

One plain non-blocking socket, ``add_reader`` and ``recvmsg``: as fast as a transport, and descriptors arrive with
the bytes of the frame that they ride on.  ``SocketWriter`` sends and ``SocketReader`` reads.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import socket
import termios
import threading
from collections.abc import Callable
from typing import Any

from rlinf_async._core.resend import Incoming
from rlinf_async._wire.acknowledgements import Acknowledgements
from rlinf_async._wire.owned_socket import OwnedSocket
from rlinf_async._wire.reading.arbiter import ReadArbiter
from rlinf_async._wire.reading.idle_reader import RECENT_POLL_S, IdleReader
from rlinf_async._wire.socket_reader import SocketReader
from rlinf_async._wire.socket_writer import SocketWriter


class Connection:
    """One end of a framed UNIX socket.

    ``on_frame(frame, fds)`` is called on the loop for every frame; the callee owns the descriptors.
    ``on_arrival()`` precedes the first frame of what one wake-up brought, when that has been read and not yet handled;
    ``on_batch()`` follows the last one.  ``on_closed(reason)`` is called once, when the
    other end is gone or broke the protocol; not when ``close()`` was called here.

    A second thread may read too (``share``): then all three are called on either thread, though never on both at once;
    connections that are given the same ``arbiter`` never call at once either.

    Args:
        resumable: what is sent once it has failed is kept for ``hand_over``.

    Attributes:
        send, send_all, is_behind, hand_over, flush_blocking: of its ``SocketWriter``, without a call in between.
        reader: reads the socket.
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
        arbiter: ReadArbiter | None = None,
        resumable: bool = False,
    ) -> None:
        self._loop = loop
        self._on_closed = on_closed
        self._arbiter = arbiter or ReadArbiter()
        self._idle: IdleReader | None = None
        self.on_drained: Callable[[], None] | None = None
        self._socket = OwnedSocket(sock, self._number_taken)
        self._incoming = Incoming()
        self._writer = writer = SocketWriter(
            self._socket,
            loop,
            self._incoming,
            resumable=resumable,
            on_gone=self._read_rest_and_fail,
            on_drained=self._drained,
        )
        self.reader = SocketReader(
            sock,
            self._incoming,
            writer,
            Acknowledgements(self._incoming, writer, loop),
            on_frame=on_frame,
            on_batch=on_batch,
            on_arrival=on_arrival,
            on_failed=self._fail,
        )
        self._read = self.reader.read
        self.send = writer.send
        self.send_all = writer.send_all
        self.is_behind = writer.is_behind
        self.hand_over = writer.hand_over
        self.flush_blocking = writer.flush_blocking

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<Connection fd {self.fileno()} {state} [{len(self._writer.buffer)} chunks queued]>"

    @property
    def is_closed(self) -> bool:
        """Whether it is read and written no more; what is sent is kept for another way."""
        return self._writer.is_closed

    @property
    def queued_bytes(self) -> int:
        """Of what was sent and has not left yet."""
        return self._writer.buffer.nbytes

    @property
    def received(self) -> int:
        """Frames that have come from the other side."""
        return self._incoming.received

    def fileno(self) -> int:
        return self._socket.fileno()

    def open(self) -> None:
        """Starts reading.  Call it on the loop's own thread."""
        if self.is_closed:
            return
        # Those of a socket which user code has closed, and whose number this one has: a reader would be replaced, and
        # not watched anew; a writer would be called for ever.
        self._loop.remove_reader(self.fileno())
        self._loop.remove_writer(self.fileno())
        self._writer.thread = threading.get_ident()
        self._watch()
        self._writer.flush()

    def share(self, idle: IdleReader) -> None:
        """Lets another thread read what arrives while it waits for something; before ``open``."""
        self._idle = idle
        self._arbiter.idle_loop = idle.loop
        idle.add(self.fileno(), self._readable_elsewhere)

    def link(self, sibling: Connection) -> None:
        """Says that both lead to one process: what it sends on one of them can be acknowledged on the other.

        Only the first two sockets between two processes may be linked.  Each side hears by itself when one of them ends
        and another one follows: a number of frames that is said of the old one must not be taken for the new one's.
        """
        self._writer.sibling, sibling._writer.sibling = sibling._writer, self._writer

    def _drained(self) -> None:
        if self.on_drained is not None:
            self.on_drained()

    # -- reading ------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._idle is not None and self._idle.has_just_polled() and self._socket.fileno() >= 0:
            # The main thread will look in a moment.  What is read here would be handed over there, while both threads
            # want the interpreter.  The socket is not watched for that moment, since it stays readable; the timer has
            # this thread read after all where the main one has gone into user code meanwhile.
            # tests/_wire/reading/test_second_thread.py::test_who_looks_no_more_has_the_other_thread_read
            self._loop.remove_reader(self._socket.fileno())
            self._loop.call_later(RECENT_POLL_S, self._watch)
            return
        with self._arbiter.lock:
            if self._read() is False:
                self._fail("end of file")
            self._arbiter.handled()

    def _watch(self) -> None:
        if self.is_closed:
            return
        with contextlib.suppress(OSError):
            if self._socket.is_intact():
                self._loop.add_reader(self.fileno(), self._readable)
                return
        self._read_rest_and_fail()  # user code has closed the descriptor

    def _read_all(self) -> None:
        with self._arbiter.lock:
            more = self._read()
            while more:
                more = self._read()
            if more is False:
                self._fail("end of file")

    def _readable_here(self) -> None:
        """On the own loop, in the place of the other one."""
        with self._arbiter.lock:
            self._read_all()
            self._arbiter.handled()

    def _readable_elsewhere(self, in_loop: bool) -> None:
        """On the other thread, whose loop runs or not."""
        # To the last byte: an exclusive wake-up is for one thread, and the other one hears nothing of bytes that are
        # left over; they would lie there until the next frame.
        # tests/_wire/reading/test_second_thread.py::test_the_thread_that_reads_reads_all_that_is_there
        with self._arbiter.lock:
            if in_loop and not self._arbiter.may_read:
                self._loop.call_soon_threadsafe(self._readable_here)
                return
            self._read_all()
            if not in_loop:
                self._arbiter.handled()
            if self.reader.is_stopped and self._idle is not None:
                self._idle.remove(self.fileno())

    def drain(self) -> None:
        """Handles what has been read, and reads everything that the other side still said before it went."""
        with self._arbiter.lock:
            self.reader.handle()
            while self.reader.has_more() and self._read():
                pass

    def drain_if_intact(self) -> None:
        """The same, of a socket whose descriptor user code may have closed."""
        with self._arbiter.lock:
            if self._socket.is_intact():
                self.drain()
            else:
                self.reader.handle()

    def read_available(self) -> None:
        """Reads everything that the other side had said by now; it may go on talking."""
        with self._arbiter.lock:
            self.reader.handle()
            if self.is_closed:
                return
            # Until it is empty would be too long: a sender that never pauses would hold this thread for ever.  What was
            # there when it was asked is what had been said by then.
            # tests/_wire/test_unix.py::test_what_had_been_said_is_read_at_once_and_no_more_is_waited_for
            there = array.array("i", [0])
            try:
                fcntl.ioctl(self.fileno(), termios.FIONREAD, there)
            except OSError as error:  # user code has closed it
                self._fail(f"{type(error).__name__}: {error}")
                return
            if there[0] and not self._socket.is_intact():  # these bytes are another file's
                self._fail("its descriptor was closed")
                return
            until = self._incoming.read_bytes + there[0]
            while self._incoming.read_bytes < until and self._read():
                pass

    # -- the end ------------------------------------------------------------------------------------------------

    def _number_taken(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._read_rest_and_fail)

    def _read_rest_and_fail(self) -> None:
        """Where nothing can be written any more: first what the other side still said."""
        if self.is_closed:
            return
        if self._socket.is_intact():
            self._read_all()
        if not self.is_closed:
            self._fail("nothing can be written to it")

    def _fail(self, reason: str) -> None:
        if threading.get_ident() != self._writer.thread and self._writer.thread:
            self.reader.is_stopped = True
            self._loop.call_soon_threadsafe(self._fail, reason)
        else:
            # The other thread may be resuming this very socket, and making its successor under the same peer.  Told
            # afterwards, ``on_closed`` would end that one.  So the turn is awaited, and only then it is looked whether
            # there is anything left to tell.
            # tests/_wire/test_breaks.py::test_the_late_end_of_a_socket_that_has_been_resumed_is_told_to_nobody
            with self._arbiter.lock:
                if not self.is_closed:
                    self.end()
                    self._on_closed(reason)

    def shut(self) -> None:
        """Has both ends see the end of the stream, from any thread; the reader of this one then closes it."""
        with contextlib.suppress(OSError):
            self._socket.sock.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """In a forked child: lets go of the parent's socket without touching the parent's loop."""
        self._writer.is_closed = self.reader.is_stopped = True
        self._writer.drop()
        self._socket.leave_to_parent()

    def close(self) -> None:
        """Closes the socket and every descriptor that had not been handed over; nothing is sent any more, nor kept.
        Idempotent; on the loop's thread."""
        self.end()
        with self._writer.lock:
            self._writer.drop()

    def end(self) -> None:
        """Reads and writes no more; what a resumable connection owes stays kept.  Idempotent; from any thread, the
        loop's or one that reads."""
        with self._writer.lock:
            if self.is_closed:
                return
            self._writer.end()
            self.reader.stop()
        if self._writer.thread and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._writer.on_loop(self._release)
                return
        self._release()

    def _release(self) -> None:
        """On the loop's thread: its selector knows the socket until then, and its number must not come to mean another
        file."""
        fileno = self.fileno()
        if fileno < 0:
            return
        # Where user code has closed the descriptor its number may mean a file of the user's, watched by the same loop.
        if self._writer.thread and not self._loop.is_closed() and not self._socket.is_another_file():
            with contextlib.suppress(OSError):
                self._loop.remove_reader(fileno)
                self._loop.remove_writer(fileno)
        with self._arbiter.lock:  # so that no thread is about to read
            if self._idle is not None:
                self._idle.remove(fileno)
            self._socket.close()
            self.reader.let_go()  # what is closed may be kept for long, in circles that the collector finds late

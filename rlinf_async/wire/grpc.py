"""Links between the daemons of a run, over gRPC with mutual TLS.  Nothing else imports grpc.

Two daemons share one channel with two long-lived streams in both directions: *control*, a stream of bytes where
whatever is queued when the stream is free leaves as one message, and *bulk*, in pieces, so that a large value never
stands in the way of a call.  Payloads are opaque in both: nothing is decoded here but the Hello that opens a link,
and that only after TLS has shown that the peer belongs to the run.  Order holds within a stream, not across the two.

An empty message is a stream's goodbye.  The end of a stream without one means that the peer broke off, which the
server's side of gRPC would not tell from an orderly end.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Generic, NoReturn, TypeVar

import msgpack

from rlinf_async.core.frames import PROTOCOL
from rlinf_async.errors import (
    AuthError,
    ClosedError,
    ConfigError,
    LaunchError,
    NodeLost,
    RLinfAsyncError,
    VersionMismatch,
)
from rlinf_async.wire.credentials import NodeCredentials, explain_refusal, node_name

# gRPC's core writes its own lines to stderr, and reads how many once, while it is imported.  What matters is
# raised or logged here in words; the children of this process must not inherit the setting.
_verbosity_is_set = "GRPC_VERBOSITY" in os.environ
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc  # noqa: E402
import grpc.aio  # noqa: E402

if not _verbosity_is_set:
    del os.environ["GRPC_VERBOSITY"]

__all__ = ["KEEPALIVE", "MAX_MESSAGE", "PeerLink", "PeerServer", "dial"]

KEEPALIVE = 5.0
"""Seconds of silence before a peer is asked for a sign of life, and seconds that it then has to give one."""
MAX_MESSAGE = 1 << 20
"""Bytes that one bulk piece may hold; gRPC slows down beyond it."""

_COALESCED = 256 << 10  # bytes; the throughput of larger messages is no better, and calls wait behind them
_BULK_QUEUED = 4  # pieces: enough to keep the stream busy
_HELLO_BYTES = 64 << 10
_HELLO_SECONDS = 5.0
_CLOSE_SECONDS = 2.0  # for the peer to answer a goodbye
_DIAGNOSIS_SECONDS = 2.0
_CLOCK_SKEW = 5.0  # seconds that are worth a warning
_DETAILS = 1000  # characters: longer status details arrive as "metadata size exceeds hard limit"
_GOODBYE = b""

_log = logging.getLogger(__name__)
_Options = list[tuple[str, int | str]]


def _shared_options(keepalive: float) -> _Options:
    pace = round(keepalive * 1000)
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE),
        ("grpc.max_send_message_length", MAX_MESSAGE),
        ("grpc.max_metadata_size", 8192),
        ("grpc.keepalive_time_ms", pace),
        ("grpc.keepalive_timeout_ms", pace),
        ("grpc.http2.ping_timeout_ms", pace),  # without it a stopped process is found after a minute only
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _server_options(keepalive: float) -> _Options:
    return [
        *_shared_options(keepalive),
        ("grpc.so_reuseport", 0),  # else a second process could bind the same port and take half the calls
        ("grpc.server_handshake_timeout_ms", 5_000),
        ("grpc.http2.min_ping_interval_without_data_ms", round(keepalive * 400)),  # else the third ping is one too many
        ("grpc.server.max_pending_requests", 1 << 20),
        ("grpc.server_max_unrequested_time_in_server", 86_400),
    ]


def _channel_options(keepalive: float, name: str) -> _Options:
    return [
        *_shared_options(keepalive),
        ("grpc.ssl_target_name_override", name),  # the one peer that is meant, whatever its address
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]


# --- Hello ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Hello:
    """The first message in each direction of a control stream: who speaks, and in what."""

    magic: str
    protocol: int
    run: str
    node: int
    python: str
    version: str
    time: float

    @classmethod
    def own(cls, run: str, node: int) -> _Hello:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return cls("rlinf", PROTOCOL, run, node, python, _package_version(), time.time())

    def pack(self) -> bytes:
        packed: bytes = msgpack.packb(asdict(self))
        return packed

    def check(self, data: bytes, identities: list[str]) -> _Hello:
        """Decodes the peer's Hello and holds it against this one.

        Args:
            data: what arrived; nothing about it is trusted.
            identities: the names in the certificate that the peer showed.

        Raises:
            AuthError: not a Hello, another run, or not the node that the certificate says.
            VersionMismatch: another protocol, or another minor version of Python.
        """
        fields = _decode(data)
        if fields.get("magic") != self.magic:
            raise AuthError(f"node {self.node} of run {self.run} got something else than a Hello")
        if fields.get("protocol") != self.protocol:
            raise VersionMismatch(
                f"node {_shown(fields, 'node')} speaks protocol {_shown(fields, 'protocol')} (rlinf_async "
                f"{_shown(fields, 'version')}), node {self.node} speaks protocol {self.protocol} (rlinf_async "
                f"{self.version}): install one version of rlinf_async on all nodes"
            )
        for field, kind in _HELLO_FIELDS.items():
            if type(fields.get(field)) is not kind:
                raise AuthError(f"node {self.node} of run {self.run} got a Hello whose {field} is no {kind.__name__}")
        theirs = _Hello(**{field: fields[field] for field in _HELLO_FIELDS})
        if theirs.run != self.run:
            raise AuthError(f"node {theirs.node} is of run {theirs.run!a}, node {self.node} is of run {self.run!r}")
        if theirs.node < 0 or identities != [node_name(self.run, theirs.node)]:
            raise AuthError(
                f"the peer of node {self.node} calls itself node {theirs.node}, "
                f"but its certificate names {', '.join(identities) or 'nobody'}"
            )
        if theirs.python != self.python:
            raise VersionMismatch(
                f"node {theirs.node} runs Python {_shown(fields, 'python')} (rlinf_async {_shown(fields, 'version')}), "
                f"node {self.node} runs Python {self.python} (rlinf_async {self.version}): what is pickled on one "
                "cannot be trusted to load on the other; use the same minor version on all nodes"
            )
        if abs(theirs.time - self.time) > _CLOCK_SKEW:
            _log.warning(
                "the clocks of node %d and node %d differ by %.0f s", theirs.node, self.node, theirs.time - self.time
            )
        return theirs


_HELLO_FIELDS: dict[str, type] = {
    "magic": str, "protocol": int, "run": str, "node": int, "python": str, "version": str, "time": float,
}  # fmt: skip


def _decode(data: bytes) -> dict[str, Any]:
    if len(data) > _HELLO_BYTES:
        return {}
    try:
        fields = msgpack.unpackb(
            data, max_str_len=256, max_bin_len=0, max_ext_len=0, max_array_len=16, max_map_len=32, strict_map_key=True
        )
    except (ValueError, msgpack.UnpackException):
        return {}
    return fields if isinstance(fields, dict) else {}


def _shown(fields: dict[str, Any], field: str) -> str:
    """A peer's value in a line of text: short, and nothing that a terminal would act upon."""
    value = fields.get(field, "?")
    return ascii(value).strip("'")[:80]


def _package_version() -> str:
    try:
        return metadata.version("rlinf-async")
    except metadata.PackageNotFoundError:  # a checkout that was put on the path, not installed
        return "unknown"


# --- Streams --------------------------------------------------------------------------------------------------


class _Broken(Exception):
    """A stream ended without a goodbye; the text says why."""


_GRPC_ERRORS = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class _Stream:
    """One end of a stream: a call on the side that dialled, a servicer's context on the other."""

    def __init__(self, end: Any, why_broken: Callable[[], Awaitable[str]]) -> None:
        self._end = end
        self._why_broken = why_broken

    async def read(self) -> bytes:
        data = await self._guarded(self._end.read())
        if data is grpc.aio.EOF:
            raise _Broken(await self._why_broken())
        return bytes(data)

    async def write(self, data: bytes) -> None:
        await self._guarded(self._end.write(data))

    async def _guarded(self, operation: Awaitable[Any]) -> Any:
        try:
            return await operation
        except _GRPC_ERRORS:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # else it is gRPC's way to say that the call has ended
                raise
        raise _Broken(await self._why_broken())


def _dialled(call: Any, keepalive: float) -> _Stream:
    async def why_broken() -> str:
        call.cancel()  # does nothing where the call has ended, as it should have
        details = str(await call.details())
        if await call.code() is grpc.StatusCode.ABORTED:
            return details
        if any(word in details.lower() for word in ("ping timeout", "keepalive", "timed out")):
            return f"no sign of life within {2 * keepalive:g} s ({details})"
        return f"the connection broke ({details})"

    return _Stream(call, why_broken)


def _accepted(context: Any, keepalive: float) -> _Stream:
    async def why_broken() -> str:  # a server is not told
        return f"the connection broke, or carried no sign of life for {2 * keepalive:g} s"

    return _Stream(context, why_broken)


# --- Link -----------------------------------------------------------------------------------------------------

_Argument = TypeVar("_Argument")


class _Callback(Generic[_Argument]):
    """An attribute of a link that its owner sets; once all three are set, the link delivers."""

    def __set_name__(self, owner: type[PeerLink], name: str) -> None:
        self._name = name

    def __get__(self, link: PeerLink, owner: type[PeerLink]) -> Callable[[_Argument], None] | None:
        return link._callbacks.get(self._name)

    def __set__(self, link: PeerLink, callback: Callable[[_Argument], None] | None) -> None:
        if callback is None:
            raise TypeError(f"{self._name} of a link cannot be taken away: close the link")
        link._callbacks[self._name] = callback
        if len(link._callbacks) == 3 and not link._listening.is_set():
            link._listening.set()
            asyncio.get_running_loop().call_soon(link._tell_end)


class PeerLink:
    """A connection to another node's daemon; the same on both ends.  Made by `dial` and `PeerServer`.

    The owner sets three callbacks.  They are called on the loop, one at a time, and must not block; nothing is
    delivered, and nothing is lost, until all three are set.  An exception out of one of them ends the link.

    Attributes:
        peer: the other node's rank.
        on_control: called with the bytes that `send` was given on the other side, in their order, many at once.  Only
            what is larger than 256 KiB arrives in parts.
        on_bulk: called with each bulk piece.
        on_lost: called once, after the last message, with the reason, when the link ends by anything but this
            side's own `close`; the reason is ``"closed"`` where the peer closed in order.
        messages_sent, bytes_sent, messages_received: what has crossed so far, both streams together.
    """

    on_control = _Callback[bytes]()
    on_bulk = _Callback[bytes]()
    on_lost = _Callback[str]()

    def __init__(self, peer: int, control: _Stream, bulk: _Stream, hang_up: Callable[[bool], Awaitable[None]]) -> None:
        self.peer = peer
        self.messages_sent = 0
        self.bytes_sent = 0
        self.messages_received = 0
        self._callbacks: dict[str, Callable[[Any], None]] = {}
        self._listening = asyncio.Event()
        self._control: deque[bytes] = deque()
        self._control_wake = asyncio.Event()
        self._bulk: deque[bytes] = deque()
        self._bulk_wake = asyncio.Event()
        self._bulk_room = asyncio.Semaphore(_BULK_QUEUED)
        self._open_readers = 2
        self._closing = False  # by this side
        self._ending = False  # by either side: what is queued still leaves, nothing more is accepted
        self._over = False  # nothing comes or goes any more
        self._told = False
        self._reason = ""
        self._task = asyncio.create_task(self._run(control, bulk, hang_up), name=f"link to node {peer}")

    def send(self, data: bytes) -> None:
        """Queues bytes for the other side's `on_control`; dropped where the link is closed or lost.

        The queue has no bound: what is large, or endless, goes through `send_bulk`.
        """
        if self._ending or not data:
            return
        if len(data) <= _COALESCED:
            self._control.append(data)
        else:
            self._control.extend(data[start : start + _COALESCED] for start in range(0, len(data), _COALESCED))
        self._control_wake.set()

    async def send_bulk(self, piece: bytes) -> None:
        """Queues a bulk piece of 1 to `MAX_MESSAGE` bytes, best 256 KiB; waits while a few are queued already.

        Pieces leave in the order of the calls.  A cancelled call has queued nothing.

        Raises:
            ValueError: the piece is empty or too large.
            ClosedError: this side has closed the link.
            NodeLost: the link has ended.
        """
        if not 0 < len(piece) <= MAX_MESSAGE:
            raise ValueError(f"a bulk piece holds 1 to {MAX_MESSAGE} bytes, got {len(piece)}")
        await self._bulk_room.acquire()
        if self._ending:
            self._bulk_room.release()  # wakes the next of those that wait
            if self._closing:
                raise ClosedError(f"the link to node {self.peer} is closed")
            reason = self._reason or "closed"
            error = NodeLost(f"the link to node {self.peer} is lost: {reason}")
            error.node_rank, error.reason = self.peer, reason
            raise error
        self._bulk.append(piece)
        self._bulk_wake.set()

    async def close(self) -> None:
        """Sends what is queued, says goodbye and waits for the peer's, two seconds at most.  Idempotent.

        What arrives meanwhile is dropped, and `on_lost` is not called any more.
        """
        self._closing = True
        self._end()
        self._listening.set()
        try:
            await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
        finally:
            if not self._task.done():
                self._reason = "the other side closed without waiting for a goodbye any longer"
                self._task.cancel()
                await asyncio.wait([self._task])

    async def _run(self, control: _Stream, bulk: _Stream, hang_up: Callable[[bool], Awaitable[None]]) -> None:
        in_order = False
        try:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._write_control(control))
                    tasks.create_task(self._write_bulk(bulk))
                    tasks.create_task(self._read(control, "on_control"))
                    tasks.create_task(self._read(bulk, "on_bulk"))
                in_order = True
            except* _Broken as broken:
                self._reason = str(broken.exceptions[0])
            self._over = True
            self._tell_end()
        finally:
            self._end()
            await hang_up(in_order)

    def _tell_end(self) -> None:
        if self._over and self._listening.is_set() and not (self._closing or self._told):
            self._told = True
            try:
                self._deliver("on_lost", self._reason or "closed")
            except _Broken:
                pass  # on_lost itself failed: that was reported, and there is nothing left to end

    async def _write_control(self, stream: _Stream) -> None:
        queue = self._control
        while await self._filled(queue, self._control_wake):
            size = len(queue[0])
            batch = [queue.popleft()]
            while queue and size + len(queue[0]) <= _COALESCED:
                size += len(queue[0])
                batch.append(queue.popleft())
            await self._write(stream, b"".join(batch) if len(batch) > 1 else batch[0])
        await stream.write(_GOODBYE)

    async def _write_bulk(self, stream: _Stream) -> None:
        while await self._filled(self._bulk, self._bulk_wake):
            await self._write(stream, self._bulk.popleft())
            self._bulk_room.release()
        await stream.write(_GOODBYE)

    async def _filled(self, queue: deque[bytes], wake: asyncio.Event) -> bool:
        """Waits until there is something to write; False when there is not and will not be."""
        while not queue and not self._ending:
            wake.clear()
            await wake.wait()
        return bool(queue)

    async def _write(self, stream: _Stream, data: bytes) -> None:
        self.messages_sent += 1
        self.bytes_sent += len(data)
        await stream.write(data)

    async def _read(self, stream: _Stream, callback: str) -> None:
        while (data := await stream.read()) != _GOODBYE:
            self.messages_received += 1
            await self._listening.wait()
            if not self._closing:
                self._deliver(callback, data)
        self._open_readers -= 1
        if not self._open_readers:
            self._end()

    def _deliver(self, callback: str, argument: bytes | str) -> None:
        try:
            self._callbacks[callback](argument)
        except Exception as error:
            _report(f"{callback} of the link to node {self.peer} failed", error)
            raise _Broken(f"{callback} failed: {error!r}") from None

    def _end(self) -> None:
        self._ending = True
        self._control_wake.set()
        self._bulk_wake.set()
        self._bulk_room.release()


# --- Server ---------------------------------------------------------------------------------------------------


class PeerServer:
    """Accepts links from nodes of the same run, on one address of this machine.

    Args:
        node: this node's rank.
        run: the run's id.
        bind: the IP address to listen on, at a port of the kernel's choice.
        on_link: called on the loop with every new link, which is up in both directions.
        keepalive: see `KEEPALIVE`; shorter in tests.

    Raises:
        ConfigError: ``bind`` is no IP address, or stands for every interface.
    """

    def __init__(
        self,
        node: int,
        run: str,
        credentials: NodeCredentials,
        bind: str,
        on_link: Callable[[PeerLink], None],
        *,
        keepalive: float = KEEPALIVE,
    ) -> None:
        address = _ip_address(bind)
        if (getattr(address, "ipv4_mapped", None) or address).is_unspecified:
            raise ConfigError(f"refusing to listen on {bind}, which is every interface: bind one address")
        node_name(run, node)
        self._node, self._run = node, run
        self._credentials = credentials
        self._bind = bind
        self._on_link = on_link
        self._keepalive = keepalive
        self._server: Any = None
        self._stopping = False
        self._handlers: set[asyncio.Task[Any]] = set()
        self._awaiting_bulk: dict[str, tuple[asyncio.Future[_Stream], asyncio.Future[str]]] = {}
        self._peers: dict[int, PeerLink | None] = {}

    async def start(self) -> str:
        """Listens; returns ``"ip:port"``, an IPv6 address in brackets.

        Raises:
            LaunchError: the address is not this machine's, or the credentials cannot be used.
        """
        family = socket.AF_INET6 if ":" in self._bind else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:  # gRPC's own failure is vague and leaks
                probe.bind((self._bind, 0))
        except OSError as error:
            raise LaunchError(f"node {self._node} cannot listen on {self._bind}: {error.strerror}") from None
        server = grpc.aio.server(options=_server_options(self._keepalive))
        methods = {
            "Control": grpc.stream_stream_rpc_method_handler(self._serve_control),
            "Bulk": grpc.stream_stream_rpc_method_handler(self._serve_bulk),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("rlinf.Node", methods),))
        own = self._credentials
        identity = grpc.ssl_server_credentials(
            [(own.key.encode(), own.cert.encode())], own.ca.encode(), require_client_auth=True
        )
        host = f"[{self._bind}]" if ":" in self._bind else self._bind
        try:
            port = server.add_secure_port(f"{host}:0", identity)
        except RuntimeError as error:
            await server.stop(None)
            raise LaunchError(
                f"node {self._node} cannot listen on {self._bind} with its credentials: {error}"
            ) from None
        await server.start()
        self._server = server
        return f"{host}:{port}"

    async def stop(self) -> None:
        """Closes every link in order and stops listening.  Idempotent."""
        self._stopping = True
        if self._server is None:
            return
        await asyncio.gather(*(link.close() for link in self._peers.values() if link is not None))
        await self._server.stop(None)
        if self._handlers:
            await asyncio.wait(self._handlers)

    async def _serve_control(self, _requests: Any, context: Any) -> None:
        with self._counted():
            stream = _accepted(context, self._keepalive)
            peer = await self._greet(stream, context)
            self._peers[peer] = None
            reason = "the link did not come up"
            ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            try:
                bulk = await self._attach_bulk(stream, context, ended)
                link = PeerLink(peer, stream, bulk, _nothing_to_hang_up)
                self._peers[peer] = link
                try:
                    self._on_link(link)
                except Exception as error:
                    _report(f"on_link for node {peer} failed", error)
                    await link.close()
                await _ended(link)
                reason = link._reason
            finally:
                del self._peers[peer]
                ended.set_result(reason)
            await _conclude(context, reason)

    async def _serve_bulk(self, _requests: Any, context: Any) -> None:
        with self._counted():
            arrival, ended = self._awaiting_bulk.get(context.peer(), (None, None))
            if arrival is None or ended is None:
                await _refuse(context, AuthError(f"node {self._node} got a bulk stream before a Hello"))
            await context.send_initial_metadata(())  # tells the peer that the link is up
            if arrival.done():
                await _refuse(context, AuthError(f"node {self._node} has a bulk stream on this link, or gave it up"))
            arrival.set_result(_accepted(context, self._keepalive))
            await _conclude(context, await asyncio.shield(ended))

    async def _greet(self, stream: _Stream, context: Any) -> int:
        """Reads and checks the Hello of whoever opened a control stream; returns its rank."""
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                data = await stream.read()
        except TimeoutError:
            await _refuse(context, AuthError(f"node {self._node} got no Hello within {_HELLO_SECONDS:g} s"))
        except _Broken:
            await _refuse(context, AuthError(f"node {self._node} got no Hello"))
        own = _Hello.own(self._run, self._node)
        try:
            peer = own.check(data, _identities(context)).node
            if peer in self._peers:
                raise AuthError(f"node {peer} has a link to node {self._node} already")
            if self._stopping:
                raise ClosedError(f"node {self._node} is shutting down")
        except RLinfAsyncError as error:
            await _refuse(context, error)
        return peer

    async def _attach_bulk(self, control: _Stream, context: Any, ended: asyncio.Future[str]) -> _Stream:
        """Answers the Hello and waits for the second stream, which must come over the same connection."""
        arrival: asyncio.Future[_Stream] = asyncio.get_running_loop().create_future()
        self._awaiting_bulk[context.peer()] = (arrival, ended)
        try:
            await control.write(_Hello.own(self._run, self._node).pack())
            async with asyncio.timeout(_HELLO_SECONDS):
                bulk = await arrival
        except TimeoutError:
            await _refuse(context, AuthError(f"no bulk stream within {_HELLO_SECONDS:g} s after the Hello"))
        except _Broken:
            await _refuse(context, AuthError("hung up after the Hello"))
        finally:
            del self._awaiting_bulk[context.peer()]
        if self._stopping:
            await _refuse(context, ClosedError(f"node {self._node} is shutting down"))
        return bulk

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Makes gRPC's task for a handler known, so that `stop` can wait for it."""
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            yield
        finally:
            self._handlers.discard(task)


_CODES = {
    AuthError: grpc.StatusCode.UNAUTHENTICATED,
    VersionMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    ClosedError: grpc.StatusCode.UNAVAILABLE,
}


async def _refuse(context: Any, error: RLinfAsyncError) -> NoReturn:
    """Ends a peer's call with the error's text, which both sides' logs then hold."""
    _log.warning("refused a connection from %s: %s", context.peer(), str(error))
    await context.abort(_CODES[type(error)], _details(str(error)))
    raise error  # not reached: abort raises what gRPC wants to see


async def _conclude(context: Any, reason: str) -> None:
    """Ends the server's half of a stream: in order, or with the reason for which the link ended."""
    if reason:
        await context.abort(grpc.StatusCode.ABORTED, _details(reason))


def _details(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()[:_DETAILS]


async def _ended(link: PeerLink) -> None:
    """Waits for the end of the link, also when gRPC cancels the handler: that *is* the end, and the link tells."""
    cancelled = False
    while not link._task.done():
        try:
            await asyncio.wait([link._task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _nothing_to_hang_up(_in_order: bool) -> None:
    """A server's handlers return; that ends their streams."""


def _identities(context: Any) -> list[str]:
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("ascii", "replace") for name in names]


# --- Dialling -------------------------------------------------------------------------------------------------


async def dial(
    address: str,
    *,
    node: int,
    peer: int,
    run: str,
    credentials: NodeCredentials,
    timeout: float,
    keepalive: float = KEEPALIVE,
) -> PeerLink:
    """Opens the link from node ``node`` to node ``peer``, which is up in both directions when this returns.

    Args:
        address: where the peer listens, ``"ip:port"``.
        timeout: seconds; where a handshake is refused, finding out why may add two.
        keepalive: see `KEEPALIVE`; shorter in tests.

    Raises:
        AuthError: one side did not accept the other's certificate or identity.
        VersionMismatch: the two speak different protocols, or run different minor versions of Python.
        NodeLost: nobody answers at that address, or not in time.
        ConfigError: the address is not of that form.
    """
    host, port = _split(address)
    name = node_name(run, peer)
    identity = grpc.ssl_channel_credentials(
        credentials.ca.encode(), credentials.key.encode(), credentials.cert.encode()
    )
    target = f"ipv{_ip_address(host).version}:{address}"
    channel = grpc.aio.secure_channel(target, identity, options=_channel_options(keepalive, name))
    try:
        async with asyncio.timeout(timeout):
            control, bulk = await _shake_hands(channel, _Hello.own(run, node), name, keepalive)
    except BaseException as error:
        await channel.close()
        if isinstance(error, TimeoutError):
            raise NodeLost.from_facts(address, peer, f"no answer within {timeout:g} s") from None
        if isinstance(error, _Broken):
            refusal = await explain_refusal(host, port, name, credentials, _DIAGNOSIS_SECONDS)
            raise refusal or NodeLost.from_facts(address, peer, str(error)) from None
        raise

    async def hang_up(in_order: bool) -> None:
        try:
            if in_order:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await _finish(control)
                    await _finish(bulk)
        except TimeoutError:  # the peer said goodbye and then froze
            pass
        finally:
            await channel.close()

    return PeerLink(peer, _dialled(control, keepalive), _dialled(bulk, keepalive), hang_up)


async def _shake_hands(channel: Any, own: _Hello, name: str, keepalive: float) -> tuple[Any, Any]:
    """Exchanges Hellos on the control stream, then opens the bulk stream; returns both calls."""
    control = channel.stream_stream("/rlinf.Node/Control")()
    stream = _dialled(control, keepalive)
    try:
        await stream.write(own.pack())
        data = await stream.read()
    except _Broken:
        raise await _refusal(control) from None
    own.check(data, [name])
    bulk = channel.stream_stream("/rlinf.Node/Bulk")()
    await bulk.initial_metadata()
    if bulk.done():
        raise await _refusal(bulk)
    return control, bulk


async def _refusal(call: Any) -> Exception:
    """Why the peer ended a call before the link was up; _Broken where it was not the peer that spoke."""
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return AuthError(details)
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return VersionMismatch(details)
    return _Broken(f"cannot be reached ({details})")


async def _finish(call: Any) -> None:
    """Ends a call in order, after the goodbyes: gRPC complains in other loops' logs if it is merely dropped."""
    try:
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
        await call.code()
    except _GRPC_ERRORS:
        pass


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"{address!r} is no address of a node: expected 'ip:port'")
    return host.strip("[]"), int(port)


def _ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no IP address: nodes listen on addresses, not on names") from None


def _report(message: str, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

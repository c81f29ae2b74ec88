"""gRPC server of a node's daemon: accepts other nodes' links, checks identities, creates a ``PeerLink`` for each."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rlinf_async import settings
from rlinf_async._wire import grpc
from rlinf_async._wire.credentials import NodeCredentials, node_name
from rlinf_async._wire.daemon_link import (
    Broken,
    LinkEnded,
    MessageStream,
    Over,
    PeerLink,
    Received,
    Wire,
    report_failure,
)
from rlinf_async._wire.hello import Hello
from rlinf_async._wire.listen_address import parse_ip
from rlinf_async._wire.listen_ports import listening_sockets
from rlinf_async.errors import AuthError, ClosedError, ConfigError, LaunchError, RLinfAsyncError


class PeerServer:
    """A server that accepts links from nodes of the same run, on one of this machine's addresses.

    Args:
        bind: the IP address to listen on.
        ports: candidate ports; None lets the kernel choose.
        on_link: called on the loop with each new link, once it works in both directions.
        lease: seconds without a message from a peer after which its link ends.
        greeting_timeout: seconds allowed for the TLS handshake, and for each of a link's first two messages.
        most_connections: limit on simultaneous connections, including those of the run's nodes; None for no limit.

    Raises:
        ConfigError: ``bind`` is not an IP address, or means all interfaces.
    """

    def __init__(
        self,
        node: int,
        run: str,
        credentials: NodeCredentials,
        bind: str,
        on_link: Callable[[PeerLink], None],
        *,
        lease: float = settings.LEASE_S.default,
        greeting_timeout: float = settings.GREETING_TIMEOUT_S.default,
        most_connections: int | None = None,
        ports: Sequence[int] | None = None,
    ) -> None:
        address = parse_ip(bind)
        if (getattr(address, "ipv4_mapped", None) or address).is_unspecified:
            raise ConfigError(f"refusing to listen on {bind}, which is every interface: bind one address")
        node_name(run, node)
        self._node, self._run = node, run
        self._credentials = credentials
        self._bind, self._ports = bind, ports
        self._on_link = on_link
        self._lease = lease
        self._patience = greeting_timeout
        self._most = most_connections
        self._server: Any = None
        self._stopping = False
        self._handlers: set[asyncio.Task[Any]] = set()
        self._awaiting_bulk: dict[str, _Handshake] = {}
        self._peers: dict[int, tuple[str, PeerLink | None]] = {}
        """Maps each peer's rank to its incarnation and its link, which is None until it is up."""

    async def start(self) -> str:
        """Start listening. Return ``"ip:port"``, an IPv6 address in brackets.

        Raises:
            LaunchError: the address is not this machine's, or no port of ``ports`` is free.
            AuthError: the credentials are invalid.
        """
        self._credentials.check()
        sockets = listening_sockets(self._bind, self._ports, f"the daemon of node {self._node}")
        host = f"[{self._bind}]" if ":" in self._bind else self._bind
        while True:
            try:
                with next(sockets) as probe:  # gRPC's own bind fails vaguely and leaks memory
                    port = probe.getsockname()[1] if self._ports is not None else 0
            except OSError as error:
                raise LaunchError(f"node {self._node} cannot listen on {self._bind}: {error.strerror}") from None
            server = grpc.new_server(
                self._lease, self._patience, self._most, control=self._serve_control, bulk=self._serve_bulk
            )
            try:
                port = grpc.listen(server, f"{host}:{port}", self._credentials)
            except RuntimeError as error:
                await server.stop(None)
                if self._ports is not None:
                    continue  # another process has just taken the port
                raise LaunchError(f"node {self._node} cannot listen on {self._bind}: {error}") from None
            await server.start()
            self._server = server
            return f"{host}:{port}"

    async def stop(self) -> None:
        """Close every link cleanly and stop listening. Idempotent."""
        self._stopping = True
        if self._server is None:
            return
        await asyncio.gather(*(link.close() for _, link in self._peers.values() if link is not None))
        await self._server.stop(None)
        if self._handlers:
            await asyncio.wait(self._handlers)

    async def _serve_control(self, _requests: Any, context: Any) -> None:
        with self._counted():
            stream = grpc.accepted(context)
            hello = await self._greet(stream, context)
            # This entry reserves the node's place, so that a second new link is refused even before the first is up.
            peer, (_, link) = hello.node, self._peers.setdefault(hello.node, (hello.incarnation, None))
            wire: Wire | None = None
            try:
                received = await link.suspend() if link is not None else ()
                wire = await self._attach_bulk(hello, stream, context, received)
                if link is not None:
                    link.resume(wire, hello.received)
                else:
                    await self._open(hello, wire)
            except LinkEnded as error:
                await grpc.refuse(context, AuthError(f"node {self._node} has no link to node {peer} any more: {error}"))
            finally:
                if wire is None and link is None:
                    del self._peers[peer]
            await _serve_until(wire.over)

    async def _open(self, hello: Hello, wire: Wire) -> None:
        peer = hello.node

        def forget() -> None:
            del self._peers[peer]

        link = PeerLink(peer, wire, lease=self._lease, address=hello.address, on_end=forget)
        self._peers[peer] = hello.incarnation, link
        try:
            self._on_link(link)
        except Exception as error:
            report_failure(f"on_link for node {peer} failed", error)
            await link.close()

    async def _serve_bulk(self, _requests: Any, context: Any) -> None:
        with self._counted():
            handshake = self._awaiting_bulk.get(grpc.bulk_key(context))
            if handshake is None or grpc.identities(context) != [node_name(self._run, handshake.peer)]:
                await grpc.refuse(context, AuthError(f"node {self._node} got a bulk stream before a Hello"))
            await context.send_initial_metadata(grpc.UP)
            if handshake.bulk.done():
                error = AuthError(f"node {self._node} has a bulk stream on this link, or gave it up")
                await grpc.refuse(context, error)
            handshake.bulk.set_result(grpc.accepted(context))
            await _serve_until(handshake.wire_is_over)

    async def _greet(self, stream: MessageStream, context: Any) -> Hello:
        try:
            async with asyncio.timeout(self._patience):
                data = await stream.read()
        except TimeoutError:
            await grpc.refuse(context, AuthError(f"node {self._node} got no Hello within {self._patience:g} s"))
        except Broken:
            await grpc.refuse(context, AuthError(f"node {self._node} got no Hello"))
        try:
            hello = Hello.own(self._run, self._node).check(data, grpc.identities(context))
            self._check_link(hello)
            if self._stopping:
                raise ClosedError(f"node {self._node} is shutting down")
        except RLinfAsyncError as error:
            await grpc.refuse(context, error)
        return hello

    def _check_link(self, hello: Hello) -> None:
        """Raise AuthError unless the Hello starts the node's first link or continues the existing one."""
        incarnation, link = self._peers.get(hello.node, ("", None))
        if incarnation and incarnation != hello.incarnation:
            if link is not None:
                link.end_as("its daemon was started again")
            raise AuthError(
                f"node {hello.node} was started again: node {self._node} had a link to its daemon of before"
            )
        if hello.received and link is None:
            raise AuthError(f"node {self._node} has no link to node {hello.node} any more: it has given it up")
        if incarnation and not hello.received:
            raise AuthError(f"node {hello.node} has a link to node {self._node} already")

    async def _attach_bulk(self, hello: Hello, control: MessageStream, context: Any, received: Received) -> Wire:
        handshake = _Handshake(hello.node)
        key = secrets.token_hex(16)
        self._awaiting_bulk[key] = handshake
        own = Hello.own(self._run, self._node, received=received, bulk=key)
        try:
            await control.write(own.pack())
            async with asyncio.timeout(self._patience):
                bulk = await handshake.bulk
            if self._stopping:
                await grpc.refuse(context, ClosedError(f"node {self._node} is shutting down"))
        except BaseException as error:
            handshake.wire_is_over.set()  # the bulk stream's handler may wait for this event
            if isinstance(error, TimeoutError):
                await grpc.refuse(context, AuthError(f"no bulk stream within {self._patience:g} s after the Hello"))
            if isinstance(error, Broken):
                await grpc.refuse(context, AuthError("hung up after the Hello"))
            raise
        finally:
            del self._awaiting_bulk[key]
            handshake.bulk.cancel()
        return Wire(control, bulk, over=handshake.wire_is_over)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Context manager: registers gRPC's task for a handler, so that `stop` can wait for it."""
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            yield
        finally:
            self._handlers.discard(task)


@dataclass(eq=False)
class _Handshake:
    """A handshake whose control stream still waits for its bulk stream."""

    peer: int
    bulk: asyncio.Future[grpc.RpcStream] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    wire_is_over: Over = field(default_factory=Over)


async def _serve_until(over: Over) -> None:
    """Wait until a wire has ended. Returning after a clean end reports that end to the peer.

    A cancellation by gRPC is passed on only once the wire has ended: it means that the connection has ended, which the
    readers notice by themselves. A broken connection is likewise dropped by cancelling, because otherwise gRPC would
    try to send a proper end, fail, and log the failure.
    """
    cancelled, waits = False, True
    while waits:
        try:
            await over.wait()
            waits = False
        except asyncio.CancelledError:
            cancelled = True
    if cancelled or not over.in_order:
        raise asyncio.CancelledError

"""gRPC server of a node's daemon: accepts other nodes' links, checks who they are, hands out a ``PeerLink`` each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlinf_async import settings
from rlinf_async._wire import grpc
from rlinf_async._wire.credentials import NodeCredentials, node_name
from rlinf_async._wire.daemon_link import Broken, PeerLink, Stream, report_failure
from rlinf_async._wire.hello import Hello
from rlinf_async._wire.listen_address import parse_ip
from rlinf_async._wire.listen_ports import listening_sockets
from rlinf_async.errors import AuthError, ClosedError, ConfigError, LaunchError, RLinfAsyncError


class PeerServer:
    """Accepts links from nodes of the same run, on one address of this machine.

    Args:
        node: this node's rank.
        run: the run's id.
        bind: the IP address to listen on.
        ports: to listen on one of; None for a port of the kernel's choice.
        on_link: called on the loop with every new link, which is up in both directions.
        keepalive: seconds of silence before the peer is asked for a sign of life, and that it then has to give one.
        greeting_timeout: seconds for TLS, and again for each of the two words with which a link begins.
        most_connections: at a time, those of the run's nodes included; None for any number.

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
        keepalive: float = settings.NODE_SILENCE_S.default,
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
        self._keepalive = keepalive
        self._patience = greeting_timeout
        self._most = most_connections
        self._server: Any = None
        self._stopping = False
        self._handlers: set[asyncio.Task[Any]] = set()
        self._awaiting_bulk: dict[str, tuple[asyncio.Future[grpc.RpcStream], asyncio.Future[str]]] = {}
        self._peers: dict[int, PeerLink | None] = {}

    async def start(self) -> str:
        """Listens; returns ``"ip:port"``, an IPv6 address in brackets.

        Raises:
            LaunchError: the address is not this machine's; no port of ``ports`` is free.
            AuthError: the credentials are none.
        """
        self._credentials.check()
        sockets = listening_sockets(self._bind, self._ports, f"the daemon of node {self._node}")
        host = f"[{self._bind}]" if ":" in self._bind else self._bind
        while True:
            try:
                with next(sockets) as probe:  # gRPC's own failure is vague and leaks
                    port = probe.getsockname()[1] if self._ports is not None else 0
            except OSError as error:
                raise LaunchError(f"node {self._node} cannot listen on {self._bind}: {error.strerror}") from None
            server = grpc.new_server(
                self._keepalive, self._patience, self._most, control=self._serve_control, bulk=self._serve_bulk
            )
            try:
                port = grpc.listen(server, f"{host}:{port}", self._credentials)
            except RuntimeError as error:
                await server.stop(None)
                if self._ports is not None:
                    continue  # somebody has taken it in this moment
                raise LaunchError(f"node {self._node} cannot listen on {self._bind}: {error}") from None
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
            stream = grpc.accepted(context, self._keepalive)
            peer = await self._greet(stream, context)
            self._peers[peer] = None
            reason = "the link did not come up"
            ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            try:
                bulk = await self._attach_bulk(stream, context, ended)
                stream.share_pulse(bulk)
                link = PeerLink(peer, stream, bulk, _nothing_to_hang_up)
                self._peers[peer] = link
                try:
                    self._on_link(link)
                except Exception as error:
                    report_failure(f"on_link for node {peer} failed", error)
                    await link.close()
                reason = await link.ended()
            finally:
                del self._peers[peer]
                ended.set_result(reason)
            await grpc.conclude(context, reason)

    async def _serve_bulk(self, _requests: Any, context: Any) -> None:
        with self._counted():
            arrival, ended = self._awaiting_bulk.get(context.peer(), (None, None))
            if arrival is None or ended is None:
                await grpc.refuse(context, AuthError(f"node {self._node} got a bulk stream before a Hello"))
            await context.send_initial_metadata(grpc.UP)
            if arrival.done():
                error = AuthError(f"node {self._node} has a bulk stream on this link, or gave it up")
                await grpc.refuse(context, error)
            arrival.set_result(grpc.accepted(context, self._keepalive))
            await grpc.conclude(context, await asyncio.shield(ended))

    async def _greet(self, stream: Stream, context: Any) -> int:
        """Reads and checks the Hello of the node that opened a control stream; returns its rank."""
        try:
            async with asyncio.timeout(self._patience):
                data = await stream.read()
        except TimeoutError:
            await grpc.refuse(context, AuthError(f"node {self._node} got no Hello within {self._patience:g} s"))
        except Broken:
            await grpc.refuse(context, AuthError(f"node {self._node} got no Hello"))
        own = Hello.own(self._run, self._node)
        try:
            peer = own.check(data, grpc.identities(context)).node
            if peer in self._peers:
                raise AuthError(f"node {peer} has a link to node {self._node} already")
            if self._stopping:
                raise ClosedError(f"node {self._node} is shutting down")
        except RLinfAsyncError as error:
            await grpc.refuse(context, error)
        return peer

    async def _attach_bulk(self, control: Stream, context: Any, ended: asyncio.Future[str]) -> grpc.RpcStream:
        """Answers the Hello and waits for the second stream, which must come over the same connection."""
        arrival: asyncio.Future[grpc.RpcStream] = asyncio.get_running_loop().create_future()
        self._awaiting_bulk[context.peer()] = (arrival, ended)
        try:
            await control.write(Hello.own(self._run, self._node).pack())
            async with asyncio.timeout(self._patience):
                bulk = await arrival
        except TimeoutError:
            await grpc.refuse(context, AuthError(f"no bulk stream within {self._patience:g} s after the Hello"))
        except Broken:
            await grpc.refuse(context, AuthError("hung up after the Hello"))
        finally:
            del self._awaiting_bulk[context.peer()]
        if self._stopping:
            await grpc.refuse(context, ClosedError(f"node {self._node} is shutting down"))
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


async def _nothing_to_hang_up(_in_order: bool) -> None:
    """A server's handlers return; that ends their streams."""

"""Dials another node's daemon over gRPC: exchanges Hellos and opens both streams, for new links and for redials."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from rlinf_async import settings
from rlinf_async._wire import grpc
from rlinf_async._wire.credentials import NodeCredentials, explain_refusal, node_name
from rlinf_async._wire.daemon_link import CLOSE_TIMEOUT_S, Broken, PeerLink, Received, Wire
from rlinf_async._wire.hello import Hello
from rlinf_async._wire.listen_address import parse_ip, split_endpoint
from rlinf_async.errors import AuthError, NodeLost

_DIAGNOSIS_TIMEOUT_S = 2.0


async def dial(
    address: str,
    *,
    node: int,
    peer: int,
    run: str,
    credentials: NodeCredentials,
    timeout: float,
    lease: float = settings.LEASE_S.default,
    own_address: str = "",
) -> PeerLink:
    """Open a link from node ``node`` to node ``peer``. When this returns, the link works in both directions.

    Args:
        address: the peer's listening address, ``"ip:port"``.
        timeout: maximum time in seconds; diagnosing a refused handshake may take two more.
        lease: seconds without a message from the peer after which the link ends.
        own_address: listening address of ``node`` itself. If it refuses connections, the peer need not wait for the
            lease.

    Raises:
        AuthError: one side did not accept the other's certificate or identity, or the credentials are invalid.
        VersionMismatch: the nodes use different protocols or minor versions of Python.
        NodeLost: ``address`` does not answer in time.
        ConfigError: the address is malformed.
    """
    host, port = split_endpoint(address)
    parse_ip(host)
    credentials.check()  # explains the error; gRPC would only report that the connection failed
    parameters = _DialParameters(address, node, peer, run, credentials, lease, own_address)
    try:
        wire, first = await parameters.connect((), timeout)
    except Broken as error:
        refusal = await explain_refusal(host, port, node_name(run, peer), credentials, _DIAGNOSIS_TIMEOUT_S)
        raise refusal or NodeLost.from_facts(address, peer, str(error)) from None

    async def redial(received: Received, timeout: float) -> tuple[Wire, Received]:
        try:
            wire, again = await parameters.connect(received, timeout)
        except Broken as error:
            raise NodeLost.from_facts(address, peer, str(error)) from None
        if again.incarnation != first.incarnation or not again.received:
            await wire.hang_up(False)
            raise AuthError(f"node {peer} was started again")
        return wire, again.received

    return PeerLink(peer, wire, lease=lease, address=address, redial=redial)


@dataclass(frozen=True)
class _DialParameters:
    """The parameters of ``dial``, kept for later connections."""

    address: str
    node: int
    peer: int
    run: str
    credentials: NodeCredentials
    lease: float
    own_address: str

    async def connect(self, received: Received, timeout: float) -> tuple[Wire, Hello]:
        """Open both streams, each over its own connection. Return the wire, and the peer's Hello.

        Raise NodeLost if there is no answer in time, Broken if the connection is refused or the answer is invalid, and
        otherwise the same errors as ``dial``.
        """
        host, _ = split_endpoint(self.address)
        target, name = f"ipv{parse_ip(host).version}:{self.address}", node_name(self.run, self.peer)
        channels = tuple(grpc.new_channel(target, name, self.credentials, self.lease) for _ in range(2))
        own = Hello.own(self.run, self.node, address=self.own_address, received=received)
        try:
            async with asyncio.timeout(timeout):
                control, bulk, peer_hello = await _shake_hands(channels[0], channels[1], own, name)
        except BaseException as error:
            await _close(channels)
            if isinstance(error, TimeoutError):
                raise NodeLost.from_facts(self.address, self.peer, f"no answer within {timeout:g} s") from None
            raise

        async def hang_up(in_order: bool) -> None:
            try:
                if in_order:
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await grpc.finish(control)
                        await grpc.finish(bulk)
            except TimeoutError:  # the peer said goodbye, then stopped responding
                pass
            finally:
                await _close(channels)

        return Wire(grpc.dialled(control), grpc.dialled(bulk), hang_up), peer_hello


async def _close(channels: tuple[Any, ...]) -> None:
    await asyncio.gather(*(channel.close() for channel in channels))


async def _shake_hands(control_channel: Any, bulk_channel: Any, own: Hello, name: str) -> tuple[Any, Any, Hello]:
    """Exchange Hellos on the control stream, then open the bulk stream. Return both calls and the peer's Hello."""
    control = control_channel.stream_stream("/rlinf.Node/Control")()
    stream = grpc.dialled(control)
    try:
        await stream.write(own.pack())
        data = await stream.read()
    except Broken:
        raise await grpc.refusal(control) from None
    peer_hello = own.check(data, [name])
    bulk = bulk_channel.stream_stream("/rlinf.Node/Bulk")(metadata=((grpc.BULK_KEY, peer_hello.bulk),))
    if not grpc.is_up(await bulk.initial_metadata()):
        raise await grpc.refusal(bulk)
    return control, bulk, peer_hello

"""Dials another node's daemon over gRPC: exchanges Hellos, opens both streams, returns a ``PeerLink``."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import settings
from rlinf_async._wire import grpc
from rlinf_async._wire.credentials import NodeCredentials, explain_refusal, node_name
from rlinf_async._wire.daemon_link import CLOSE_TIMEOUT_S, Broken, PeerLink
from rlinf_async._wire.hello import Hello
from rlinf_async._wire.listen_address import parse_ip, split_endpoint
from rlinf_async.errors import NodeLost

_DIAGNOSIS_TIMEOUT_S = 2.0


async def dial(
    address: str,
    *,
    node: int,
    peer: int,
    run: str,
    credentials: NodeCredentials,
    timeout: float,
    keepalive: float = settings.NODE_SILENCE_S.default,
) -> PeerLink:
    """Opens the link from node ``node`` to node ``peer``, which is up in both directions when this returns.

    Args:
        address: where the peer listens, ``"ip:port"``.
        timeout: seconds; where a handshake is refused, finding out why may add two.
        keepalive: seconds of silence before the peer is asked for a sign of life, and that it then has to give one.

    Raises:
        AuthError: one side did not accept the other's certificate or identity, or the credentials are none.
        VersionMismatch: the two speak different protocols, or run different minor versions of Python.
        NodeLost: nothing answers at that address, or not in time.
        ConfigError: the address is not of that form.
    """
    host, port = split_endpoint(address)
    credentials.check()  # gRPC would only say that the connection failed
    name = node_name(run, peer)
    target = f"ipv{parse_ip(host).version}:{address}"
    channel = grpc.new_channel(target, name, credentials, keepalive)
    try:
        async with asyncio.timeout(timeout):
            control, bulk = await _shake_hands(channel, Hello.own(run, node), name, keepalive)
    except BaseException as error:
        await channel.close()
        if isinstance(error, TimeoutError):
            raise NodeLost.from_facts(address, peer, f"no answer within {timeout:g} s") from None
        if isinstance(error, Broken):
            refusal = await explain_refusal(host, port, name, credentials, _DIAGNOSIS_TIMEOUT_S)
            raise refusal or NodeLost.from_facts(address, peer, str(error)) from None
        raise

    async def hang_up(in_order: bool) -> None:
        try:
            if in_order:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await grpc.finish(control)
                    await grpc.finish(bulk)
        except TimeoutError:  # the peer said goodbye and then froze
            pass
        finally:
            await channel.close()

    streams = grpc.dialled(control, keepalive), grpc.dialled(bulk, keepalive)
    streams[0].share_pulse(streams[1])
    return PeerLink(peer, *streams, hang_up)


async def _shake_hands(channel: Any, own: Hello, name: str, keepalive: float) -> tuple[Any, Any]:
    """Exchanges Hellos on the control stream, then opens the bulk stream; returns both calls."""
    control = channel.stream_stream("/rlinf.Node/Control")()
    stream = grpc.dialled(control, keepalive)
    try:
        await stream.write(own.pack())
        data = await stream.read()
    except Broken:
        raise await grpc.refusal(control) from None
    own.check(data, [name])
    bulk = channel.stream_stream("/rlinf.Node/Bulk")()
    if not grpc.is_up(await bulk.initial_metadata()):
        raise await grpc.refusal(bulk)
    return control, bulk

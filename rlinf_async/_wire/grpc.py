"""gRPC adapter for links between daemons: mutual TLS, options, streams, error texts; nothing else imports grpc.

Two daemons share one channel with two long-lived streams on it.  The server's side of gRPC does not
tell a stream that broke from one that ended in order, which is why a link says goodbye.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from rlinf_async._wire.credentials import NodeCredentials
from rlinf_async._wire.daemon_link import MAX_MESSAGE_BYTES, Broken
from rlinf_async.errors import AuthError, ClosedError, RLinfAsyncError, VersionMismatch

# gRPC's core writes its own lines to stderr, and reads how many once, while it is imported.  What matters is
# raised or logged here in words; the children of this process must not inherit the setting.
_verbosity_is_set = "GRPC_VERBOSITY" in os.environ
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc  # noqa: E402
import grpc.aio  # noqa: E402

if not _verbosity_is_set:
    del os.environ["GRPC_VERBOSITY"]

_MAX_DETAILS_CHARS = 1000  # characters: longer status details arrive as "metadata size exceeds hard limit"

_log = logging.getLogger(__name__)
_Options = list[tuple[str, int | str]]
_Handler = Callable[[Any, Any], Awaitable[None]]


# A stopped process and a pulled cable close no socket: that a ping is not answered is all that tells of them.  Both
# sides ping, also on an idle link, since either may be the one that is gone; the server has to be told that this many
# pings are welcome, or it would take them for an attack and end the link.
# tests/_wire/test_daemon_link_ends.py::test_a_frozen_peer_is_lost_after_two_keepalives
# tests/_wire/test_daemon_link_ends.py::test_an_idle_link_outlives_many_keepalives
def _shared_options(keepalive: float) -> _Options:
    pace = round(keepalive * 1000)
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", 8192),
        ("grpc.keepalive_time_ms", pace),
        ("grpc.keepalive_timeout_ms", pace),
        ("grpc.http2.ping_timeout_ms", pace),  # without it a stopped process is found after a minute only
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _server_options(keepalive: float, patience: float, most: int | None) -> _Options:
    return [
        *_shared_options(keepalive),
        *([("grpc.max_allowed_incoming_connections", most)] if most is not None else []),
        ("grpc.so_reuseport", 0),  # else a second process could bind the same port and take half the calls
        ("grpc.server_handshake_timeout_ms", round(patience * 1000)),
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


# --- Servers and channels -------------------------------------------------------------------------------------


def new_server(
    keepalive: float, patience: float, most_connections: int | None, *, control: _Handler, bulk: _Handler
) -> Any:
    """A server of the two streams, which listens nowhere yet; must be called on a loop.

    Args:
        patience: seconds that a connection has for TLS.
        most_connections: at a time, whether they have shown a certificate or not; more are closed as they come.
    """
    server = grpc.aio.server(options=_server_options(keepalive, patience, most_connections))
    methods = {
        "Control": grpc.stream_stream_rpc_method_handler(control),
        "Bulk": grpc.stream_stream_rpc_method_handler(bulk),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("rlinf.Node", methods),))
    return server


def listen(server: Any, endpoint: str, own: NodeCredentials) -> int:
    """Binds the server to ``"ip:port"`` and returns the port; a RuntimeError says why it cannot."""
    identity = grpc.ssl_server_credentials(
        [(own.key.encode(), own.cert.encode())], own.ca.encode(), require_client_auth=True
    )
    port: int = server.add_secure_port(endpoint, identity)
    return port


def new_channel(target: str, name: str, own: NodeCredentials, keepalive: float) -> Any:
    """A channel to the one node that shows a certificate with this name; connects when it is first used."""
    identity = grpc.ssl_channel_credentials(own.ca.encode(), own.key.encode(), own.cert.encode())
    return grpc.aio.secure_channel(target, identity, options=_channel_options(keepalive, name))


# --- Streams --------------------------------------------------------------------------------------------------


_ERRORS = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class Keepalive:
    """When a peer's last message came, on whichever stream."""

    def __init__(self, keepalive: float) -> None:
        self.last = time.monotonic()
        self._keepalive = keepalive

    def describe(self, silent: float) -> str:
        """The seconds since then, which were measured at the break, and the bound."""
        bound = f"{self._keepalive:g} to {2 * self._keepalive:g} s without a sign of life end a link"
        return f"its last message came {silent:.1f} s before; {bound}"


class RpcStream:
    """One end of a stream: a call on the side that dialled, a servicer's context on the other."""

    def __init__(self, end: Any, pulse: Keepalive, why_broken: Callable[[float], Awaitable[str]]) -> None:
        self._end = end
        self._pulse = pulse
        self._why_broken = why_broken

    def share_pulse(self, other: RpcStream) -> None:
        """Both streams are of one peer: a message on either is a sign of life."""
        other._pulse = self._pulse

    async def read(self) -> bytes:
        data = await self._guarded(self._end.read())
        if data is grpc.aio.EOF:
            raise await self._broken()
        self._pulse.last = time.monotonic()
        return bytes(data)

    async def _broken(self) -> Broken:
        silent = time.monotonic() - self._pulse.last
        return Broken(await self._why_broken(silent))

    async def write(self, data: bytes) -> None:
        await self._guarded(self._end.write(data))

    async def _guarded(self, operation: Awaitable[Any]) -> Any:
        try:
            return await operation
        except _ERRORS:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # else it is gRPC's way to say that the call has ended
                raise
        raise await self._broken()


def dialled(call: Any, keepalive: float) -> RpcStream:
    """The end of a stream on the side that dialled."""

    pulse = Keepalive(keepalive)

    async def why_broken(silent: float) -> str:
        call.cancel()  # does nothing where the call has ended, as it should have
        details = str(await call.details())
        if await call.code() is grpc.StatusCode.ABORTED:
            return details
        if any(word in details.lower() for word in ("ping timeout", "keepalive", "timed out")):
            return f"no sign of life, a ping was not answered: {pulse.describe(silent)} ({details})"
        return f"the connection broke ({details})"

    return RpcStream(call, pulse, why_broken)


def accepted(context: Any, keepalive: float) -> RpcStream:
    """The end of a stream on the side that accepted."""

    pulse = Keepalive(keepalive)

    async def why_broken(silent: float) -> str:  # a server is not told
        if silent < keepalive:
            return f"the connection broke {silent:.1f} s after its last message"
        return f"the connection broke, or there was no sign of life: {pulse.describe(silent)}"

    return RpcStream(context, pulse, why_broken)


# --- How a call ends ------------------------------------------------------------------------------------------


_CODES = {
    AuthError: grpc.StatusCode.UNAUTHENTICATED,
    VersionMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    ClosedError: grpc.StatusCode.UNAVAILABLE,
}


UP = (("rlinf-link", "up"),)
"""Metadata by which the accepting side tells that the link is up."""


def is_up(metadata: Any) -> bool:
    """Whether the accepting side has said so; what a stream that was refused begins with does not."""
    return metadata is not None and UP[0] in tuple(metadata)


async def refuse(context: Any, error: RLinfAsyncError) -> NoReturn:
    """Ends a peer's call with the error's text, which both sides' logs then hold."""
    _log.warning("refused a connection from %s: %s", context.peer(), str(error))
    await context.abort(_CODES[type(error)], _details(str(error)))
    raise error  # not reached: abort raises what gRPC wants to see


async def conclude(context: Any, reason: str) -> None:
    """Ends the server's half of a stream: in order, or with the reason for which the link ended."""
    if reason:
        await context.abort(grpc.StatusCode.ABORTED, _details(reason))


def _details(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()[:_MAX_DETAILS_CHARS]


def identities(context: Any) -> list[str]:
    """The names in the certificate that the peer of a call has shown."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("ascii", "replace") for name in names]


async def refusal(call: Any) -> Exception:
    """Why the peer ended a call before the link was up; `Broken` where it was not the peer that spoke."""
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return AuthError(details)
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return VersionMismatch(details)
    return Broken(f"cannot be reached ({details})")


async def finish(call: Any) -> None:
    """Ends a call in order, after the goodbyes: gRPC complains in other loops' logs if it is merely dropped."""
    try:
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
        await call.code()
    except _ERRORS:
        pass

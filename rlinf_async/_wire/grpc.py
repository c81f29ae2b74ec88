"""The gRPC adapter for links between daemons: mutual TLS, options, streams, error texts. No other module imports grpc.

Two daemons share two long-lived streams, each over a separate channel. On the server side, gRPC does not distinguish a
broken stream from a finished one, so a link ends with an explicit goodbye.
"""

from __future__ import annotations

import asyncio
import importlib.util
import mmap
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

from rlinf_async._core.own_logger import own_logger
from rlinf_async._wire.credentials import NodeCredentials
from rlinf_async._wire.daemon_link import MAX_MESSAGE_BYTES, Broken
from rlinf_async.errors import AuthError, ClosedError, RLinfAsyncError, VersionMismatch


def _experiments() -> str:
    """Return the setting for gRPC's older socket polling; empty if this version would warn about it.

    Socket polling takes a third less CPU time per call than the EventEngine.
    """
    names = ("event_engine_client", "event_engine_listener")
    [package] = getattr(importlib.util.find_spec("grpc"), "submodule_search_locations", None) or [""]
    for library in Path(package, "_cython").glob("cygrpc*.so"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if all(content.find(b"\0" + name.encode() + b"\0") >= 0 for name in names):
                return ",".join(f"-{name}" for name in names)
    return ""


# gRPC's core writes to stderr, and reads its verbosity once, at import. Important messages are raised or logged by this
# module. Child processes must not inherit these settings.
_SETTINGS = {"GRPC_VERBOSITY": "NONE", "GRPC_EXPERIMENTS": _experiments()}
_own_settings = {name: value for name, value in _SETTINGS.items() if value and name not in os.environ}
os.environ.update(_own_settings)
import grpc  # noqa: E402
import grpc.aio  # noqa: E402

for _name in _own_settings:
    del os.environ[_name]

_MAX_DETAILS_CHARS = 1000  # longer details are replaced by "metadata size exceeds hard limit"

_log = own_logger(__name__)
_Options = list[tuple[str, int | str]]
_Handler = Callable[[Any, Any], Awaitable[None]]


# A link detects silence itself (``daemon_link``), and reconnects. gRPC's own pings serve only to remove connections
# that neither side has closed. Their timeouts are long, because a ping waits behind megabytes still queued in a slow
# network. The server must be configured to allow pings; otherwise it would take them for an attack.
# tests/_wire/test_daemon_link_ends.py::test_an_idle_link_outlives_many_leases
def _shared_options(lease: float) -> _Options:
    pace = round(lease * 1000)
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", 8192),
        ("grpc.keepalive_time_ms", pace),
        ("grpc.keepalive_timeout_ms", 4 * pace),
        ("grpc.http2.ping_timeout_ms", 4 * pace),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _server_options(lease: float, patience: float, most: int | None) -> _Options:
    return [
        *_shared_options(lease),
        *([("grpc.max_allowed_incoming_connections", most)] if most is not None else []),
        # Otherwise a second process could bind the same port and get half the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", round(patience * 1000)),
        # With the default of five minutes, the server would reject the third ping.
        ("grpc.http2.min_ping_interval_without_data_ms", round(lease * 400)),
        ("grpc.server.max_pending_requests", 1 << 20),
        ("grpc.server_max_unrequested_time_in_server", 86_400),
    ]


def _channel_options(lease: float, name: str) -> _Options:
    return [
        *_shared_options(lease),
        ("grpc.ssl_target_name_override", name),  # the peer is identified by name, not by address
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]


# --- Servers and channels -------------------------------------------------------------------------------------


def new_server(
    lease: float, patience: float, most_connections: int | None, *, control: _Handler, bulk: _Handler
) -> Any:
    """Return a server for the two streams that does not listen yet. Must be called on a running loop.

    A connection's TLS handshake may take ``patience`` seconds. Connections beyond ``most_connections``, authenticated
    or not, are closed.
    """
    server = grpc.aio.server(options=_server_options(lease, patience, most_connections))
    methods = {
        "Control": grpc.stream_stream_rpc_method_handler(control),
        "Bulk": grpc.stream_stream_rpc_method_handler(bulk),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("rlinf.Node", methods),))
    return server


def listen(server: Any, endpoint: str, own: NodeCredentials) -> int:
    """Bind the server to ``"ip:port"`` and return the port. Raise RuntimeError with the reason if that fails."""
    identity = grpc.ssl_server_credentials(
        [(own.key.encode(), own.cert.encode())], own.ca.encode(), require_client_auth=True
    )
    port: int = server.add_secure_port(endpoint, identity)
    return port


def new_channel(target: str, name: str, own: NodeCredentials, lease: float) -> Any:
    """Return a channel to the node whose certificate has this name; the channel connects on first use."""
    identity = grpc.ssl_channel_credentials(own.ca.encode(), own.key.encode(), own.cert.encode())
    return grpc.aio.secure_channel(target, identity, options=_channel_options(lease, name))


# --- Streams --------------------------------------------------------------------------------------------------


_ERRORS = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class RpcStream:
    """One end of a stream: a call on the dialling side, a servicer's context on the accepting side."""

    def __init__(self, end: Any, why_broken: Callable[[], Awaitable[str]]) -> None:
        self._end = end
        self._why_broken = why_broken

    async def read(self) -> bytes:
        data = await self._guarded(self._end.read())
        if data is grpc.aio.EOF:
            raise Broken(await self._why_broken())
        return bytes(data)

    async def write(self, data: bytes) -> None:
        await self._guarded(self._end.write(data))

    async def _guarded(self, operation: Awaitable[Any]) -> Any:
        try:
            return await operation
        except _ERRORS:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # gRPC also reports the end of a call as CancelledError, although this task was not cancelled.
            if task is None or task.cancelling():
                raise
        raise Broken(await self._why_broken())


def dialled(call: Any) -> RpcStream:
    """Return the dialling end of a stream."""

    async def why_broken() -> str:
        call.cancel()  # no effect if the call has ended, as it should have by now
        return f"the connection broke ({await call.details()})"

    return RpcStream(call, why_broken)


def accepted(context: Any) -> RpcStream:
    """Return the accepting end of a stream; gRPC does not tell it why the stream broke."""

    async def why_broken() -> str:
        return "the connection broke"

    return RpcStream(context, why_broken)


# --- How a call ends ------------------------------------------------------------------------------------------


_CODES = {
    AuthError: grpc.StatusCode.UNAUTHENTICATED,
    VersionMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    ClosedError: grpc.StatusCode.UNAVAILABLE,
}


BULK_KEY = "rlinf-bulk"


def bulk_key(context: Any) -> str:
    return str(dict(context.invocation_metadata() or ()).get(BULK_KEY, ""))


UP = (("rlinf-link", "up"),)


def is_up(metadata: Any) -> bool:
    """True if the accepting side has reported the link as up; a refused stream lacks this metadata."""
    return metadata is not None and UP[0] in tuple(metadata)


async def refuse(context: Any, error: RLinfAsyncError) -> NoReturn:
    """End a peer's call with the error's text, which both sides then log."""
    _log.warning("refused a connection from %s: %s", context.peer(), str(error))
    await context.abort(_CODES[type(error)], _details(str(error)))
    raise error  # never reached: abort has raised gRPC's own exception


def _details(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()[:_MAX_DETAILS_CHARS]


def identities(context: Any) -> list[str]:
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("ascii", "replace") for name in names]


async def refusal(call: Any) -> Exception:
    """Return the peer's error that ended a call before the link was up; `Broken` if the peer did not end the call."""
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return AuthError(details)
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return VersionMismatch(details)
    return Broken(f"cannot be reached ({details})")


async def finish(call: Any) -> None:
    """End a call cleanly, after the goodbyes. If the call were dropped, gRPC would log errors on other loops."""
    try:
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
        await call.code()
    except _ERRORS:
        pass

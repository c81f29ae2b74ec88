"""``small_limits``: small values for the protocol's thresholds, so that short simulated programs cross each threshold.

Real runs keep the constants: the modules read them as usual, and small values replace them only while a
``small_limits`` block runs. Settings have environment variables, so the block returns their values::

    with small_limits() as settings:
        SimCluster(nodes=3, seed=7, settings=settings).run(main)
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._channels import batching, reading
from rlinf_async._channels.state import put_window
from rlinf_async._client import direct_calls, events
from rlinf_async._core import frames, link_messages, resend
from rlinf_async._messaging import relayed_broadcast
from rlinf_async._messaging.state import chain, relay_plan
from rlinf_async._simulation import stand_ins
from rlinf_async._simulation.stand_ins import replace
from rlinf_async._transports import inline, transport_choice
from rlinf_async._wire import daemon_link, send_buffer
from rlinf_async.weights.plane import publisher  # noqa: F401  # an import within a block would keep a small value
from rlinf_launcher.daemon import channel_replies, endpoint, router, service

_KIB: Final = 1 << 10
_PACKAGES: Final = ("rlinf_async.", "rlinf_launcher.")

LIMITS: Final[tuple[tuple[ModuleType, str, Any], ...]] = (
    (batching, "MIN_BURST", 2),
    (batching, "_BATCH_SIZE", 3),
    (batching, "_LARGE_BATCH_SIZE", 2),
    (chain, "CHAIN_FROM_BYTES", 64 * _KIB),
    (chain, "_MAX_PIECE_BYTES", 64 * _KIB),
    (chain, "_MIN_PIECE_BYTES", 16 * _KIB),
    (channel_replies, "_MAX_ITEMS_PER_FRAME", 2),
    (daemon_link, "_BATCH_BYTES", 16 * _KIB),
    (daemon_link, "_MAX_KEPT_BYTES", 128 * _KIB),
    (daemon_link, "_MAX_QUEUED_PIECES", 2),
    (direct_calls, "MAX_TARGETS", 1),
    (endpoint, "MAX_QUEUED_BYTES", 16 * _KIB),
    (events, "_MAX_RETURNED", 4),
    (frames, "MAX_UNSEALED_BYTES", 64 * _KIB),
    (inline, "PIECE_BYTES", 16 * _KIB),
    (inline, "_WINDOW_PIECES", 2),
    (link_messages, "ACK_BYTES", 64 * _KIB),
    (link_messages, "ACK_MESSAGES", 3),
    (relay_plan, "FIRST_PIECE_BYTES", 16 * _KIB),
    (relay_plan, "MAX_PIECE_BYTES", 64 * _KIB),
    (relayed_broadcast, "_PIECE_BYTES", 16 * _KIB),
    (put_window, "WINDOW_BYTES", 2 * _KIB),
    (reading, "WINDOW", 3),
    (resend, "ACK_FRAMES", 3),
    (resend, "ACK_NOW_FRAMES", 12),
    (resend, "MAX_KEPT_BYTES", 1024 * _KIB),
    (resend, "PIECE_BYTES", 16 * _KIB),
    (resend, "_ACK_NOW_BYTES", 512 * _KIB),
    (resend, "_ACK_NOW_DESCRIPTORS", 2),
    (router, "MAX_DIRECT_WORKERS", 3),
    (send_buffer, "MAX_FDS_PER_CALL", 2),
    (send_buffer, "_BATCH_BYTES", 16 * _KIB),
    (stand_ins, "_SHARE_CUT_SHORT", 0.2),
    (transport_choice, "TRANSPORTS", {"pieces": transport_choice.TRANSPORTS["pieces"]._replace(min_bytes=64 * _KIB)}),
    (service, "count_memory", lambda: 16 * _KIB),  # half of it is the default ``max_bytes`` of channels
)
"""Module, name and small value of each threshold."""

SETTINGS: Final = {
    settings.MESSAGE_WINDOW_BYTES.variable: 64 * _KIB,
    settings.NODE_PIECE_BYTES.variable: 16 * _KIB,
    settings.STREAM_ITEMS.variable: 2,
}


@contextlib.contextmanager
def small_limits() -> Iterator[dict[str, int]]:
    """Context manager: installs the small values, and yields the matching settings."""
    with contextlib.ExitStack() as places:
        for module, name, value in LIMITS:
            for place in _holders(module, name):
                places.callback(replace(place, name, value))
        yield dict(SETTINGS)


def _holders(module: ModuleType, name: str) -> list[ModuleType]:
    """Return a constant's module, and all modules that have imported it by name."""
    value = vars(module)[name]
    if name.startswith("_"):
        return [module]
    own_modules = [each for key, each in sys.modules.items() if key.startswith(_PACKAGES) and each is not None]
    return [each for each in own_modules if vars(each).get(name) is value]

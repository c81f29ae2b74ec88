"""``WorkerInfo`` from the plain data of a group's roster; packs and unpacks its hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_async._core import codec
from rlinf_async.address import WorkerInfo


def pack_hardware(infos: Sequence[Any]) -> bytes:
    """Return the packed hardware of a worker; empty bytes if there is none."""
    return codec.encode(tuple(infos), describe="the worker's hardware").to_bytes() if infos else b""


def read_worker(facts: Mapping[str, Any]) -> WorkerInfo:
    """Return the worker's info from plain data, with ``hardware_infos`` as ``pack_hardware`` returns it.

    Raises:
        SerializationError: this process cannot import the classes of a kind of hardware.
    """
    packed = facts.get("hardware_infos") or b""
    return WorkerInfo.from_facts({**facts, "hardware_infos": codec.decode(packed) if packed else ()})

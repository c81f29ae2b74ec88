"""Builds a ``WorkerInfo`` from the plain data of a group's roster; packs and unpacks its hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_async._core import codec
from rlinf_async.address import WorkerInfo


def pack_hardware(infos: Sequence[Any]) -> bytes:
    """The pieces of hardware of a worker; no byte where there are none."""
    return codec.encode(tuple(infos), describe="the worker's hardware").to_bytes() if infos else b""


def read_worker(facts: Mapping[str, Any]) -> WorkerInfo:
    """From plain data; ``hardware_infos`` is as ``pack_hardware`` makes it.

    Raises:
        SerializationError: a kind of hardware has classes that cannot be imported here.
    """
    packed = facts.get("hardware_infos") or b""
    return WorkerInfo.from_facts({**facts, "hardware_infos": codec.decode(packed) if packed else ()})

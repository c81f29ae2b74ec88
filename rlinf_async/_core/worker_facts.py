"""Builds a ``WorkerInfo`` from the plain data of a group's roster; packs and unpacks a worker's hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_async._core import codec
from rlinf_async.address import WorkerInfo


def pack_hardware(infos: Sequence[Any]) -> bytes:
    return codec.encode(tuple(infos), describe="the worker's hardware").to_bytes() if infos else b""


def read_worker(facts: Mapping[str, Any]) -> WorkerInfo:
    """Return a worker's info from plain data; SerializationError if its hardware's classes cannot be imported."""
    packed = facts.get("hardware_infos") or b""
    return WorkerInfo.from_facts({**facts, "hardware_infos": codec.decode(packed) if packed else ()})

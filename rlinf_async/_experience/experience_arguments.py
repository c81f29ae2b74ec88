"""Validation of users' arguments for an experience: options, names of groups, requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from rlinf_async._channels.arguments import RequestArguments
from rlinf_async._channels.queue_errors import QueueEnd
from rlinf_async._channels.request import Get, Put
from rlinf_async._channels.state.channel_keys import canonical_key, key_of
from rlinf_async._core import frames
from rlinf_async._core.argument_checks import seconds, whole_number
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.names import check_group_name
from rlinf_async._experience.state.experience_options import ORDERS, SHORTS, ExperienceOptions
from rlinf_async._experience.state.experience_queue import TAKE, TAKE_STALE_TOO, WISH, pack_kind, pack_name
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits.slow_waits import Needs

_NOUN: Final = "experience"


class WantedRequest(Get[Any]):
    """A wait until samples are wanted; its result is the trainer's version."""

    noun = _NOUN

    def _needs(self) -> Needs:
        # The wait is for a trainer, which may still be busy, so producers that all wait here are not in a deadlock.
        return [Target(TargetKind.DAEMON, name=self._describe())], True

    def refuse(self, end: QueueEnd) -> None:
        # Use the ClosedError of a put, because this request does not wait for remaining items.
        self._settle(error=copy_of(end.put))


def options_of(name: str, *, durable: Any, of: Any, order: Any, short_groups: Any, **numbers: Any) -> ExperienceOptions:
    """Return the options of ``Experience.create``; raise TypeError or ValueError, which name the valid values."""
    whose = f"experience '{name}'"
    if of is not None:
        check_group_name(of)
    for option, value, values in (("order", order, ORDERS), ("short_groups", short_groups, SHORTS)):
        if value not in values:
            raise ValueError(f"{whose}: {option}= takes {' or '.join(map(repr, values))}, got {value!r}")
    if durable is not None and (not isinstance(durable, str | Path) or not str(durable)):
        raise TypeError(f"{whose}: durable= takes the path of a file, or None, got {durable!r}")
    timeout = numbers["group_timeout"]
    group = whole_number(numbers["group"], "group", whose, 1)
    maxsize = whole_number(numbers["maxsize"], "maxsize", whose)
    if 0 < maxsize < group:
        raise ValueError(f"{whose}: maxsize={maxsize} has no room for a group of {group}: make it {group} or more")
    return ExperienceOptions(
        group=group,
        max_staleness=whole_number(numbers["max_staleness"], "max_staleness", whose),
        lease_s=_positive(numbers["lease"], "lease", whose),
        maxsize=maxsize,
        max_bytes=whole_number(numbers["max_bytes"], "max_bytes", whose),
        group_timeout_s=0.0 if timeout is None else _positive(timeout, "group_timeout", whose),
        order=order,
        short_groups=short_groups,
        durable="" if durable is None else str(Path(durable).expanduser().absolute()),
        of=of or "",
    )


def _positive(value: Any, option: str, whose: str) -> float:
    try:
        number = seconds(value, whose)
    except (TypeError, ValueError):
        number = 0.0
    if not number:
        raise ValueError(f"{whose}: {option}= takes seconds, more than 0, got {value!r}")
    return number


class ExperienceArguments:
    """A factory that creates one experience's requests from the arguments of its methods."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._arguments = RequestArguments(name, None, _NOUN)

    def put(self, sample: Any, version: Any, group: Any, key: bytes | None, timeout: float | None) -> Put:
        """Return the request of ``Experience.put``, with a packed key; raise an error before anything is sent."""
        version = whole_number(version, "version", f"put() to experience '{self._name}'")
        put = self._arguments.put(sample, version, group, timeout)
        if put.key[:1] != b"s" and key_of(put.key) != group:
            raise TypeError(
                f"put() to experience '{self._name}': group= takes a number, a text, bytes, None, or a tuple of these, "
                f"got {group!r}"
            )
        put.key = pack_name(key, put.key)
        put.noun = _NOUN
        return put

    def take(self, groups: Any, key: Any, *, stale_too: bool) -> Get[list[Any]]:
        groups = whole_number(groups, "groups", f"take() from experience '{self._name}'", 1)
        kind = pack_kind(TAKE_STALE_TOO if stale_too else TAKE, packed_key(key))
        get: Get[list[Any]] = Get("take() from", self._name, key, kind, [groups, frames.LEASE, 0.0], None)
        get.noun = _NOUN
        return get

    def wanted(self) -> WantedRequest:
        return WantedRequest("wanted() of", self._name, None, pack_kind(WISH, None), None, None)


def packed_key(key: Any) -> bytes | None:
    return None if key is None else canonical_key(key)

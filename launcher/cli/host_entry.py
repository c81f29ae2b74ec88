"""Parser of one entry of a hosts file or list: host or bracket range, and its ``key=value`` settings."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from ..remote.exported_env import RESERVED, is_name
from ..remote.host import MAX_FAKE_GPUS, Host
from ..source_text import SourceSpan, suggestion
from .host_ranges import expand, split

_KEYS = ("slots", "max_slots", "port", "addr", "python", "gpus", "fake_gpus", "labels")
GROUPS_OF_EVERY_RUN = ("cluster", "node")
_EXAMPLE = "write the host first, then key=value: node01 slots=8"

_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\-]*", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_INDEX_RANGE = re.compile(r"([0-9]{1,4})-([0-9]{1,4})", re.ASCII)
_DEVICE = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[A-Za-z0-9/\-]+", re.ASCII)


def read_entry(line: SourceSpan) -> tuple[Host, ...]:
    """Return the hosts of one entry, in order; an empty tuple for a blank line or a comment.  Raises ConfigError."""
    words = list(line.words())
    if not words:
        return ()
    head = words.pop(0)
    settings, variables = _settings(words)
    name = _read_head(head, settings)
    names = (name.text,) if name.is_ipv6 else expand(name.span)
    for each in names:
        _check_name(each, head)
    address = _address(settings.get("addr"))
    if address and len(names) > 1:
        raise settings["addr"].error(f"one address for {len(names)} hosts", "give each host a line of its own")
    slots, max_slots = _number(name.slots, 0), _number(settings.get("max_slots"), 0)
    if "fake_gpus" in settings and "gpus" in settings:
        raise settings["fake_gpus"].error("real and fake GPUs on one host", "keep gpus= or fake_gpus=, not both")
    return tuple(
        Host(
            name=each,
            slots=slots if slots is None or max_slots is None else min(slots, max_slots),
            user=name.user,
            port=_number(name.port, 1, 65535),
            address=address,
            python=_python(settings.get("python")),
            gpus=_gpus(settings.get("gpus")),
            labels=_labels(settings.get("labels")),
            env=variables,
            fake_gpus=_number(settings.get("fake_gpus"), 0, MAX_FAKE_GPUS),
            source=head.where,
            max_slots=max_slots,
        )
        for each in names
    )


@dataclass(frozen=True)
class _Head:
    span: SourceSpan
    text: str
    is_ipv6: bool
    user: str | None
    slots: SourceSpan | None
    port: SourceSpan | None


def _read_head(head: SourceSpan, settings: dict[str, SourceSpan]) -> _Head:
    if head.text.startswith("-"):
        raise head.error(f"{head.text!r} is not a host name: it begins with '-'", _EXAMPLE)
    if "=" in head.text:
        raise head.error(f"{head.text!r} is a setting, not a host name", _EXAMPLE)
    user, at, _ = head.text.rpartition("@")
    if at and not _NAME.fullmatch(user):
        raise head.error(f"{user!r} is not a user name", "write user@host")
    place = head.cut(len(user) + len(at))
    is_ipv6 = place.text.startswith("[") and ":" in place.text.partition("]")[0]
    if is_ipv6:
        host, text, number = _read_ipv6(place)
    else:
        if place.text.count(":") > 1:
            raise place.error(
                f"{place.text!r} has several colons",
                "write an IPv6 address in brackets: [fe80::1], or [fe80::1]:2222 with a port",
            )
        text, colon, _ = place.text.partition(":")
        host, number = place.cut(0, len(text)), place.cut(len(text) + 1) if colon else None
    if number is not None and not _NUMBER.fullmatch(number.text):
        raise place.error(f"{number.text!r} after the colon is not a number", "write node04:8 or user@node04:2222")
    slots, port = settings.get("slots"), settings.get("port")
    if number is not None and (at or is_ipv6 or port):
        port = _agreed("port", number, port)
    elif number is not None:
        slots = _agreed("slots", number, slots)
    return _Head(host, text, is_ipv6, user or None, slots, port)


def _read_ipv6(place: SourceSpan) -> tuple[SourceSpan, str, SourceSpan | None]:
    inside, closed, rest = place.text[1:].partition("]")
    if not closed:
        raise place.error("this bracket is never closed", "write [fe80::1]")
    if "%" in inside:
        raise place.error("an address with a zone cannot be given here", "name it in ~/.ssh/config and write that name")
    try:
        text = str(ipaddress.IPv6Address(inside))
    except ValueError as error:
        raise place.error(f"{inside!r} is not an IPv6 address", "write [fe80::1] or [fe80::1]:2222") from error
    if rest and not rest.startswith(":"):
        raise place.error(f"{rest!r} after an IPv6 address", "write [fe80::1]:2222 for a port")
    return place, text, place.cut(len(inside) + 3) if rest else None


def _agreed(key: str, number: SourceSpan, setting: SourceSpan | None) -> SourceSpan:
    """Return a number given both after the colon and as ``key=``; raise ConfigError if the two differ."""
    if setting is not None and setting.text != number.text:
        other = "slots" if key == "port" else "port"
        raise number.error(
            f"':{number.text}' means {key}={number.text} here, and {key}={setting.text} stands beside it",
            f"drop ':{number.text}', or write {other}={number.text} in its place",
        )
    return number


def _check_name(name: str, head: SourceSpan) -> None:
    """Raise ConfigError for a name that ssh could parse as an option, or a shell as several words."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if not _NAME.fullmatch(name):
            fix = "write one host per line" if "," in name else "use letters, digits, '.', '-' and '_'"
            raise head.error(f"{name!r} is not a host name", fix) from None


def _settings(words: list[SourceSpan]) -> tuple[dict[str, SourceSpan], dict[str, str]]:
    """Return the ``key=value`` settings by key, and the ``env.NAME=value`` settings by name."""
    settings: dict[str, SourceSpan] = {}
    variables: dict[str, str] = {}
    for word in words:
        key, equals, _ = word.text.partition("=")
        if not equals:
            raise word.error(f"{word.text!r} is not key=value", "write one host per line, then key=value")
        value = word.cut(len(key) + 1)
        if key.startswith("env."):
            name = key.removeprefix("env.")
            if not is_name(name):
                raise word.error(f"{name!r} cannot name a variable", "write env.NAME=value")
            if name in RESERVED:
                raise word.error(f"{name} is set by the launcher", "leave it out")
            if name in variables:
                raise word.error(f"{key} is given twice", "keep one of the two")
            variables[name] = value.unquoted()
            continue
        plain = key.replace("-", "_")
        if plain not in _KEYS:
            known = ", ".join(f"{each}=" for each in _KEYS)
            raise word.error(f"unknown key {key!r}{suggestion(plain, _KEYS)}", f"use one of {known}, env.NAME=")
        if plain in settings and plain != "max_slots":
            raise word.error(f"{key}= is given twice", "keep one of the two")
        if plain in settings and settings[plain].text != value.text:
            raise word.error("max_slots= is given twice, with two values", "keep one of the two")
        settings[plain] = value
    return settings, variables


def _number(value: SourceSpan | None, low: int, high: int = 10**6) -> int | None:
    if value is None:
        return None
    if not _NUMBER.fullmatch(value.text) or not low <= int(value.text) <= high:
        raise value.error(f"{value.text!r} is not a number from {low} to {high}", "write digits only")
    return int(value.text)


def _address(value: SourceSpan | None) -> str | None:
    if value is None:
        return None
    try:
        address = ipaddress.ip_address(value.text.strip("[]"))
    except ValueError as error:
        raise value.error(f"{value.text!r} is not an IP address", "write addr=10.1.0.7") from error
    if address.is_unspecified or address.is_multicast:
        raise value.error(f"no node can be reached by {value.text}", "write the address of one interface")
    return str(address)


def _python(value: SourceSpan | None) -> str | None:
    if value is None:
        return None
    path = value.unquoted()
    if not path or path.startswith("-"):
        raise value.error(f"{path!r} is not an interpreter", "write python=/opt/venv/bin/python")
    return path


def _gpus(value: SourceSpan | None) -> tuple[str, ...] | None:
    """Parse ``0,2``, ``0-3`` or UUIDs; ``none`` or an empty value means no GPU."""
    if value is None:
        return None
    if value.text in ("", "none"):
        return ()
    devices: list[str] = []
    for part in split(value):
        spread = _INDEX_RANGE.fullmatch(part.text)
        if spread and int(spread[1]) <= int(spread[2]):
            new = [str(index) for index in range(int(spread[1]), int(spread[2]) + 1)]
        elif _DEVICE.fullmatch(part.text):
            new = [str(int(part.text)) if part.text.isdecimal() else part.text]
        else:
            raise part.error(f"{part.text!r} is not a GPU", "write gpus=0,2 or gpus=0-3 or gpus=GPU-<uuid>")
        twice = sorted(set(devices) & set(new))
        if twice:
            raise part.error(f"GPU {twice[0]} is named twice", "name each GPU once")
        devices += new
    return tuple(devices)


def _labels(value: SourceSpan | None) -> tuple[str, ...]:
    if value is None:
        return ()
    for part in split(value):
        if not _NAME.fullmatch(part.text):
            raise part.error(f"{part.text!r} is not a label", "write labels=franka,camera")
        if part.text in GROUPS_OF_EVERY_RUN:
            raise part.error(f"every run has a group {part.text!r}, of all its nodes", "choose another label")
    return tuple(value.text.split(","))

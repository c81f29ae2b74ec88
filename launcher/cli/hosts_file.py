"""Hosts of a run, read from a hosts file, stdin or a list; duplicates are merged or refused.

Each line names one host or one range of hosts; node ranks follow the order of the lines, starting at 0::

    # comment                                without slots: one slot per GPU, or one
    node01
    node02 slots=8 max_slots=8
    node04:8                                 host:N means slots, as for MPI ...
    user@node05:2222 slots=4                 ... but a port after user@ or [IPv6], or next to port=
    gpu[01-16,20] slots=8
    [fe80::1]:2222
    robot1 slots=0 labels=franka env.ROBOT_IP=10.0.0.2 python=/opt/v/bin/python addr=10.1.0.7 gpus=0,2
    laptop fake_gpus=4                       pretends to have GPUs, to try out a placement
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rlinf_async.errors import ConfigError

from ..remote.host import Host, describe
from ..source_text import SourceSpan, lines
from .host_entry import read_entry
from .host_ranges import split

__all__ = ["Host", "describe", "parse_hosts", "parse_list", "read_file", "read_hosts"]

_MAX_ERRORS = 10


def parse_hosts(text: str, source: str = "nodes.txt", allow_duplicates: bool = False) -> tuple[Host, ...]:
    """Return the hosts listed in a file's text, in order; errors name the file ``source``.

    With ``allow_duplicates`` a repeated host adds its slots (one, if unspecified) to the first entry.
    Raises ConfigError for invalid lines (at most ten are shown), for a list without hosts, and for a repeated host.
    """
    return _read(list(lines(text, source)), source, allow_duplicates)


def read_hosts(
    argument: str, stdin: TextIO, source: str = "--hosts", allow_duplicates: bool = False
) -> tuple[Host, ...]:
    """Return the hosts that a ``--hosts`` argument names.  Raises like `parse_hosts`, and for an unreadable file.

    ``-`` reads ``stdin``; an existing path is read; any other argument is a list such as ``a:8,b:8``.  A single host
    needs a comma (``node01,``) or slots (``node01:8``); otherwise it would name a missing file.
    """
    if argument == "-":
        return parse_hosts(_read_text(stdin.read, "stdin", "what stands before the |"), "stdin", allow_duplicates)
    path = Path(argument)
    is_there = os.path.exists(path)
    if is_there and not (path.is_dir() and _is_list(argument)):
        return read_file(path, allow_duplicates)
    if not _is_list(argument):
        if "/" in argument:  # the system says what is wrong with the path: perhaps a folder must not be entered
            return read_file(path, allow_duplicates)
        raise SourceSpan(argument, source, 1, 0, argument).error(
            f"there is no file {argument!r}",
            f"check the path; a single host is written as a list, with a comma: --hosts {argument or 'node01'},",
        )
    return parse_list(argument, source, allow_duplicates)


def parse_list(text: str, source: str = "--hosts", allow_duplicates: bool = False) -> tuple[Host, ...]:
    """Return the hosts in a list like ``a:8,gpu[01-16],``, whose last comma is optional.  Raises like `parse_hosts`."""
    parts = split(SourceSpan(text, source, 1, 0, text))
    if len(parts) > 1 and not parts[-1].text.strip():
        parts.pop()
    for part in parts:
        if not part.text.strip():
            raise part.error("no host stands here", "write the hosts with one comma between them: a:8,b:8")
    return _read(parts, source, allow_duplicates)


def read_file(path: Path, allow_duplicates: bool = False, named_by: str = "the path") -> tuple[Host, ...]:
    """Return the hosts listed in a file; errors say that ``named_by`` names the file.  Raises like `parse_hosts`."""
    text = _read_text(lambda: path.read_text(encoding="utf-8-sig"), f"{path}:1:1", named_by)
    return parse_hosts(text, str(path), allow_duplicates)


def _read_text(read: Callable[[], str], where: str, named_by: str) -> str:
    try:
        return read()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else f"not a text file: {error}"
        raise ConfigError(f"{where}: cannot read the hosts: {reason}\n  fix: check {named_by}") from error


def _is_list(argument: str) -> bool:
    """True if a word can only be a list of hosts, not a path."""
    if any(letter in argument for letter in ",:@[") or argument == "localhost":
        return True
    try:
        ipaddress.ip_address(argument)
    except ValueError:
        return False
    return True


def _read(entries: Sequence[SourceSpan], source: str, allow_duplicates: bool) -> tuple[Host, ...]:
    hosts: dict[tuple[str, int | None], Host] = {}
    errors: list[ConfigError] = []
    for entry in entries:
        try:
            for host in read_entry(entry):
                first = hosts.get(host.identity)
                hosts[host.identity] = (
                    host if first is None else _again(first, host, next(entry.words()), allow_duplicates)
                )
        except ConfigError as error:
            errors.append(error)
    if errors:
        texts = [str(error) for error in errors[:_MAX_ERRORS]]
        texts += [f"… and {len(errors) - _MAX_ERRORS} more bad lines"] if len(errors) > _MAX_ERRORS else []
        raise ConfigError("\n".join(texts))
    if not hosts:
        first_line = entries[0] if entries else SourceSpan("", source, 1, 0, "")
        raise first_line.error("no host is named here", "write one host per line, for example: node01 slots=8")
    return tuple(hosts.values())


def _again(first: Host, second: Host, head: SourceSpan, allow_duplicates: bool) -> Host:
    """Merge a repeated host into the first entry, or raise ConfigError."""
    if not allow_duplicates:
        raise head.error(
            f"{second.name!r} is listed twice: {first.source} and {second.source}",
            "delete one of the two, or add their slots up with --allow-duplicate-hosts",
        )
    same = replace(second, name=first.name, slots=first.slots, source=first.source, max_slots=first.max_slots)
    if same != first:
        raise head.error(
            f"{second.name!r} is listed twice, {first.source} and {second.source}, with different settings",
            "say the same about the host in both, slots apart",
        )
    slots = sum(1 if host.slots is None else host.slots for host in (first, second))
    return replace(first, slots=slots if first.max_slots is None else min(slots, first.max_slots))

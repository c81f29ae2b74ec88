"""Rules for the names that users give to groups and channels."""

from __future__ import annotations

import re
from typing import Final

# The limit on file names, 255 bytes, minus room for ranks: names of log folders and nested groups contain this one.
_MAX_GROUP_BYTES: Final = 200

# Each request to a channel carries the channel's name, and tables show it.
_MAX_CHANNEL_BYTES: Final = 4096

_TAKEN: Final = {
    "driver": "rlinf-ctl, metrics and traces call the script so",
    "recorder": "the folder of flight recorders has it, among those of the groups' logs",
}
_FILE: Final = re.compile(r"(?:daemon_\d+|template_\d+_\d+)\.log")


def check_group_name(name: object) -> None:
    """Check the name of a group. A TypeError or ValueError says why the name is not allowed, and what to do."""
    name = _text(name, "group", _MAX_GROUP_BYTES)
    if not name or name in (".", "..") or not name.isprintable() or "/" in name:
        raise ValueError(f"{name!r} cannot be a group's name: it is shown, and names a folder of log files")
    if why := _TAKEN.get(name) or (_FILE.fullmatch(name) and "a log beside those of the groups has it"):
        raise ValueError(f"{name!r} cannot be a group's name, because {why}: choose another one")


def check_channel_name(name: object, noun: str = "channel") -> None:
    """Check the name of a channel or an experience. Raises like ``check_group_name``."""
    _text(name, noun, _MAX_CHANNEL_BYTES)


def _text(name: object, what: str, most: int) -> str:
    article = "an" if what == "experience" else "a"
    if not isinstance(name, str):
        raise TypeError(f"the name of {article} {what} is a str, got {name!r}")
    try:
        nbytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{name!r} cannot be {article} {what}'s name: it is no text ({error.reason})") from None
    if nbytes > most:
        told = f"{name[:40] + '…'!r} cannot be {article} {what}'s name"
        raise ValueError(f"{told}: it has {nbytes} bytes in UTF-8, more than {most}: shorten it")
    return name

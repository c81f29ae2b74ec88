"""Names of metrics with their labels, as stored in a ring's cell: made, checked and parsed.

``return{task="cheetah"}`` is a user's gauge; the served metric also has the labels of its process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from .event_ring import MAX_NAME_BYTES, MetricKind

OWN_PREFIX: Final = "rlinf_"  # prefix of the framework's own metrics

OWN_LABELS: Final = frozenset({"node", "group", "rank"})  # labels that the framework adds to every metric of a process

_NAME: Final = re.compile(r"_*[a-zA-Z][a-zA-Z0-9_]*")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
_ESCAPE: Final = str.maketrans(_ESCAPES)
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_PLAIN: Final = {escaped: plain for plain, escaped in _ESCAPES.items()}


def served_name(kind: MetricKind, name: str) -> str:
    return f"{name}_total" if kind == MetricKind.COUNTER and not name.startswith(OWN_PREFIX) else name


def complaint(kind: MetricKind, name: str, labels: Mapping[str, object]) -> str:
    """Return why the metric is invalid, with the fix; empty if it is valid."""
    if kind == MetricKind.COUNTER and isinstance(name, str):
        name = name.removesuffix("_total")  # this suffix of a counter is not a name by itself
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "a name has letters, digits and underscores, and a letter before any digit"
    if name.startswith(OWN_PREFIX):
        return f"names that begin with {OWN_PREFIX!r} are the framework's: choose another one"
    if name.endswith("_total"):
        return "names that end with '_total' are counters', which end with it once: use counter(), or another name"
    for label in labels:
        if not _NAME.fullmatch(label) or label.startswith("__"):
            return f"label {label!r}: a label has letters, digits and underscores, and begins with a letter"
        if label in OWN_LABELS:
            return f"label {label!r} is added by the framework, from the process: leave it out, or rename it"
    if (nbytes := len(cell_name(name, labels).encode(errors="replace"))) > MAX_NAME_BYTES:
        return f"name and labels have {nbytes} bytes, more than {MAX_NAME_BYTES}: shorten the labels' values"
    return ""


def cell_name(name: str, labels: Mapping[str, object]) -> str:
    labelled = ",".join(f'{label}="{str(labels[label]).translate(_ESCAPE)}"' for label in sorted(labels))
    return f"{name}{{{labelled}}}" if labelled else name


def split_cell(cell: str) -> tuple[str, dict[str, str]]:
    name, _, labels = cell.partition("{")
    return name, {label: _ESCAPED.sub(_plain, value) for label, value in _LABEL.findall(labels)}


def _plain(found: re.Match[str]) -> str:
    return _PLAIN.get(found[0], found[0])

"""Finds the root cause among failures of several ranks, adds a note on the others; shortens ranks to ``0-2,5``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Final

from rlinf_async._core.failures import Failure, add_note, rebuild, text_of, type_name_of, when_of
from rlinf_async.errors import NodeLost, PeerLost, RemoteError, WorkerDied

_MAX_LINES: Final = 16

_DEATHS: Final = frozenset(f"{kind.__module__}.{kind.__qualname__}" for kind in (PeerLost, WorkerDied, NodeLost))


def root_cause(failures: Sequence[tuple[int, BaseException | Failure]]) -> tuple[int, list[str]]:
    """Return the index of the failure that caused the others, and lines about the others, with equal lines merged.

    A rank's own death takes precedence, then deaths of other ranks as reported by ranks, then errors, then
    cancellations; among equals, the earliest wins.
    """
    root = min(range(len(failures)), key=lambda index: (*_precedence(failures[index][1]), index))
    ranks: dict[str, list[int]] = {}
    for index, (rank, failure) in enumerate(failures):
        if index != root:
            ranks.setdefault(summary_of(failure), []).append(rank)
    lines = [
        f"{'ranks' if len(like) > 1 else 'rank'} {fold_ranks(like)}: {summary}"
        for summary, like in itertools.islice(ranks.items(), _MAX_LINES)
    ]
    if len(ranks) > _MAX_LINES:
        lines.append(f"and {len(ranks) - _MAX_LINES} other failures")
    return root, lines


def choose_root_cause(failures: Sequence[tuple[int, BaseException | Failure]]) -> BaseException:
    index, others = root_cause(failures)
    chosen = failures[index][1]
    error = rebuild(chosen) if isinstance(chosen, Failure) else chosen
    if others:
        add_note(error, "\n".join(["other failures of the same call:", *(f"    {line}" for line in others)]))
    return error


def fold_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as a short text: ``'0-2,5'``."""
    ordered = sorted(set(ranks))
    runs = itertools.groupby(enumerate(ordered), key=lambda place: place[1] - place[0])
    folded = ([rank for _, rank in run] for _, run in runs)
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in folded)


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2,5``."""
    folded = fold_ranks(ranks)
    return f"rank{'' if folded.isdecimal() else 's'} {folded}"


def is_death(type_name: str) -> bool:
    return type_name in _DEATHS


def _precedence(failure: BaseException | Failure) -> tuple[int, float]:
    if isinstance(failure, Failure):
        type_name, when = failure.type_name, failure.when
    else:
        when = when_of(failure)
        if isinstance(failure, PeerLost) and when == math.inf:
            return 0, when  # this process itself has seen the rank die
        type_name = failure.type_name if isinstance(failure, RemoteError) else type_name_of(type(failure))
    if is_death(type_name):
        return 1, when
    return (3 if type_name.endswith("CancelledError") else 2), when


def summary_of(failure: BaseException | Failure) -> str:
    if isinstance(failure, Failure):
        type_name, text = failure.type_name, failure.text
    elif isinstance(failure, RemoteError):
        return str(failure).partition("\n")[0][:200]
    else:
        type_name, text = type_name_of(type(failure)), text_of(failure)
    text = text.partition("\n")[0]
    return f"{type_name}: {text}"[:200] if text else type_name

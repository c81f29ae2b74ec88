"""Parser and formatter of rank lists in a configuration: ``3``, ``0-7``, ``0-3,6``, ``all``, or a list of these."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

from rlinf_async.errors import ConfigError

MAX_LOCAL_NODES: Final = 1024

MAX_RANKS: Final = 1 << 16
"""Limit for one range and for ``num_nodes``; a larger number is probably a typing error, and would fill the memory."""

_RANKS = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?", re.ASCII)


def parse_range(text: str, whole: str) -> range:
    """Parse ``3`` or ``0-3``; errors quote ``whole``. Raises ConfigError."""
    match = _RANKS.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"Invalid rank format {text.strip()!r} in {whole!r}, expected a number such as 3, a range such as 0-3, "
            "or all"
        )
    start, end = int(match[1]), int(match[2] or match[1])
    if end < start:
        raise ConfigError(f"Start rank {start} must be less than or equal to end rank {end} in {whole!r}")
    if end - start >= MAX_RANKS:
        raise ConfigError(f"{text.strip()!r} in {whole!r} is {end - start + 1} ranks, more than {MAX_RANKS}")
    return range(start, end + 1)


def parse_rank_config(
    rank_config: Any, available_ranks: Collection[int] | None = None, rank_type: str | None = None
) -> list[int]:
    """Return the ranks listed in a configuration value, ascending.

    Args:
        rank_config: an int, a comma-separated string, or a list of either.
        available_ranks: all valid ranks, which ``all`` selects; None if unknown.
        rank_type: kind of rank for errors, such as ``"node"``.

    Example:
        >>> parse_rank_config("0-2,5")
        [0, 1, 2, 5]
        >>> parse_rank_config([0, "2-3"], range(4))
        [0, 2, 3]

    Raises:
        ConfigError: the value is malformed, repeats a rank, or contains an unavailable rank.
    """
    kind = f"{rank_type} rank" if rank_type else "rank"
    known = None if available_ranks is None else set(available_ranks)
    ranks: list[int] = []
    for part in _parts(rank_config):
        if part.lower() == "all":
            if known is None:
                raise ConfigError(f"'all' says nothing here: it is not known which {kind}s there are; name them")
            ranks += sorted(known)
            continue
        meant = parse_range(part, str(rank_config))
        if known is not None and (meant[0] not in known or meant[-1] not in known or not known.issuperset(meant)):
            beyond = next(rank for rank in meant if rank not in known)
            raise ConfigError(
                f"{kind} {beyond} of {rank_config!r} is not there: there are {format_ranks(sorted(known)) or 'none'}"
            )
        ranks += meant
    if len(set(ranks)) != len(ranks):
        twice = Counter(ranks).most_common(1)[0][0]
        raise ConfigError(f"{kind} {twice} is named twice in {rank_config!r}")
    return sorted(ranks)


def format_ranks(ranks: Sequence[int]) -> str:
    """Format ascending ranks as a configuration writes them: ``[0, 1, 2, 5]`` is ``0-2,5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _parts(rank_config: Any) -> list[str]:
    if isinstance(rank_config, str):
        return [part.strip() for part in rank_config.split(",")]
    if isinstance(rank_config, int) and not isinstance(rank_config, bool):
        return [str(rank_config)]
    if isinstance(rank_config, Sequence) and not isinstance(rank_config, bytes) and rank_config:
        return [part for entry in rank_config for part in _parts(entry)]
    raise ConfigError(f"Invalid rank format {rank_config!r}, expected something such as 3, 0-3, 0-3,6 or all")

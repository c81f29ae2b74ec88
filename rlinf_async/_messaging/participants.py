"""Parser of group and rank arguments of ``send``, ``recv`` and ``broadcast`` into ``Member``s (name, rank)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Member(NamedTuple):
    """Rank of a group. A worker's own subprocesses form the group ``<its group>:<its rank>``."""

    group: str
    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank} of group '{self.group}'"

    @classmethod
    def of(cls, group: Any, rank: Any) -> Member:
        """Make a member from a group name and a rank, or from a root group's name and a path of ranks below it.

        Raises:
            TypeError: group or rank has another type.
            ValueError: the path is empty.
        """
        if type(rank) is int and type(group) is str:
            return cls(group, rank)
        if not isinstance(group, str):
            raise TypeError(f"a group is named by a str, got {group!r} ({type(group).__name__})")
        if _is_rank(rank):
            return cls(group, rank)
        if not isinstance(rank, Sequence) or isinstance(rank, str) or not all(map(_is_rank, rank)):
            raise TypeError(f"a rank of '{group}' is an int, or a path of ints, got {rank!r}")
        if not rank:
            raise ValueError(f"the path of ranks below '{group}' is empty")
        *path, last = rank
        return cls(":".join((group, *map(str, path))), last)


def expand(groups: Any, src: Any) -> tuple[list[Member], Member]:
    """Return the members of a broadcast, each once and in order, and the one that is its source.

    Args:
        groups: ``(name, ranks)`` pairs; ranks are an int, a list of ints, a path (tuple), or a list of paths.
        src: a ``(name, rank or path)`` pair; by default the first member.

    Raises:
        ValueError: there is no member, or the source is not a member.
        TypeError: an argument has another type than described above.
    """
    if groups is None or (isinstance(groups, list) and not groups):
        raise ValueError("broadcast() needs groups=: a list of (group name, ranks) pairs, the same on every member")
    if not isinstance(groups, list):
        raise TypeError(f"groups= takes a list of (group name, ranks) pairs, got {type(groups).__name__}")
    members: dict[Member, None] = {}
    for entry in groups:
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise TypeError(f"groups= takes (group name, ranks) pairs, got {entry!r}")
        name, ranks = entry
        if isinstance(ranks, list):
            members.update(dict.fromkeys(Member.of(name, rank) for rank in ranks))
        elif isinstance(ranks, tuple) or _is_rank(ranks):
            members[Member.of(name, ranks)] = None
        else:
            raise TypeError(f"the ranks of '{name}' are an int, a list of ints, a path or a list of paths: {ranks!r}")
    if not members:
        raise ValueError("broadcast() has no members: every list of ranks in groups= is empty")
    source = next(iter(members))
    if src is not None:
        if not isinstance(src, tuple) or len(src) != 2:
            raise TypeError(f"src= takes a (group name, rank) pair, got {src!r}")
        source = Member.of(*src)
        if source not in members:
            raise ValueError(f"src= is {source}, which is not in groups=: {', '.join(map(str, members))}")
    return list(members), source


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

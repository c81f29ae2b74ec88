"""Channel keys of routes: a queue per pair of groups, pair of ranks, tag and route key."""

from __future__ import annotations

from typing import Any, Final

RouteKey = tuple[str, str, str, str, str, int, int]

ANY: Final = -1
"""In place of a rank: whoever takes it, or whoever has sent it."""


def build_route_channel_key(
    src_group: str, dst_group: str, src_rank: int, dst_rank: int, tag: str | None, route_key: Any = None
) -> RouteKey:
    """The channel key of what goes from one rank to another.

    Args:
        tag: what it is, where the two exchange several things.
        route_key: tells apart what has the same tag; what is no str counts by its ``repr``.
    """
    route = "" if route_key is None else route_key if isinstance(route_key, str) else repr(route_key)
    return "scheduler_route", src_group, dst_group, tag or "default", route, src_rank, dst_rank


def build_send_key(
    *, src_group: str, dst_group: str, src_rank: int, dst_rank: int, tag: str | None = None, route_key: Any = None
) -> RouteKey:
    """As ``build_route_channel_key``, with every argument by its name."""
    return build_route_channel_key(src_group, dst_group, src_rank, dst_rank, tag, route_key)

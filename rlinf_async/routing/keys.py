"""Channel keys of routes: a queue for each pair of groups, pair of ranks, tag and route key."""

from __future__ import annotations

from typing import Any, Final

RouteKey = tuple[str, str, str, str, str, int, int]

ANY: Final = -1
"""Placeholder for any rank of a group."""


def build_route_channel_key(
    src_group_name: str,
    dst_group_name: str,
    src_rank: int | None,
    dst_rank: int | None,
    tag: str | None,
    route_key: Any = None,
) -> RouteKey:
    """Return the channel key of a route between two ranks.

    Args:
        src_rank, dst_rank: ranks of the two ends; None stands for any rank of a group, as ``ANY`` does.
        tag: name of the payload, if the two groups exchange several.
        route_key: distinguishes payloads with the same tag; the ``repr`` of a value other than a str is used.
    """
    route = "" if route_key is None else route_key if isinstance(route_key, str) else repr(route_key)
    ends = (ANY if rank is None else rank for rank in (src_rank, dst_rank))
    return "scheduler_route", src_group_name, dst_group_name, tag or "default", route, *ends  # type: ignore[return-value]


def build_send_key(
    *,
    src_group_name: str,
    dst_group_name: str,
    src_rank: int | None,
    dst_rank: int | None,
    tag: str | None,
    route_key: Any = None,
) -> RouteKey:
    """Return ``build_route_channel_key`` for the same arguments, under RLinf's name for the sender's side."""
    return build_route_channel_key(src_group_name, dst_group_name, src_rank, dst_rank, tag, route_key)

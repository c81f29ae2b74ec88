"""Mixin of ``Worker``: ``create_channel`` and ``connect_channel``, which forward to ``Channel``."""

from __future__ import annotations

from rlinf_async.channel import Channel


class ChannelAccess:
    """Part of ``Worker`` that makes and finds channels."""

    def create_channel(
        self,
        channel_name: str | None = None,
        maxsize: int = 0,
        distributed: bool = False,
        node_rank: int = 0,
        local: bool = False,
        *,
        name: str | None = None,
        node_id: int | None = None,
        max_bytes: int = 0,
    ) -> Channel:
        """Create a channel, as ``Channel.create``; ``name`` and ``node_id`` are older names of ``channel_name`` and
        ``node_rank``."""
        if node_id is not None and node_rank not in (0, node_id):
            raise TypeError(f"a channel has one node: node_rank={node_rank} or node_id={node_id}")
        return Channel.create(
            _one_name(channel_name, name),
            maxsize,
            distributed,
            node_rank if node_id is None else node_id,
            local,
            max_bytes=max_bytes,
        )

    def connect_channel(
        self, channel_name: str | None = None, *, name: str | None = None, timeout: float | None = None
    ) -> Channel:
        """Connect to a channel, as ``Channel.connect``."""
        return Channel.connect(_one_name(channel_name, name), timeout=timeout)


def _one_name(channel_name: str | None, name: str | None) -> str:
    given = [given for given in (channel_name, name) if given is not None]
    if len(given) != 1:
        raise TypeError("a channel needs one name: channel_name or name")
    return given[0]

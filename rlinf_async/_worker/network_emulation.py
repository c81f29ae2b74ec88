"""The emulated network of a worker, out of its run's configuration."""

from __future__ import annotations

import json
import logging

from rlinf_async._client.client import NodeClient
from rlinf_async._client.emulated_links import FarLinks
from rlinf_async._messaging.state.emulated_delay import NetEmulation
from rlinf_async._worker.context import Identity
from rlinf_async.configuration import NetEmulationConfig

logger = logging.getLogger(__name__)


def far_links_of(client: NodeClient, identity: Identity) -> FarLinks | None:
    """The links of a worker that are emulated; None where nothing is."""
    if not identity.config:
        return None
    config = NetEmulationConfig.from_cfg(json.loads(identity.config)["cluster"].get("net_emulation"))
    if config is None:
        return None
    return FarLinks(client, NetEmulation(config), f"{identity.group_name}:{identity.info.rank}")

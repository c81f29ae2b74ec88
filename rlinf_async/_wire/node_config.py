"""``NodeConfig``: boot configuration of a node's daemon, the first line of its stdin, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlinf_async._core.frames import PROTOCOL
from rlinf_async._wire.credentials import NodeCredentials
from rlinf_async.errors import VersionMismatch


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """Identity of a node, and everything that its daemon cannot find out by itself.

    Attributes:
        run: name of the run on every machine, 8 hex digits.
        marker: prefix of the daemon's answers; the ``marker`` of its lifeline.
        node: rank of the node. ``num_nodes`` counts the nodes that may hold workers.
        hidden: the daemon only connects the driver's machine; no worker is placed on it.
        bind: address to which other daemons connect; None if there are no others.
        credentials: None if ``bind`` is None.
        env: variables for the workers.
        max_gpus: the hosts file's ``slots`` or ``max_slots``.
        gpus, fake_gpus, max_gpus, labels: the user's values for the host; None: detected by the daemon.
        sync: folder on the user's machine, and path of its copy on this one.
        run_dir: existing directory of mode 0700; None: the daemon makes its own.
        tee: workers whose output the user sees: ``"all"``, ``"none"``, or ranks.
        port_range: first and last port for listening; None for the kernel's choice.
        python_flags: options of the workers' interpreter: ``("-O", "-X", "dev")``.
        launched: True under ``rlinf-launch``: the daemon then reports on the lifeline when the run must end.
    """

    run: str
    marker: str
    node: int = 0
    num_nodes: int = 1
    name: str = "localhost"
    hidden: bool = False
    bind: str | None = None
    credentials: NodeCredentials | None = None
    log_dir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_gpus: int | None = None
    gpus: Sequence[str] | None = None
    fake_gpus: int | None = None
    labels: Sequence[str] = ()
    sync: Sequence[str] | None = None
    run_dir: str | None = None
    tee: str = "all"
    port_range: Sequence[int] | None = None
    python_flags: Sequence[str] = ()
    launched: bool = False

    @property
    def ports(self) -> Sequence[int] | None:
        return None if self.port_range is None else range(self.port_range[0], self.port_range[1] + 1)

    def to_json(self) -> dict[str, Any]:
        return {"protocol": PROTOCOL, **asdict(self)}

    @classmethod
    def from_json(cls, line: bytes) -> NodeConfig:
        """Read the output of ``to_json``. Raise VersionMismatch for another protocol, TypeError for wrong fields."""
        fields: dict[str, Any] = json.loads(line)
        if (protocol := fields.pop("protocol", None)) != PROTOCOL:
            raise VersionMismatch(
                f"the launcher speaks protocol {protocol}, the rlinf_async of this node protocol {PROTOCOL}"
            )
        if fields["credentials"] is not None:
            fields["credentials"] = NodeCredentials(**fields["credentials"])
        return cls(**fields)

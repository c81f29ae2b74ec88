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
    """Which node it is, and everything that its daemon may not find out by itself.

    Attributes:
        run: 8 hex digits, the run's name on every machine.
        marker: what the daemon puts before its answers; the ``marker`` of its lifeline.
        node: rank of the node.  ``num_nodes`` counts the nodes that may hold workers.
        hidden: the daemon only connects the driver's machine; no worker is placed on it.
        bind: address for the other daemons to connect to; None where there are no others.
        credentials: None where ``bind`` is.
        env: variables for the workers.
        max_gpus: the hosts file's ``slots`` or ``max_slots``.
        gpus, fake_gpus, max_gpus, labels: as the user wrote them for the host; None means: as they are found.
        sync: folder of the user's machine, and where its copy is on this one.
        run_dir: made already, mode 0700; None means that the daemon makes its own.
        tee: whose output is shown to the user: ``"all"``, ``"none"``, or ranks.
        port_range: first and last port that may be listened on; None for the kernel's choice.
        python_flags: options of the interpreter of the workers: ``("-O", "-X", "dev")``.
        launched: by ``rlinf-launch``, which hears on the lifeline that the run shall end.
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
        """The ports to listen on one of."""
        return None if self.port_range is None else range(self.port_range[0], self.port_range[1] + 1)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json``."""
        return {"protocol": PROTOCOL, **asdict(self)}

    @classmethod
    def from_json(cls, line: bytes) -> NodeConfig:
        """What ``to_json`` has made.

        Raises:
            VersionMismatch: the near side speaks another protocol.
            TypeError: a field is missing, or unknown.
        """
        told: dict[str, Any] = json.loads(line)
        if (protocol := told.pop("protocol", None)) != PROTOCOL:
            raise VersionMismatch(
                f"the launcher speaks protocol {protocol}, the rlinf_async of this node protocol {PROTOCOL}"
            )
        if told["credentials"] is not None:
            told["credentials"] = NodeCredentials(**told["credentials"])
        return cls(**told)

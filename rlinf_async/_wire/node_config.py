"""``NodeConfig``: the boot configuration of a node's daemon, sent as JSON in the first line of its stdin."""

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
    """The identity of a node, and everything else that its daemon cannot find out on its own.

    Attributes:
        run: the run's id, 8 hex digits, the same on every machine.
        marker: prefix of the daemon's answers; the ``marker`` of its lifeline.
        node: rank of the node. ``num_nodes`` counts the nodes that may run workers.
        hidden: true if the daemon only connects the driver's machine and gets no workers.
        bind: address to which other daemons connect; None if there are no other daemons.
        credentials: the node's TLS credentials; None if ``bind`` is None.
        env: environment variables for the workers.
        max_gpus: the hosts file's ``slots`` or ``max_slots``.
        gpus, fake_gpus, max_gpus, labels: the user's values for the host; None to let the daemon detect them.
        sync: folder on the user's machine and path of its copy on this machine.
        run_dir: existing directory of mode 0700; None to let the daemon create one.
        tee: workers whose output the user sees: ``"all"``, ``"none"``, or ranks.
        port_range: first and last port for listening; None for the kernel's choice.
        python_flags: options for the workers' interpreter, such as ``("-O", "-X", "dev")``.
        launched: true under ``rlinf-launch``, when the daemon reports on the lifeline that the run must end.
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
        """Parse the output of ``to_json``. Raise VersionMismatch for another protocol, TypeError for wrong fields."""
        fields: dict[str, Any] = json.loads(line)
        if (protocol := fields.pop("protocol", None)) != PROTOCOL:
            raise VersionMismatch(
                f"the launcher speaks protocol {protocol}, the rlinf_async of this node protocol {PROTOCOL}"
            )
        if fields["credentials"] is not None:
            fields["credentials"] = NodeCredentials(**fields["credentials"])
        return cls(**fields)

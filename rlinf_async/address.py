"""``WorkerAddress``, a worker's address such as ``rollout:2:0``, and the records ``WorkerInfo`` and ``NodeInfo``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import total_ordering
from operator import index
from typing import Any


@total_ordering
class WorkerAddress:
    """The position of a worker in the tree of groups: a root group's name and a path of ranks.

    Rank 2 of ``rollout`` is ``rollout:2``; rank 0 of a group launched by that worker is ``rollout:2:0``.

    Example:
        >>> address = WorkerAddress("rollout", 2)
        >>> address.get_child_address(0).get_name()
        'rollout:2:0'
        >>> WorkerAddress.from_name("rollout:2:0").get_parent_address() == address
        True
    """

    __slots__ = ("rank_path", "root_group_name")

    root_group_name: str
    rank_path: tuple[int, ...]

    def __init__(self, root_group_name: str, ranks: int | Iterable[int] = ()) -> None:
        if ":" in root_group_name:
            raise AssertionError(f"a group's name must not contain ':', got {root_group_name!r}")
        path = (int(ranks),) if isinstance(ranks, int) else tuple(int(index(rank)) for rank in ranks)
        object.__setattr__(self, "root_group_name", root_group_name)
        object.__setattr__(self, "rank_path", path)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"WorkerAddress is frozen: cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerAddress, (self.root_group_name, self.rank_path)

    @property
    def rank(self) -> int:
        """Return the last rank of the path; 0 for a group's own address."""
        return self.rank_path[-1] if self.rank_path else 0

    def get_name(self) -> str:
        """Return the name, which consists of the group and the ranks, such as ``"rollout:2:0"``."""
        return ":".join((self.root_group_name, *map(str, self.rank_path)))

    def get_parent_rank(self) -> int:
        """Return the rank of the parent worker; 0 if there is none, as in RLinf."""
        return self.rank_path[-2] if len(self.rank_path) > 1 else 0

    def get_parent_address(self) -> WorkerAddress | None:
        """Return the address one level up; None for a root group's own address."""
        if not self.rank_path:
            return None
        return WorkerAddress(self.root_group_name, self.rank_path[:-1])

    def get_child_address(self, rank: int) -> WorkerAddress:
        """Return the address of a rank directly below this address."""
        return WorkerAddress(self.root_group_name, (*self.rank_path, rank))

    @classmethod
    def from_name(cls, worker_name: str) -> WorkerAddress:
        """Return the address for a name such as ``"rollout:2:0"``.

        Raises:
            ValueError: a rank is not a number.
        """
        root, *ranks = worker_name.split(":")
        return cls(root, [int(rank) for rank in ranks])

    @classmethod
    def from_parent_name_rank(cls, parent_name: str, rank: int) -> WorkerAddress:
        """Return the address of a rank below the worker or group named ``parent_name``."""
        return cls.from_name(parent_name).get_child_address(rank)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerAddress):
            return NotImplemented
        return self.root_group_name == other.root_group_name and self.rank_path == other.rank_path

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, WorkerAddress):
            return NotImplemented
        return (self.root_group_name, self.rank_path) < (other.root_group_name, other.rank_path)

    def __hash__(self) -> int:
        return hash((self.root_group_name, self.rank_path))

    def __str__(self) -> str:
        return self.get_name()

    def __repr__(self) -> str:
        return f"WorkerAddress({self.get_name()!r})"


@dataclass(frozen=True)
class WorkerInfo:
    """Facts about a running worker.

    ``node_id``, ``gpu_id`` and ``available_gpus`` are older names of the fields that they return.
    """

    address: WorkerAddress
    rank: int
    group_world_size: int
    cluster_node_rank: int
    accelerator_type: str
    accelerator_model: str
    accelerator_rank: int
    """Id of the worker's first device on its node; -1 if it has none."""
    node_ip: str
    node_port: int
    available_accelerators: tuple[int, ...] = ()
    """Ids of the devices that the worker may use, numbered across the whole cluster."""
    hardware_infos: tuple[Any, ...] = ()
    node_name: str = ""
    pid: int = 0

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> WorkerInfo:
        """Build the info from plain data: a mapping of field names to values, with the address as a str."""
        return cls(
            **{
                **facts,
                "address": WorkerAddress.from_name(facts["address"]),
                "available_accelerators": tuple(facts.get("available_accelerators", ())),
            }
        )

    @property
    def node_id(self) -> int:
        return self.cluster_node_rank

    @property
    def gpu_id(self) -> int:
        return self.accelerator_rank

    @property
    def available_gpus(self) -> tuple[int, ...]:
        return self.available_accelerators

    def __hash__(self) -> int:
        return hash(self.address)


@dataclass(frozen=True)
class NodeInfo:
    """A description of a node of the cluster.

    Attributes:
        node_rank: position in the list of hosts, counted from 0.
        name: the host as written by the user; shown in output prefixes and errors.
        node_ip: IP address at which other nodes reach this node.
        num_cpus: number of CPUs that this node may use, limited by affinity and cgroup.
        accelerators: ids of the visible devices, as entries of ``CUDA_VISIBLE_DEVICES``.
        accelerator_type: family of accelerators, such as ``"NV_GPU"``, or ``"NO_ACCEL"``.
        accelerator_model: model of the accelerators, such as ``"NV_GPU:H200"``; empty if the node has no device.
        python_interpreter_path: Python interpreter of the node's daemon and, by default, of its workers.
        node_labels: labels from the hosts file and from the node's groups.
        env_vars: environment variables that the configuration sets for all of the node's workers.
        hardware_resources: hardware other than accelerators, one resource (``type``, ``infos``) per kind.
        rehearsed: true if the accelerators do not exist but are only declared, for a rehearsal.
    """

    node_rank: int
    name: str
    node_ip: str
    num_cpus: int
    accelerators: tuple[str, ...] = ()
    accelerator_type: str = "NO_ACCEL"
    accelerator_model: str = ""
    python_interpreter_path: str = ""
    facts: dict[str, Any] = field(default_factory=dict, repr=False, compare=False, hash=False)
    node_labels: tuple[str, ...] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
    hardware_resources: tuple[Any, ...] = field(default=(), compare=False, hash=False)
    rehearsed: bool = False

    @property
    def num_accelerators(self) -> int:
        return len(self.accelerators)

    def get_hw_resource_count(self, hw_type: str) -> int:
        """Return the number of devices of a kind (``"Accelerator"``, ``"Franka"``, …); 0 for an unknown kind."""
        if hw_type == "Accelerator":
            return self.num_accelerators
        return sum(len(resource.infos) for resource in self.hardware_resources if resource.type == hw_type)

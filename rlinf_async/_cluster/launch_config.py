"""Resolves arguments, environment and ``cluster`` configuration: nodes, groups, trace, fail-fast, interpreter."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import dialect
from rlinf_async._core.own_logger import own_logger
from rlinf_async._messaging.state.emulated_delay import NetEmulation
from rlinf_async.address import NodeInfo
from rlinf_async.configuration import (
    ClusterConfig,
    MetricsConfig,
    NodeGroup,
    TracerConfig,
    built_in_groups,
    labelled_groups,
)
from rlinf_async.configuration.ranks import MAX_LOCAL_NODES
from rlinf_async.errors import ConfigError
from rlinf_async.placement import Placement

logger = own_logger(__name__)

_TRACE: Final = "RLINF_TRACE"
_FAIL_FAST: Final = "RLINF_FAIL_FAST"
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class LaunchConfig:
    """Variables and interpreter shared by several workers of a launch.

    Attributes:
        env: environment variables; lists of paths are prepended to the node's own.
        python: path of the interpreter; None for the node's own.
    """

    env: tuple[tuple[str, str], ...] = ()
    python: str | None = None


def read_config(given: Any) -> ClusterConfig | None:
    """Read ``cluster_cfg`` in any of its forms.

    Args:
        given: a mapping or ``DictConfig`` (the ``cluster`` section or a configuration that contains it), the path of a
            YAML file, a ``ClusterConfig``, or None, which returns None.

    Raises:
        ConfigError: the configuration is invalid.
    """
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        config = ClusterConfig.from_file(os.fspath(given))
    else:
        config = ClusterConfig.from_dict_cfg(given)
    if config.net_emulation is not None:
        network = NetEmulation(config.net_emulation)
        for group in filter(network.is_idle, config.net_emulation.bandwidth_groups):
            logger.warning("net_emulation: nothing crosses the line of %s: it is in no crossdc_pairs", group.members)
    return config


def check_local_nodes(count: Any) -> None:
    if count is not None and (type(count) is not int or not 1 <= count <= MAX_LOCAL_NODES):
        raise ConfigError(f"local_nodes must be a number of nodes from 1 to {MAX_LOCAL_NODES}, got {count!r}")


def wanted_nodes(num_nodes: int | None, config: ClusterConfig | None) -> int | None:
    """Return the number of nodes that the script needs; None for all.

    Raises:
        ConfigError: the value is not a number, or the script and the configuration disagree.
    """
    if num_nodes is not None and (not isinstance(num_nodes, int) or isinstance(num_nodes, bool) or num_nodes < 0):
        raise ConfigError(f"num_nodes must be a number of nodes, got {num_nodes!r}")
    configured = config.num_nodes if config is not None else 0
    if num_nodes and configured and num_nodes != configured:
        raise ConfigError(f"num_nodes={num_nodes}, but cluster_cfg says num_nodes: {configured}")
    return num_nodes or configured or None


def trace_wanted(
    given: str | os.PathLike[str] | bool | None, config: ClusterConfig | None, environ: Mapping[str, str]
) -> TracerConfig:
    """Return the tracing configuration: on or off, and the file. Raise ConfigError unless ``given`` is a path or a
    bool.

    The script's argument overrides ``$RLINF_TRACE``, set by ``rlinf-launch --trace``, which overrides the
    configuration.
    """
    path: str | None
    if given is None:
        path = environ.get(_TRACE) or None
        if path is None:
            path = config.tracer.output_file if config is not None else None
            if config is None or not config.tracer.enable:
                return TracerConfig()
    elif isinstance(given, bool):
        if not given:
            return TracerConfig()
        path = None
    elif isinstance(given, str | os.PathLike) and os.fspath(given):
        path = os.fspath(given)
    else:
        raise ConfigError(f"trace= takes the path of a file, or True for one among the logs, got {given!r}")
    return TracerConfig(True, None if path is None else str(Path(path).expanduser().absolute()))


def fail_fast_wanted(given: Any, config: ClusterConfig | None, environ: Mapping[str, str]) -> bool:
    """True if a failed call that is not awaited ends plain waits. Raise ConfigError for an invalid value.

    The script's argument overrides ``$RLINF_FAIL_FAST``, set by ``rlinf-launch --fail-fast``, which overrides the
    configuration.
    """
    if given is not None:
        if not isinstance(given, bool):
            raise ConfigError(f"fail_fast= of Cluster() takes True, False, or None (as configured), got {given!r}")
        return given
    text = environ.get(_FAIL_FAST, "").strip().lower()
    if text and text not in (*_YES, *_NO):
        raise ConfigError(
            f"{_FAIL_FAST}={environ[_FAIL_FAST]!r} in the environment is neither yes nor no: write 1 or 0, or unset it "
            "for what the configuration says"
        )
    if text:
        return text in _YES
    return dialect.is_rlinf if config is None or config.fail_fast is None else config.fail_fast


def metrics_wanted(given: Any, config: ClusterConfig | None) -> MetricsConfig | None:
    """Return the address for serving metrics, from the argument or else the configuration; None if neither is set.

    Raises:
        ConfigError: the argument is not an address.
    """
    if given is None:
        wanted = config.metrics if config is not None else None
    else:
        try:
            wanted = MetricsConfig(given)
        except ConfigError as error:
            raise ConfigError(f"metrics= of Cluster(): {error}") from None
    if wanted is not None and wanted.is_open:
        logger.warning("metrics at %s are protected by nothing: all that reach the address read them", wanted.address)
    return wanted


def groups_of(config: ClusterConfig | None, nodes: Sequence[NodeInfo]) -> tuple[NodeGroup, ...]:
    """Return a cluster's node groups: ``cluster``, ``node``, the configured groups, and one per additional host label.

    Raises:
        ConfigError: a group has a node that is not in the cluster.
    """
    groups = config.node_groups_for(nodes) if config is not None else built_in_groups(nodes)
    return (*groups, *labelled_groups(nodes, {group.label for group in groups}))


def setting_for(config: ClusterConfig | None, placement: Placement) -> LaunchConfig:
    """Return the configured interpreter and variables for a placed worker.

    A worker outside the configured groups gets the settings on which all groups of its node agree.

    Raises:
        ConfigError: the groups disagree.
    """
    if config is None:
        return LaunchConfig()
    rank, label = placement.cluster_node_rank, placement.node_group_label
    for group in config.node_groups:
        if group.label == label:
            return LaunchConfig(tuple(sorted(group.env_vars(rank).items())), group.interpreter(rank))
    variables = tuple(sorted(config.get_node_env_vars(rank).items()))
    return LaunchConfig(variables, config.get_node_python_interpreter_path(rank))


def hardware_for(groups: Sequence[NodeGroup], placement: Placement) -> tuple[Any, ...]:
    group = next((group for group in groups if group.label == placement.node_group_label), None)
    if group is None or group.counted_hardware in (None, "Accelerator"):
        return ()
    infos = group.get_hardware_infos(placement.cluster_node_rank)
    return tuple(infos[rank] for rank in placement.local_hardware_ranks if rank < len(infos))

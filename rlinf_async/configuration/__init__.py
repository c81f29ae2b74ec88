"""The cluster section of a configuration, read and checked: plain frozen values, no processes.

``schema`` reads the rest of a job's configuration, by a schema of the job's own.
"""

from rlinf_async.configuration.cluster_config import ClusterConfig
from rlinf_async.configuration.document import Document, Origin, Steps, load_document, name_steps, origin_of, plain
from rlinf_async.configuration.env_config import NodeEnvConfig
from rlinf_async.configuration.env_merge import (
    PATH_LIKE,
    PathEnvMergeMode,
    get_path_env_merge_mode,
    merge_path_like,
    merge_worker_env_vars,
)
from rlinf_async.configuration.net_emulation import BandwidthGroup, CrossDCPair, NetEmulationConfig, worker_key
from rlinf_async.configuration.node_group import (
    ACCELERATOR,
    CLUSTER_GROUP,
    NODE_GROUP,
    NodeGroup,
    NodeGroupInfo,
    built_in_groups,
    labelled_groups,
)
from rlinf_async.configuration.node_group_config import NodeGroupConfig
from rlinf_async.configuration.ranks import format_ranks, parse_range, parse_rank_config
from rlinf_async.configuration.schema import Claim, check_values, find_configuration, read_configuration
from rlinf_async.configuration.section import Section, did_you_mean, misplaced
from rlinf_async.configuration.tracing import TracerConfig

__all__ = [
    "ACCELERATOR",
    "CLUSTER_GROUP",
    "NODE_GROUP",
    "PATH_LIKE",
    "BandwidthGroup",
    "Claim",
    "ClusterConfig",
    "CrossDCPair",
    "Document",
    "NetEmulationConfig",
    "NodeEnvConfig",
    "NodeGroup",
    "NodeGroupConfig",
    "NodeGroupInfo",
    "Origin",
    "PathEnvMergeMode",
    "Section",
    "Steps",
    "TracerConfig",
    "built_in_groups",
    "check_values",
    "did_you_mean",
    "find_configuration",
    "format_ranks",
    "get_path_env_merge_mode",
    "labelled_groups",
    "load_document",
    "merge_path_like",
    "merge_worker_env_vars",
    "misplaced",
    "name_steps",
    "origin_of",
    "parse_range",
    "parse_rank_config",
    "plain",
    "read_configuration",
    "worker_key",
]

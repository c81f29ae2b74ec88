"""Configuration files: the ``cluster`` section as frozen, validated values, and a job's own keys by its schema."""

from rlinf_async.configuration.cluster_config import ClusterConfig as ClusterConfig, TracerConfig as TracerConfig
from rlinf_async.configuration.document import (
    Document as Document,
    Origin as Origin,
    Steps as Steps,
    load_document as load_document,
    origin_of as origin_of,
    plain as plain,
)
from rlinf_async.configuration.env_config import NodeEnvConfig as NodeEnvConfig
from rlinf_async.configuration.env_merge import (
    PathEnvMergeMode as PathEnvMergeMode,
    get_path_env_merge_mode as get_path_env_merge_mode,
    merge_path_like as merge_path_like,
    merge_worker_env_vars as merge_worker_env_vars,
)
from rlinf_async.configuration.metrics_config import MetricsConfig as MetricsConfig
from rlinf_async.configuration.net_emulation import (
    BandwidthGroup as BandwidthGroup,
    CrossDCPair as CrossDCPair,
    NetEmulationConfig as NetEmulationConfig,
    worker_key as worker_key,
)
from rlinf_async.configuration.node_group import (
    ACCELERATOR as ACCELERATOR,
    CLUSTER_GROUP as CLUSTER_GROUP,
    NODE_GROUP as NODE_GROUP,
    NodeGroup as NodeGroup,
    NodeGroupInfo as NodeGroupInfo,
    built_in_groups as built_in_groups,
    labelled_groups as labelled_groups,
)
from rlinf_async.configuration.node_group_config import NodeGroupConfig as NodeGroupConfig
from rlinf_async.configuration.ranks import (
    format_ranks as format_ranks,
    parse_range as parse_range,
    parse_rank_config as parse_rank_config,
)
from rlinf_async.configuration.restart_policy import (
    RESTARTS as RESTARTS,
    RestartPolicy as RestartPolicy,
)
from rlinf_async.configuration.schema import (
    Claim as Claim,
    check_values as check_values,
    find_configuration as find_configuration,
    read_configuration as read_configuration,
)
from rlinf_async.configuration.section import Section as Section, did_you_mean as did_you_mean, misplaced as misplaced

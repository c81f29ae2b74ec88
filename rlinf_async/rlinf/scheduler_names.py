"""Names of RLinf's ``rlinf.scheduler`` and its submodules, for RLinf's own programs (``import_hook``)."""

from typing import TYPE_CHECKING

from rlinf_async._public_names import lazy_names

if TYPE_CHECKING:
    from rlinf_async import *  # noqa: F403
    from rlinf_async.configuration import parse_rank_config as parse_rank_config
    from rlinf_async.hardware.extension import load_user_extension_module as load_user_extension_module
    from rlinf_async.hardware.robots import (
        DOSW1HWConfig as DOSW1HWConfig,
        DualFrankaConfig as DualFrankaConfig,
        FrankaConfig as FrankaConfig,
        GimArmConfig as GimArmConfig,
        Turtle2Config as Turtle2Config,
    )
    from rlinf_async.rlinf import *  # noqa: F403
    from rlinf_async.rlinf.absent import (
        ActorManager as ActorManager,
        ChannelWorker as ChannelWorker,
        ComponentManager as ComponentManager,
        InferenceManager as InferenceManager,
        RolloutAction as RolloutAction,
        RolloutManager as RolloutManager,
        RolloutReport as RolloutReport,
        RolloutScalingScheduler as RolloutScalingScheduler,
        RolloutScheduleInfo as RolloutScheduleInfo,
        SchedulerWorker as SchedulerWorker,
        create_component_manager as create_component_manager,
        get_global_scheduer_state as get_global_scheduer_state,
        get_scheduler_channel as get_scheduler_channel,
        get_scheduler_request_queue as get_scheduler_request_queue,
        get_scheduler_response_queue as get_scheduler_response_queue,
        get_valid_dp_sizes as get_valid_dp_sizes,
        set_global_scheduer_state as set_global_scheduer_state,
    )
    from rlinf_async.rlinf.only_cluster import Cluster as Cluster
    from rlinf_async.rlinf.rlinf_worker import Worker as Worker
else:
    __getattr__, __dir__ = lazy_names(__name__)

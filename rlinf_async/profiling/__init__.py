"""Profiling of workers: configuration, windows, and the profiler's command line; starts no process."""

from rlinf_async.profiling.command import (
    INTERPRETER as INTERPRETER,
    get_profiling_env_vars_for_worker as get_profiling_env_vars_for_worker,
    modify_profile_context as modify_profile_context,
    window_plan as window_plan,
    wrap_interpreter as wrap_interpreter,
)
from rlinf_async.profiling.config import (
    NsightConfig as NsightConfig,
    ProfileConfig as ProfileConfig,
    RocprofSysConfig as RocprofSysConfig,
    TorchProfileConfig as TorchProfileConfig,
    parse_profiling as parse_profiling,
)
from rlinf_async.profiling.windows import WindowPlan as WindowPlan

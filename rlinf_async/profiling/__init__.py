"""Profiling of workers: configuration, windows, and the command line of the profiler.  Pure."""

from rlinf_async.profiling.command import (
    INTERPRETER,
    LOG_DIR,
    WrappedInterpreter,
    get_profiling_env_vars_for_worker,
    modify_profile_context,
    window_plan,
    wrap_interpreter,
)
from rlinf_async.profiling.config import (
    NsightConfig,
    ProfileConfig,
    RocprofSysConfig,
    TorchProfileConfig,
    parse_profiling,
)
from rlinf_async.profiling.windows import WindowPlan

__all__ = [
    "INTERPRETER",
    "LOG_DIR",
    "NsightConfig",
    "ProfileConfig",
    "RocprofSysConfig",
    "TorchProfileConfig",
    "WindowPlan",
    "WrappedInterpreter",
    "get_profiling_env_vars_for_worker",
    "modify_profile_context",
    "parse_profiling",
    "window_plan",
    "wrap_interpreter",
]

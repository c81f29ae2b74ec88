"""Names of ``rlinf.scheduler`` that are not implemented: they may be imported, but using them is an error."""

from __future__ import annotations

from typing import Any, Final, NoReturn


class _Absent(type):
    """The metaclass of names that are not implemented, which annotations and base classes may still use."""

    _reason: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"rlinf.scheduler's {cls.__name__}: {cls._reason}")

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(f"rlinf.scheduler's {cls.__name__}.{name}: {cls._reason}")


_DYNAMIC: Final = "scaling a run's components while it runs (cluster.auto_scheduler) is not built yet"


def _absent(name: str, reason: str) -> Any:
    return _Absent(name, (), {"__module__": __name__, "_reason": reason})


ActorManager = _absent("ActorManager", _DYNAMIC)
ChannelWorker = _absent("ChannelWorker", "a channel lives in a node's daemon, and has no worker of its own")
ComponentManager = _absent("ComponentManager", _DYNAMIC)
InferenceManager = _absent("InferenceManager", _DYNAMIC)
RolloutAction = _absent("RolloutAction", _DYNAMIC)
RolloutManager = _absent("RolloutManager", _DYNAMIC)
RolloutReport = _absent("RolloutReport", _DYNAMIC)
RolloutScalingScheduler = _absent("RolloutScalingScheduler", _DYNAMIC)
RolloutScheduleInfo = _absent("RolloutScheduleInfo", _DYNAMIC)
SchedulerWorker = _absent("SchedulerWorker", _DYNAMIC)
create_component_manager = _absent("create_component_manager", _DYNAMIC)
get_global_scheduer_state = _absent("get_global_scheduer_state", _DYNAMIC)
get_scheduler_channel = _absent("get_scheduler_channel", _DYNAMIC)
get_scheduler_request_queue = _absent("get_scheduler_request_queue", _DYNAMIC)
get_scheduler_response_queue = _absent("get_scheduler_response_queue", _DYNAMIC)
get_valid_dp_sizes = _absent("get_valid_dp_sizes", _DYNAMIC)
set_global_scheduer_state = _absent("set_global_scheduer_state", _DYNAMIC)

"""Parser of the ``profiling`` section: groups, steps; options of Nsight, rocprof-sys, torch.profiler as arguments."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final

from rlinf_async.errors import ConfigError
from rlinf_async.profiling.windows import TORCH

ALL: Final = "all"

Value = str | int | float | bool | Sequence[Any]


@dataclass(frozen=True)
class ProfileConfig:
    """Selection of workers and steps to profile; each back end has a subclass with its options.

    Attributes:
        backend: ``"nsight"``, ``"rocprof_sys"`` or ``"torch"``.
        enabled: False keeps the section without using it.
        worker_groups: names of groups, regardless of case; ``"all"`` selects every group, None selects none.
        steps: steps that have a profiling window; None for every step.
        output_dir: folder for the reports on each node; by default ``profiles`` in the node's log folder.

    Raises:
        ConfigError: a value is invalid.
    """

    backend: str = ""
    enabled: bool = True
    worker_groups: Sequence[str] | str | None = None
    steps: Sequence[int] | None = None
    output_dir: str | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ConfigError for an invalid value."""
        kind = _kind_of(self.backend)
        if not isinstance(self, kind):
            raise ConfigError(f"profiling: backend {self.backend!r} takes a {kind.__name__}, got {type(self).__name__}")
        if not isinstance(self.enabled, bool):
            raise ConfigError(f"profiling.enabled must be true or false, got {self.enabled!r}")
        if self.output_dir is not None and (not isinstance(self.output_dir, str) or not self.output_dir):
            raise ConfigError(f"profiling.output_dir must be a folder's name, got {self.output_dir!r}")
        groups = self.worker_groups
        listed = groups is None or isinstance(groups, Collection)
        if not listed or any(not isinstance(name, str) or not name for name in self._groups()):
            raise ConfigError(f"profiling.worker_groups takes names of groups, got {groups!r}")
        if isinstance(self.steps, str) or not isinstance(self.steps, Collection | None):
            raise ConfigError(f"profiling.steps takes a list of steps, got {self.steps!r}")
        for step in self.steps or ():
            if isinstance(step, bool) or not isinstance(step, int) or step < 0:
                raise ConfigError(f"profiling.steps takes numbers of steps from 0 on, got {step!r}")

    def _groups(self) -> list[str]:
        groups = self.worker_groups
        return [groups] if isinstance(groups, str) else list(groups or ())

    def profiles_worker_group(self, worker_group_name: str) -> bool:
        """True if the workers of this group are profiled."""
        wanted = {group.lower() for group in self._groups()}
        return self.enabled and (ALL in wanted or worker_group_name.lower() in wanted)

    def should_profile_step(self, step_idx: int) -> bool:
        """True if this step has a profiling window."""
        return self.enabled and (self.steps is None or step_idx in self.steps)

    def command_prefix(self, output_prefix: str) -> list[str]:
        """Return the words before a worker's interpreter, or in its place if they end in ``--``; empty by default."""
        return []

    def environment(self, output_prefix: str) -> dict[str, str]:
        """Return environment variables for the tool; its reports get names with this prefix."""
        del output_prefix
        return {}

    def window_options(self) -> dict[str, Any]:
        """Return the keyword arguments of ``torch.profiler.profile``."""
        return {}


@dataclass(frozen=True)
class NsightConfig(ProfileConfig):
    """Nsight Systems: every profiled worker runs under ``nsys profile``.

    With ``steps``, the report covers these steps' windows and is written after the last one, unless the options say
    otherwise. Without ``steps``, it is written when the worker exits, so close the group with a sufficient ``grace``.

    Attributes:
        options: options of ``nsys profile`` without dashes, such as ``{"trace": "cuda,nvtx"}``.
        flags: options without a value.
    """

    backend: str = "nsight"
    options: Mapping[str, Value] = field(default_factory=dict, hash=False)
    flags: Sequence[str] = ()

    _ALIASES: ClassVar[Mapping[str, str]] = {"stop-on-range-end": "capture-range-end"}

    def check(self) -> None:
        super().check()
        _check_options("profiling.options", self.options)
        if isinstance(self.flags, str) or any(not isinstance(flag, str) or not _is_name(flag) for flag in self.flags):
            raise ConfigError(f"profiling.flags takes a list of options without a value, got {self.flags!r}")
        twice = {_undashed(name) for name in self.options} & {_undashed(flag) for flag in self.flags}
        if twice:
            raise ConfigError(f"profiling: {', '.join(sorted(twice))} is both an option and a flag: keep one of them")

    def to_cli_tokens(self, default_output_prefix: str | None = None) -> list[str]:
        """Return the words of ``nsys profile`` that precede the program.

        Args:
            default_output_prefix: prefix of the report's name, unless the options set one.
        """
        options = {self._ALIASES.get(_undashed(name), _undashed(name)): value for name, value in self.options.items()}
        if self.steps is not None:
            options.setdefault("capture-range", "cudaProfilerApi")
            options.setdefault("capture-range-end", "stop")
        if "o" not in options and default_output_prefix is not None:
            options.setdefault("output", default_output_prefix)
        return [*_tokens(options), *(_dashed(_undashed(flag)) for flag in self.flags)]

    def command_prefix(self, output_prefix: str) -> list[str]:
        return ["nsys", "profile", *self.to_cli_tokens(output_prefix)]


@dataclass(frozen=True)
class RocprofSysConfig(ProfileConfig):
    """ROCm Systems Profiler: every profiled worker runs under ``rocprof-sys-python``.

    Attributes:
        args: options of the tool without dashes; True for an option without a value.
        env: environment variables such as ``ROCPROFSYS_USE_SAMPLING``.
    """

    backend: str = "rocprof_sys"
    args: Mapping[str, Value] = field(default_factory=dict, hash=False)
    env: Mapping[str, str] = field(default_factory=dict, hash=False)

    def check(self) -> None:
        super().check()
        _check_options("profiling.args", self.args)
        for name, value in self.env.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise ConfigError(f"profiling.env takes texts, got {name!r}: {value!r}")

    def to_cli_tokens(self) -> list[str]:
        """Return the tool and its options, up to the ``--`` before the Python program."""
        named = {_undashed(name): value for name, value in self.args.items() if not isinstance(value, bool)}
        bare = [_dashed(_undashed(name)) for name, value in self.args.items() if value is True]
        return ["rocprof-sys-python", *bare, *_tokens(named), "--"]

    def command_prefix(self, output_prefix: str) -> list[str]:
        del output_prefix  # used by ``environment``
        return self.to_cli_tokens()

    def environment(self, output_prefix: str) -> dict[str, str]:
        folder, _, name = output_prefix.rpartition("/")
        output = {"ROCPROFSYS_OUTPUT_PATH": folder, "ROCPROFSYS_OUTPUT_PREFIX": name}
        return {"ROCPROFSYS_TIME_OUTPUT": "false", **output, **self.env}


@dataclass(frozen=True)
class TorchProfileConfig(ProfileConfig):
    """``torch.profiler``, which needs no tool: every window becomes a trace file for Perfetto or Chrome.

    Attributes:
        record_shapes: True to record the shapes of operators' inputs.
        profile_memory: True to record allocations and releases.
        with_stack: True to record the Python source line of each operator.
    """

    backend: str = TORCH
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False

    def check(self) -> None:
        super().check()
        for name, value in self.window_options().items():
            if not isinstance(value, bool):
                raise ConfigError(f"profiling.{name} must be true or false, got {value!r}")

    def window_options(self) -> dict[str, Any]:
        names = ("record_shapes", "profile_memory", "with_stack")
        return {name: getattr(self, name) for name in names}


_BACKENDS: Final[dict[str, type[ProfileConfig]]] = {
    "nsight": NsightConfig,
    "rocprof_sys": RocprofSysConfig,
    TORCH: TorchProfileConfig,
}


def parse_profiling(section: Mapping[str, Any]) -> ProfileConfig:
    """Return the configuration in a ``profiling`` section.

    Raises:
        ConfigError: the back end is unknown, or does not have one of the given keys.
    """
    if not isinstance(section, Mapping):
        raise ConfigError(f"profiling must be a mapping with a backend, got {section!r}")
    values = {str(key): value for key, value in section.items()}
    kind = _kind_of(values.get("backend"))
    known = [each.name for each in fields(kind)]
    unknown = {name for name in values if name not in known}
    if unknown:
        near = [match for name in sorted(unknown) for match in difflib.get_close_matches(name, known, 1)]
        hint = f" (did you mean {', '.join(near)}?)" if near else ""
        raise ConfigError(f"Unknown fields {unknown} detected in profiling{hint}: there are {', '.join(known)}")
    return kind(**{name: value for name, value in values.items() if value is not None})


def _kind_of(backend: Any) -> type[ProfileConfig]:
    known = ", ".join(_BACKENDS)
    if not backend:
        raise ConfigError(f"profiling: backend must be specified, one of {known}")
    if not isinstance(backend, str) or backend not in _BACKENDS:
        near = difflib.get_close_matches(str(backend), _BACKENDS, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"Unknown profiling backend {backend!r}{hint}: there are {known}")
    return _BACKENDS[backend]


def _check_options(name: str, values: Any) -> None:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{name} must be a mapping of options, got {values!r}")
    for option, value in values.items():
        if not isinstance(option, str) or not _is_name(option):
            raise ConfigError(f"{name} has {option!r}, which is no option: write its name alone, such as trace")
        if value is None or isinstance(value, Mapping):
            raise ConfigError(f"{name} has {option}: {value!r}, which is no value of an option")


def _is_name(option: str) -> bool:
    return bool(_undashed(option)) and "=" not in option and option.split() == [option]


def _undashed(option: str) -> str:
    return option.lstrip("-").replace("_", "-")


def _dashed(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _tokens(options: Mapping[str, Value]) -> list[str]:
    tokens: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, Sequence) and not isinstance(value, str):
            text = ",".join(map(str, value))
        else:
            text = str(value)
        tokens += [_dashed(name), text] if len(name) == 1 else [f"{_dashed(name)}={text}"]
    return tokens

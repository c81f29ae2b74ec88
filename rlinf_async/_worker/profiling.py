"""Mixin of ``Worker``: ``start_profile`` and ``stop_profile``, for ``torch.profiler`` or an external profiler."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from rlinf_async._worker.accelerator_util import AcceleratorUtil
from rlinf_async.profiling.command import LOG_DIR, report_name
from rlinf_async.profiling.windows import SECTION, TORCH, WindowPlan


class Window(Protocol):
    """An open profiling window."""

    def close(self) -> str | None:
        """Close the window. Return the path of a trace written here, or None."""


class Profiling:
    """Mixin of ``Worker`` that opens and closes profiling windows in the configured steps.

    Example:
        group.start_profile(step).wait()
        group.train(batch).wait()
        group.stop_profile().wait()
    """

    _worker_name: str
    _window: Window | None = None

    def start_profile(self, step_idx: int) -> None:
        """Open a window if this worker is profiled in this step.

        ``torch.profiler``, or the external profiler that runs the worker (Nsight Systems, rocprof-sys), starts
        recording.

        Raises:
            RuntimeError: a window is already open.
        """
        text = os.environ.get(SECTION)
        plan = None if text is None else WindowPlan.from_json(text)
        if plan is None or not plan.has_step(step_idx):
            return
        if self._window is not None:
            raise RuntimeError(f"{self._worker_name} has a profiling window open: stop_profile() comes before the next")
        if plan.backend == TORCH:
            directory = plan.directory.replace(LOG_DIR, os.environ.get("RLINF_LOG_DIR", "."))
            path = Path(directory, f"{report_name(self._worker_name)}_{os.getpid()}_step{step_idx}.json")
            self._window = _TorchWindow(path, plan.options)
        else:
            self._window = _DeviceWindow()

    def stop_profile(self) -> str | None:
        """Close the window if it is open.

        Returns:
            The path of the trace on this node if ``torch.profiler`` has written one; else None.
        """
        window, self._window = self._window, None
        return None if window is None else window.close()


class _DeviceWindow:
    def __init__(self) -> None:
        AcceleratorUtil.start_profiling()

    def close(self) -> None:
        AcceleratorUtil.stop_profiling()


class _TorchWindow:
    """A window of ``torch.profiler``: records this thread and the devices; writes a trace for Perfetto and Chrome."""

    def __init__(self, path: Path, options: Any) -> None:
        import torch
        from torch import profiler

        self._path = path
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profile: Any = profiler.profile(activities=activities, **options)
        self._profile.start()

    def close(self) -> str:
        self._profile.stop()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(self._path))
        return str(self._path)

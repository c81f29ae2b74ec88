"""Stand-in for accelerators under Ray: RLinf finds ``RLINF_FAKE_GPUS`` NVIDIA GPUs on a node, and computes on the CPU.

The substitution itself is this framework's rehearsal mode, which its own side of the bench uses, too.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any

_MANAGERS = "rlinf.scheduler.hardware.accelerators.nvidia_gpu"


class _Managers(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    _loader: Any

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != _MANAGERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        self._loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        from rlinf_async._core import dialect
        from rlinf_async._worker.rehearsal import RehearsedPlatform, hide_devices

        dialect.is_rlinf = True
        hide_devices()
        manager = module.NvidiaGPUManager
        manager.get_num_devices = staticmethod(lambda: int(os.environ["RLINF_FAKE_GPUS"]))
        manager.get_accelerator_model = staticmethod(lambda: "fake")
        manager.get_torch_platform = staticmethod(RehearsedPlatform)
        manager.get_device_type = staticmethod(lambda: "cpu")
        manager.get_ccl_backend = staticmethod(lambda: "gloo")
        accelerators = importlib.import_module("rlinf.scheduler.hardware.accelerators.accelerator")
        accelerators.AcceleratorUtil.CCL_SUPPORT_LIST.clear()  # makes all collectives use Gloo


sys.meta_path.insert(0, _Managers())

"""``Probes``: runs subprocesses that find GPUs' EGL numbers for workers' variables, and the registered hardware."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._core import operations
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ConfigError, LaunchError
from rlinf_async.hardware import EXTENSION

from .handlers import Requester
from .probe_process import ProbeProcess

logger = own_logger(__name__)

_OTHER_RENDERERS: Final = ("osmesa", "glx")


class Probes:
    """Probes of one node, run in its workers' environment; the results correct the workers' rendering variables."""

    def __init__(self, node: str, environment: Mapping[str, str], local_path: Callable[[str], str] = str) -> None:
        self._node = node
        self._local_path = local_path
        self._environment = dict(environment)
        self._gpus: list[str] = []  # ids of GPUs whose vendor tools report utilization
        self._renderers: asyncio.Future[dict[str, int]] | None = None
        self._inquiries: set[ProbeProcess] = set()

    async def find_renderers(self, facts: Mapping[str, Any]) -> None:
        """Map GPUs to EGL devices, if the node's GPUs support EGL."""
        if facts.get("accelerator_type") != "NV_GPU" or facts.get("rehearsed") or not facts["gpus"]:
            return
        self._renderers = asyncio.get_running_loop().create_future()
        self._gpus = [gpu["id"] for gpu in facts["gpus"]]
        found: dict[str, int] = {}
        try:
            async with asyncio.timeout(settings.RENDERER_PROBE_TIMEOUT_S()):
                found = await self._ask("egl", self._gpus, None)
        except (LaunchError, TimeoutError) as error:
            logger.warning("EGL devices are not known: %s", error or "the graphics driver does not answer")
        finally:
            self._renderers.set_result(found)

    async def rendering(self, worker: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
        """Return a worker's variables plus its EGL device, unless its environment ``said`` selects another renderer."""
        changed = dict(worker)
        if said.get("MUJOCO_GL", "").lower() in _OTHER_RENDERERS:
            for name in ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID"):
                changed.pop(name, None)
            return changed
        visible = worker.get("VISIBLE_DEVICES", "").split(",")
        if self._renderers is None or not visible[0]:
            return changed
        isolated = worker.get("ISOLATE_ACCELERATOR", "1") == "1"
        own = visible[0 if isolated else int(worker.get("LOCAL_ACCELERATOR_RANK", 0))]
        number = (await asyncio.shield(self._renderers)).get(own)
        if number is not None:
            changed |= {"MUJOCO_EGL_DEVICE_ID": str(number), "EGL_DEVICE_ID": str(number)}
        return changed

    async def inventory(self, requester: Requester, op: operations.FindHardware) -> list[str]:
        """Return the node's registered hardware as a pickle in hex, and a warning for the user, possibly empty."""
        sys_path = [self._local_path(entry) for entry in op.sys_path]
        question = {"node_rank": op.node_rank, "sections": op.sections, "sys_path": sys_path}
        answer = await self._ask("node_inventory", [], question, {EXTENSION: op.extension}, op.python)
        if answer["error"]:
            raise ConfigError(f"on {self._node}: {answer['error']}")
        return [answer["resources"], f"on {self._node}: {answer['warning']}" if answer["warning"] else ""]

    async def device_use(self, timeout: float) -> dict[str, Any]:
        """Return, where known, each GPU's ``used`` and total ``memory`` in bytes and its load in ``percent``."""
        found: dict[str, Any] = {}
        if self._gpus:
            try:
                async with asyncio.timeout(timeout):
                    found = await self._ask("device_use", self._gpus, None)
            except (LaunchError, TimeoutError) as error:
                logger.warning("the use of the GPUs is not known: %s", error or "the driver does not answer")
        return found

    def close(self) -> None:
        for inquiry in self._inquiries:
            inquiry.kill()

    async def _ask(
        self,
        module: str,
        words: Sequence[str],
        question: Any,
        variables: Mapping[str, str] | None = None,
        python: str | None = None,
    ) -> dict[str, Any]:
        """Run ``python -m rlinf_async.hardware.<module>`` and return its answer."""
        program = [python or sys.executable, "-P", "-m", f"rlinf_async.hardware.{module}", *words]
        try:
            inquiry = ProbeProcess(program, json.dumps(question), {**self._environment, **(variables or {})})
        except OSError as error:
            raise LaunchError(f"the hardware of {self._node} is not known: {error}{limit_met(error)}") from error
        self._inquiries.add(inquiry)
        timeout = settings.HARDWARE_PROBE_TIMEOUT_S()
        try:
            async with asyncio.timeout(timeout):
                stdout, stderr, code = await inquiry.answer()
        except TimeoutError as error:
            raise LaunchError(f"no answer about the hardware of {self._node} within {timeout:g} s") from error
        finally:
            self._inquiries.discard(inquiry)
            inquiry.close()
        try:
            answer: dict[str, Any] = json.loads(stdout)
        except ValueError as error:
            last = "\n".join(stderr.strip().splitlines()[-5:])
            raise LaunchError(f"no answer about the hardware of {self._node} (exit code {code}): {last}") from error
        return answer

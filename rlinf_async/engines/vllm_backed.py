"""``VllmBacked``: the base class of engines in which vLLM's processes sample the tokens and map the weights."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from rlinf_async._core import clock
from rlinf_async._core.own_logger import own_logger
from rlinf_async.engines.engine import Engine, EngineSettings, Trainer
from rlinf_async.engines.engine_processes import EngineProcesses
from rlinf_async.engines.generation import Request
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost
from rlinf_async.weights.following import follow

logger = own_logger(__name__)

BACKEND: Final = "rlinf_async"
EXTENSION: Final = "rlinf_async.engines.vllm_weights.WorkerExtension"
"""Import path of the extension in ``vllm_weights``, a module that only vLLM's workers import."""

# Additional seconds beyond ``stall_timeout`` for the first request, during which vLLM compiles parts of itself.
_COMPILE_S: Final = 300.0
# Seconds within which the exit of a failed vLLM process is noticed.
_DEATH_S: Final = 30.0
_NOTICE_S: Final = 1.0


class VllmBacked(Engine):
    """The code shared by vLLM in this process and vLLM's server: process deaths, weight updates, statistics."""

    def __init__(self, settings: EngineSettings, name: str) -> None:
        super().__init__(settings, name)
        self._version = 0
        self._facts = {"updates": 0.0, "load_s": 0.0, "pause_s": 0.0}
        self._processes: EngineProcesses | None = None

    @property
    def version(self) -> int:
        return self._version

    # -- requests to vLLM ---------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def _find_processes(self, processes: EngineProcesses) -> None:
        """Add vLLM's processes to ``processes``."""

    @abc.abstractmethod
    async def _call_workers(self, method: str) -> list[Any]:
        """Call a method of ``WorkerExtension`` in each of vLLM's workers."""

    @abc.abstractmethod
    async def _join(self, info: dict[str, Any]) -> None:
        """Make vLLM's workers join the run; ``info`` has the fields of ``JoinInfo``."""

    @abc.abstractmethod
    async def _update(self, info: dict[str, Any]) -> None:
        """Make vLLM's workers load weights; ``info`` has the fields of ``VersionInfo``."""

    @abc.abstractmethod
    async def _finish_update(self, version: str) -> None:
        """Tell vLLM the name of the version with which it now samples."""

    # -- life ---------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        self._processes = EngineProcesses(self._name)
        try:
            await super().serve()
        except Exception:
            try:
                # A request to a process that exits may fail before the exit is noticed, whose error names the process.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_NOTICE_S):
                        await self._processes.ended()
            finally:
                self._processes.kill()  # vLLM would wait several seconds for a dead or hung process to shut down
            raise
        finally:
            self._processes.close()

    async def _run(self) -> None:
        assert self._processes is not None
        await self._find_processes(self._processes)
        await self._processes.ended()

    def _describe_parts(self) -> str:
        return "" if self._processes is None else self._processes.describe()

    async def _warm_up(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s + _COMPILE_S):
                async for _ in self.generate(Request([0], max_tokens=2, ignore_eos=True), [0]):
                    pass
        except TimeoutError:
            raise self._stall(limit_s + _COMPILE_S) from None

    async def _follow(self, trainer: Trainer) -> None:
        info = {
            "parent": self._name,
            "group": trainer.group,
            "rank": trainer.rank,
            "name": trainer.name,
            "verify": trainer.verify,
        }
        while True:
            try:
                # This follower only learns which versions exist; the processes of vLLM load them.
                weights = follow(
                    None,
                    (trainer.group, trainer.rank),
                    name=trainer.name,
                    timeout=trainer.timeout,
                    verify=trainer.verify,
                )
                async with weights:
                    await self._join(info)
                    version = 0
                    while True:
                        await weights.wait_version(version + 1)
                        version = weights.version
                        await self._load(version, trainer.timeout)
            except (PeerLost, ClosedError, DeadlineExceeded) as error:
                logger.info("%s samples with version %d until the next trainer: %s", self._name, self._version, error)

    async def _load(self, version: int, timeout_s: float) -> None:
        begun = clock.monotonic()
        await self._hold()
        paused = clock.monotonic()
        await self._update({"version": version, "timeout_s": timeout_s})
        self._version = min(map(int, await self._call_workers("rlinf_version")))
        await self._finish_update(str(self._version))
        loaded = clock.monotonic()
        await self._release()  # skipped on an error, which ends this rank: a hung engine would never answer
        self._facts = {
            "updates": self._facts["updates"] + 1,
            "load_s": loaded - paused,
            "pause_s": clock.monotonic() - begun,
        }

    async def _after_pauses(self, prefix: Sequence[int], version: int) -> Sequence[int]:
        # Wait for the end of all pauses. Return the prefix, which comes from ``version``, if that is still the version.
        while not self._resumed.is_set():  # the next update may begin before this task runs
            await self._resumed.wait()
        return prefix if self._version == version else ()

    async def _fail_with_the_rank(self, error: Exception) -> NoReturn:
        """Wait for this rank to exit, so that another rank takes over the request; raise the error if it does not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_S):
                await asyncio.get_running_loop().create_future()
        raise RuntimeError(f"{self._title()} has failed: {error}") from error

    # -- facts --------------------------------------------------------------------------------------------------

    async def checksums(self) -> dict[str, str]:
        digests: list[dict[str, str]] = await self._call_workers("rlinf_digests")
        if any(each != digests[0] for each in digests):
            raise RuntimeError(f"the processes of {self._title()} have loaded different weights")
        return digests[0]

    async def stats(self) -> dict[str, float]:
        return {"open_requests": float(self._progress.open), "version": float(self._version), **self._facts}

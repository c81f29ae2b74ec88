"""``HttpEngine`` without vLLM: requests and updates between two steps of the loop, and the death of its server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from rlinf_async.engines.engine import EngineSettings
from rlinf_async.engines.engine_processes import EngineProcesses
from rlinf_async.engines.generation import Completion, Request
from rlinf_async.engines.http_engine import HttpEngine
from rlinf_async.engines.vllm_backed import VllmBacked

CHOICE = {"token_ids": [7], "logprobs": {"token_logprobs": [-1.0]}, "text": "a", "finish_reason": "stop"}


class ServerlessEngine(HttpEngine):
    def __init__(self, handler: Callable[[httpx.Request], Any]) -> None:
        VllmBacked.__init__(self, EngineSettings("", {}, on_update="wait"), "llm:0")
        self._reading = set()
        self._sampling_options, self._longest = set(), 100
        self._client = httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://server")


async def test_a_request_waits_where_one_update_follows_at_once_on_another() -> None:
    calls: list[str] = []

    async def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path)
        await asyncio.sleep(0)
        is_sampling = request.url.path == "/v1/completions"
        return httpx.Response(200, text=f"data: {json.dumps({'choices': [CHOICE]})}" if is_sampling else "{}")

    engine = ServerlessEngine(handler)
    completion = Completion()

    async def ask() -> None:
        async for chunk in engine.generate(Request([5]), [5]):
            completion.add(chunk)

    await engine._hold()
    asking = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    await engine._release()
    await engine._hold()
    engine._version = 2
    await engine._release()
    await asking
    assert calls == ["/pause", "/resume", "/pause", "/resume", "/v1/completions"]
    assert (completion.tokens, completion.versions) == ([7], [2])


async def test_a_server_that_dies_amid_an_update_is_named() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:

        async def handler(request: httpx.Request) -> httpx.Response:
            asyncio.get_running_loop().call_soon(server.kill)
            raise httpx.ReadError("")

        class Updated(ServerlessEngine):
            async def _find_processes(self, processes: EngineProcesses) -> None:
                processes.add(server.pid, "vLLM's server")

            async def _check_progress(self) -> None:
                await self._load(1, 1.0)

        with pytest.raises(RuntimeError, match=rf"vLLM's server \(pid {server.pid}\) of llm:0 was killed by SIGKILL"):
            await Updated(handler).serve()

"""FastAPI web service that learns from and generates text with a group of workers.

The service is the host: its loop, its signals, its shutdown.  The cluster lives in FastAPI's lifespan; leaving it
ends the workers.  Run it from this folder, and talk to it::

    uvicorn app:app

    curl -X POST localhost:8000/learn -H 'content-type: application/json' \
         -d '{"text": "the cat saw the dog and the dog saw the moon"}'
    curl -N 'localhost:8000/generate?start=the&words=5'

Every worker learns which word follows which, and writes a text of its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from writer import Writer

from rlinf_async import Cluster, NodePlacementStrategy, WorkerGroup

WRITERS = 2


class Lesson(BaseModel):
    text: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Cluster(num_nodes=1) as cluster:
        app.state.writers = Writer.create_group().launch(cluster, NodePlacementStrategy([0] * WRITERS), name="writers")
        await app.state.writers
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/learn")
async def learn(lesson: Lesson, request: Request) -> dict[str, list[int]]:
    """Teach every writer the text. Answer with the number of words that each of them knows."""
    writers: WorkerGroup = request.app.state.writers
    return {"words_known": await writers.learn(lesson.text)}


@app.get("/generate")
async def generate(request: Request, start: str, words: int = 20) -> StreamingResponse:
    """Stream one line of JSON per word, as it is written: ``{"rank": 0, "word": "moon"}``.

    A client that disconnects cancels its stream, down to the generators in the workers.
    """
    writers: WorkerGroup = request.app.state.writers

    async def lines() -> AsyncIterator[str]:
        async with writers.generate(start, words) as stream:
            async for rank, word in stream:
                yield json.dumps({"rank": rank, "word": word}) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")

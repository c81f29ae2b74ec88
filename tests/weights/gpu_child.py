"""A GPU process of a test: ``python -m tests.weights.gpu_child <fd> <role> <facts as JSON>``.

CUDA, once it is up in a process, does not go away again; so it never comes up in that of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

import torch

from rlinf_async.weights import Manifest, ParamTree, Publisher
from rlinf_async.weights.model.delta import encode
from tests._support.fake_gpus import OnCuda
from tests._support.socket_links import inviting
from tests._support.weight_parts import IN_SLOT, ON_GPU
from tests.weights.children import child, fork_server
from tests.weights.pipe_child import model, say

VERSIONS = 40


async def train(facts: dict[str, Any]) -> None:
    """Publishes from the GPU to readers in other processes; tells where the versions were and what the readers saw."""
    gpus = OnCuda() if facts["source"] else None
    scale = facts.get("scale", 20)
    source = gpus.put(model(0, scale)) if gpus else model(0, scale)
    os.environ.update(facts.get("environment", {}))
    places, stories = set(), []
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(fork_server())
        readers = [
            await stack.enter_async_context(child("read", apply=facts["apply"], scale=scale, cuda=cuda))
            for cuda in facts["readers"]
        ]
        options = {"gpus": gpus} if gpus else {}
        publisher = await stack.enter_async_context(Publisher(source, apply=facts["apply"], **options))
        for number, reader in enumerate(readers):
            publisher.add(number, inviting(reader.pipe, f"pid {reader.pid}"))
        await publisher.connect(120)
        for version in range(1, VERSIONS + 1):
            for tensor in source.values():
                tensor.fill_(version)
            handle = await publisher.publish(source)
            for tensor in source.values():
                tensor.fill_(-1)
            await handle
            store = publisher._store
            assert store is not None
            assert store.latest is not None
            places.add(store.latest._header.places & (IN_SLOT | ON_GPU))
        is_refused = not store._registrar._ways
        await publisher.close()
        for reader in readers:
            assert await reader.word() == "connected"
            stories.append(await reader.story())
    say(json.dumps({"places": sorted(places), "stories": stories, "is_refused": is_refused}))


async def delta(facts: dict[str, Any]) -> None:
    """Whether both devices make the same of the same pairs, and apply what the other has made."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(100, torch.float32), (1_000_000, torch.bfloat16), (77_777, torch.int8), (500_001, torch.float32)]
    leaves = {f"l{i}": torch.zeros(size, dtype=dtype) for i, (size, dtype) in enumerate(shapes)}
    manifest = Manifest.of(ParamTree.of(leaves))
    base = torch.randint(0, 256, (manifest.nbytes,), dtype=torch.uint8, generator=generator)
    is_leaf = torch.zeros(manifest.nbytes, dtype=torch.bool)  # and not one of the gaps that align them
    for leaf in manifest.leaves:
        is_leaf[leaf.offset : leaf.offset + leaf.nbytes] = True
    found = {}
    for share in (0, 0.001, 0.1, 0.9):
        new = torch.where((torch.rand(manifest.nbytes, generator=generator) < share) & is_leaf, base ^ 0x42, base)
        for piece in (256 << 10, 2 << 20, 64 << 20):
            here, there = encode(manifest, base, new, piece), encode(manifest, base.cuda(), new.cuda(), piece)
            on_cpu, on_gpu = base.clone(), base.cuda()
            type(here)(there.head, there.body.cpu()).apply(manifest, on_cpu)
            type(here)(here.head, here.body.cuda()).apply(manifest, on_gpu)
            found[f"{share} in pieces of {piece}"] = [
                here.head == there.head,
                torch.equal(here.body, there.body.cpu()),
                torch.equal(on_cpu, new),
                torch.equal(on_gpu.cpu(), new),
            ]
    say(json.dumps(found))


if __name__ == "__main__":
    role = {each.__name__: each for each in (train, delta)}[sys.argv[2]]
    asyncio.run(role(json.loads(sys.argv[3])))

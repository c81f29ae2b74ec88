"""Helpers that come late, or that no daemon knows: a subprocess as a worker, gRPC threads, a Condition of processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker, WorkerAddress

SECONDS = 6.0


class Engine(Worker):
    """A subprocess of a rank, as inference engines have them."""

    def __init__(self, parent: WorkerAddress) -> None:
        time.sleep(SECONDS)  # reads its weights before it joins
        Worker.__init__(self, parent_address=parent, world_size=1, rank=0)


def serve(parent: WorkerAddress) -> None:
    engine = Engine(parent)
    time.sleep(SECONDS)  # warms up
    engine.send("ready", "boss", 0)


def produce(parent: WorkerAddress) -> None:
    engine = Engine(parent)
    time.sleep(SECONDS)
    Channel.connect("engines").put(engine.get_name())


def notify(condition: Any) -> None:
    time.sleep(SECONDS)
    with condition:
        condition.notify()


def answer(request: bytes, context: Any) -> bytes:
    time.sleep(SECONDS)
    return request


def reward_server(ports: Any) -> None:
    import grpc

    method = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("reward", {"score": method}),))
    ports.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination(4 * SECONDS)


class Boss(Worker):
    def engine(self) -> None:
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(self.worker_address,))
        process.start()
        assert self.recv("boss", [0, 0]) == "ready"
        process.join()

    async def producer(self, channel: Channel) -> None:
        process = multiprocessing.get_context("spawn").Process(target=produce, args=(self.worker_address,))
        process.start()
        await channel.get()
        await asyncio.to_thread(process.join)

    def condition(self) -> None:
        context = multiprocessing.get_context("fork")
        condition = context.Condition()
        with condition:
            process = context.Process(target=notify, args=(condition,))
            process.start()
            condition.wait()
        process.join()

    def grpc(self) -> None:
        """A future of a call, and one that is awaited: both are completed by threads of gRPC's own."""
        import grpc

        ports, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=reward_server, args=(theirs,))
        process.start()
        address = f"127.0.0.1:{ports.recv()}"
        with grpc.insecure_channel(address) as channel:
            assert channel.unary_unary("/reward/score").future(b"4").result() == b"4"
            assert channel.unary_unary("/reward/score")(b"4") == b"4"
        asyncio.run(score(address))
        process.terminate()
        process.join()

    def condition_of_threads(self) -> None:
        """A thread that sleeps inside of a library, and one that waits for it by a condition."""
        done = threading.Condition()

        def work() -> None:
            time.sleep(SECONDS)
            with done:
                done.notify()

        with done:
            threading.Thread(target=work).start()
            done.wait()


async def score(address: str) -> None:
    import grpc.aio

    async with grpc.aio.insecure_channel(address) as channel:
        assert await channel.unary_unary("/reward/score")(b"4") == b"4"


async def main(kinds: list[str]) -> None:
    async with Cluster(num_nodes=1) as cluster:
        boss = Boss.create_group().launch(cluster, NodePlacementStrategy([0]), name="boss")
        await boss
        for kind in kinds:
            print(kind, flush=True)
            arguments = [await Channel.create("engines")] if kind == "producer" else []
            await getattr(boss, kind)(*arguments)


KINDS = ["engine", "producer", "condition", "grpc", "condition_of_threads"]

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or KINDS))

"""``join``: turns a worker's plain subprocess into a worker of the run.

The subprocess attaches to its node's daemon as a driver does, through the UNIX socket whose path it inherited, and
names its parent worker; the daemon checks that it descends from that worker. It has a socket thread like every worker,
but neither a main loop nor calls: it runs its own code.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from multiprocessing import util
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._client import registry
from rlinf_async._client.client import NodeClient
from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._core import operations, surroundings
from rlinf_async._core.frames import PROTOCOL
from rlinf_async._core.worker_facts import read_worker
from rlinf_async._inspection import responder
from rlinf_async._messaging.exchange import Exchange
from rlinf_async._trace import recorder
from rlinf_async._wire.local_socket import connect
from rlinf_async._worker import context, logs
from rlinf_async._worker.concurrent_calls import all_ended
from rlinf_async.address import WorkerAddress, WorkerInfo
from rlinf_async.errors import LaunchError

# Path of the daemon's socket; every subprocess of a worker inherits it.
_SOCKET: Final = "RLINF_PARENT_SOCKET"

_LAST_SENDS_S: Final = 0.5

_INHERITED: Final = ("ISOLATE_ACCELERATOR", "NODE_GROUP_LABEL")


def can_join() -> bool:
    return _SOCKET in os.environ


def join(parent: WorkerAddress, world_size: int, rank: int) -> context.Identity:
    """Make this process worker ``rank`` of ``world_size`` below ``parent``; return once it is registered in the run.

    Raises:
        LaunchError: this process does not descend from a worker, or its daemon has exited.
        AuthError: this process does not descend from ``parent``.
        ValueError: the run already has such a worker.
    """
    sock = _connect(parent, world_size, rank)
    address = parent.get_child_address(rank)
    surroundings.open_standard_descriptors()
    thread = LoopThread("rlinf-socket")
    client = NodeClient(thread.loop)
    recorder.attach(client, address.get_name())
    facts = {
        "role": "worker",
        "pid": os.getpid(),
        "protocol": PROTOCOL,
        "python": ".".join(map(str, sys.version_info[:3])),
        "address": address.get_name(),
        **responder.attach(client),
    }

    timeout = settings.WORKER_JOIN_TIMEOUT_S()

    async def attach() -> tuple[WorkerInfo, Exchange]:
        client.attach(sock, facts)
        try:
            async with asyncio.timeout(timeout):
                welcome = await client.ready.async_wait()
                entry = _entry(welcome["parent"], address, world_size, client.endpoint)
                info = read_worker(entry["info"])
                # Create the exchange before other processes know about this process and send to it.
                exchange = Exchange(client, info, parent.get_name())
                join = operations.JoinGroup(parent.get_name(), rank, world_size, entry)
                await client.request(join, node=0).async_wait()
        except TimeoutError as error:
            raise LaunchError(f"worker {address} cannot join: no answer within {timeout:g} s") from error
        return info, exchange

    async def abandon() -> None:
        # attach() may still be running if this thread was interrupted.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await all_ended(others)
        client.close()  # the run may already know this process as a worker

    try:
        info, exchange = asyncio.run_coroutine_threadsafe(attach(), thread.loop).result()
    except BaseException:
        thread.stop(abandon)
        raise
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    identity = context.Identity(info, world_size, parent.get_name(), environment)
    context.identity, context.client, context.exchange = identity, client, exchange
    registry.activate(client)
    logs.configure(identity.group_name, rank, os.environ.get(logs.LEVEL))
    os.register_at_fork(after_in_child=context.forget)
    # A finalizer runs at the exit of every process, even of multiprocessing's processes, which do not run atexit
    # functions.
    util.Finalize(None, client.flush_at_exit, args=(_LAST_SENDS_S,), exitpriority=0)
    # Stop the thread: an interpreter that exits under a running uvloop may crash.
    util.Finalize(None, thread.stop, exitpriority=-1)
    return identity


def _connect(parent: WorkerAddress, world_size: int, rank: int) -> socket.socket:
    path = os.environ.get(_SOCKET)
    if path is None:
        raise LaunchError(
            f"worker {parent}:{rank} cannot join: {_SOCKET} is not set, so this process is no subprocess of a worker, "
            "or was started without the worker's environment"
        )
    address = parent.get_child_address(rank)
    if not 0 <= rank < world_size:
        raise ValueError(f"worker {address} cannot join: there are {world_size} below {parent}")
    try:
        return connect(path)
    except OSError as error:
        raise LaunchError(f"worker {address} cannot join: the daemon of its node does not listen: {error}") from error


def _entry(parent: dict[str, Any], address: WorkerAddress, world_size: int, endpoint: int) -> dict[str, Any]:
    """Return this worker's entry in its group's roster, with its parent's node and devices."""
    info = {key: value for key, value in parent.items() if key != "log"}
    info |= {"address": address.get_name(), "rank": address.rank, "group_world_size": world_size, "pid": os.getpid()}
    return {"endpoint": endpoint, "pid": os.getpid(), "log": parent["log"], "info": info}

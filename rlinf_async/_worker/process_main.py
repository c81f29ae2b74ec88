"""The main function of a worker process: sets up its two event loops and its client, runs ``Runtime``, exits."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from rlinf_async import settings
from rlinf_async._client import emulated_links, registry
from rlinf_async._client.client import NodeClient
from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._core import import_hook, own_start, process
from rlinf_async._inspection import responder
from rlinf_async._messaging.exchange import Exchange
from rlinf_async._messaging.state.emulated_delay import NetEmulation
from rlinf_async._trace import recorder
from rlinf_async._waits.thread_gate import LockGate, wait_at
from rlinf_async._wire.reading.idle_reader import IdleReader
from rlinf_async._wire.reading.shared_selector import SharedSelector
from rlinf_async._worker import broken_loop, context, editor
from rlinf_async._worker.debugging import Debugger
from rlinf_async._worker.direct_callers import DirectCallers
from rlinf_async._worker.ending import EndWatch
from rlinf_async._worker.rendezvous_store import MasterStore
from rlinf_async._worker.runtime import Runtime
from rlinf_async.configuration import NetEmulationConfig


def live(sock: socket.socket, spec: dict[str, Any], identity: context.Identity, store_fd: int | None) -> None:
    """Run a worker process from its first frame to its exit; does not return."""
    settings.check()  # a group may have its own variables
    import_hook.install_if_wanted()
    sys.setswitchinterval(0.0005)
    # Do not use uvloop: it creates a signal socket pair each time it is resumed, which happens after every def method.
    selector, socket_selector = SharedSelector(), SharedSelector()
    loop = asyncio.SelectorEventLoop(selector)
    asyncio.set_event_loop(loop)
    socket_loop = asyncio.SelectorEventLoop(socket_selector)
    reader = IdleReader(loop, selector, socket_selector)
    runtime = assemble(sock, spec, identity, socket_loop, reader, os._exit)

    if store_fd is not None:
        runtime.store = MasterStore(socket_loop, store_fd)
    # End the process if this loop breaks, because a STOP could no longer arrive.
    LoopThread("rlinf-socket", socket_loop, broken_loop.end)
    os.register_at_fork(after_in_child=context.forget)
    os.register_at_fork(after_in_child=reader.forget)
    os.register_at_fork(after_in_child=selector.forget)
    os.register_at_fork(after_in_child=socket_selector.forget)
    os.register_at_fork(after_in_child=lambda: wait_at(LockGate))
    os.register_at_fork(after_in_child=lambda: emulated_links.use(None))
    os.register_at_fork(after_in_child=runtime.direct_callers.forget)
    watch = EndWatch(socket_loop, runtime.ending, identity.address.get_name())
    debugger = Debugger(runtime.client, identity.address.get_name(), loop, runtime.running_calls)
    debugger.install()
    runtime.post_mortem = runtime.background.post_mortem = debugger.post_mortem
    editor.connect()

    def begin_end(grace: float) -> None:
        debugger.end()
        watch.begin(grace)

    runtime.ending.watch = begin_end
    code = 0
    try:
        code = runtime.serve()
    except BaseException as error:
        code = broken_loop.EXIT_CODE
        broken_loop.report(error)
        # Set a timer to force the exit: if a thread or exit function never ended, the worker's open calls would hang.
        # tests/test_failures.py::test_a_worker_that_breaks_its_own_loop_says_how
        runtime.client.later(settings.CLOSE_GRACE_S(), functools.partial(os._exit, code))
    with contextlib.suppress(BaseException):
        runtime.direct_callers.flush_blocking(0.5)
    _leave(runtime, code)


def assemble(
    sock: socket.socket,
    spec: dict[str, Any],
    identity: context.Identity,
    socket_loop: asyncio.AbstractEventLoop,
    reader: IdleReader,
    leave: Callable[[int], Any],
) -> Runtime:
    """Assemble the parts of a worker, and register them in this process. Runs on its main thread.

    ``socket_loop``, not running yet, reads the sockets while user code runs; ``reader`` reads them on the main thread
    while it is idle.
    """
    own_start.begin(identity.environment, spec["script_env"])
    wait_at(reader.gate)
    runtime = Runtime(reader.loop, identity, spec.get("max_concurrency"))
    client = NodeClient(socket_loop, runtime)
    client.node = identity.info.cluster_node_rank
    runtime.client = client
    runtime.direct_callers = DirectCallers(client, spec["direct_sockets"], runtime)
    client.direct_connection = runtime.direct_callers.to
    context.client = client
    context.background = runtime.background
    context.exchange = Exchange(client, identity.info, identity.group_name)
    registry.activate(client)
    client.events.on("closed", functools.partial(_cut_off, leave))
    recorder.attach(client, identity.address.get_name())
    emulated_links.use(_emulated_links(client, identity))
    facts = {"role": "worker", "pid": process.pid, **responder.attach(client, runtime.running_calls)}
    client.attach_shared(sock, facts, reader)
    return runtime


def _emulated_links(client: NodeClient, identity: context.Identity) -> emulated_links.EmulatedLinks | None:
    if not identity.config:
        return None
    config = NetEmulationConfig.from_cfg(json.loads(identity.config)["cluster"].get("net_emulation"))
    if config is None:
        return None
    return emulated_links.EmulatedLinks(client, NetEmulation(config), f"{identity.group_name}:{identity.info.rank}")


def _cut_off(leave: Callable[[int], Any], facts: dict[str, Any]) -> None:
    with contextlib.suppress(BaseException):
        sys.stderr.write(f"this worker has lost its daemon: {facts['reason']}\n")
        sys.stderr.flush()
    leave(1)


def _leave(runtime: Runtime, code: int) -> None:
    """Run exit functions, flush, and exit, because a full interpreter shutdown with torch costs 0.2 s of CPU."""
    signal.alarm(0)
    runtime.finish()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    runtime.background.end_process(runtime.client)
    runtime.client.flush_at_exit(0.5)
    os._exit(code)

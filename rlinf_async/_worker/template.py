"""A node's template process (a fork server): imports torch, forks workers on the daemon's orders, and sets them up.

A node's daemon starts ``python -m rlinf_async._worker.template FD`` with one end of a packet socket. Each packet is the
description of one worker (msgpack, written by the daemon), with its socket, its output pipes and, for a group's first
rank, the listening socket of the group's store. The template forks twice, so that the daemon, a subreaper, becomes the
worker's parent: the daemon gets the true wait status, and workers outlive their template.

The template must never start a thread (``OPENBLAS_NUM_THREADS=1``) or touch CUDA: a forked child has neither the
threads nor a usable CUDA context.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import faulthandler
import gc
import io
import os
import resource
import signal
import socket
import sys
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgpack

from rlinf_async._core import frames, import_hook
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.segment import close_fds
from rlinf_async._worker import preloading

_PACKET_BYTES: Final = 512 * 1024
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36

_BATCH: Final = 32  # number of workers forked through one intermediate process

# The modules preloaded by this template, or by this worker's template; None for a plain template.
_imported: preloading.Imported | None = None


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent exits; exit immediately if the parent has already exited."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    parent = int(sys.argv[2])
    if parent:
        die_with_parent(parent)
    gc.disable()
    since = time.monotonic()
    with _unfiltered_warnings():
        _import_everything()
    import_hook.install_if_wanted()  # before RLinf's modules are preloaded
    _keep_from_finalizing()
    if not parent:
        _run_one_worker(control)
    gc.collect()
    gc.freeze()
    threads = preloading.thread_names()
    if len(threads) != 1:
        names = ", ".join(threads)
        raise RuntimeError(
            f"the worker template has {len(threads)} threads ({names}), and what is forked from it would be broken: "
            "something that is imported at start (a sitecustomize?) starts threads"
        )
    ready = {"ready": True, "protocol": frames.PROTOCOL, "seconds": time.monotonic() - since, "torch": _torch_version()}
    control.send(frames.pack(ready))
    _serve(control)


def _run_one_worker(control: socket.socket) -> None:
    """Turn this process, which a profiler has started, into a worker. Does not return.

    The kernel must not kill this process when its parent, the profiler, exits: it would do so as soon as the profiler's
    thread that started this process exits, which may be earlier. Instead, the daemon kills this process once the
    profiler has exited.
    """
    order = _receive(control, 0)
    control.close()
    if order is None or order.error is not None:
        raise RuntimeError(order.error if order is not None else "nobody has said which worker this is")
    _run_worker(order.spec, order.fds)


@contextlib.contextmanager
def _unfiltered_warnings() -> Iterator[None]:
    """Context manager: suspends a script's ``-W error`` filters, which would abort the template's own imports.

    Filters added by the imports are kept, and take precedence over the script's filters, as in the script's own
    process.
    """
    given = list(warnings.filters)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        nothing = warnings.filters[0]
        yield
        added = [entry for entry in warnings.filters if entry is not nothing]
    warnings.filters[:] = [*added, *given]  # type: ignore[index]  # a list; typeshed says Sequence


def _import_everything() -> None:
    import cloudpickle  # noqa: F401
    import numpy.random  # noqa: F401  # lazily imported otherwise: 15 ms in every worker
    import torch.distributed  # noqa: F401
    import uvloop  # noqa: F401

    import rlinf_async._transports.tensors
    import rlinf_async._worker.process_main  # noqa: F401
    from rlinf_async import Cluster, Tracer, Worker, wait_all  # noqa: F401  # these import all that user code imports


def _keep_from_finalizing() -> None:
    """Disable exit finalizers of imported modules (torch's operator tables), which would cost each worker 30 ms."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


@dataclass
class Order:
    """An order to fork one worker: its description and its descriptors."""

    spec: dict[str, Any]
    fds: list[int]
    error: str | None = None


def _serve(control: socket.socket) -> None:
    """Execute orders until the daemon exits; fork the workers of all queued orders together."""
    while True:
        first = _receive(control, 0)
        if first is None:
            return
        orders = [first]
        while len(orders) < _BATCH and (another := _receive(control, socket.MSG_DONTWAIT)) is not None:
            orders.append(another)
        births = [order for order in orders if order.error is None and not order.spec.get("changed_files")]
        answers = iter(_fork_twice(control, births))
        for order in orders:
            for fd in order.fds:
                os.close(fd)
            if order.error is not None:
                answer: dict[str, Any] = {"error": order.error}
            elif order.spec.get("changed_files"):
                answer = {"changed_files": _imported.changed_files() if _imported is not None else []}
            else:
                answer = next(answers)
            control.send(frames.pack(answer))


def _receive(control: socket.socket, flags: int) -> Order | None:
    try:
        packet, ancillary, got, _ = control.recvmsg(
            _PACKET_BYTES, socket.CMSG_SPACE(8 * 4), socket.MSG_CMSG_CLOEXEC | flags
        )
    except BlockingIOError:
        return None
    if not packet:
        return None
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            fds.extend(numbers)
    if got & socket.MSG_CTRUNC:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        text = (
            f"the template may have {most} files open, and that is not enough for the descriptors of {_BATCH} workers"
        )
        return Order({}, fds, f"{text} (`ulimit -n`)")
    if got & socket.MSG_TRUNC:
        return Order(
            {}, fds, f"the description of a worker is larger than {_PACKET_BYTES} bytes; is its environment huge?"
        )
    return Order(frames.unpack(packet), fds)


def _refusal(error: OSError) -> str:
    limit = " (a limit of processes: `ulimit -u`, or pids.max of a cgroup)" if error.errno == errno.EAGAIN else ""
    return f"fork: {error.strerror}{limit or limit_met(error)}"


def _fork_twice(control: socket.socket, orders: list[Order]) -> list[dict[str, Any]]:
    """Fork the workers so that the daemon becomes their parent; return the ``pid`` or ``error`` for each order.

    An intermediate process forks all workers and exits; the daemon, a subreaper, adopts them.
    """
    if not orders:
        return []
    pipe: list[int] = []
    try:
        pipe.extend(os.pipe())
        middle = os.fork()
    except OSError as error:
        close_fds(pipe)
        return [{"error": _refusal(error)}] * len(orders)
    read, write = pipe
    if middle == 0:
        for order in orders:
            try:
                answer: dict[str, Any] = {"pid": os.fork()}
            except OSError as error:
                answer = {"error": _refusal(error)}
            if answer.get("pid") == 0:
                os.close(read)
                os.close(write)
                control.close()
                for other in orders:
                    if other is not order:
                        for fd in other.fds:
                            os.close(fd)
                _run_worker(order.spec, order.fds)
            os.write(write, frames.pack(answer))
        os._exit(0)
    os.close(write)
    with open(read, "rb") as reader:
        answers = list(msgpack.Unpacker(reader))
    code = os.waitstatus_to_exitcode(os.waitpid(middle, 0)[1])
    how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
    left = {"error": f"the process {middle} that was to fork the worker {how} before it did"}
    return answers + [left] * (len(orders) - len(answers))


def _run_worker(spec: dict[str, Any], fds: list[int]) -> None:
    """Turn the forked child into a worker, or into another template. Does not return."""
    try:
        if "preload" in spec:
            _run_preloaded(spec, fds)
        sock, store_fd = _settle_in(spec, fds)
        from rlinf_async._worker import process_main as life

        life.live(sock, spec, _identity(spec), store_fd)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(70)


def _run_preloaded(spec: dict[str, Any], fds: list[int]) -> None:
    """Import modules in this child of the template, then serve the daemon. Does not return.

    The imports see the same folder, path, script and variables as the later workers.
    """
    global _imported
    control = socket.socket(fileno=fds[0])
    os.setsid()
    for number, fd in enumerate(fds[1:], 1):
        os.dup2(fd, number)
        os.close(fd)
    # As in a worker, this byte arrives only after the intermediate process has exited.
    if not control.recv(1):
        os._exit(1)
    die_with_parent(spec["parent"])
    # Adopt processes that the imports leave behind; if there are any, this template is refused.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _take_environment(spec)
    _open_outputs()
    _follow_script(spec)
    since = time.monotonic()
    imported = preloading.Imported()
    try:
        for module in spec["preload"]:
            control.send(frames.pack({"importing": module}))
            preloading.import_module(module, spec["own_variables"], imported)
    except preloading.RefusedError as error:
        control.send(frames.pack({"refused": error.module, "reason": str(error), "is_missing": error.is_missing}))
        os._exit(0)
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)  # from now on, the daemon adopts the workers
    gc.disable()
    # Do not run the garbage collector first: after an import of transformers it takes 0.3 s, and frees next to nothing.
    gc.freeze()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # workers must not inherit an unfinished line
    _imported = imported
    control.send(frames.pack({"ready": True, "protocol": frames.PROTOCOL, "seconds": time.monotonic() - since}))
    _serve(control)
    os._exit(0)


def _settle_in(spec: dict[str, Any], fds: list[int]) -> tuple[socket.socket, int | None]:
    sock = socket.socket(fileno=fds[0])
    wrapped = spec.get("wrapped", False)
    if not wrapped:
        os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(fds[1], 1)
    os.dup2(fds[2], 2)
    for fd in (null, fds[1], fds[2]):
        os.close(fd)
    # The daemon sends its first bytes after the intermediate process has exited: from now on, the daemon is the parent.
    if not sock.recv(1, socket.MSG_PEEK):
        os._exit(1)
    _limit_open_files(spec["open_files"])
    # Set this before any user code: processes started by user code stay this worker's descendants even after their
    # parents exit. tests/test_orphans.py::test_a_dead_worker_is_told_to_an_idle_driver_and_takes_nobody_along
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if not wrapped:  # a profiled worker already has its environment, including the profiler's additions
        die_with_parent(spec["parent"])
        _take_environment(spec)
    if _imported is None:  # preloaded modules already use these streams, for example in a logging handler
        _open_outputs()
    faulthandler.enable()
    if os.environ.get("CATCH_SYSTEM_FAILURE") == "1":
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            faulthandler.register(number, chain=True)
    if _imported is None:
        _follow_script(spec)
    from rlinf_async.hardware import is_rehearsal, load_extension

    _seed(spec.get("seed"))
    import torch

    torch.set_num_threads(max(1, int(spec["threads"])))
    _configure_logging(spec)
    if is_rehearsal(os.environ):
        from rlinf_async._worker.rehearsal import hide_devices

        hide_devices()
    load_extension(os.environ)
    gc.enable()
    return sock, fds[3] if len(fds) > 3 else None


def _take_environment(spec: dict[str, Any]) -> None:
    _mark(spec["token"])
    os.environ.clear()
    os.environ.update(spec["env"])
    for name, value in (_imported.variables if _imported is not None else {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _follow_script(spec: dict[str, Any]) -> None:
    from rlinf_async._core.main_module import renew

    with contextlib.suppress(OSError):
        os.chdir(spec["cwd"])
    # Put the driver's entries first, in their order, then entries that only this node has. Do not use pathlib.Path,
    # which would raise an error for a folder that this user may not access.
    sys.path[:] = [entry for entry in spec["sys_path"] if entry and os.path.exists(entry)] + [
        entry for entry in sys.path if entry not in spec["sys_path"] and entry
    ]
    renew(spec["script"], spec["module"])


def _open_outputs() -> None:
    unbuffered = isinstance(sys.stdout.buffer, io.RawIOBase)  # set by -u and PYTHONUNBUFFERED
    sys.stdout, sys.stderr = _open_output(1, unbuffered), _open_output(2, unbuffered)


def _open_output(fd: int, unbuffered: bool) -> io.TextIOWrapper:
    raw = open(fd, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(
        raw, encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=unbuffered
    )


def _limit_open_files(most: int) -> None:
    """Restore the user's own limit; the daemon raised its limit to the maximum, which the template inherited."""
    _, utmost = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, utmost))


def _mark(token: str) -> None:
    """Replace the template's token with the worker's in the memory that the kernel shows as ``/proc/<pid>/environ``.

    The kernel filled that memory at exec, and changes to ``os.environ`` do not affect it. The daemon uses this token to
    find a dead worker's leftover processes, including forked children that have changed their session.
    """
    name = b"RLINF_WORKER="
    offset = Path("/proc/self/environ").read_bytes().find(name)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    env_start = int(fields[47])
    if offset >= 0 and env_start:
        ctypes.memmove(env_start + offset + len(name), token.encode(), len(token))


def _seed(seed: int | None) -> None:
    """Seed the random generators; otherwise torch and numpy would draw the same numbers in every forked child."""
    import random

    import numpy as np
    import torch

    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
    else:
        random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)


def _configure_logging(spec: dict[str, Any]) -> None:
    from rlinf_async._worker import logs

    logs.configure(spec["group"], spec["info"]["rank"], spec["env"].get(logs.LEVEL))


def _identity(spec: dict[str, Any]) -> Any:
    from rlinf_async._core.worker_facts import read_worker
    from rlinf_async._worker.context import Identity

    info = read_worker({**spec["info"], "pid": os.getpid()})
    return Identity(info, spec["world_size"], spec["group"], dict(spec["env"]), spec.get("config", ""))


if __name__ == "__main__":
    main()

"""Fixtures of every test: the leak check, and the check for errors that are only logged."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import hypothesis
import pytest

from rlinf_async import Cluster
from tests._support import leaks
from tests._support.fake_hosts import FakeHosts

# Files that take longest.  They are first where processes share the files, so that none of these is left alone with one
# of them at the end; those that mostly wait stand among those that compute.  `--durations=0` shows what has grown long.
LONG_FILES = (
    "tests/test_orphans.py",
    "tests/simulation/test_seeds.py",
    "tests/test_guides.py",
    "tests/benches/test_benches.py",
    "tests/test_healing_nodes.py",
    "tests/weights/test_scheme_deaths.py",
    "tests/torchrl/test_collectors.py",
    "tests/test_package.py",
    "tests/examples/test_embodiment_training.py",
    "tests/test_rough_networks.py",
    "tests/launcher/test_unobserved_errors.py",
    "tests/test_embedding.py",
    "tests/_transports/test_gloo_pair.py",
    "tests/weights/test_contract_workers.py",
    "tests/histories/test_channel_histories.py",
    "tests/weights/fuzz/test_fuzz.py",
    "tests/weights/test_schemes_over_ssh.py",
    "tests/weights/links/test_worker_link.py",
    "tests/test_tracing.py",
    "tests/test_stopped_loops.py",
    "tests/test_exchange.py",
    "tests/weights/test_chain_workers.py",
    "tests/_messaging/test_relayed_broadcast.py",
    "tests/examples/test_reasoning_training.py",
)

_CALL_FAILED = pytest.StashKey[bool]()
_VISIBLE_GPUS = pytest.StashKey[str | None]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "shared_cluster: (of a module) tests share a cluster; leaks count at the end")
    config.addinivalue_line("markers", "long: (added where a marker has a make command of its own) not run by CI")
    # How long an example takes says something of the machine only.
    hypothesis.settings.register_profile("suite", deadline=None)
    hypothesis.settings.load_profile("suite")
    if not _runs_tests(config):
        return
    # Under nohup children would ignore SIGHUP, and the launcher rightly with them.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores for what it runs in the background
    os.environ.setdefault(leaks.SESSION_MARK, uuid.uuid4().hex)
    leaks.take_own_shared_memory()
    # Run directories and logs of this session stand apart from those of others.  The name is short, because a
    # socket's path has 108 bytes; the test process itself keeps the usual place, which pytest does not clear at once.
    directory = tempfile.mkdtemp(prefix="rlt-")
    config.add_cleanup(functools.partial(shutil.rmtree, directory, ignore_errors=True))
    os.environ["XDG_RUNTIME_DIR"] = directory
    os.environ["TMPDIR"] = os.path.join(directory, "tmp")
    os.mkdir(os.environ["TMPDIR"])


def _runs_tests(config: pytest.Config) -> bool:
    """Not where processes of pytest-xdist's do: each of those is a session of its own, and inherits nothing here."""
    return hasattr(config, "workerinput") or config.getoption("dist", "no") == "no"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Asynchronous tests are also watched from inside their loop."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj) and not _is_shared(item):
        names = item.fixturenames
        if "_no_task_is_left" not in names:
            names.insert(names.index("_nothing_is_left") + 1, "_no_task_is_left")


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    commanded = {line.partition(":")[0] for line in config.getini("markers") if "(make " in line}
    for item in items:
        if any(mark.name in commanded for mark in item.iter_markers()):
            item.add_marker("long")
    order = {path: number for number, path in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(LONG_FILES)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Hides this machine's GPUs from the nodes of the tests: a test that needs some declares or fakes them."""
    if _runs_tests(session.config):
        session.config.stash[_VISIBLE_GPUS] = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True)
def _gpus_are_shown(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shows them again to tests that are marked ``gpu``."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("gpu"):
            patch.delenv("CUDA_VISIBLE_DEVICES")
            if (visible := request.config.stash[_VISIBLE_GPUS]) is not None:
                patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        item.stash[_CALL_FAILED] = call.excinfo is not None
    return report


def _is_shared(node: pytest.Item | pytest.Collector) -> bool:
    module = node.getparent(pytest.Module)
    return module is not None and module.get_closest_marker("shared_cluster") is not None


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_by_the_module(request: pytest.FixtureRequest) -> Iterator[None]:
    with leaks.none_left() if _is_shared(request.node) else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    if _is_shared(request.node):
        yield
        return
    leaks.warm_up()
    before = leaks.take()
    yield
    for record in caplog.get_records("call"):
        # Formatted long since; an exception among these keeps alive whatever its traceback saw.
        record.msg, record.args, record.exc_info = record.getMessage(), (), None
    if request.node.stash.get(_CALL_FAILED, True):
        leaks.end_processes_since(before)  # its traceback holds on to the rest
    elif found := leaks.settle(before):
        leaks.end_processes_since(before)
        pytest.fail(leaks.told(found), pytrace=False)


@pytest.fixture
async def _no_task_is_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    if left := asyncio.all_tasks() - before - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=leaks.PATIENCE)
    found = leaks.leaked_tasks(before)
    if found and not request.node.stash.get(_CALL_FAILED, True):
        pytest.fail(leaks.told(found), pytrace=False)


@pytest.fixture(autouse=True)
def complaints() -> Iterator[list[str]]:
    """Errors that asyncio or grpc log because there is nobody to raise them to; a test that means to cause some
    takes them out of this list."""
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(self.format(record))

    ear = Ear(logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("asyncio", "grpc")]
    for logger in loggers:
        logger.addHandler(ear)
    yield heard
    for logger in loggers:
        logger.removeHandler(ear)
    if heard:
        pytest.fail("logged during the test:\n" + "\n".join(heard), pytrace=False)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster for a module, with as many nodes as its ``LOCAL_NODES`` says, or one."""
    nodes = getattr(request.module, "LOCAL_NODES", 1)
    with Cluster(num_nodes=nodes, local_nodes=nodes if nodes > 1 else None, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture
def fake_hosts() -> Iterator[Callable[..., FakeHosts]]:
    """Makes fake hosts, ``fake_hosts(2, hidden={1: [CHECKOUT]})``, that end with the test; may skip it."""
    with contextlib.ExitStack() as stack:

        def make(count: int, **options: Any) -> FakeHosts:
            return stack.enter_context(FakeHosts(count, **options))

        yield make

"""Error messages for new users' mistakes: each names value, place and fix."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rlinf_async import (
    Channel,
    Cluster,
    ConfigError,
    DeadlineExceeded,
    NodePlacementStrategy,
    SerializationError,
    WorkerGroup,
    wait_all,
)
from rlinf_async._waits import slow_waits
from tests._support.workers import Plain

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.shared_cluster


@pytest.fixture(scope="module")
def four(cluster: Cluster) -> Iterator[WorkerGroup]:
    with Plain.create_group().launch(cluster, NodePlacementStrategy([0] * 4), name="four") as group:
        yield group


def run(folder: Path, script: str, *command: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(dedent(script))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, *command, str(path)]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)


# -- launch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            [0, 0],
            "got [0, 0] (list): write NodePlacementStrategy([0, 0]) if these are nodes, "
            "FlexiblePlacementStrategy([[0], [0]]) if they are accelerators",
        ),
        ((2, 3), "got (2, 3) (tuple): write NodePlacementStrategy([2, 3]) if these are nodes, PackedPlacement"),
        (
            4,
            "got 4 (int): write NodePlacementStrategy([0] * 4) for 4 on node 0, or PackedPlacementStrategy(0, 3) for "
            "one on each of accelerators 0-3",
        ),
        (
            "0-3",
            "got '0-3' (str): write NodePlacementStrategy([0, 0]) for nodes, PackedPlacementStrategy(0, 3) for "
            "accelerators, or ComponentPlacement(config, cluster).get_strategy(name) for a rule of",
        ),
        ([], "got [] (list): write NodePlacementStrategy([0, 0]) for nodes"),
        (NodePlacementStrategy, "got the class NodePlacementStrategy: write NodePlacementStrategy(...), an instance"),
    ],
)
@pytest.mark.parametrize("keyword", ["placement_strategy", "placement"])
def test_what_is_no_placement_strategy_is_answered_with_the_one_that_is_meant(
    cluster: Cluster, keyword: str, given: Any, text: str
) -> None:
    with pytest.raises(TypeError) as caught:
        Plain.create_group().launch(cluster, **{keyword: given})
    assert f"placement_strategy= takes a placement strategy, {text}" in str(caught.value)


def test_a_number_of_nodes_in_place_of_a_list_of_nodes_says_which_lists_may_be_meant() -> None:
    with pytest.raises(ConfigError) as caught:
        NodePlacementStrategy(4)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "node_ranks lists a node for each process, got 4: NodePlacementStrategy([0] * 4) is so many on node 0, "
        "NodePlacementStrategy([4]) one on that node"
    )


def test_a_launch_without_a_cluster_and_with_a_misspelt_argument_says_what_is_meant(cluster: Cluster) -> None:
    launch: Any = Plain.create_group().launch
    with pytest.raises(TypeError, match=r"^launch\(cluster, \.\.\.\): the first argument is the Cluster, got NodePlac"):
        launch(NodePlacementStrategy([0]))
    with pytest.raises(TypeError, match=r"^launch\(\) has no argument 'seeds' \(did you mean 'seed'\?\): cluster, "):
        launch(cluster, seeds=0)


# -- ranks and methods of a group ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        (lambda four: four[7], IndexError, "there is no [7]: group 'four' has ranks 0-3"),
        (lambda four: four[-5], IndexError, "there is no [-5]: group 'four' has ranks 0-3"),
        (
            lambda four: four[1:3][2],
            IndexError,
            "there is no [2]: this view of group 'four' has places 0-1, which are of ranks 1-2",
        ),
        (lambda four: four[1:1], IndexError, "[1:1] selects no rank: group 'four' has ranks 0-3"),
        (lambda four: four[9::2], IndexError, "[9::2] selects no rank: group 'four' has ranks 0-3"),
        (
            lambda four: four["a"],
            TypeError,
            "['a'] is no rank: group 'four' has ranks 0-3; write group[2], group[0:2], or group.execute_on(0, 3)",
        ),
        (lambda four: four[0, 3], TypeError, "[(0, 3)] is no rank: group 'four' has ranks 0-3; write group[2]"),
        (lambda four: four.execute_on(7), AssertionError, "7 is not a rank of 'four', which has ranks 0-3"),
    ],
)
def test_a_rank_that_there_is_not_names_the_group_and_its_ranks(
    four: WorkerGroup, wrong: Callable[[WorkerGroup], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        wrong(four)
    assert str(caught.value).startswith(text)


def test_iterating_over_a_group_ends_after_its_last_rank(four: WorkerGroup) -> None:
    assert [view.hello().wait() for view in four] == [[0], [1], [2], [3]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("helo", "hello"), ("acho_", "acho"), ("get_nam", "get_name"), ("worker_info_lst", "worker_info_list")],
)
def test_an_unknown_method_is_answered_with_the_one_that_it_resembles(four: WorkerGroup, name: str, meant: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(four, name)
    assert str(caught.value).startswith(f"Plain has no public method {name!r} (did you mean {meant!r}?); it has ")


def test_an_unknown_method_is_answered_with_the_users_own_before_those_of_every_worker(four: WorkerGroup) -> None:
    with pytest.raises(AttributeError) as caught:
        four.qqqq  # noqa: B018
    own, inherited = str(caught.value).split(", and as every Worker ")
    assert own.startswith("Plain has no public method 'qqqq'; it has acho, anote, ")
    assert "hello" in own
    assert "send" in inherited.split(", ")
    assert not {"hello", "echo"} & set(inherited.split(", "))


# -- a forgotten wait --------------------------------------------------------------------------------------------------


def test_a_call_that_is_taken_for_its_result_says_what_to_write(four: WorkerGroup, cluster: Cluster) -> None:
    handle = four[1:3].sleep(60)  # type: ignore[attr-defined]
    channel = Channel.create("unasked", cluster=cluster)
    views = [repr(view) for view in handle]
    assert views == [f"<sleep() on rank {rank} of 'four' [not done: `await` it, or `.wait()`]>" for rank in (1, 2)]
    with pytest.raises(TypeError) as caught:
        handle + 1
    assert str(caught.value) == (
        "four.sleep() on 2 ranks is a Work and not its result: `await` it (or `.wait()`) before calculating with it"
    )
    with pytest.raises(TypeError) as caught:
        f"{handle[0]:.2f}"
    assert str(caught.value) == (
        "sleep() on rank 1 of 'four' is a Work and not its result: `await` it (or `.wait()`) before writing it as '.2f'"
    )
    get = channel.get(async_op=True)
    assert f"{get}" == repr(get)
    assert re.fullmatch(
        r"<get\(\) from channel 'unasked' .*\[not done: `await channel.get\(\)`, or `.wait\(\)`\]>", repr(get)
    )
    handle.cancel()


def test_a_work_that_a_method_returns_in_place_of_its_result_says_what_to_await(
    four: WorkerGroup, cluster: Cluster
) -> None:
    channel = Channel.create("returned", cluster=cluster)
    with pytest.raises(SerializationError) as caught:
        four[0].areturn("returned").wait(20)  # type: ignore[attr-defined]
    assert str(caught.value).partition("\n")[0].startswith("the result of areturn() cannot travel: result is of type ")
    assert "is a Work and not its result: `await channel.get()` (or `.wait()`) before sending it" in str(caught.value)
    assert "; `await` it, and its result travels" in str(caught.value)
    assert channel.qsize() == 0


@pytest.mark.parametrize("name", ["wait", "cancel", "outcomes"])
def test_a_stream_that_is_taken_for_a_handle_says_to_loop_over_it(four: WorkerGroup, name: str) -> None:
    with contextlib.closing(four.count(1)) as stream, pytest.raises(AttributeError) as caught:  # type: ignore[attr-defined]
        getattr(stream, name)()
    assert str(caught.value) == (
        f"four.count() is an async generator, and its Stream has no {name}(): loop over it with "
        "`async for rank, item in ...`, or `for` in plain code"
    )
    with pytest.raises(AttributeError, match=r"^'Stream' object has no attribute 'colour'$"):
        stream.colour  # noqa: B018


def test_calls_that_nobody_awaits_are_named_in_one_warning_as_the_cluster_closes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        group: Any = Plain.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="left")
        waiting = group.sleep(60)
        with pytest.raises(DeadlineExceeded):
            waiting.wait(0.01)
        followed = group.sleep(60).then(print)
        group.sleep(60).cancel()
        asked = group.sleep(60).outcomes()
        caplog.clear()
        for _ in range(4):
            group.sleep(60)
        group[1].sleep(60)[0]
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    both = "left.sleep() on 2 ranks"
    assert said == [
        f"5 calls are still open and are cancelled, as the cluster closes: {both}, {both}, {both} and 2 more "
        "(`await` or `.wait()` for what is to end before; `.cancel()` ends a call without this warning)"
    ]
    assert followed.done()
    assert asked.done()


async def test_a_failed_call_is_logged_as_the_cluster_closes_and_an_error_of_the_script_names_no_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail_with_an_open_call() -> None:
        async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
            group: Any = await Plain.create_group().launch(cluster, NodePlacementStrategy([0]), name="left")
            group.fail([0], "just before")
            await group.hello()
            group.sleep(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_with_an_open_call()
    assert "was not awaited before its cluster was closed: left.fail() on 1 rank: rank 0: " in caplog.text
    assert "still open" not in caplog.text


# -- with ------------------------------------------------------------------------------------------------------------


def test_with_cluster_in_a_coroutine_says_async_with() -> None:
    async def main() -> None:
        with Cluster(num_nodes=1, log_to_driver=False):
            raise AssertionError("not reached")

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(main())
    assert str(caught.value) == (
        "`with Cluster(...)` would block the event loop that runs on this thread: write "
        "`async with Cluster(...) as cluster:` here"
    )


async def test_with_group_in_a_coroutine_says_async_with(four: WorkerGroup) -> None:
    with pytest.raises(RuntimeError) as caught, four:
        pass
    assert str(caught.value) == (
        "`with group` would block the event loop that runs on this thread (group 'four'): "
        "write `async with group:` here"
    )
    assert await four.hello() == [0, 1, 2, 3]


def test_with_group_in_plain_code_closes_it_at_its_end(cluster: Cluster) -> None:
    with Plain.create_group().launch(cluster, NodePlacementStrategy([0]), name="briefly") as group:
        assert group.hello().wait() == [0]
    assert "closed" in repr(group)


# -- spawned children ------------------------------------------------------------------------------------------------


def test_a_cluster_that_a_spawned_childs_import_would_start_says_where_the_scripts_code_belongs(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path,
        """
        import multiprocessing
        import sys
        from rlinf_async import Cluster

        def child():
            print("not reached")

        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=child)
            process.start()
            process.join()
            sys.exit(process.exitcode)
        Cluster(num_nodes=1)
        """,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "RuntimeError: Cluster() was called in a process that multiprocessing has spawned, which imports the script "
        "again, under the name __mp_main__" in done.stderr
    )
    assert (
        'Put what the script does below `if __name__ == "__main__":`, or the classes and functions that '
        "it needs into a module of their own" in done.stderr
    )
    assert "rlinf run" not in done.stderr


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


def interrupt_once_it_waits() -> threading.Thread:
    """Sends this process SIGINT once its main thread stands in the table of waits."""
    main = threading.main_thread().ident

    def act() -> None:
        deadline = time.monotonic() + 20
        while not any(ident == main for ident, _ in list(slow_waits._threads.rows)):
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (lambda four, _: four.sleep(60).wait(), "four.sleep() on 4 ranks, ranks 0-3 have not answered"),
        (lambda four, _: four[1:3].sleep(60).wait(timeout=50), "four.sleep() on 2 ranks, ranks 1-2 have not answered"),
        (
            lambda four, _: wait_all(four[0].sleep(60), four[3].sleep(60)),
            "all of 2 works: four.sleep() on 1 rank, rank 0 has not answered, "
            "four.sleep() on 1 rank, rank 3 has not answered",
        ),
        (
            lambda _, cluster: Channel.create("empty", cluster=cluster).get(),
            "get() from channel 'empty' on node 0 (key 'default_queue')",
        ),
    ],
    ids=["handle", "with a deadline", "wait_all", "channel"],
)
def test_ctrl_c_says_what_was_waited_for_since_when_and_at_which_ranks(
    four: WorkerGroup, cluster: Cluster, wait: Callable[[WorkerGroup, Cluster], Any], text: str
) -> None:
    thread = interrupt_once_it_waits()
    with pytest.raises(KeyboardInterrupt) as caught:
        wait(four, cluster)
    thread.join()
    (note,) = caught.value.__notes__
    assert re.fullmatch(rf"while waiting for {re.escape(text)}, \d+ s \(since \d\d:\d\d:\d\d\)", note)


def test_ctrl_c_under_the_launcher_says_it_too_and_the_exit_code_is_130(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import asyncio
        import os
        import signal
        import threading
        import time
        from rlinf_async import Cluster, NodePlacementStrategy, Worker
        from rlinf_async._waits import slow_waits

        class Sleeper(Worker):
            async def step(self):
                await asyncio.sleep(60)

        def interrupt():
            main = threading.main_thread().ident
            while not any(ident == main for ident, _ in list(slow_waits._threads.rows)):
                time.sleep(0.01)
            os.kill(os.getppid(), signal.SIGINT)

        with Cluster() as cluster:
            group = Sleeper.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="sleeper")
            group.wait_ready()
            threading.Thread(target=interrupt).start()
            group.step().wait()
        """,
        *("-m", "rlinf_launcher", "--local-nodes", "1"),
    )
    assert done.returncode == 130, done.stderr
    assert "while waiting for sleeper.step() on 2 ranks, ranks 0-1 have not answered, " in done.stderr


# -- configuration ---------------------------------------------------------------------------------------------------


def test_a_configurations_mistake_that_a_worker_finds_comes_without_the_frameworks_traceback(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("seed: 1\ncluster:\n  num_node: 3\n")
    with Plain.create_group().launch(cluster, NodePlacementStrategy([0]), name="reader") as reader:
        with pytest.raises(ConfigError) as caught:
            reader.run(f"__import__('rlinf_async').Cluster(cluster_cfg={str(path)!r})").wait()
        (log,) = (Path(path) for path in reader.log_paths)
    text = f"{path}:3: cluster.num_node: Unknown fields {{'num_node'}} detected in cluster (did you mean 'num_nodes'?)"
    assert str(caught.value).startswith(text)
    (note,) = caught.value.__notes__
    lines = note.splitlines()
    assert lines[1].startswith("from rank 0 of group 'reader' on ")
    assert lines[2].startswith(f"    rlinf_async.errors.ConfigError: {text}")
    assert lines[3:] == ["      at <string>:1"]
    logged = "".join(
        each.read_text() for each in log.parent.iterdir()
    )  # the worker has ended, and with it what it logs
    assert text in logged
    assert "Traceback" not in logged


def test_a_configurations_mistake_that_the_users_code_raises_comes_with_its_cause(cluster: Cluster) -> None:
    code = """
from rlinf_async import ConfigError
try:
    {}["lr"]
except KeyError as error:
    raise ConfigError("optimizer: no learning rate") from error
"""
    with (
        Plain.create_group().launch(cluster, NodePlacementStrategy([0]), name="raiser") as raiser,
        pytest.raises(ConfigError, match="no learning rate") as caught,
    ):
        raiser.run(f"exec({code!r})").wait()
    (note,) = caught.value.__notes__
    assert "KeyError: 'lr'" in note
    assert "direct cause" in note

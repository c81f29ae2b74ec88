"""Group calls on one node: results, order, views, arguments, timers, names."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_async import Cluster, ConfigError, NodePlacementStrategy, SerializationError, Worker, WorkerGroup, each
from rlinf_async._core.encoded import Encoded
from rlinf_async._core.payload import pack_body
from rlinf_async._group import members
from tests._support.workers import NamesTaken, Parent, Plain, Seeded, SeedWorker, TimedWorker

pytestmark = pytest.mark.shared_cluster

FOUR = NodePlacementStrategy([0] * 4)


@pytest.fixture(scope="module")
def four(cluster: Cluster) -> Iterator[WorkerGroup]:
    group = Plain.create_group(3).launch(cluster, placement=FOUR, name="four")
    yield group
    group.close()


async def test_a_group_call_is_awaited_in_any_loop(four: Any) -> None:
    assert await four.hello() == [0, 1, 2, 3]


async def test_a_view_of_some_ranks_is_not_closed_and_the_group_lives_on(four: Any) -> None:
    view = four[1:3]
    with pytest.raises(TypeError, match=r"ranks 1-2 of 4 workers on 1 node \|.* is a view, .*: close the group itself"):
        view.close()
    with pytest.raises(TypeError, match="is a view"):
        async with view:
            pytest.fail("it was entered")
    with pytest.raises(TypeError, match="is a view"):
        await asyncio.to_thread(view.__enter__)
    assert await four.hello() == [0, 1, 2, 3]


def test_the_seed_example_all_reduces_over_gloo(cluster: Cluster) -> None:
    group = SeedWorker.create_group().launch(cluster, placement_strategy=FOUR, name="my_worker_group")
    try:
        assert torch.equal(group.initialize().wait()[0], torch.tensor([[4.0]]))
        assert group.execute_on(0, 3).hello().wait() == [0, 3]
        listening = {address for addresses in group.listeners().wait() for address in addresses}
        assert listening <= {"127.0.0.1", "::1"}
    finally:
        group.close()


def test_init_process_group_needs_no_arguments(cluster: Cluster) -> None:
    group = SeedWorker.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="no-arguments")
    try:
        assert group.initialize_without_arguments().wait() == [(0, 2), (1, 2)]
    finally:
        group.close()


def test_durations_hold_nested_tags_and_are_the_maximum_over_ranks(cluster: Cluster) -> None:
    group = TimedWorker.create_group().launch(cluster, placement=FOUR, name="timed")
    try:
        for method in (group.run_training, group.run_with_context):
            handle = method([1, 2, 3])
            assert handle.wait() == [6] * 4
            durations, per_rank = handle.consume_durations(return_per_rank=True)
            assert set(durations) == {"run_training", "train_step"}
            assert durations["train_step"] == max(times["train_step"] for times in per_rank)
            assert 0.04 <= durations["train_step"] <= durations["run_training"]
        handle = group.run_async()
        handle.wait()
        assert handle.consume_duration("min") >= 0.01
        with pytest.raises(ValueError, match="no timer of tag 'run_async'"):
            handle.consume_duration()
    finally:
        group.close()


async def test_durations_are_awaitable_in_a_coroutine(cluster: Cluster) -> None:
    async with TimedWorker.create_group().launch(cluster, placement=FOUR, name="timed-async") as group:
        handle = group.run_training([1])
        assert set(await handle.consume_durations()) == {"run_training", "train_step"}


def test_def_and_async_methods_run_in_the_order_of_their_calls(four: Any) -> None:
    for i in range(200):
        (four.note if i % 3 else four.anote)(i)
    logs = four.noted().wait()
    assert logs == [list(range(200))] * 4
    four.run("self.log.clear()").wait()


def test_ten_thousand_calls_at_once_are_all_answered_in_their_order(four: Any) -> None:
    handles = [four[0].note(number) for number in range(10_000)]
    assert [handle.wait() for handle in handles] == [[None]] * 10_000
    assert four[0].noted().wait() == [list(range(10_000))]
    four.run("self.log.clear()").wait()


def test_a_thousand_calls_behind_one_that_blocks_run_in_their_order(four: Any) -> None:
    blocking = four.block(1.0)
    handles = [four.note(number) for number in range(1000)]
    assert not handles[0].done()
    blocking.wait()
    handles[-1].wait()
    assert four.noted().wait() == [list(range(1000))] * 4
    four.run("self.log.clear()").wait()


def test_views_call_some_ranks_and_change_nothing(four: Any) -> None:
    assert four.execute_on(3, 1).hello().wait() == [3, 1]
    assert four[1:3].hello().wait() == [1, 2]
    assert four[-1].hello().wait() == [3]
    assert four[1:][0].hello().wait() == [1]
    assert four.hello().wait() == [0, 1, 2, 3]
    assert len(four[1:3]) == 2


@pytest.mark.parametrize("ranks", [(4,), (-1,), (0, 0), ()])
def test_a_rank_that_does_not_exist_is_an_error(four: Any, ranks: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match=r"rank"):
        four.execute_on(*ranks)


def test_each_gives_every_rank_its_own(four: Any) -> None:
    assert four.scaled(each([1, 2, 3, 4])).wait() == [3, 6, 9, 12]
    assert four[1:3].echo("same", key=each("ab")).wait() == [(("same",), {"key": "a"}), (("same",), {"key": "b"})]
    with pytest.raises(ValueError, match="3 values for 4 ranks"):
        four.scaled(each([1, 2, 3]))


def test_a_call_whose_arguments_cannot_be_written_for_each_rank_leaves_no_descriptor(
    four: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def pack(encoded: Any) -> Any:
        if written:
            raise OSError(errno.EMFILE, "no descriptor is left")
        body, fds = pack_body(encoded)
        written.extend(fds)
        return body, fds

    monkeypatch.setattr(members, "pack_body", pack)
    with pytest.raises(OSError, match="no descriptor is left"):
        four.echo(each([bytes(100_000)] * 4))
    (fd,) = written
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_one_rank_of_a_handle_can_be_waited_for(four: Any) -> None:
    handle = four.scaled(each([1, 2, 3, 4]))
    assert handle[2].wait() == 9
    assert handle[-1].wait() == 12
    assert handle.wait() == [3, 6, 9, 12]


async def test_a_handle_is_a_coroutine_for_task_groups(four: Any) -> None:
    async with asyncio.TaskGroup() as tasks:
        first, second = tasks.create_task(four.hello()), tasks.create_task(four.scaled(1))
    assert (first.result(), second.result()) == ([0, 1, 2, 3], [3, 3, 3, 3])


def test_the_truth_of_an_unfinished_handle_is_an_error(four: Any) -> None:
    handle = four.sleep(0.2)
    with pytest.raises(TypeError, match="not done: `await` it"):
        bool(handle)
    handle.wait()
    assert handle


async def test_waiting_on_the_loops_own_thread_says_to_await(four: Any) -> None:
    handle = four.sleep(0.05)
    with pytest.raises(RuntimeError, match="use `await` here"):
        handle.wait()
    await handle


def test_a_deadline_says_what_was_awaited_from_whom(four: Any) -> None:
    handle = four.sleep(each([0, 0, 1, 1]))
    handle[1].wait()
    with pytest.raises(TimeoutError, match=r"four.sleep\(\) on 4 ranks, ranks 2-3 have not answered"):
        handle.wait(timeout=0.2)
    handle.cancel()


def test_handles_are_awaited_from_a_loop_in_another_thread(four: Any) -> None:
    handle = four.sleep(0.05)
    results: list[Any] = []

    async def wait() -> None:
        results.append(await handle)

    threads = [threading.Thread(target=lambda: asyncio.run(wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[0.05] * 4] * 3


def test_asyncio_run_works_inside_a_def_method(four: Any) -> None:
    assert four.run_loop().wait() == [0, 1, 2, 3]


def test_large_arguments_and_results_come_back_whole(four: Any) -> None:
    value = torch.arange(1 << 20)
    array = np.random.default_rng(0).random(1 << 18)
    for args, kwargs in four.echo(value, array=array).wait():
        assert torch.equal(args[0], value)
        assert np.array_equal(kwargs["array"], array)
        args[0][0] = 7  # a result is the receiver's own
    assert value[0] == 0


def test_arguments_are_what_they_were_when_the_call_was_made(four: Any) -> None:
    value = torch.zeros(1 << 18)
    handle = four.echo(value)
    value.fill_(1)
    assert all(args[0].sum() == 0 for args, _ in handle.wait())


def test_what_cannot_be_pickled_is_named_before_it_is_sent(four: Any) -> None:
    with pytest.raises(SerializationError, match=r"args\[0\]\['lock'\]"):
        four.echo({"lock": threading.Lock()})


def test_a_result_that_cannot_be_pickled_is_named(four: Any) -> None:
    with pytest.raises(SerializationError, match=r"result\['bad'\]\[1\]\[0\]"):
        four.unpicklable().wait()


def test_unknown_and_hidden_methods_are_errors_that_say_what_there_is(four: Any) -> None:
    with pytest.raises(AttributeError, match=r"no public method 'helo' .*; it has .*hello"):
        four.helo()
    with pytest.raises(ValueError, match="hidden"):
        four._take_identity()


def test_a_method_with_a_name_of_the_group_is_an_error_at_launch(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match=r"NamesTaken\.execute_on has the name of a method of WorkerGroup"):
        NamesTaken.create_group().launch(cluster)


def test_a_duplicate_name_is_an_error_at_once_and_harms_nobody(cluster: Cluster, four: Any) -> None:
    with pytest.raises(ValueError, match="a group named 'four' exists already"):
        Plain.create_group().launch(cluster, name="four")
    assert four.hello().wait() == [0, 1, 2, 3]


def test_a_name_is_free_again_when_its_group_ends(cluster: Cluster) -> None:
    for _ in range(3):
        group = Plain.create_group().launch(cluster, name="again")
        assert group.hello().wait() == [0]
        group.close()


def test_a_launch_that_lacks_memory_takes_no_name(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(encoded: Encoded) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Encoded, "to_bytes", lack)
        with pytest.raises(MemoryError):
            Plain.create_group().launch(cluster, name="again", restart="rank")
    with Plain.create_group().launch(cluster, name="again") as group:
        group.wait_ready()


async def test_a_duplicate_name_of_another_process_is_an_error(cluster: Cluster, four: Any) -> None:
    async with (
        Parent.create_group().launch(cluster, name="of-0"),
        Parent.create_group().launch(cluster, name="parent") as parent,
    ):
        with pytest.raises(ValueError, match="a group named 'of-0' exists already"):
            await parent.children_async()


def test_placement_beyond_the_machine_is_an_error_before_anything_starts(cluster: Cluster) -> None:
    before = cluster.status()["endpoints"]
    with pytest.raises(ConfigError, match="node"):
        Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1]))
    assert cluster.status()["endpoints"] == before


@pytest.mark.parametrize("bad", [0, -1, 2**31])
def test_max_concurrency_is_checked(cluster: Cluster, bad: int) -> None:
    with pytest.raises(ValueError, match="max_concurrency"):
        Plain.create_group().launch(cluster, max_concurrency=bad)


async def test_max_concurrency_bounds_running_coroutines(cluster: Cluster) -> None:
    async with Plain.create_group().launch(cluster, name="two", max_concurrency=2) as group:
        crowds = await asyncio.gather(*(group.crowd() for _ in range(9)))
        assert max(crowds) == [2]


def test_groups_launched_in_a_worker_are_its_children(cluster: Cluster) -> None:
    group = Parent.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="group")
    results = group.children().wait()
    assert results == [
        [["group:0:0", "group:0:1"], [0, 0]],
        [["group:1:0", "group:1:1"], [10, 10]],
    ]
    group.close()


async def test_a_coroutine_of_a_worker_can_launch_and_await_a_group(cluster: Cluster) -> None:
    async with Parent.create_group().launch(cluster, name="async-parent") as group:
        assert await group.children_async() == [[0, 0]]


def test_a_group_is_found_by_its_name(cluster: Cluster, four: Any) -> None:
    found = WorkerGroup.from_group_name(Plain, "four", cluster=cluster)
    assert found.hello().wait() == [0, 1, 2, 3]
    assert found.execute_on(2).hello().wait() == [2]
    with pytest.raises(TimeoutError, match=r"no group named 'five' within 0.1 s; there are: .*four"):
        WorkerGroup.from_group_name(Plain, "five", cluster=cluster, timeout=0.1)


def test_workers_draw_different_numbers_unless_seeded(cluster: Cluster) -> None:
    pair = NodePlacementStrategy([0, 0])
    free = Seeded.create_group().launch(cluster, placement=pair, name="free")
    draws = free.draw().wait()
    assert all(a != b for a, b in zip(*draws, strict=True))
    free.close()
    seeded = []
    for _ in range(2):
        group = Seeded.create_group().launch(cluster, placement=pair, name="seeded", seed=7)
        seeded.append(group.draw().wait())
        group.close()
    assert seeded[0] == seeded[1]
    assert seeded[0][0] != seeded[0][1]


def test_a_groups_own_environment_arrives_even_what_is_read_at_exec(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, name="env", env={"PYTHONHASHSEED": "5", "MINE": "yes"})
    other = Plain.create_group().launch(cluster, name="env2", env={"PYTHONHASHSEED": "5"})
    assert group.environment("MINE").wait() == ["yes"]
    fixed = subprocess.run(
        [sys.executable, "-c", "print(hash('word'))"], env={"PYTHONHASHSEED": "5"}, capture_output=True, check=True
    )
    assert group.run("hash('word')").wait() == other.run("hash('word')").wait() == [int(fixed.stdout)]
    group.close()
    other.close()


def test_the_environment_contract_holds(four: Any) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_NAME", "WORKER_NAME"]
    values = {name: four.environment(name).wait() for name in names}
    assert values["RANK"] == ["0", "1", "2", "3"]
    assert values["WORLD_SIZE"] == ["4"] * 4
    assert values["LOCAL_RANK"] == ["0", "1", "2", "3"]
    assert values["LOCAL_WORLD_SIZE"] == ["4"] * 4
    assert values["NODE_RANK"] == ["0"] * 4
    assert values["WORKER_NAME"] == [f"four:{rank}" for rank in range(4)]


def test_info_and_repr_tell_what_there_is(four: Any) -> None:
    four.hello().wait()
    infos = [entry.worker for entry in four.worker_info_list]
    assert [info.pid for info in infos] == four.pid().wait()
    assert [info.address.get_name() for info in infos] == [f"four:{rank}" for rank in range(4)]
    assert infos[0].node_id == 0
    assert infos[0].gpu_id == -1
    assert infos[0].available_gpus == ()
    assert repr(four) == "<WorkerGroup four [4 workers on 1 node | 0 calls open]>"
    handle = four.sleep(0.1)
    assert repr(four[0:2]) == "<WorkerGroup four [ranks 0-1 of 4 workers on 1 node | 1 call open]>"
    assert repr(handle) == "<Handle four.sleep() [4 of 4 open]>"
    handle.wait()


def test_a_worker_finds_a_group_without_naming_a_cluster(four: Any, cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, name="finder")
    assert group.find_by_name("four").wait() == [[0, 1, 2, 3]]
    group.close()


def test_class_methods_are_called_and_plain_generators_are_refused(four: Any) -> None:
    assert four[0].name_of_class().wait() == ["Plain"]
    with pytest.raises(TypeError, match="make it `async def`"):
        four[0].generate().wait()


def test_what_cannot_be_an_argument_says_what_to_do_instead(four: Any) -> None:
    with pytest.raises(SerializationError, match=r"args\[0\].*pass its name, 'four'"):
        four.echo(four)
    with pytest.raises(TypeError, match=r"each\(\) is for calls"):
        Plain.create_group(each([1, 2]))


def test_a_name_that_no_group_can_have_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="'driver' cannot be a group's name"):
        Plain.create_group().launch(cluster, name="driver")
    with pytest.raises(ValueError, match=r"'worker_group_LLLLL.* it has 313 bytes"):
        type("L" * 300, (Plain,), {}).create_group().launch(cluster)


@pytest.mark.parametrize(
    ("env", "error"),
    [
        ({"A=B": "x"}, ValueError),
        ({"A": "x" * 2_000_000}, ValueError),
        ({"A": 1}, TypeError),
        ({"RLINF_PARENT_SOCKET": ""}, ValueError),
    ],
)
def test_variables_that_cannot_be_are_refused(cluster: Cluster, env: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="env="):
        Plain.create_group().launch(cluster, env=env)


def test_a_worker_made_directly_says_how_it_is_done() -> None:
    with pytest.raises(RuntimeError, match="without create_group and launch"):
        Plain()


def test_a_class_of_this_very_module_can_be_launched(cluster: Cluster) -> None:
    class Local(Worker):
        def hello(self) -> str:
            return f"local {self._rank}"

    group = Local.create_group().launch(cluster, name="local")
    assert group.hello().wait() == ["local 0"]
    group.close()

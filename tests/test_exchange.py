"""Messages between workers: one suite over every transport."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy
from tests._support import exchanges, failing_exchanges
from tests._support.documented_exchange import RECV_GROUP_NAME, SEND_GROUP_NAME, RecvWorker, SendWorker
from tests._support.exchanges import Talker

pytestmark = pytest.mark.shared_cluster

QUICK_WAYS = ("shared", "gloo")
WAYS: dict[str, tuple[int, dict[str, str]]] = {
    "shared": (1, {}),
    "pieces": (1, {"RLINF_SHM_BUDGET": "0"}),
    "daemons": (2, {}),
    "gloo": (2, {}),
}
"""Nodes that the two groups are on, and the environment in which their workers take that way."""


class Talks:
    """Two groups, whose same ranks talk to each other."""

    def __init__(self, cluster: Cluster, way: str, size: int = 2, names: tuple[str, str] = ("a", "b")) -> None:
        nodes, environment = WAYS[way]
        self.way = way
        self.names = names
        self.a, self.b = (
            Talker.create_group()
            .launch(cluster, name=name, placement=NodePlacementStrategy([node] * size), env=environment)
            .wait_ready()
            for name, node in zip(names, (0, nodes - 1), strict=True)
        )
        if way == "daemons":
            for group in (self.a, self.b):
                group.do(exchanges.send_only_by_the_daemons).wait()

    def talk(self, one: Callable[..., Any], other: Callable[..., Any], *args: Any) -> tuple[list[Any], list[Any]]:
        """Both at once, in ``def`` or ``async def`` methods; what they return, by rank."""
        calls = []
        for group, function, peer in ((self.a, one, self.names[1]), (self.b, other, self.names[0])):
            method = group.ado if inspect.iscoroutinefunction(function) else group.do
            calls.append(method(function, peer, *args))
        return calls[0].wait(60), calls[1].wait(60)

    def close(self) -> None:
        self.a.close()
        self.b.close()


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


BY_WAY = [pytest.param(way, marks=() if way in QUICK_WAYS else pytest.mark.slow) for way in WAYS]


@pytest.fixture(scope="module", params=BY_WAY)
def talks(request: pytest.FixtureRequest, two_nodes: Cluster) -> Iterator[Talks]:
    talks = Talks(two_nodes, request.param)
    yield talks
    talks.close()


# -- every kind of value, every kind of method ----------------------------------------------------------------------


def test_every_value_arrives_as_it_was_sent_in_def_methods(talks: Talks) -> None:
    assert talks.talk(exchanges.ask_for_echoes, exchanges.echo) == ([[], []], [None, None])


def test_every_value_arrives_as_it_was_sent_in_coroutines(talks: Talks) -> None:
    assert talks.talk(exchanges.ask_for_echoes_async, exchanges.echo_async) == ([[], []], [None, None])


def test_every_value_arrives_as_it_was_sent_with_async_op(talks: Talks) -> None:
    assert talks.talk(exchanges.ask_for_echoes_with_async_op, exchanges.echo_async) == ([[], []], [None, None])


def test_each_way_is_really_taken(talks: Talks) -> None:
    """The links that the workers have made for what was large."""
    large, _ = talks.talk(exchanges.both_ways_async, exchanges.both_ways_async, 2)
    assert large == [True, True]
    links = {"pieces": ["pieces"], "gloo": ["gloo"]}.get(talks.way, [])
    assert talks.a.do(exchanges.links_that_were_made).wait() == [links] * 2


def test_single_tensors_are_received_in_place(talks: Talks) -> None:
    assert talks.talk(exchanges.send_tensors, exchanges.recv_tensors) == ([None, None], [[True] * 6] * 2)


def test_a_piggyback_comes_along_as_a_pair(talks: Talks) -> None:
    _, received = talks.talk(exchanges.send_with_piggyback, exchanges.recv_three)
    for plain, (tensor, version), (pair, zero) in received:
        assert plain == "plain"
        assert tensor.tolist() == [1, 1, 1]
        assert version == {"version": 3}
        assert (pair, zero) == ((1, 2), 0)


def test_blocking_sends_that_cross_do_not_wait_for_each_other(talks: Talks) -> None:
    for mib in (1, 32, 64):
        assert talks.talk(exchanges.both_ways, exchanges.both_ways, mib) == ([True, True], [True, True])


def test_64_mib_both_ways_at_once(talks: Talks) -> None:
    assert talks.talk(exchanges.both_ways_async, exchanges.both_ways_async, 64) == ([True, True], [True, True])


# -- errors ---------------------------------------------------------------------------------------------------------


def test_a_tensor_that_does_not_fit_is_an_error_on_both_sides_and_the_stream_goes_on(talks: Talks) -> None:
    senders, receivers = talks.talk(
        failing_exchanges.send_tensors_that_do_not_fit, failing_exchanges.recv_tensors_that_do_not_fit
    )
    for sent, received in zip(senders, receivers, strict=True):
        assert [text.partition(":")[0] for text in sent] == ["ValueError"] * 4
        assert received[-1] == "and so on"
        assert "its shape is (2, 3), and the tensor to receive it has (3, 2)" in received[0]
        assert "its dtype is float32, and the tensor to receive it has int32" in received[1]
        assert "its shape is (600000,)" in received[2]
        assert "has used send() there, which goes with recv()" in received[3]
        assert "has used send_tensor() there, which goes with recv_tensor()" in received[4]
        assert "of group 'b' on local-" in sent[0]
        assert "could not receive a message: the tensor that the peer has sent does not fit: its shape" in sent[0]


def test_what_cannot_be_sent_says_so_at_once(talks: Talks) -> None:
    expected = [
        "ValueError: All tensors must be contiguous when using P2P communication",
        "AssertionError: send_tensor() takes one dense tensor, got list",
        "AssertionError: recv_tensor() fills one dense tensor, got str",
        "SerializationError: what is to be sent",
        "ValueError: group 'b' has no rank 99: its ranks are 0-1",
        "ValueError: the path of ranks below 'b' is empty",
        "TypeError: a rank of 'b' is an int, or a path of ints, got '0'",
        "TypeError: a group is named by a str, got 7",
        "TypeError: options= takes CollectiveGroupOptions, got str",
        "ValueError: timeout= takes seconds, got -1",
    ]
    for answers in talks.a.do(failing_exchanges.send_what_cannot_be_sent, "b").wait():
        for answer, start in zip(answers, expected, strict=True):
            assert answer.startswith(start), answer


def test_a_group_that_there_is_not_is_an_error_that_lists_those_that_there_are(talks: Talks) -> None:
    for answers in talks.a.do(failing_exchanges.ask_a_group_that_there_is_not).wait():
        for text in answers:
            assert text == "DeadlineExceeded: there was no group named 'nobody' within 0.1 s; there are: a, b"


# -- giving up ------------------------------------------------------------------------------------------------------


def test_receives_that_are_given_up_lose_nothing(talks: Talks) -> None:
    for text, first, second in talks.talk(failing_exchanges.give_up_and_receive, failing_exchanges.send_two_when_told)[
        0
    ]:
        assert text.startswith("DeadlineExceeded: recv() from rank ")
        assert "of group 'b' on local-" in text
        assert text.endswith("was not done within 0.05 s")
        assert (first, second) == ("first", 500_000.0)


def test_a_receive_that_a_signal_interrupts_takes_nothing(talks: Talks) -> None:
    got = talks.talk(failing_exchanges.be_interrupted_and_receive, failing_exchanges.send_two_when_told)[0]
    assert got == [["interrupted", "interrupted", "first", 500_000.0]] * 2


def test_64_mib_are_accepted_by_somebody_who_has_asked_for_nothing_and_no_more(talks: Talks) -> None:
    for over, giant, done in talks.a.do(failing_exchanges.send_beyond_the_room, "b").wait():
        assert over.startswith("DeadlineExceeded: send() to rank")
        assert giant.startswith("DeadlineExceeded: send() to rank")
        assert done is True
    assert talks.b.do(failing_exchanges.sum_up, "a", 5).wait() == [[*[float(4 << 20)] * 4, "afterwards"]] * 2
    assert talks.talk(exchanges.both_ways, exchanges.both_ways, 1) == ([True, True], [True, True])


def test_a_send_that_is_given_up_in_the_middle_was_never_made(talks: Talks) -> None:
    assert talks.a.do(failing_exchanges.give_up_sending, "b").wait() == ["DeadlineExceeded"] * 2
    assert talks.b.do(exchanges.recv_one, "a").wait() == ["after it"] * 2


# -- the seed's example ---------------------------------------------------------------------------------------------


def test_the_communication_example_of_the_seed_runs_with_4_ranks_per_group(two_nodes: Cluster) -> None:
    placement = NodePlacementStrategy([0, 0, 0, 0])
    send_group = SendWorker.create_group().launch(two_nodes, placement, name=SEND_GROUP_NAME)
    recv_group = RecvWorker.create_group().launch(two_nodes, placement, name=RECV_GROUP_NAME)
    sent = send_group.hello_recv()
    for rank, (text, tensor, tensors, named, in_place) in enumerate(recv_group.hello_recv().wait()):
        assert text == f"Hello from SendWorker Rank {rank}!"
        assert (tensor.tolist(), [each.item() for each in tensors]) == ([[1]], [1] * 4)
        assert {name: each.item() for name, each in named.items()} == {"tensor1": 2, "tensor2": 3}
        assert in_place.tolist() == [[1], [1]]
    assert sent.wait() == [f"Hello from RecvWorker Rank {rank}!" for rank in range(4)]
    sent = send_group.hello_recv_async()
    assert [[each.shape[0] for each in pair] for pair in recv_group.hello_recv_async().wait()] == [[3, 4]] * 4
    sent.wait()
    send_group.close()
    recv_group.close()


# -- many -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", [40, pytest.param(200, marks=pytest.mark.histories)])
@pytest.mark.parametrize("way", BY_WAY)
def test_crossed_first_sends_in_random_orders_over_8_ranks_all_complete(
    two_nodes: Cluster, way: str, orders: int
) -> None:
    talks = Talks(two_nodes, way, 4, ("here", "there"))
    calls = [group.ado(exchanges.in_random_orders, ["here", "there"], orders) for group in (talks.a, talks.b)]
    assert [call.wait(59) for call in calls] == [[orders * 16] * 4] * 2
    talks.close()


def test_a_thousand_pending_receives_take_no_threads(two_nodes: Cluster) -> None:
    one, eight = (
        Talker.create_group().launch(two_nodes, name=name, placement=NodePlacementStrategy(nodes))
        for name, nodes in (("one", [0]), ("eight", [0] * 4 + [1] * 4))
    )
    sending = eight.do(exchanges.send_many, "one", 125)
    added, right = one.ado(exchanges.wait_for_a_thousand, "eight", 8, 125).wait()[0]
    sending.wait()
    assert right
    assert added <= 4
    one.close()
    eight.close()


# -- oneself, and those below ---------------------------------------------------------------------------------------


def test_a_worker_talks_to_itself(talks: Talks) -> None:
    assert talks.a.do(exchanges.talk_to_oneself, "a").wait() == [True, True]


async def test_a_message_whose_waiter_is_cancelled_when_it_is_here_goes_back(talks: Talks) -> None:
    assert await talks.a.ado(failing_exchanges.cancel_at_the_last_moment, "a", 40) == [list(range(40))] * 2


def test_the_workers_of_a_worker_are_reached_by_their_path(talks: Talks) -> None:
    talks.b.launch_children(2).wait()
    handle = talks.b.children_do(1, exchanges.sum_up_from, "a", 0)
    talks.a.execute_on(0).do(exchanges.send_to_both, "b", [[0, 1], [1, 1]]).wait()
    assert handle.wait() == [6.0, 6.0]
    back = talks.b.children_do(0, exchanges.send_one, "from below", "a", 1)
    assert sorted(talks.a.execute_on(1).do(exchanges.recv_from_both, "b", [[0, 0], [1, 0]]).wait()[0]) == [
        "from below",
        "from below",
    ]
    back.wait()
    talks.b.close_children().wait()


# -- broadcast ------------------------------------------------------------------------------------------------------


def test_every_member_gets_what_the_source_gives_in_any_turn(talks: Talks) -> None:
    groups = [("a", [0, 1]), ("b", [0, 1])]
    sources = [("a", 0), ("b", 1), ("b", 1), ("a", 1), ("b", 0)] * 3
    calls = [group.do(exchanges.broadcast_in_turns, groups, sources) for group in (talks.a, talks.b)]
    assert [call.wait(60) for call in calls] == [[True, True], [True, True]]


def test_the_order_of_the_groups_does_not_matter_where_the_source_is_named(talks: Talks) -> None:
    calls = [
        group.do(exchanges.broadcast_in_turns, groups, [("b", 0)])
        for group, groups in ((talks.a, [("a", [0, 1]), ("b", 0)]), (talks.b.execute_on(0), [("b", 0), ("a", [1, 0])]))
    ]
    assert [call.wait(60) for call in calls] == [[True, True], [True]]


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_broadcasts_keep_their_order_and_leave_messages_alone(talks: Talks, size: int) -> None:
    groups = [("b", [1, 0]), ("a", 0), ("a", (1,))]
    calls = [group.ado(exchanges.broadcast_with_sends_between, groups, size) for group in (talks.a, talks.b)]
    assert [call.wait(59) for call in calls] == [[[float(i) for i in range(10)]] * 2] * 2


def test_a_broadcast_to_oneself_is_no_broadcast(talks: Talks) -> None:
    assert talks.a.do(exchanges.broadcast_alone).wait() == ["alone", "alone"]


def test_a_broadcast_with_wrong_members_says_what_is_wrong(talks: Talks) -> None:
    for answers in talks.a.do(exchanges.broadcasts_that_are_wrong, "b").wait():
        kinds = [answer.partition(":")[0] for answer in answers]
        assert kinds == ["ValueError"] * 2 + ["TypeError"] * 3 + ["ValueError"] * 2
        assert "is not part of the broadcast group" in answers[5]
        assert "src= is rank 0 of group 'b', which is not in groups=" in answers[6]


# -- beside user code -----------------------------------------------------------------------------------------------


def test_a_worker_that_is_busy_takes_messages_in_meanwhile(talks: Talks) -> None:
    busy = talks.b.do(exchanges.compute, 1.0)
    sent = talks.a.do(exchanges.send_and_look_at_the_clock, "b", 1 << 20).wait()
    assert max(sent) < min(busy.wait())
    assert talks.b.do(exchanges.recv_size, "a").wait() == [1 << 20] * 2

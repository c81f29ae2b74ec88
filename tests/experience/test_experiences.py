"""Experiences of real processes: takes that end well, by an error or a death; versions, wishes, publications, names."""

from __future__ import annotations

import enum
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlinf_async import (
    Channel,
    ClosedError,
    Cluster,
    ConfigError,
    EndOfChannel,
    Experience,
    NodePlacementStrategy,
    WorkerDied,
)  # fmt: skip
from rlinf_async._core import operations
from tests._support.experience_workers import Player

pytestmark = pytest.mark.shared_cluster


class Color(enum.Enum):
    RED = "red"


def launch(cluster: Cluster, name: str, node: int = 0, **how: Any) -> Any:
    return Player.create_group().launch(cluster, NodePlacementStrategy([node]), name=name, **how).wait_ready()


def fill(experience: Experience, groups: int, version: int = 0) -> None:
    for number in range(groups):
        for sample in "ab":
            experience.put(f"{sample}{number}", version=version, group=number)


def test_a_block_that_ends_well_has_its_groups_and_one_that_fails_gives_them_back(experience: Experience) -> None:
    fill(experience, 3)
    with pytest.raises(LookupError):
        _fail_after_one(experience)
    with experience.take(2) as batch:
        assert batch == [["a1", "b1"], ["a2", "b2"]]
        assert (batch.items, batch.names, batch.redelivered) == (["a1", "b1", "a2", "b2"], [1, 2], True)
        assert experience.stats().leased == 4
    stats = experience.stats()
    assert (stats.put, stats.taken, stats.present, stats.leased, stats.dropped) == (6, 6, 0, 0, {})


def _fail_after_one(experience: Experience) -> None:
    with experience.take(2) as batch:
        batch.done()
        raise LookupError


def test_samples_of_workers_come_with_their_versions_and_stale_groups_are_dropped_or_handed_over(
    experience: Experience, players: Any
) -> None:
    tensors = [torch.full((100_000,), float(number)) for number in range(2)]
    players[1].put_all(experience, tensors, version=3, group="large").wait()
    experience.set_version(4)
    ((items, versions, staleness),) = players[0].take(experience, 1).wait()
    assert [item[-1].item() for item in items] == [0.0, 1.0]
    assert (versions, staleness) == ([3, 3], [1, 1])
    players[1].put_all(experience, ["old", "older"], version=1, group=1).wait()
    corrected: list[Any] = []

    def correct(samples: list[Any], behind: int) -> list[Any]:
        corrected.append((samples, behind))
        return [(sample, behind) for sample in samples]

    with experience.take(on_stale=correct) as batch:
        assert batch.items == [("old", 3), ("older", 3)]
        assert batch.staleness == [3, 3]
    assert corrected == [(["old", "older"], 3)]
    players[1].put_all(experience, ["old", "older"], version=2, group=1).wait()
    players[1].put_all(experience, ["new", "newer"], version=4, group=1).wait()
    with experience.take() as batch:
        assert batch.items == ["new", "newer"]
    assert sum(experience.stats().dropped.values()) == 2


@pytest.mark.parametrize("node", [0, 1], ids=["near", "far"])
def test_a_killed_trainer_has_what_it_confirmed_and_the_rest_goes_to_the_next(
    cluster: Cluster, experience: Experience, node: int
) -> None:
    fill(experience, 3)
    mortal = launch(cluster, "mortal", node)
    with pytest.raises(WorkerDied):
        mortal.take_and_be(experience, 3, 1, signal.SIGKILL).wait()
    with experience.take(2) as batch:
        assert batch == [["a1", "b1"], ["a2", "b2"]]
    assert experience.stats().taken == 6
    mortal.close()


@pytest.mark.parametrize("node", [0, 1], ids=["near", "far"])
def test_what_a_group_publishes_is_the_version_of_the_experiences_of_it(cluster: Cluster, node: int) -> None:
    experience = Experience.create("published", of="publisher", node_rank=node)
    trainer = launch(cluster, "publisher", 1)
    trainer.publish(3).wait()
    assert experience.stats().version == 3
    later = Experience.create("later", of="publisher", node_rank=node)
    assert later.stats().version == 3
    with pytest.raises(ValueError, match="it has the version that group 'publisher' publishes"):
        experience.set_version(4)
    trainer.unpublish().wait()
    trainer.publish(1).wait()  # as one that has begun anew
    assert experience.stats().version == 1
    trainer.unpublish().wait()
    trainer.close()
    for each in (experience, later):
        each.close()


@pytest.mark.parametrize("node", [0, 1], ids=["far", "near"])
def test_a_take_behind_a_send_has_nothing_that_is_too_stale_for_what_was_sent(cluster: Cluster, node: int) -> None:
    experience = Experience.create("fresh", max_staleness=0, of="sender", node_rank=node)
    trainer = launch(cluster, "sender", 1)
    trainer.publish(1).wait()
    assert trainer.take_behind_sends(experience, 50).wait() == [[0] * 50]
    assert sum(experience.stats().dropped.values()) == 50
    trainer.unpublish().wait()
    trainer.close()
    experience.close()


def test_it_travels_by_name_and_as_an_argument_and_its_content_to_another_one(cluster: Cluster, players: Any) -> None:
    experience = Experience.create("first", group=2)
    connected = Experience.connect("first")
    connected.set_version(2)
    players.put_all(experience, ["a", "b"], version=2, group=(1, "x")).wait()
    with experience.take():
        state = pickle.loads(pickle.dumps(connected.state_dict()))
    assert [sample[:3] for sample in state["samples"]] == [(None, (1, "x"), 2)] * 4
    second = Experience.create("second", group=2)
    second.load_state_dict(state)
    with second.take(2) as batch:
        assert sorted(batch.items) == ["a", "a", "b", "b"]
    assert (second.stats().version, second.stats().put) == (2, 4)
    with pytest.raises(ValueError, match="only a new experience takes over an earlier one; samples were put"):
        second.load_state_dict(state)
    for each in (experience, second):
        each.close()


def test_a_content_comes_with_keys_of_any_kind_and_needs_room_for_whole_groups(cluster: Cluster) -> None:
    first = Experience.create("keys", group=2, maxsize=4)
    for sample in "ab":
        first.put(sample, version=0, key=Color.RED)
    with first.take(key=Color.RED):
        for name in (1, 2):  # incomplete, and beside them what is leased
            first.put("half", version=0, group=name)
        state = first.state_dict()
    second = Experience.create("small", group=2, maxsize=4)
    with pytest.raises(ValueError, match=r"4 samples and what their groups lack do not fit into maxsize=4: .* with 6"):
        second.load_state_dict(state)
    third = Experience.create("large", group=2, maxsize=6)
    third.load_state_dict(state)
    with third.take(key=Color.RED) as batch:
        assert batch.items == ["a", "b"]
    first.close(discard=True)
    with pytest.raises(ClosedError, match="is closed, and everything in it has been taken"):
        first.state_dict()
    second.close()
    third.close()


def test_puts_that_wait_for_room_do_not_keep_back_those_that_make_it(cluster: Cluster, players: Any) -> None:
    experience = Experience.create("narrow", group=2, maxsize=2)
    playing = players[0].put_at_once(experience, [*range(24), 0], 1 << 20)  # more than a channel lets a process send
    with experience.take() as batch:
        assert batch.names == [0]
    experience.close(discard=True)
    playing.wait()


async def test_in_coroutines_a_cancelled_take_leaves_the_groups_and_a_close_ends_takes() -> None:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        experience = await Experience.create("coroutines", cluster=cluster)
        waiting = experience.put("a", version=0)
        await waiting
        async with experience.take() as batch:
            assert batch.items == ["a"]
        await experience.aclose()
        with pytest.raises(EndOfChannel):
            async with experience.take():
                pass


BAD: list[tuple[str, Callable[[Experience], Any], str]] = [
    (
        "group",
        lambda e: Experience.create("x", group=0),
        r"experience 'x': group= takes a whole number from 1 .*, got 0",
    ),
    ("negative", lambda e: Experience.create("x", max_staleness=-1), r"max_staleness= takes .* from 0 .*, got -1"),
    ("half", lambda e: Experience.create("x", max_staleness=1.5), r"max_staleness= takes a whole number, got 1.5"),  # type: ignore[arg-type]
    ("lease", lambda e: Experience.create("x", lease=0), r"experience 'x': lease= takes seconds, more than 0, got 0"),
    ("order", lambda e: Experience.create("x", order="best"), r"order= takes 'oldest' or 'newest', got 'best'"),  # type: ignore[arg-type]
    ("short", lambda e: Experience.create("x", short_groups=1), r"short_groups= takes 'drop' or 'take', got 1"),  # type: ignore[arg-type]
    ("durable", lambda e: Experience.create("x", durable=3), r"durable= takes the path of a file, or None, got 3"),  # type: ignore[arg-type]
    ("node", lambda e: Experience.create("x", node_rank=9), r"experience 'x': there is no node 9"),
    ("text", lambda e: Experience.create(7), r"the name of an experience is a str, got 7"),  # type: ignore[arg-type]
    ("sample", lambda e: e.put(threading.Lock(), version=0), r"an item for experience 'sound' cannot travel"),
    ("timeout", lambda e: e.put(0, version=0, timeout="1"), r"put\(\) to experience 'sound': "),  # type: ignore[arg-type]
    ("discard", lambda e: e.close(discard=1), r"close\(discard=\) of experience 'sound' takes True or False"),  # type: ignore[arg-type]
    ("absent", lambda e: Experience.connect("x", timeout=0), r"there was no experience named 'x' within 0 s"),
    (
        "again",
        lambda e: [e.put(0, version=0), _enter_twice(e.take())],
        r"a take is for one block: call experience.take\(\) for each",
    ),
    ("closed", lambda e: [e.close(), e.put(0, version=0)], r"experience 'sound' is closed; .* another experience, whi"),
    ("ended", lambda e: [e.close(), e.take().__enter__()], r"experience 'sound' is closed; nothing is left"),
    (
        "room",
        lambda e: Experience.create("x", group=4, maxsize=3),
        r"experience 'x': maxsize=3 has no room for a group of 4: make it 4 or more",
    ),
    ("folder", lambda e: Experience.create("x", durable="/nowhere/x.db"), r"'/nowhere/x.db': .* no folder /nowhere"),
    ("version", lambda e: e.put(0, version=-1), r"version= takes a whole number from 0 .*, got -1"),
    ("name", lambda e: e.put(0, version=0, group=object()), r"group= takes a number, a text, bytes, None"),
    ("take", lambda e: e.take(0), r"take\(\) from experience '.*': groups= takes a whole number from 1"),
    (
        "back",
        lambda e: [e.set_version(5), e.set_version(4)],
        r"set_version\(4\) of experience .* write set_version\(4, r",
    ),
    ("kind", lambda e: Channel.connect(e.name), r"is an experience: use Experience.connect\(\), or another name"),
]


def _enter_twice(take: Any) -> None:
    with take:
        take.__enter__()


@pytest.mark.parametrize(("use", "text"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_what_an_experience_cannot_take_is_said_in_a_sentence(
    cluster: Cluster, use: Callable[[Experience], Any], text: str
) -> None:
    experience = Experience.create("sound")
    with pytest.raises((ValueError, TypeError, RuntimeError, ClosedError, TimeoutError), match=text) as caught:
        use(experience)
    assert "channel '" not in str(caught.value)
    experience.close()


def test_a_channel_is_no_experience_and_a_second_trainer_is_refused(cluster: Cluster, players: Any) -> None:
    with Channel.create("channel"), pytest.raises(ConfigError, match="'channel' is a channel: use Channel"):
        Experience.create("channel")
    experience = Experience.create("one-trainer")
    experience.set_version(1)
    with pytest.raises(
        ValueError, match=r"by group 'players': driver \d+ sets its versions, and an experience has one"
    ):
        players[0].set_version(experience, 2).wait()
    experience.close()


def test_the_ledger_stands_in_the_report_of_the_run_and_in_the_metrics(cluster: Cluster) -> None:
    experience = Experience.create("counted", group=2)
    fill(experience, 2)
    with experience.take():
        (report,) = [each for each in _queues(cluster) if each["name"] == "counted"]
    assert report["ledger"] == {"put": 4, "taken": 0, "present": 2, "leased": 2, "dropped": 0}
    samples = cluster._client.request(operations.ScrapeNode(), node=0).wait()["samples"]["rlinf_experience_samples"]
    assert [value for value in samples if value[0] == "counted"] == [
        ["counted", "put", 4], ["counted", "taken", 2], ["counted", "present", 2], ["counted", "leased", 0],
        ["counted", "dropped", 0],
    ]  # fmt: skip
    experience.close(discard=True)


def _queues(cluster: Cluster) -> list[dict[str, Any]]:
    report = cluster._client.request(operations.Inspect([], ["queues"]), node=0).wait()
    queues: list[dict[str, Any]] = report["queues"]
    return queues

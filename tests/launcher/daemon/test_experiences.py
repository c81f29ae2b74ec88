"""Durable experiences at their close; ends and losses of a trainer, and their waiting producers."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_async._core import frames, operations
from rlinf_async._experience.state.experience_options import ExperienceOptions
from rlinf_async._experience.state.experience_queue import TAKE, pack_kind, pack_name
from rlinf_launcher.daemon.channels import Channels
from rlinf_launcher.daemon.experiences import Experiences, HostedExperience
from rlinf_launcher.daemon.handlers import Requester

TRAINER, SUCCESSOR = frames.endpoint(1, 7), frames.endpoint(2, 8)
KILLED = {"group": "trainer", "rank": 0, "node": "one", "pid": 3, "verdict": "was killed"}


class Daemon:
    """A daemon with one experience; the test answers its requests."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: list[tuple[int, Any, asyncio.Future[Any]]] = []
        self.node = SimpleNamespace(name="one", lost=None)
        self.router = Mock(node=2, node_links={1: self.node}, ask=self.ask)
        channels = Mock()
        self.experiences = Experiences(loop, self.router, channels, set(), 0)
        self.hosted = HostedExperience(5, "e", 1, ExperienceOptions(), channels, self.router, set(), loop)
        channels.all_hosted.return_value = [self.hosted]
        self.hosted.queue.set_version(TRAINER, "group 'trainer'", 1, restart=False)

    def ask(self, node: int, operation: Any) -> asyncio.Future[Any]:
        self.asked.append((node, operation, asyncio.get_running_loop().create_future()))
        return self.asked[-1][2]

    async def answer(self, node: int, operation: Any, value: Any) -> None:
        *asked, future = self.asked.pop()
        assert asked == [node, operation]
        future.set_result(value)
        await asyncio.sleep(0)

    def lose_node(self) -> None:
        self.node.lost = "no answer"
        self.experiences.drop_node(1)

    @property
    def story(self) -> str:
        return self.hosted.queue.story.partition("is gone: ")[2]


async def test_nothing_keeps_an_experience_that_has_ended() -> None:
    daemon, owner = Daemon(), 1
    loop = asyncio.get_running_loop()
    channels = Channels(loop, daemon.router, set(), 0)
    hosted = HostedExperience(6, "e", owner, ExperienceOptions(), channels, daemon.router, set(), loop)
    channels.host(hosted)
    kind = pack_kind(TAKE, None)
    hosted.follow(hosted.queue.put(3, 1, pack_name(None, b"g"), 0, 1, b"sample"))
    hosted.follow(hosted.queue.get(4, 1, kind, 1, False, True, False, False, False, 0.0))
    channels.drop_owner(owner)
    await asyncio.sleep(0)
    ref = weakref.ref(hosted)
    daemon.router.reset_mock()
    del hosted
    gc.collect()
    assert ref() is None


async def test_a_close_is_done_when_the_disk_has_it() -> None:
    daemon, number = Daemon(), 6
    channels = Channels(asyncio.get_running_loop(), daemon.router, set(), 0)
    options = ExperienceOptions(durable="/x")
    hosted = HostedExperience(number, "e", 1, options, channels, daemon.router, set(), asyncio.get_running_loop())
    changes: list[Any] = []
    hosted.store = Mock(write=changes.append)
    channels.host(hosted)
    hosted.queue.put(3, 1, pack_name(None, b"g"), 0, 1, b"sample")
    hosted._written([(changes.pop(), None)])
    closing = asyncio.ensure_future(channels.close_channel(Requester(1, 1), operations.CloseChannel(number, True)))
    await asyncio.sleep(0)
    drop, barrier = changes
    hosted._written([(drop, None)])
    assert not closing.done()
    hosted._written([(barrier, None)])
    assert await closing
    hosted.store.close.assert_called_once()


async def test_a_silent_node_hides_no_other_nodes_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_launcher.daemon.experiences._PUBLICATIONS_TIMEOUT_S", 0.01)
    daemon = Daemon()
    links = [SimpleNamespace(node=node, over=None) for node in (1, 3)]
    daemon.router.node_links = {link.node: link for link in links}
    hosting = asyncio.create_task(
        daemon.experiences.host_experience(Requester(1, 1), operations.HostExperience(6, "e", {"of": "trainer"}))
    )
    await asyncio.sleep(0)
    daemon.asked[0][2].set_result([TRAINER, "policy", 7])
    await hosting
    assert daemon.experiences._published == {"trainer": (TRAINER, "policy", 7)}
    assert daemon.asked[1][2].cancelled()


async def test_an_experience_that_cannot_be_hosted_leaves_its_file(tmp_path: Path) -> None:
    daemon, options = Daemon(), {"durable": f"{tmp_path}/x.db"}
    host = daemon.experiences._channels.host = Mock(side_effect=[ValueError("a number in use"), None])
    operation = operations.HostExperience(6, "e", options)
    with pytest.raises(ValueError, match="a number in use"):
        await daemon.experiences.host_experience(Requester(1, 1), operation)
    await daemon.experiences.host_experience(Requester(1, 1), operation)
    host.call_args.args[0].ended()


async def test_a_node_lost_before_its_answer_explains_the_trainers_end() -> None:
    daemon = Daemon()
    daemon.hosted.queue.drop(TRAINER)
    daemon.lose_node()
    await daemon.answer(0, operations.ComesBack(TRAINER), False)
    assert daemon.story == "node 1 (one) is lost: no answer"


ENDS: list[tuple[Callable[[Experiences], None], str]] = [
    (lambda experiences: experiences.drop_owner(SUCCESSOR), "its group was closed"),
    (lambda experiences: experiences.note_return(given_up(KILLED)), "rank 0 of group 'trainer' on one (pid 3) was k"),
    (lambda experiences: experiences.note_return(given_up({})), "rank 0 of group 'trainer' has no room anywhere"),
]


def given_up(report: dict[str, Any]) -> operations.RankReturned:
    return operations.RankReturned("trainer", 1, 0, SUCCESSOR, None, {**report, "reason": "has no room anywhere"})


@pytest.mark.parametrize(("end", "story"), ENDS, ids=["closed", "given up", "given up after the loss of its node"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["the process", "its node"])
async def test_a_returning_trainer_is_awaited_until_its_group_gives_up(
    end: Callable[[Experiences], None], story: str, is_lost: bool
) -> None:
    daemon = Daemon()
    if is_lost:
        daemon.lose_node()
    daemon.hosted.queue.drop(TRAINER)
    if is_lost:
        await daemon.answer(0, operations.ComesBack(TRAINER), True)
    else:
        await daemon.answer(1, operations.HowEnded(7), {**KILLED, "returns": True})
    assert daemon.story == ""
    entry = {"endpoint": SUCCESSOR}  # in its place, and ends before it has set a version
    daemon.experiences.note_return(operations.RankReturned("trainer", 1, 0, TRAINER, entry, KILLED))
    end(daemon.experiences)
    assert daemon.story.startswith(story)


@pytest.mark.parametrize(
    ("report", "story"),
    [({**KILLED, "returns": True}, "rank 0 of group 'trainer' on one (pid 3) was k"), (None, "it has ended in order")],
    ids=["died", "ended"],
)
async def test_a_trainers_last_words_come_after_its_groups_close(report: Any, story: str) -> None:
    daemon = Daemon()
    daemon.hosted.queue.drop(TRAINER)
    daemon.experiences.drop_owner(TRAINER)
    await daemon.answer(1, operations.HowEnded(7), report)
    assert daemon.story.startswith(story)

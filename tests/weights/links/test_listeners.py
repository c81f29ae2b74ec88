"""Listeners of a link: one that raises ends the link."""

from __future__ import annotations

import pytest
import torch

from rlinf_async.errors import ClosedError, PeerLost
from rlinf_async.weights import Publisher, Subscriber
from tests._support import socket_links
from tests._support.recording_listener import Ear
from tests._support.weight_parts import LinkMessage, LocalLink, SyncHandle, WeightLink

Ends = tuple[WeightLink, WeightLink]


class Fault(Exception):
    pass


class Raising(Ear):
    """Of what it hears."""

    def on_message(self, words: LinkMessage) -> None:
        super().on_message(words)
        raise Fault(words[0])


class RaisingAtTheEnd(Ear):
    def on_end(self, error: Exception) -> None:
        super().on_end(error)
        raise Fault("at the end")


@pytest.fixture(params=[LocalLink.pair, socket_links.pair], ids=["local", "socket"])
def ends(request: pytest.FixtureRequest) -> Ends:
    links: Ends = request.param()
    return links


def test_a_listener_that_raises_ends_the_link_on_both_sides_and_hears_nothing_more(ends: Ends) -> None:
    one, other = ends
    own, ear = Ear(), Raising()
    one.listen(own)
    other.listen(ear)
    one.send(["first"])
    ear.until(lambda: ear.end is not None)
    own.until(lambda: own.end is not None)
    assert isinstance(ear.end, Fault)
    assert other.error is ear.end
    assert isinstance(own.end, PeerLost)
    with pytest.raises(PeerLost, match="is gone: first"):
        other.send(["an answer"])
    with pytest.raises(PeerLost):
        one.send(["second"])
    assert ear.words == [["first"]]
    for link in ends:
        link.close()


def test_a_listener_that_raises_at_what_was_kept_for_it_hears_the_end_once_and_nothing_more() -> None:
    one, other = LocalLink.pair()
    for word in ("first", "second"):
        one.send([word])
    ear = Raising()
    other.listen(ear)
    assert ear.words == [["first"]]
    assert isinstance(ear.end, Fault)
    assert isinstance(one.error, PeerLost)
    one.close()


def test_a_listener_that_closes_the_link_at_what_was_kept_for_it_hears_the_end_once() -> None:
    one, other = LocalLink.pair()

    class Closing(Ear):
        def on_message(self, words: LinkMessage) -> None:
            super().on_message(words)
            other.close()

    for word in ("first", "second"):
        one.send([word])
    ear = Closing()
    other.listen(ear)
    assert ear.words == [["first"]]
    assert isinstance(ear.end, ClosedError)
    one.close()


def test_a_listener_that_raises_at_the_end_keeps_no_other_from_hearing_it() -> None:
    pairs = [socket_links.pair() for _ in range(2)]
    ears = [RaisingAtTheEnd(), RaisingAtTheEnd()]
    for (_, link), ear in zip(pairs, ears, strict=True):
        link.listen(ear)
    for link, _ in pairs:
        link.close()
    for ear in ears:
        ear.until(lambda ear=ear: ear.end is not None)  # type: ignore[misc]


async def test_a_wait_that_is_cancelled_when_the_last_answer_has_come_makes_nobody_deaf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complete = Publisher._complete
    handles: list[SyncHandle] = []

    def cancel_first(self: Publisher, version: int) -> None:
        for handle in handles:
            if handle.version == version:
                handle.cancel()  # as another thread does, when the answer is counted and its version not yet complete
        complete(self, version)

    monkeypatch.setattr(Publisher, "_complete", cancel_first)
    held = {"a": torch.zeros(5)}
    link, other = socket_links.pair()
    subscriber = Subscriber(other, held)
    async with Publisher({"a": torch.ones(5)}) as publisher:
        publisher.add(0, link)
        handles.append(await publisher.publish())
        subscriber.serve()
        with pytest.raises(ClosedError, match="nobody waited"):
            await handles[0]
        report = await (await publisher.publish({"a": torch.full((5,), 2.0)}, timeout=5))
        assert (report.version, report.per_worker[0].status, held["a"].tolist()) == (2, "applied", [2.0] * 5)
        assert link.error is None
        await subscriber.close()

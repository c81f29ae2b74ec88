"""Links between two ends: order, closing, leaks."""

from __future__ import annotations

import pytest

from rlinf_async.errors import ClosedError, PeerLost
from tests._support import socket_links
from tests._support.recording_listener import Ear
from tests._support.weight_parts import LinkMessage, LocalLink, WeightLink

Ends = tuple[WeightLink, WeightLink]


@pytest.fixture(params=[LocalLink.pair, socket_links.pair], ids=["local", "socket"])
def ends(request: pytest.FixtureRequest) -> Ends:
    links: Ends = request.param()
    return links


def test_words_arrive_in_order_and_those_from_before_somebody_listened_first(ends: Ends) -> None:
    one, other = ends
    ear = Ear()
    for number in range(50):
        one.send([number, "text", b"bytes", None, [1.5]])
    other.listen(ear)
    for number in range(50, 100):
        one.send([number])
    ear.until(lambda: len(ear.words) == 100)
    assert [words[0] for words in ear.words] == list(range(100))
    assert ear.words[0][1:] == ["text", b"bytes", None, [1.5]]
    for link in ends:
        link.close()


def test_closing_is_heard_after_all_that_was_said_and_may_be_repeated(ends: Ends) -> None:
    one, other = ends
    ear, own = Ear(), Ear()
    one.listen(own)
    one.send(["last"])
    one.close()
    one.close()
    other.listen(ear)
    ear.until(lambda: ear.end is not None)
    assert ear.words == [["last"]]
    assert isinstance(ear.end, PeerLost)
    assert isinstance(own.end, ClosedError)
    with pytest.raises(PeerLost):
        other.send(["too late"])
    with pytest.raises(ClosedError):
        one.send(["too late"])
    late = Ear()
    other.listen(late)
    assert late.end is ear.end
    other.close()


def test_a_link_may_be_closed_by_what_it_hears(ends: Ends) -> None:
    one, other = ends

    class Closing(Ear):
        def on_message(self, words: LinkMessage) -> None:
            other.close()

    own = Ear()
    one.listen(own)
    other.listen(Closing())
    one.send(["go"])
    own.until(lambda: own.end is not None)
    one.close()


def test_a_word_that_is_said_while_another_thread_closes_the_link_hears_that() -> None:
    one, _ = LocalLink.pair()
    one.close()
    with pytest.raises(ClosedError, match="is closed"):
        one._send(["late"])  # after ``send`` has seen that the link is whole

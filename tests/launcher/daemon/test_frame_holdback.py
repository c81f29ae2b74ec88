"""Frames held back by a node link: in order per source, whenever their bodies arrive."""

from __future__ import annotations

from hypothesis import given, strategies as st

from rlinf_launcher.daemon.frame_holdback import Holdback


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40), st.data())
def test_frames_keep_their_sources_order_whenever_bodies_arrive(
    sent: list[tuple[int, bool]], data: st.DataObject
) -> None:
    holdback = Holdback()
    passed: list[tuple[int, int]] = []
    transfers = [number for number, (_, large) in enumerate(sent) if large]
    waiting = data.draw(st.permutations(transfers))
    arrivals = {number: data.draw(st.integers(0, len(sent))) for number in waiting}
    for number, (source, large) in enumerate(sent):
        for transfer in [t for t in waiting if arrivals[t] == number]:
            passed += holdback.arrived(transfer)
        passed += holdback.push(source, (source, number), number if large else None)
    for transfer in [t for t in waiting if arrivals[t] >= len(sent)]:
        passed += holdback.arrived(transfer)
    for source in range(3):
        assert [n for s, n in passed if s == source] == [n for n, (s, _) in enumerate(sent) if s == source]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.booleans()), max_size=40), st.data())
def test_replies_keep_their_order_and_the_end_is_last(sent: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    """Branch 0 means a frame that is not a reply."""
    holdback = Holdback()
    passed: list[tuple[int, int, int]] = []
    transfers = [number for number, (*_, large) in enumerate(sent) if large]
    arrivals = {number: data.draw(st.integers(0, len(sent))) for number in data.draw(st.permutations(transfers))}
    end = data.draw(st.integers(0, len(sent)))
    for number, (source, branch, large) in enumerate(sent):
        for transfer in [t for t, at in arrivals.items() if at == number]:
            passed += holdback.arrived(transfer)
        if source == 1 or number < end:
            frame, transfer = (source, branch, number), number if large else None
            passed += holdback.push(source, frame, transfer, branch or None)
    passed += holdback.push(0, (0, 0, 1000), is_last=True)
    for transfer in [t for t, at in arrivals.items() if at >= len(sent) and (sent[t][0] == 1 or t < end)]:
        passed += holdback.arrived(transfer)
    told = [(source, branch, n) for n, (source, branch, _) in enumerate(sent) if source == 1 or n < end]
    assert sorted(passed) == sorted([*told, (0, 0, 1000)])
    for source in range(2):
        for branch in range(3):
            assert [each for each in passed if each[:2] == (source, branch) and each[2] < 1000] == [
                each for each in told if each[:2] == (source, branch)
            ]
    assert [each for each in passed if each[0] == 0][-1] == (0, 0, 1000)


def test_a_large_reply_delays_no_other_reply_or_frame() -> None:
    holdback = Holdback()
    assert holdback.push(1, "large", 5, ("driver", 1)) == []
    assert holdback.push(1, "small", None, ("driver", 2)) == ["small"]
    assert holdback.push(1, "item of it", None, ("driver", 1)) == []
    assert holdback.push(1, "message") == ["message"]
    assert holdback.push(1, "large message", 6) == []
    assert holdback.push(1, "answer after it", None, ("driver", 3)) == []
    assert holdback.push(1, "end", is_last=True) == []
    assert holdback.arrived(5) == ["large", "item of it"]
    assert holdback.arrived(6) == ["large message", "answer after it", "end"]


def test_a_source_does_not_wait_for_anothers_body() -> None:
    holdback = Holdback()
    assert holdback.push(1, "large", 5) == []
    assert holdback.push(1, "after") == []
    assert holdback.push(2, "other") == ["other"]
    assert holdback.arrived(5) == ["large", "after"]
    assert holdback.push(1, "free") == ["free"]


def test_dropping_gives_back_what_was_held() -> None:
    holdback = Holdback()
    holdback.push(1, "large", 5)
    holdback.push(1, "after")
    assert holdback.drop() == ["large", "after"]
    assert holdback.push(1, "next") == ["next"]

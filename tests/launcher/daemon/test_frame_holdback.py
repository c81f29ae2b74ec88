"""Frames that a node link holds back: order per source, whenever their bodies arrive."""

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

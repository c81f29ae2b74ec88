"""Incoming buckets: lost, duplicate and late ones never mix two versions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from rlinf_async.errors import StaleVersion, WeightMismatch
from rlinf_async.rlinf.buckets import IncomingBuckets, Marked
from rlinf_async.rlinf.sending import Sending
from rlinf_async.weights import iter_named_tensor_buckets

LEAVES = ("a", "b", "c")
VERSIONS = (1, 2, 2, 2, 3)
"""Of a sender's sendings."""


def weights(value: int) -> dict[str, torch.Tensor]:
    return {name: torch.full((2,), float(value)) for name in LEAVES}


def buckets(version: int, number: int, sender: int = 7) -> list[dict[str, Any]]:
    """One for each leaf; the number of the sending is the weights' value."""
    made = iter_named_tensor_buckets(weights(number).items(), version, bucket_size=1, bucket_device="cpu")
    return [Marked(bucket, (Sending(version, number, sender), place)) for place, bucket in enumerate(made)]


SENT = [bucket for number, version in enumerate(VERSIONS) for bucket in buckets(version, number)]


@settings(derandomize=True, max_examples=500, deadline=None)
@given(st.lists(st.integers(0, len(SENT) - 1), max_size=40))
def test_a_sending_is_whole_and_later_than_the_one_before_whatever_comes_in_whatever_order(order: list[int]) -> None:
    incoming, here = IncomingBuckets(), -1
    for message in [*(SENT[place] for place in order), *buckets(VERSIONS[-1], len(VERSIONS))]:
        try:
            incoming.take(message)
        except (StaleVersion, WeightMismatch):
            continue
        if incoming.is_whole:
            version, found = incoming.finish()
            number = int(found["a"][0])
            assert number > here
            here = number
            assert version == (*VERSIONS, VERSIONS[-1])[here]
            assert sorted(found) == list(LEAVES)
            assert all(tensor.tolist() == [here, here] for tensor in found.values())
    assert here == len(VERSIONS)  # whatever came before, a later sending is taken, also of the same version


def test_another_sender_begins_anew_and_what_comes_of_the_one_before_is_late() -> None:
    incoming = IncomingBuckets()
    for bucket in buckets(3, 0)[:2]:
        incoming.take(bucket)
    first, *others = buckets(3, 0, sender=8)
    incoming.take(first)
    assert incoming.take(buckets(3, 0)[2]) == {}  # nothing of the two is put together
    assert not incoming.is_whole
    for bucket in others:
        incoming.take(bucket)
    assert incoming.finish()[0] == 3
    for bucket in buckets(1, 0, sender=9):  # from a checkpoint, say
        incoming.take(bucket)
    assert incoming.finish()[0] == 1
    for sender in (7, 8):
        with pytest.raises(StaleVersion, match="version 4 of the weights is not after the one which came before it"):
            incoming.take(buckets(4, 9, sender)[0])
        assert incoming.take(buckets(4, 9, sender)[1]) == {}
    with pytest.raises(WeightMismatch, match="not the first of its version"):
        incoming.take(buckets(1, 0, sender=10)[1])
    with pytest.raises(StaleVersion):
        incoming.take(buckets(2, 1, sender=9)[0])


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {},
        {"a": torch.ones(2)},
        SENT[0] | {"total_buckets": torch.tensor(0)},
        SENT[0] | {"total_buckets": torch.tensor(-1)},
        SENT[0] | {"syncer_version": "x"},
        SENT[0] | {"syncer_version": torch.ones(2)},
        {"total_buckets": torch.tensor(1)},
        Marked({}, {"a": 7}),
    ],
)
def test_what_is_no_bucket_is_refused_and_disturbs_nothing(message: Any) -> None:
    incoming = IncomingBuckets()
    incoming.take(SENT[0])
    with pytest.raises(WeightMismatch, match=r"a bucket of tensors was expected|not the first of its version"):
        incoming.take(message)
    for bucket in SENT[1:3]:
        incoming.take(bucket)
    assert incoming.finish()[0] == 1


def test_where_buckets_are_used_as_they_come_none_is_kept() -> None:
    incoming = IncomingBuckets(holds=False)
    taken = [incoming.take(bucket) for bucket in SENT[:3]]
    assert [list(each) for each in taken] == [["a"], ["b"], ["c"]]
    assert incoming.finish() == (1, {})

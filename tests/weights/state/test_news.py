"""Pending versions, as plain state."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rlinf_async.weights.state.news import News
from tests._support.weight_parts import words as say

WORDS: list[list[Any]] = [[say.PUBLISH, 1], [say.PUBLISH, 2], [say.HELLO], [say.PUBLISH, 3]]


@pytest.mark.parametrize(("skips", "expected"), [(True, [2, 1, 1]), (False, [1, 1, 1, 1])])
def test_of_versions_that_follow_each_other_only_the_last_counts_for_who_skips(
    skips: bool, expected: list[int]
) -> None:
    news = News(skips=skips)
    for words in WORDS:
        news.add(words)
    taken = []
    while news:
        taken.append(news.next())
    assert [len(words) for words in taken] == expected
    assert list(itertools.chain(*taken)) == WORDS


def test_what_is_put_back_comes_first_and_as_it_was() -> None:
    news = News(skips=True)
    for words in WORDS:
        news.add(words)
    taken = news.next()
    news.put_back(taken)
    assert news.next() == taken

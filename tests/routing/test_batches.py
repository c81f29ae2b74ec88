"""Splitting and merging nested batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from rlinf_async.errors import ConfigError
from rlinf_async.routing import get_batch_size, infer_batch_size, merge_batches, split_batch, validate_batch_size


class Pair(NamedTuple):
    a: list[int]
    b: list[int]


_SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def batches(rows: int) -> st.SearchStrategy[Any]:
    """Nested batches of so many rows."""
    leaves = st.one_of(
        st.tuples(st.integers(1, 3), st.sampled_from([torch.float32, torch.int64, torch.bool])).map(
            lambda drawn: torch.arange(rows * drawn[0]).reshape(rows, drawn[0]).to(drawn[1])
        ),
        st.just(torch.arange(2 * rows).reshape(2, rows).t()),  # not contiguous
        st.integers(1, 3).map(lambda width: np.arange(rows * width).reshape(rows, width)),
        st.lists(st.text(max_size=3), min_size=rows, max_size=rows),
        st.lists(st.integers(), min_size=rows, max_size=rows).map(tuple),
        st.just(None),
        st.sampled_from([1, 2.5, True, "prompt", torch.tensor(3.0)]),
    )
    return st.recursive(leaves, lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6)


def equal(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    return bool(left == right)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.data(), _SIZES)
def test_what_is_split_and_merged_is_what_it_was(data: Any, sizes: list[int]) -> None:
    whole = data.draw(batches(sum(sizes)))
    parts = split_batch(whole, sizes)
    assert len(parts) == len(sizes)
    assert equal(merge_batches(parts), whole)


def test_parts_of_tensors_are_contiguous_and_share_memory_where_they_can() -> None:
    whole = torch.arange(12).reshape(6, 2)
    first, second = split_batch(whole, [2, 4])
    assert (first.shape, second.shape) == ((2, 2), (4, 2))
    assert second.data_ptr() == whole[2:].data_ptr()
    assert all(part.is_contiguous() for part in split_batch(whole.t().contiguous().t(), [2, 4]))


def test_what_has_another_number_of_rows_is_named() -> None:
    with pytest.raises(ValueError, match=r"the batch\['a'\]\['b'\] has 3 rows, and the parts \[2, 2\] have 4 together"):
        split_batch({"a": {"b": torch.zeros(3)}}, [2, 2])
    with pytest.raises(ConfigError, match=r"the batch\['x'\] cannot be split: it is a set; give split_fn="):
        split_batch({"x": {1, 2}}, [1, 1])


def test_no_part_has_a_negative_number_of_rows() -> None:
    with pytest.raises(ConfigError, match=r"the batch has 4 rows, and the parts \[5, -1\] have 4 together"):
        split_batch([1, 2, 3, 4], [5, -1])


def test_an_error_of_torch_or_numpy_names_the_part() -> None:
    for make, error in ((torch.zeros, RuntimeError), (np.zeros, ValueError)):
        with pytest.raises(error) as caught:
            merge_batches([{"a": make((1, 2))}, {"a": make((1, 3))}])
        assert caught.value.__notes__ == ["while the batch['a'] was merged"]


def test_parts_that_do_not_match_are_named() -> None:
    with pytest.raises(ConfigError, match=r"it is array\(1\) in one part and something else in another"):
        merge_batches([np.array(1), np.array([1, 2])])
    with pytest.raises(ConfigError, match="it is a Pair; give merge_fn="):
        merge_batches([Pair([1], [2]), Pair([3], [4])])
    with pytest.raises(ValueError, match=r"\['a'\] cannot be merged from parts of different kinds: a Tensor, None"):
        merge_batches([{"a": torch.zeros(1)}, {"a": None}])
    with pytest.raises(ValueError, match="not all parts have 'b'"):
        merge_batches([{"a": 1}, {"a": 1, "b": 2}])
    with pytest.raises(ValueError, match=r"the batch\['a'\] cannot be merged: it is 1 in one part"):
        merge_batches([{"a": 1}, {"a": 2}])
    with pytest.raises(ValueError, match="give merge_fn="):
        merge_batches([{1}, {2}])


def test_nothing_merges_to_nothing() -> None:
    assert merge_batches([]) is None
    assert merge_batches([None, None]) is None
    assert merge_batches([{"a": None}, {"a": None}]) == {"a": None}


def test_the_batch_size_is_that_of_the_first_value_with_rows() -> None:
    assert infer_batch_size(torch.zeros(3, 2)) == 3
    assert infer_batch_size(np.zeros((4, 1))) == 4
    assert infer_batch_size([1, 2]) == 2
    assert infer_batch_size({"nothing": None, "obs": {"image": torch.zeros(5)}}) == 5
    for value in (None, 3, "text", torch.tensor(1.0), {}, {"a": None}):
        with pytest.raises(ValueError, match="no batch size can be told"):
            infer_batch_size(value)


def test_the_whole_batch_is_what_is_given_or_every_rank_has_as_much() -> None:
    assert get_batch_size([1, 2]) == 2
    assert get_batch_size({"rows": 4}, infer_batch_size_fn=lambda data: int(data["rows"])) == 4
    with pytest.raises(ValueError, match="the batch has 2 rows, and 4 are expected"):
        validate_batch_size([1, 2], 4)

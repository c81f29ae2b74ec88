"""Collectives are recognised by frames alone, and pairs of them fit or do not."""

from __future__ import annotations

import pytest

from rlinf_async._inspection.state.collectives import can_meet, collective_of, is_collective
from rlinf_async._inspection.state.run_report import Frame

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed"
USERS = Frame("/home/me/train.py", 30, "step", users=True)
LOGGER = Frame(f"{TORCH}/c10d_logger.py", 83, "wrapper")


def c10d(function: str) -> Frame:
    return Frame(f"{TORCH}/distributed_c10d.py", 3257, function)


@pytest.mark.parametrize(
    "name",
    [
        *("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast_object_list"),
        *("barrier", "monitored_barrier", "reduce", "reduce_scatter_tensor", "gather", "scatter_object_list"),
        *("all_to_all_single", "send", "recv", "batch_isend_irecv", "init_process_group", "new_group"),
    ],
)
def test_an_operation_is_recognised_through_the_loggers_wrapper(name: str) -> None:
    assert collective_of([USERS, LOGGER, c10d(name)]) == name
    assert is_collective(name)


def test_what_the_user_called_counts_and_not_what_that_calls() -> None:
    assert collective_of([USERS, LOGGER, c10d("all_gather_object"), LOGGER, c10d("all_gather")]) == "all_gather_object"


def test_a_rendezvous_waits_inside_of_init_process_group() -> None:
    stack = [USERS, LOGGER, c10d("init_process_group"), Frame(f"{TORCH}/rendezvous.py", 274, "_env_rendezvous_handler")]
    assert collective_of(stack) == "init_process_group"


@pytest.mark.parametrize(
    "stack",
    [
        [],
        [USERS],
        [USERS, Frame("/home/me/sync.py", 3, "all_reduce", users=True)],
        [USERS, c10d("get_rank")],
        [USERS, LOGGER, c10d("irecv")],
        [USERS, LOGGER, c10d("all_gather_object"), c10d("_object_to_tensor")],
        [USERS, LOGGER, c10d("all_gather_object"), Frame("/home/me/batch.py", 9, "__getstate__", users=True)],
    ],
    ids=["empty", "users", "namesake", "query", "irecv", "pickling", "users-pickling"],
)
def test_code_that_computes_is_in_no_collective(stack: list[Frame]) -> None:
    assert collective_of(stack) is None


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        ("all_reduce#0", "all_reduce#0", True),
        ("all_reduce#0", "all_reduce", True),
        ("all_reduce#0", "all_reduce#1", False),
        ("all_gather#0", "broadcast#0", False),
        ("all_gather#0", "all_gather_into_tensor#0", True),
        ("gather#0", "all_gather#0", False),
        ("reduce#0", "reduce_scatter#0", False),
        ("barrier#0", "monitored_barrier#0", True),
        ("init_process_group", "new_group#1", True),
        ("send#0", "recv#0", True),
        ("send#0", "send#0", False),
        ("recv#0", "recv#0", False),
        ("send_object_list", "recv_object_list", True),
        ("batch_isend_irecv#0", "batch_isend_irecv#0", True),
        ("batch_isend_irecv#0", "recv#0", True),
        ("batch_isend_irecv#0", "barrier#0", False),
    ],
)
def test_operations_meet_their_like_in_the_same_group(one: str, other: str, fits: bool) -> None:
    assert can_meet(one, other) is fits
    assert can_meet(other, one) is fits

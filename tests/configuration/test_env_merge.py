from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async.configuration import PathEnvMergeMode, get_path_env_merge_mode, merge_path_like, merge_worker_env_vars
from rlinf_async.errors import ConfigError


def test_lists_of_folders_are_joined_and_everything_else_is_replaced():
    base = {"PATH": "/bin:/usr/bin", "HOME": "/root", "A": "1"}

    merged = merge_worker_env_vars(base, {"PATH": "/opt/bin:/bin", "A": "2", "PYTHONPATH": "/code"})

    assert merged == {"PATH": "/opt/bin:/bin:/usr/bin", "HOME": "/root", "A": "2", "PYTHONPATH": "/code"}
    assert base["A"] == "1"


def test_overriding_leaves_nothing_of_the_earlier_list():
    merged = merge_worker_env_vars({"PATH": "/bin"}, {"PATH": "/opt/bin"}, PathEnvMergeMode.OVERRIDE)

    assert merged == {"PATH": "/opt/bin"}


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ({}, PathEnvMergeMode.APPEND),
        ({"RLINF_PATH_ENV_MERGE_MODE": ""}, PathEnvMergeMode.APPEND),
        ({"RLINF_PATH_ENV_MERGE_MODE": "append"}, PathEnvMergeMode.APPEND),
        ({"RLINF_PATH_ENV_MERGE_MODE": "OVERRIDE"}, PathEnvMergeMode.OVERRIDE),
    ],
)
def test_the_mode_is_taken_from_its_variable(said, mode):
    assert get_path_env_merge_mode(said) is mode


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"'overide' is no mode \(did you mean 'override'\?\): write append or over"):
        get_path_env_merge_mode({"RLINF_PATH_ENV_MERGE_MODE": "overide"})


@settings(deadline=None, derandomize=True)
@given(st.lists(st.sampled_from("abcd")), st.lists(st.sampled_from("abcd")))
def test_every_folder_is_there_once_and_the_first_list_comes_first(first, then):
    merged = merge_path_like(":".join(first), ":".join(then)).split(":")

    found = [folder for folder in merged if folder]
    assert sorted(found) == sorted({*first, *then})
    assert found[: len(set(first))] == list(dict.fromkeys(first))

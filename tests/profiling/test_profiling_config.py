"""Profiling configuration: groups, windows, commands."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from rlinf_async.errors import ConfigError
from rlinf_async.profiling import (
    NsightConfig,
    ProfileConfig,
    RocprofSysConfig,
    TorchProfileConfig,
    WindowPlan,
    get_profiling_env_vars_for_worker,
    modify_profile_context,
    parse_profiling,
    window_plan,
    wrap_interpreter,
)


def test_groups_are_named_in_any_case_and_all_means_all() -> None:
    config = TorchProfileConfig(worker_groups=["Actor", "rollout"])
    assert config.profiles_worker_group("actor")
    assert config.profiles_worker_group("ROLLOUT")
    assert not config.profiles_worker_group("env")
    assert TorchProfileConfig(worker_groups="all").profiles_worker_group("env")
    assert not TorchProfileConfig().profiles_worker_group("env")
    assert not TorchProfileConfig(enabled=False, worker_groups="all").profiles_worker_group("env")


def test_steps_have_windows_and_without_steps_every_step_has_one() -> None:
    config = NsightConfig(steps=[1, 3])
    assert [step for step in range(5) if config.should_profile_step(step)] == [1, 3]
    assert NsightConfig().should_profile_step(0)
    assert not NsightConfig(enabled=False).should_profile_step(0)


def test_a_section_becomes_the_class_of_its_back_end() -> None:
    section = {"backend": "nsight", "worker_groups": ["actor"], "steps": [2], "output_dir": None, "flags": ["--wait"]}
    assert parse_profiling(section) == NsightConfig(worker_groups=["actor"], steps=[2], flags=["--wait"])
    assert isinstance(parse_profiling({"backend": "rocprof_sys", "args": {}}), RocprofSysConfig)
    assert parse_profiling({"backend": "torch", "with_stack": True}) == TorchProfileConfig(with_stack=True)


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({}, "backend must be specified, one of nsight, rocprof_sys, torch"),
        ({"backend": "nsigth"}, r"Unknown profiling backend 'nsigth' \(did you mean 'nsight'\?\)"),
        ({"backend": "torch", "flags": []}, "Unknown fields {'flags'} detected in profiling"),
        ({"backend": "nsight", "option": {}}, r"Unknown fields .* detected in profiling \(did you mean options\?\)"),
        ({"backend": "nsight", "options": ["-t"]}, "profiling.options must be a mapping"),
        ({"backend": "nsight", "options": {"trace=cuda": 1}}, "which is no option: write its name alone"),
        ({"backend": "nsight", "options": {"trace": {}}}, "which is no value of an option"),
        ({"backend": "nsight", "flags": "--wait"}, "takes a list of options without a value"),
        ({"backend": "nsight", "options": {"wait": "all"}, "flags": ["--wait"]}, "wait is both an option and a flag"),
        ({"backend": "rocprof_sys", "env": {"A": 1}}, "profiling.env takes texts, got 'A': 1"),
        ({"backend": "torch", "steps": [-1]}, "profiling.steps takes numbers of steps from 0 on, got -1"),
        ({"backend": "torch", "worker_groups": [1]}, "profiling.worker_groups takes names of groups"),
        ({"backend": "torch", "worker_groups": 3}, "profiling.worker_groups takes names of groups, got 3"),
        ({"backend": "torch", "enabled": "false"}, "profiling.enabled must be true or false, got 'false'"),
        ({"backend": "torch", "steps": 3}, "profiling.steps takes a list of steps, got 3"),
        ({"backend": "torch", "output_dir": 3}, "profiling.output_dir must be a folder's name, got 3"),
        ({"backend": "torch", "with_stack": "no"}, "profiling.with_stack must be true or false, got 'no'"),
    ],
)
def test_what_cannot_be_meant_is_named(section: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        parse_profiling(section)
    assert isinstance(caught.value, AssertionError)


def test_a_back_end_has_a_class_of_its_own() -> None:
    with pytest.raises(ConfigError, match="backend 'nsight' takes a NsightConfig, got ProfileConfig"):
        ProfileConfig("nsight")


def test_nsys_runs_the_interpreter_and_records_the_windows() -> None:
    config = NsightConfig(
        worker_groups="all",
        steps=[1],
        output_dir="/reports/",
        options={"trace": ["cuda", "nvtx"], "stop-on-range-end": "repeat:2", "cuda_graph_trace": "node", "w": True},
        flags=["--force-overwrite"],
    )
    wrapped = wrap_interpreter(config, "/venv/bin/python", "actor:0:1")
    assert wrapped.tool == "nsys"
    assert wrapped.directory == "/reports"
    assert wrapped.command == (
        "nsys", "profile", "--trace=cuda,nvtx", "--capture-range-end=repeat:2", "--cuda-graph-trace=node", "-w", "true",
        "--capture-range=cudaProfilerApi", "--output=/reports/rlinf_profile_actor_0_1_%p", "--force-overwrite",
        "/venv/bin/python",
    )  # fmt: skip
    assert shlex.split(modify_profile_context("/venv/bin/python", "actor:0:1", config)) == list(wrapped.command)


def test_without_steps_nsys_records_everything_and_an_output_of_the_users_stays() -> None:
    assert NsightConfig().to_cli_tokens("p") == ["--output=p"]
    assert NsightConfig(options={"o": "mine"}).to_cli_tokens("p") == ["-o", "mine"]
    assert NsightConfig(options={"output": "mine"}).to_cli_tokens("p") == ["--output=mine"]


def test_rocprof_takes_the_interpreters_place_and_is_told_which_it_is() -> None:
    config = RocprofSysConfig(
        worker_groups=["Actor"],
        args={"trace": True, "off": False, "label": "a b"},
        env={"ROCPROFSYS_USE_SAMPLING": "1"},
    )
    wrapped = wrap_interpreter(config, "/venv/bin/python", "actor:0")
    assert wrapped.command == ("rocprof-sys-python", "--trace", "--label=a b", "--")
    variables = {
        "ROCPROFSYS_TIME_OUTPUT": "false",
        "ROCPROFSYS_OUTPUT_PATH": wrapped.directory,
        "ROCPROFSYS_OUTPUT_PREFIX": "rlinf_profile_actor_0",
        "ROCPROFSYS_USE_SAMPLING": "1",
    }
    assert wrapped.env == {"PYTHON_EXECUTABLE": "/venv/bin/python", **variables}
    assert get_profiling_env_vars_for_worker("actor:0", config) == variables
    assert config.to_cli_tokens() == list(wrapped.command)


@pytest.mark.parametrize(
    "which", [{}, {"worker_groups": ["rollout"]}, {"worker_groups": "all", "enabled": False}], ids=repr
)
def test_a_worker_that_is_not_profiled_gets_neither_a_tool_nor_its_variables(which: dict[str, Any]) -> None:
    for config in (NsightConfig(**which), RocprofSysConfig(env={"A": "1"}, **which)):
        assert modify_profile_context("/a b/python", "actor:0", config) == "'/a b/python'"
        assert get_profiling_env_vars_for_worker("actor:0", config) == {}


def test_the_name_of_a_worker_is_held_against_names_of_groups() -> None:
    config = RocprofSysConfig(worker_groups=["actor"], env={"A": "1"})
    profiled = [bool(get_profiling_env_vars_for_worker(f"{name}:0", config)) for name in ("ACTOR", "actor:1", "actors")]
    assert profiled == [True, True, False]


def test_torchs_profiler_needs_nothing_around_the_interpreter() -> None:
    config = TorchProfileConfig(steps=[2], record_shapes=True)
    assert wrap_interpreter(config, "python", "actor:0").command == ("python",)
    assert not wrap_interpreter(config, "python", "actor:0").tool
    plan = window_plan(config)
    assert plan == WindowPlan.from_json(plan.to_json())
    assert [step for step in range(4) if plan.has_step(step)] == [2]
    assert plan.options["record_shapes"] is True
    assert plan.directory == "{log_dir}/profiles"

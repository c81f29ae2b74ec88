"""A job's own configuration, read by a schema."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from omegaconf import MISSING

from rlinf_async.configuration import check_values, find_configuration, read_configuration
from rlinf_async.errors import ConfigError


@dataclass
class Optimizer:
    lr: float = MISSING
    clip_grad: float = 0.5


@dataclass
class Actor:
    optim: Optimizer = field(default_factory=Optimizer)
    tags: dict[str, Any] = field(default_factory=dict)


@dataclass
class Cluster:
    component_placement: dict[str, Any] = field(default_factory=dict)


@dataclass
class Configuration:
    seed: int = 0
    cluster: Cluster = field(default_factory=Cluster)
    actor: Actor = field(default_factory=Actor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text("seed: 3\nactor: {optim: {lr: 0.1}}\n")
    return file


def test_the_command_line_wins_over_the_file_and_the_file_over_the_schema(path: Path) -> None:
    cfg = read_configuration(Configuration, path, ["actor.optim.lr=0.2"])
    assert (cfg.seed, cfg.actor.optim.lr, cfg.actor.optim.clip_grad) == (3, 0.2, 0.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sed: 1", "unknown key sed: did you mean seed?"),
        ("actor: {optim: {learning: 1}}", "unknown key actor.optim.learning: there is lr, clip_grad"),
        ("actor: {optim: {clip_grads: 1}}", "unknown key actor.optim.clip_grads: did you mean actor.optim.clip_grad?"),
        ("actor: {1: 2}", "unknown key actor.1: there is optim, tags"),
        ("seed: many", "seed: Value 'many'"),
        ("[1, 2]", "expected sections such as seed: and cluster:"),
        ("seed: [", "expected the node content"),
        ("seed: ${nope}", "seed: Interpolation key 'nope' not found"),
        ("actor: {tags: [1]}", "Cannot merge incompatible container types"),
        ("seed: 3\nnull: 1", ":1: this cannot be read as YAML: its top: Incompatible key type"),
    ],
)
def test_what_the_schema_has_not_is_named_with_the_file_and_the_nearest_key(
    text: str, complaint: str, path: Path
) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_configuration(Configuration, path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "seed: 1\nactor:\n  optim:\n    lr: 0.1\n    lrr: 1\n",
            ":5: unknown key actor.optim.lrr: did you mean actor.op",
        ),
        ("seed: 1\nactor:\n  optim:\n    lr: much\n", ":4: actor.optim.lr: Value 'much' of type 'str' could not be"),
        ("seed: 1\ncluster:\n  component_placement:\n    acter: 0\n", ":4: unknown key cluster.component_placement.ac"),
    ],
)
def test_an_error_about_a_key_of_the_file_names_its_line(text: str, complaint: str, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_configuration(Configuration, path, components=("actor",))
    assert str(caught.value).startswith(f"{path}{complaint}")


def test_a_pipe_is_read_once_and_its_errors_name_their_lines_too() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"seed: 1\nsead: 2\n")
    os.close(writer)
    try:
        with pytest.raises(ConfigError, match=rf"^/dev/fd/{reader}:2: unknown key sead"):
            read_configuration(Configuration, Path(f"/dev/fd/{reader}"))
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    "override",
    [
        "actor.optim.clip_grads=1",
        "seed=!!int a",
        "cluster.component_placement.a=${",
        "seed",
        "=1",
        "seed=[",
        "actor.optim=1",
    ],
)
def test_a_bad_override_is_named_as_it_was_given(override: str, path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_configuration(Configuration, path, [override])
    assert f"command line, {override!r}" in str(caught.value)


def test_what_has_to_be_given_and_is_not_is_named(path: Path) -> None:
    path.write_text("seed: 1")
    with pytest.raises(ConfigError, match=r"job\.yaml: missing actor\.optim\.lr"):
        read_configuration(Configuration, path)


def test_a_mapping_without_a_schema_holds_any_key(path: Path) -> None:
    cfg = read_configuration(Configuration, path, ["actor.tags.anything=1", "cluster.component_placement.who=0-1"])
    assert cfg.actor.tags.anything == 1
    assert cfg.cluster.component_placement.who == "0-1"


def test_only_components_are_placed_alone_or_together_and_a_placement_is_text(path: Path) -> None:
    placed = ["cluster.component_placement.actor,env=1:0"]
    cfg = read_configuration(Configuration, path, placed, ["actor", "env"])
    assert cfg.cluster.component_placement["actor,env"] == "1:0"
    with pytest.raises(ConfigError, match=r"component_placement\.en: did you mean cluster\.component_placement\.env\?"):
        read_configuration(Configuration, path, ["cluster.component_placement.en=0"], ["actor", "env"])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        read_configuration(Configuration, tmp_path / "nowhere.yaml")


def test_a_name_is_that_of_a_file_in_the_folder_and_a_path_is_itself(path: Path) -> None:
    assert find_configuration("job", path.parent) == path
    assert find_configuration("other/job.yaml", path.parent) == Path("other/job.yaml")
    with pytest.raises(ConfigError, match=r"no configuration 'jop' in .*: did you mean job\?"):
        find_configuration("jop", path.parent)


def test_a_claim_that_does_not_hold_is_told_with_the_value_and_where_it_may_come_from(path: Path) -> None:
    cfg = read_configuration(Configuration, path)
    check_values(cfg, [("seed", True, "must be small")], path)
    with pytest.raises(ConfigError, match=r"job\.yaml: seed must be small, not 3"):
        check_values(cfg, [("seed", False, "must be small")], path)
    with pytest.raises(ConfigError, match=r"job\.yaml and command line: seed must"):
        check_values(cfg, [("seed", False, "must be small")], path, ["seed=3"])

"""``--show-placement``: a planned placement as a table, as JSON and as a drawing; nothing is started."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rlinf_launcher.cli import main

SVG = "{http://www.w3.org/2000/svg}"

JOB = """
cluster:
  num_nodes: 3
  component_placement:
    actor,inference: 0-3
    rollout: 4-7:0-1
    env: {node_group: [first], placement: "0-3:0-7"}
    agent: {node_group: node, placement: "0-2:0-29"}
    arm: {node_group: robots, placement: all}
  node_groups:
    - {label: first, node_ranks: 0}
    - label: robots
      node_ranks: 2
      hardware: {type: Franka, configs: [{node_rank: 2, robot_ip: 10.0.0.1}, {node_rank: 2, robot_ip: 10.0.0.2}]}
elsewhere: ${nothing.of.this}
"""

HOSTS = "n1 fake_gpus=4\nn2 gpus=4,5,6,7\nrobot slots=0\nspare slots=8\n"

TABLE = """
NODE              DEVICE    actor  inference  rollout  env  agent  arm
0 n1 [first]      NV_GPU 0  0      0          .        0-1  .      .
                  NV_GPU 1  1      1          .        2-3  .      .
                  NV_GPU 2  2      2          .        4-5  .      .
                  NV_GPU 3  3      3          .        6-7  .      .
                  -         .      .          .        .    0-9    .
1 n2              NV_GPU 4  .      .          0        .    .      .
                  NV_GPU 5  .      .          0        .    .      .
                  NV_GPU 6  .      .          1        .    .      .
                  NV_GPU 7  .      .          1        .    .      .
                  -         .      .          .        .    10-19  .
2 robot [robots]  Franka 0  .      .          .        .    .      0
                  Franka 1  .      .          .        .    .      1
                  -         .      .          .        .    20-29  .
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory of the launcher, with a job and hosts."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    Path("hosts").write_text(HOSTS)
    return tmp_path


def show(*words: str) -> int:
    return main.main(["--hosts", "hosts", *words])


def test_the_table_has_every_components_ranks_on_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert show("--show-placement", "job.yaml") == 0

    out, err = capsys.readouterr()
    assert out.startswith("job.yaml: 50 ranks on 3 nodes\n")
    assert TABLE in out
    assert out.endswith("\ndrawn in placement.svg\n")
    assert err == ""


def test_with_dry_run_the_placement_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert show("--dry-run", "--show-placement", "job.yaml") == 0

    before, table, _ = capsys.readouterr().out.partition(TABLE)
    assert table
    assert before.startswith("hosts from --hosts hosts\n")
    assert "n2 slots=(one per GPU, else 1) gpus=4,5,6,7" in before


def test_the_drawing_is_xml_with_the_tables_ranks() -> None:
    assert show("--show-placement=job.yaml", "--placement-svg", "out.svg") == 0

    root = ElementTree.parse("out.svg").getroot()
    bars = {group.findtext(f"{SVG}title"): group.get("data-ranks") for group in root.iter(f"{SVG}g")}
    assert bars["inference rank 3 on node 0 n1, NV_GPU 3"] == "inference:3"
    assert bars["env ranks 6-7 on node 0 n1, NV_GPU 3"] == "env:6-7"
    assert bars["rollout rank 1 on node 1 n2, NV_GPU 7"] == "rollout:1"
    assert bars["agent ranks 20-29 on node 2 robot, (node)"] == "agent:20-29"
    assert bars["arm rank 1 on node 2 robot, Franka 1"] == "arm:1"
    assert sum(ranks is not None for ranks in bars.values()) == 4 * 3 + 4 + 3 + 2
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"node 0 n1 [first]", "NV_GPU 7", "agent (30 ranks)", "job.yaml: 50 ranks on 3 nodes"} <= set(texts)


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 0), (1, 1), (3, 8), (40, 16)])
def test_nothing_in_the_drawing_overlaps_or_lies_outside(nodes: int, gpus: int) -> None:
    Path("hosts").write_text(f"n[1-{nodes}] fake_gpus={gpus}\n")
    Path("job.yaml").write_text("cluster: {component_placement: {'a,b,c': all, d: all}}\n")
    assert show("--show-placement", "job.yaml") == 0

    root = ElementTree.parse("placement.svg").getroot()
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = []
    for rect in list(root.iter(f"{SVG}rect"))[1:]:
        x, y, w, h = (float(rect.attrib.get(name, 0)) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
        boxes.append((x, y, w, h))
    bars = [box for box in boxes if box[3] == 15]
    assert len(bars) == nodes * max(gpus, 1) * 4
    by_column: dict[float, list[float]] = {}
    for x, y, _, _ in bars:
        by_column.setdefault(x, []).append(y)
    for tops in by_column.values():
        assert all(below - above >= 15 for above, below in itertools.pairwise(sorted(tops)))


def test_names_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text("cluster:\n  component_placement:\n    'a<b>&\"c': 0\n")

    assert show("--show-placement", "job.yaml") == 0

    root = ElementTree.parse("placement.svg").getroot()
    assert 'a<b>&"c (1 rank)' in [text.text for text in root.iter(f"{SVG}text")]


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert show("--json", "--show-placement", "job.yaml") == 0

    facts = json.loads(capsys.readouterr().out)
    assert facts["event"] == "placement"
    assert facts["components"] == {"actor": 4, "inference": 4, "rollout": 2, "env": 8, "agent": 30, "arm": 2}
    assert facts["nodes"][1]["devices"][0] == {"name": "NV_GPU 4", "ranks": {"rollout": [0]}}
    assert facts["nodes"][2]["groups"] == ["robots"]
    assert facts["drawing"] == "placement.svg"


@pytest.mark.parametrize(
    "words",
    [
        ("train.py", "job.yaml"),
        ("train.py", "--config", "job.yaml"),
        ("train.py", "--config=deep"),
        ("train.py", "--config-name", "deep"),
        ("train.py", "--config-path", "settings", "--config-name", "other"),
    ],
)
def test_the_scripts_own_words_name_the_configuration(words: tuple[str, ...]) -> None:
    for folder, name in (("config", "deep"), ("settings", "other")):
        Path(folder).mkdir()
        Path(folder, f"{name}.yaml").write_text(JOB)

    assert show("--show-placement", *words) == 0


def test_the_scripts_overrides_count(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("train.py", "--config", "job.yaml", "cluster.component_placement.rollout=6-7", "runner.seed=1")

    assert show("--json", "--show-placement", *words) == 0

    devices = json.loads(capsys.readouterr().out)["nodes"][1]["devices"]
    assert [device["ranks"] for device in devices[2:4]] == [{"rollout": [0]}, {"rollout": [1]}]


def test_a_label_of_the_hosts_file_is_a_node_group(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hosts").write_text("a fake_gpus=2\nb fake_gpus=2 labels=fast\n")
    Path("job.yaml").write_text("cluster: {component_placement: {actor: {node_group: fast, placement: all}}}\n")

    assert show("--show-placement", "job.yaml") == 0

    assert "1 b [fast]  NV_GPU 0  0\n" in capsys.readouterr().out


def test_slots_count_as_devices_and_silent_hosts_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hosts").write_text("a slots=2\nb\n")
    Path("job.yaml").write_text("cluster: {component_placement: {actor: all}}\n")

    assert show("--show-placement", "job.yaml") == 0

    out = capsys.readouterr().out
    assert "2 ranks on 2 nodes" in out
    assert "not known without asking: the devices of b\n" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--show-placement",), "--show-placement: no configuration is named\n  fix: write --show-placement FILE"),
        (("--show-placement", "train.py"), "no configuration is named"),
        (("--show-placement", "train.py", "--config", "x" * 5000), "no configuration is named"),
        (("--show-placement", "train.py", "x" * 5000 + ".yaml"), "no configuration is named"),
        (("--show-placement", "none.yaml"), "none.yaml: cannot read the configuration"),
        (("--show-placement", "job.yaml", "--nnodes", "2"), "num_nodes: 3, but there are 2 hosts: n1, n2\n  fix: name"),
        (("--show-placement", "bad.yaml"), "bad.yaml:3: component 'actor' asks for accelerators 0-63, the cluster has"),
        (("--show-placement", "typo.yaml"), "typo.yaml:1: cluster.component_placment: Unknown fields"),
        (("--placement-svg", "x.svg", "train.py"), "draws nothing\n  fix: add --show-placement"),
        (
            ("--show-placement", "job.yaml", "--placement-svg", "no/x.svg"),
            "no/x.svg: cannot write the drawing",
        ),
    ],
)
def test_a_mistake_is_told_and_nothing_is_drawn(
    words: tuple[str, ...], text: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.yaml").write_text("cluster:\n  component_placement:\n    actor: 0-63\n")
    Path("typo.yaml").write_text("cluster: {component_placment: {actor: 0}}\n")

    assert show(*words) == 2

    assert text in capsys.readouterr().err
    assert not list(here.glob("**/*.svg"))

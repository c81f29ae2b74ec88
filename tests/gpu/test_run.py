"""The runner of the GPU proof: a step that fails, hangs, dies or is silent is told of, and the next ones run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gpu import run
from tests.gpu.report import FAILED, OK, SKIPPED
from tests.gpu.run import NO_GPU, Part, main

STEPS = {
    "fails": """
def check_that_two_is_three(step):
    assert 2 == 3, "two is not three"
def check_the_next(step):
    return "checked all the same"
main("x", [check_that_two_is_three, check_the_next])
""",
    "hangs": """
def check_and_hang(step):
    step.say("so far", 1)
    time.sleep(60)
main("x", [check_and_hang])
""",
    "dies": """
def check_and_die(step):
    os.kill(os.getpid(), 9)
main("x", [check_and_die])
""",
    "is_silent": "",
    "skips": """
def check_what_is_not_here(step):
    raise Skip("needs two GPUs")
main("x", [check_what_is_not_here])
""",
    "succeeds": """
def check_the_last(step):
    return 42
main("x", [check_the_last])
""",
}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the report of a machine with a GPU; the steps are those above."""
    for name, text in STEPS.items():
        head = "import os, sys, time\nfrom tests.gpu.step import Skip, main\n"
        (tmp_path / f"planted_{name}.py").write_text(head + text.replace('"x"', f'"{name}"'))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    parts = [Part(name, name, f"planted_{name}", 20 if name != "hangs" else 4) for name in STEPS]
    monkeypatch.setattr(run, "PARTS", parts)
    monkeypatch.setattr(run, "count_gpus", lambda: 1)
    return tmp_path / "report"


def test_each_planted_fault_is_reported_by_its_own_step_and_the_next_ones_run(
    report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--report", str(report)]) == 1
    facts = {(fact.step, fact.name): (fact.state, fact.value) for fact in run.facts_of(report / "facts.jsonl")}
    assert facts == {
        ("fails", "that two is three"): (FAILED, "AssertionError: two is not three"),
        ("fails", "the next"): (OK, "checked all the same"),
        ("hangs", "so far"): (OK, 1),
        ("hangs", "hangs"): (FAILED, "not done after 4 s"),
        ("dies", "dies"): (FAILED, "the step exited with status -9"),
        ("is_silent", "is_silent"): (FAILED, "the step has said nothing"),
        ("skips", "what is not here"): (SKIPPED, "needs two GPUs"),
        ("succeeds", "the last"): (OK, 42),
    }
    assert len(list(report.iterdir())) <= 8
    assert "two is not three" in (report / "log.txt").read_text()
    assert "in check_and_hang" in (report / "log.txt").read_text(), "the stack of a step that hangs"
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:1].isalpha()]
    assert [line.split()[:4:3] for line in lines] == [[name, lines[i].split()[3]] for i, name in enumerate(STEPS)]
    assert "| fails | that two is three | FAILED |" in (report / "table.md").read_text()


def test_without_a_gpu_each_step_says_so_in_a_line(
    report: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "count_gpus", lambda: 0)
    assert main(["--report", str(report)]) == NO_GPU
    assert capsys.readouterr().out.splitlines() == [f"{name}  {name}: no GPU" for name in STEPS]


def test_only_the_steps_that_are_asked_for_run_and_an_unknown_one_is_refused(
    report: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        run, "PARTS", [Part("a", "one", "planted_succeeds", 20), Part("b", "other", "planted_dies", 20)]
    )
    assert main(["--only", "a", "--report", str(report)]) == 0
    with pytest.raises(SystemExit):
        main(["--only", "a,z", "--report", str(report)])
    assert "--only names step 'z'; the steps are ab" in capsys.readouterr().err

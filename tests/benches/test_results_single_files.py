"""Records of the one-file examples' runs, and their part of the page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benches.results import single_files
from benches.results.single_files import SingleFileRun, load_single_files, run_single_file, single_files_section

RUN = SingleFileRun("ppo_single_file", 1, "2026-01-02T03:04+00:00", 1, 2, "mean return", "500.0", 14.2)


def test_an_example_has_a_row_with_its_results_in_the_order_of_the_seeds() -> None:
    section = single_files_section([RUN, dataclasses.replace(RUN, seed=0, result="499.5", seconds=15.4)])
    row = "| [ppo_single_file.py](../examples/ppo_single_file.py) | mean return | 0: 499.5; 1: 500.0 | 15, 14 |"
    assert row in section
    assert "grpo" not in section
    assert single_files_section([]) == ""


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A program in the place of an example."""
    (folder / "examples").mkdir()
    (folder / "examples" / "short.py").write_text(text)
    monkeypatch.setattr(single_files, "ROOT", folder)
    monkeypatch.setattr(single_files, "LOGS", folder / "logs")


def test_what_an_example_prints_last_is_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "import sys\nprint('update 1: 3')\nprint(f'mean return: {sys.argv[2]}.5')\n")
    found = run_single_file("short", 7, jobs=1, folder=tmp_path)
    assert (found.measure, found.result, found.seed) == ("mean return", "7.5", 7)
    assert load_single_files(tmp_path) == {("short", 7): found}


@pytest.mark.parametrize("text", ["", "print('done')\n"])
def test_an_example_that_prints_no_result_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    program(tmp_path, monkeypatch, text)
    with pytest.raises(RuntimeError, match=r"short seed 0 has printed no result: see .*log"):
        run_single_file("short", 0, jobs=1, folder=tmp_path)
    assert load_single_files(tmp_path) == {}

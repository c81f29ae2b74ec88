"""The pages for new users: every program of theirs runs, and prints what the page says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = [
    *("getting-started.md", "recipes.md", "testing.md"),
    *("calls.md", "channels.md", "experience.md", "supervision.md", "launcher.md", "observability.md", "security.md"),
    *("execution-overview.md", "weights.md", "torchrl.md", "subprocesses.md"),
    "../README.md",
]
WITHOUT_PROGRAMS = ["programming-flow.md", "troubleshooting.md"]
"""``test_quotations.py`` holds them to the code."""
QUICK = ("hello.py", "counter.py", "recipe_calling_a_group.py", "recipe_leases.py")
"""Programs that ``make test`` runs, too."""
OWN_RUN = (
    "recipe_several_clusters_in_one_process.py",
    "recipe_rehearsals_with_fake_gpus.py",
    "recipe_the_listening_sockets_of_a_run.py",
)

NOTEBOOK = """
import ast, asyncio, sys
cell = compile(open(sys.argv[1]).read(), "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(cell, globals()))
"""
"""Runs a block with ``await`` at its top as a notebook does: on a loop that runs already."""

CLIENT = """
from fastapi.testclient import TestClient
from app import app
with TestClient(app) as client:
    print(client.post("/add/2").text)
"""

DRIVER = """
import json, subprocess, sys
def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    return [done.returncode, done.stdout, done.stderr]
print("all:", json.dumps([run(command) for command in json.loads(sys.argv[1])]))
"""
"""Runs several programs in one run of the launcher's, whose node imports torch once for all of them."""


class Block(NamedTuple):
    """A program of a page, or a file that one reads: its file, its lines, and what the page says that it prints."""

    name: str
    program: str
    printed: str

    @property
    def is_program(self) -> bool:
        """Others are files that programs read."""
        return self.name.endswith(".py")

    @property
    def is_recipe(self) -> bool:
        return self.name.startswith("recipe_")

    @property
    def needs_a_run_of_its_own(self) -> bool:
        """True if it begins a page of its own, starts several nodes or clusters, or looks at all processes."""
        return self in BLOCKS[:4] or self.name in OWN_RUN

    @property
    def command(self) -> list[str]:
        """How a reader runs the program."""
        if self.name.startswith("test_"):
            return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", self.name]
        if self.name == "app.py":
            return [sys.executable, "-W", "ignore", "-c", CLIENT]
        if self.name == "recipe_jupyter.py":
            return [sys.executable, "-c", NOTEBOOK, self.name]
        return [sys.executable, self.name]


def read_blocks(page: str) -> list[Block]:
    """The blocks of Python and YAML of a page.  The name follows the language, or is made of the heading above."""
    text = (CHECKOUT / "docs" / page).read_text()
    blocks = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0].lower().replace(" ", "_")
        printed = re.search(r"```text\n(.*?)```", section, re.DOTALL)
        for name, program in re.findall(r"```(?:python|yaml) ?(\S*)\n(.*?)```", section, re.DOTALL):
            blocks.append(Block(name or f"recipe_{heading}.py", program, printed[1] if printed else ""))
    return blocks


BLOCKS = [block for page in PAGES for block in read_blocks(page)]


def by_tier(blocks: list[Block]) -> list[Any]:
    return [pytest.param(each, id=each.name, marks=() if each.name in QUICK else pytest.mark.slow) for each in blocks]


ALONE = [block for block in BLOCKS if block.is_program and block.needs_a_run_of_its_own]
TOGETHER = [block for block in BLOCKS if block.is_program and not block.needs_a_run_of_its_own]


def write(blocks: Iterable[Block], folder: Path) -> None:
    for block in blocks:
        (folder / block.name).write_text(block.program)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def check(block: Block, returncode: int, stdout: str, stderr: str) -> None:
    """Without workers' own lines, ``[counters:1@localhost] ...``, which may come between two writes of a ``print``."""
    assert returncode == 0, stdout + stderr
    printed = re.sub(r"\[\w+:\d+@\w+\] .*\n", "", stdout)
    if block.name.startswith("test_"):
        assert f"{block.program.count('def test_')} passed" in printed
    elif block.name == "recipe_a_training_loop.py":  # another processor, or order of the samples, has other numbers
        assert re.sub(r"\d+%", "N%", printed) == re.sub(r"\d+%", "N%", block.printed)
        assert int(re.findall(r"(\d+)%", printed)[-1]) >= 70
    elif block.name == "train.py":  # another processor has other numbers
        assert re.sub(r"\d+ of", "N of", printed) == re.sub(r"\d+ of", "N of", block.printed)
        assert int(re.findall(r"(\d+) of", printed)[-1]) >= 150
    else:
        assert printed == block.printed


def test_the_pages_have_their_programs() -> None:
    assert [block.name for block in ALONE] == [
        *("hello.py", "counter.py", "pipeline.py", "train.py"),
        *OWN_RUN,
    ]
    assert len(TOGETHER) >= 6


@pytest.mark.parametrize("block", by_tier(ALONE))
def test_a_program_prints_what_its_page_says(block: Block, tmp_path: Path) -> None:
    write((each for each in BLOCKS if each is block or not each.is_recipe), tmp_path)
    done = run(block.command, tmp_path)
    check(block, done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def done_together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    selected = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    blocks = [each["block"] for each in selected if each.get("block") in TOGETHER]
    folder = tmp_path_factory.mktemp("recipes")
    write(BLOCKS, folder)
    (folder / "driver.py").write_text(DRIVER)
    commands = json.dumps([block.command for block in blocks])
    launcher = str(Path(sys.executable).with_name("rlinf-launch"))
    done = run([sys.executable, launcher, "-q", "driver.py", commands], folder)
    assert "all: " in done.stdout, done.stdout + done.stderr
    results = json.loads(done.stdout.partition("all: ")[2].partition("\n")[0])
    return dict(zip([block.name for block in blocks], results, strict=True))


@pytest.mark.parametrize("block", by_tier(TOGETHER))
def test_a_recipe_prints_what_its_page_says(block: Block, done_together: dict[str, Any]) -> None:
    check(block, *done_together[block.name])


def test_the_readme_leads_to_the_pages() -> None:
    readme = (CHECKOUT / "README.md").read_text()
    pages = sorted(path.name for path in (CHECKOUT / "docs").glob("*.md"))
    assert [page for page in pages if f"(docs/{page}" not in readme] == []


def anchors(text: str) -> list[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", [*PAGES, *WITHOUT_PROGRAMS])
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    here = CHECKOUT / "docs" / page
    for target, _, anchor in re.findall(r"\]\((?!https:)([^)#]*)(#([^)]+))?\)", here.read_text()):
        path = here.parent / target if target else here
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text()), f"{target}#{anchor}"

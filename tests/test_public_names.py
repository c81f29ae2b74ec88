"""The public names: what docs/api.md documents is what completion shows, in modules and on objects."""

from __future__ import annotations

import compileall
import dataclasses
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlinf_async.engines
import rlinf_async.rlinf
import rlinf_async.torchrl
import rlinf_async.weights
from docs import generate_api
from rlinf_async._worker.spec import GroupSpec

PAGE = generate_api.PAGE.read_text()
PORTING = generate_api.PAGE.with_name("porting-from-rlinf.md")
SECTIONS = {part.partition("`")[0]: part for part in re.split(r"\n### `", PAGE)[1:]}
TABLES = [rlinf_async, rlinf_async.rlinf, rlinf_async.torchrl, rlinf_async.weights, rlinf_async.engines]


def documented(head: str) -> dict[str, str]:
    """By the names in the first column of a table, what its second says of them."""
    table = PAGE.partition(f"| {head} |")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| \[?`([\w.]+)`(?:\]\(#\w+\))? \| (.*) \|$", table, re.M))


def documented_attributes(section: str) -> set[str]:
    """Names in the lists of a section, and in those of the base class that it points to."""
    bases = re.findall(r"^- and what \[`(\w+)`\]", section, re.M)
    own = set(re.findall(r"^- `(?:async )?(\w+)", section, re.M))
    return own.union(*(documented_attributes(SECTIONS[base]) for base in bases))


def attributes(cls: type) -> set[str]:
    """Public attributes of a class and of its objects, as far as the class tells."""
    found = {*dir(cls), *(name for owner in cls.__mro__ for name in getattr(owner, "__annotations__", ()))}
    return {name for name in found if not name.startswith("_")}


def test_completion_shows_what_is_documented() -> None:
    shown = [name for name in dir(rlinf_async) if not name.startswith("__")]
    assert shown == rlinf_async.__all__ == sorted(documented("name"))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.__name__))
def test_a_table_shows_its_names_and_finds_them(table: Any) -> None:
    assert [name for name in dir(table) if not name.startswith("__")] == table.__all__
    assert all(callable(getattr(table, name)) for name in table.__all__)
    with pytest.raises(AttributeError, match=f"module '{table.__name__}' has no attribute 'nothing'"):
        _ = table.nothing
    assert not hasattr(table, "no.thing")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {table.__name__} import nothing")


@pytest.mark.parametrize("table", TABLES[1:3], ids=lambda table: str(table.__name__))
def test_the_root_and_the_weights_find_the_other_systems_names(table: Any) -> None:
    for name in table.__all__:
        assert getattr(rlinf_async, name) is getattr(rlinf_async.weights, name) is getattr(table, name)


def test_each_name_has_one_place() -> None:
    names = [name for table in TABLES[:3] for name in table.__all__]
    assert len(set(names)) == len(names)
    assert not {f"rlinf_async.{name}" for name in names} & documented("module").keys()


def test_every_documented_module_is_there() -> None:
    for module in documented("module"):
        importlib.import_module(module)


def test_the_page_is_what_the_code_says() -> None:
    assert generate_api.make_page() == PAGE, "docs/api.md is older than the code: run `make docs`"


def test_a_workers_attributes_that_are_rlinfs_are_listed() -> None:
    rlinfs = re.findall(r"^\| `Worker\.(_\w+)` \| same \|.*\| attribute \|", PORTING.read_text(), re.M)
    listed = re.findall(r"^\| `self\.(\w+): [^`]+` \| \S", SECTIONS["Worker"], re.M)
    assert len(rlinfs) > 10
    assert {*rlinfs, "_worker_name", "_restarts"} == set(listed)


@pytest.mark.parametrize("name", ["GroupSpec", "Cluster", "Worker", "Channel", "publish", "follow"])
def test_what_is_needed_most_is_explained_in_full(name: str) -> None:
    assert re.search(r"```text\n.*\bArgs:\n.*\bRaises:\n.*```", SECTIONS[name], re.DOTALL)


def test_every_argument_of_launch_is_explained() -> None:
    text = inspect.getdoc(GroupSpec.launch) or ""
    for argument in list(inspect.signature(GroupSpec.launch).parameters)[1:]:
        assert f"\n    {argument}: " in text, argument


def test_every_public_name_is_explained() -> None:
    assert all(documented("name").values())
    for name, section in SECTIONS.items():
        prose = re.sub(r"```.*?```", "", section, flags=re.DOTALL).splitlines()[1:]
        assert any(line and not line.startswith("-") for line in prose), f"{name} has no docstring"


@pytest.mark.parametrize("name", [name for name in rlinf_async.__all__ if name[0].isupper()])
def test_an_object_shows_what_is_documented(name: str) -> None:
    cls = getattr(rlinf_async, name)
    built_in = attributes(TimeoutError)  # of exceptions
    assert attributes(cls) - built_in == documented_attributes(SECTIONS[name]) - built_in


def test_a_name_without_a_subject_is_an_error_that_says_where_to_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {subject: homes for subject, homes in generate_api.SUBJECTS.items() if subject != "Channels"}
    monkeypatch.setattr(generate_api, "SUBJECTS", others)
    with pytest.raises(LookupError, match=r"Channel of rlinf_async.channel has no subject: add 'channel' to"):
        generate_api.make_page()


def test_an_attribute_that_is_not_documented_would_be_found() -> None:
    @dataclasses.dataclass(frozen=True)
    class Grown(rlinf_async.Outcome):
        field: int = 0
        _hidden: int = 0

        def method(self) -> None: ...

    assert attributes(Grown) - attributes(rlinf_async.Outcome) == {"field", "method"}


def test_public_modules_are_found_after_the_import_of_the_package_alone() -> None:
    script = "import sys, rlinf_async\nprint(rlinf_async.errors.WorkerDied.__name__)"
    script += "\nprint(hasattr(rlinf_async, 'Clutser'), [name for name in ('torch', 'grpc') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["WorkerDied", "False []"]


def test_names_are_found_where_only_compiled_files_are_installed(tmp_path: Path) -> None:
    package = tmp_path / "rlinf_async"
    shutil.copytree(Path(rlinf_async.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(package, quiet=1, legacy=True)
    for source in package.rglob("*.py"):
        source.unlink()
    script = (
        "import rlinf_async\nprint(rlinf_async.__file__, rlinf_async.Work.__name__, rlinf_async.CommMapper.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd="/",
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(package / "__init__.pyc"), "Work", "CommMapper"]

"""Modules that are imported before workers are forked: shared by ranks, restarts and launches, or refused and told."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import re
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, Worker, settings
from rlinf_async._cluster.preload_names import imported_at_once
from rlinf_async._core import codec
from rlinf_async.errors import LaunchError
from rlinf_launcher.cli.control import main

pytestmark = pytest.mark.shared_cluster

TWO = NodePlacementStrategy([0, 0])
BOTH_NODES = NodePlacementStrategy([0, 0, 1, 1])
BY_PID = "import os; PID = os.getpid()"
MODULES = {
    "pre_good": f"{BY_PID}; os.environ['PRE_GOOD'] = 'set by the import'; FOLDER = os.getcwd(); print('hello', PID)",
    "pre_edited": BY_PID,
    "pre_thread": f"{BY_PID}; import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "pre_hangs": f"{BY_PID}; import time; 'RANK' in os.environ or time.sleep(600)",
    "pre_dies": f"{BY_PID}; os.environ.get('RANK') or os.kill(PID, 9)",
    "pre_raises": "1 / 0",
    "pre_child": "import pathlib, subprocess\n"
    "pathlib.Path(__file__ + '.pid').write_text(str(subprocess.Popen(['sleep', '600']).pid))",
    "pre_class": f"{BY_PID}; import rlinf_async as r\nclass Here(r.Worker):\n def pids(self): return PID, os.getpid()",
}


class Asker(Worker):
    def of(self, name: str) -> Any:
        module = importlib.import_module(name)
        return module.PID, os.getpid(), os.getppid()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def die(self) -> None:
        os._exit(5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("modules")
    for name, text in MODULES.items():
        (path / f"{name}.py").write_text(f"{text}\n")
    sys.path.insert(0, str(path))
    yield path
    sys.path.remove(str(path))


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.PRELOAD_TIMEOUT_S.variable, "4")
        with Cluster(local_nodes=2, log_to_driver=False) as cluster:
            yield cluster


def launched(cluster: Cluster, placement: Any = TWO, **options: Any) -> Any:
    return Asker.create_group().launch(cluster, placement, **options)


def test_ranks_of_a_node_share_an_import_and_so_do_restarts_and_later_launches(cluster: Cluster) -> None:
    with launched(cluster, BOTH_NODES, name="shares", preload=["pre_good"], restart="rank") as group:
        told = group.of("pre_good").wait()
        importers = [importer for importer, _, _ in told]
        assert importers[0] == importers[1] != importers[2] == importers[3], "one import per node"
        assert not set(importers) & {pid for _, pid, _ in told}
        assert group.variable("PRE_GOOD").wait() == ["set by the import"] * 4
        lines = [log.read_text().splitlines() for log in Path(cluster.log_dir).glob("template_*_[!0]*.log")]
        assert all([f"hello {importer}"] in lines for importer in importers), "not in the plain template's log"
        dying = group[1].die()
        with pytest.raises(Exception, match="exited with code 5"):
            dying.wait()
        ((importer, pid, parent),) = group[1].of("pre_good").wait()
        assert importer == importers[0]
        assert pid != told[1][1]
        assert parent == told[0][2], "its parent is the daemon as well"
    with launched(cluster, name="later", preload=["pre_good"]) as group:
        assert [importer for importer, _, _ in group.of("pre_good").wait()] == importers[:2]
    with launched(cluster, name="never", preload=[]) as group:
        assert all(importer == pid for importer, pid, _ in group.of("pre_good").wait())
    with launched(cluster, name="elsewhere", preload=["pre_good"], env={"PRE_OTHER": "1"}) as group:
        assert not set(importers) & {importer for importer, _, _ in group.of("pre_good").wait()}


def test_the_module_of_the_class_is_preloaded_without_a_word(cluster: Cluster) -> None:
    here = importlib.import_module("pre_class").Here
    with here.create_group().launch(cluster, TWO, name="own") as group:
        (first, _), (second, _) = group.pids().wait()
    with here.create_group().launch(cluster, TWO, name="not_own", preload=[]) as group:
        assert all(importer == pid for importer, pid in group.pids().wait())
    with here.create_group().launch(cluster, NodePlacementStrategy([0]), name="single") as group:
        ((alone, pid),) = group.pids().wait()
    assert first == second
    assert alone == pid, "a template costs a single worker as much as it saves"


def test_what_refuses_hangs_or_ends_costs_its_own_import_only_and_is_told_once(
    cluster: Cluster, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["pre_raises", "pre_thread", "pre_good", "pre_child", "pre_dies", "pre_hangs"]
    for name in ("refused", "refused_again"):
        caplog.clear()
        with caplog.at_level(logging.INFO), launched(cluster, name=name, preload=names) as group:
            (good, pid, _), _ = group.of("pre_good").wait()
            assert good != pid
            for module in ("pre_thread", "pre_dies"):
                assert all(importer == pid for importer, pid, _ in group.of(module).wait())
        told = [record.getMessage() for record in caplog.records if "preloaded" in record.getMessage()]
        if name == "refused_again":
            assert told == []
            continue
        reasons = {
            "pre_raises": "its import raises ZeroDivisionError: division by zero",
            "pre_thread": r"its import starts 1 thread \(Thread-1 \(wait\)\)",
            "pre_child": "its import leaves a child process",
            "pre_dies": r"during its import the process was killed by SIGKILL.*",
            "pre_hangs": r"its import has not ended after 4 s \(\$RLINF_PRELOAD_TIMEOUT_S\)",
        }
        for (module, reason), line in zip(reasons.items(), told, strict=True):
            where = rf"each worker of 'refused' on node \S+ imports {module} itself, which is not preloaded: {reason}"
            assert re.fullmatch(where, line), line
        with contextlib.suppress(ProcessLookupError):
            child = os.pidfd_open(int((folder / "pre_child.py.pid").read_text()))
            assert select.select([child], [], [], 10)[0], "the daemon ends what an import has left"
            os.close(child)


def test_status_shows_templates_their_memory_and_the_refusals(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with launched(cluster, name="shown", preload=["pre_good", "pre_raises"]) as group:
        importer = group.of("pre_good").wait()[0][0]
    words = ["--run-dir", os.environ["XDG_RUNTIME_DIR"], "status", cluster.run_id]
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    (here, _) = json.loads(capsys.readouterr().out)["nodes"]
    plain, *preloaded = here["templates"]
    assert plain["modules"] == []
    assert (preloaded[-1]["pid"], preloaded[-1]["modules"]) == (importer, ["pre_good", __name__])
    assert all(0 < each["private"] < each["memory"] for each in here["templates"])
    assert here["not_preloaded"]["pre_raises"] == "its import raises ZeroDivisionError: division by zero"
    assert main(words) == 0
    out = capsys.readouterr().out
    assert re.search(rf"pid {importer} +local-0 +\S+ MB +\S+ MB +torch, pre_good, {__name__}", out)
    assert re.search(r"- +local-0 +- +- +not pre_raises: its import raises ZeroDivisionError: division by zero", out)


def test_a_module_that_does_not_exist_fails_the_launch_and_each_later_one(cluster: Cluster, folder: Path) -> None:
    for name in ("unknown", "unknown_still"):
        with pytest.raises(
            LaunchError, match=r"names 'pre_absent', which node \S+ does not have \(.*\); sys.path"
        ) as told:
            launched(cluster, name=name, preload=["pre_good", "pre_absent"]).wait_ready()
        assert str(folder) in str(told.value)
        assert cluster.nodes[0].name in str(told.value)
    (folder / "pre_absent.py").write_text(BY_PID)
    with launched(cluster, name="known", preload=["pre_absent"]) as group:
        assert len({importer for importer, _, _ in group.of("pre_absent").wait()}) == 1


def test_a_module_that_was_edited_is_imported_again(cluster: Cluster, folder: Path) -> None:
    with launched(cluster, name="before", preload=["pre_edited"]) as group:
        first = group.of("pre_edited").wait()
    (folder / "pre_edited.py").write_text(f"{BY_PID}; EDITED = True\n")
    with launched(cluster, name="after", preload=["pre_edited"]) as group:
        second = group.of("pre_edited").wait()
    assert second[0][0] == second[1][0] != first[0][0]


def test_the_modules_that_a_pickle_imports_at_once_are_read_from_it() -> None:
    here = importlib.import_module("pre_class")
    exec("class OfScript:\n def use(self): return pre_good.PID, json, cpp_part(Asker)", space := {
        "__name__": "__main__", "pre_good": importlib.import_module("pre_good"), "json": json, "Asker": Asker,
        "cpp_part": importlib.import_module("omegaconf").OmegaConf,
    })  # fmt: skip
    value = ((here.Here, space["OfScript"], here.Here, {"path": Path("pre_edited")}), {})
    assert imported_at_once(codec.encode(value).head) == ("pre_class", "pre_good", "omegaconf.omegaconf", __name__)
    assert imported_at_once(codec.encode((b"x" * 100_000, here.Here)).head) == ()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("vllm", r"takes a list of modules' names, got 'vllm': write preload=\['vllm'\]"),
        ([1], r"takes a list of modules' names, such as \['vllm'\], got \[1\]"),
        (7, "takes a list of modules' names"),
        (["a b"], "has 'a b', which cannot be a module's name"),
        ([""], "has '', which cannot be"),
        ([".relative"], "cannot be a module's name"),
    ],
)
def test_a_list_of_no_modules_is_an_error_at_once(cluster: Cluster, given: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        launched(cluster, name="bad", preload=given)

"""Users' modules that have the names of this project's folders, or of others' modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]

SCRIPT = """
    import core, launcher, weights
    from rlinf_async import Cluster

    with Cluster(log_to_driver=False) as cluster:
        group = core.Mine.create_group().launch(cluster)
        print(*group.found().wait()[0])
        print(*(module.__file__ for module in (core, launcher, weights)))
"""
CORE = """
    from rlinf_async import Worker

    class Mine(Worker):
        def found(self):
            import core, launcher, weights
            return [module.__file__ for module in (core, launcher, weights)]
"""


def write(folder: Path, text: str, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))


def run(command: list[str], directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=directory, env={**clean, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("launched", "beside", "elsewhere"),
    [(False, "launcher.py", "launcher/__init__.py"), (True, "launcher/__init__.py", "launcher.py")],
    ids=["python", "rlinf-launch"],
)
def test_modules_beside_the_script_are_found_whatever_has_their_names(
    tmp_path: Path, launched: bool, beside: str, elsewhere: str
) -> None:
    script, path, directory = (tmp_path / name for name in ("script", "path", "directory"))
    write(script, SCRIPT, "train.py")
    write(script, CORE, "core.py")
    write(script, "", beside)
    write(path, "", "weights/__init__.py")
    wrong = "raise ImportError(__file__)"
    write(path, wrong, elsewhere, "core.py")
    write(directory, wrong, elsewhere, "core.py", "weights/__init__.py", "queue.py", "types.py", "grpc.py")
    program = [str(Path(sys.executable).with_name("rlinf-launch"))] if launched else [sys.executable]
    done = run([*program, str(script / "train.py")], directory, PYTHONPATH=str(path))
    assert done.returncode == 0, done.stderr
    found = f"{script / 'core.py'} {script / beside} {path / 'weights/__init__.py'}"
    assert done.stdout.splitlines() == [found, found]


def test_a_checkout_that_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    for package in ("rlinf_async", "launcher"):
        (tmp_path / package).symlink_to(ROOT / package)
    write(tmp_path, "from rlinf_async import Cluster\nCluster()", "train.py")
    done = run([sys.executable, "-m", "launcher", "train.py"], tmp_path)
    assert done.returncode == 1
    assert done.stderr == "this checkout is not installed, and its launcher has another name then: pip install -e .\n"
    here = ROOT.resolve()
    block = "import sys; sys.modules['rlinf_launcher'] = None; import runpy; runpy.run_path('train.py')"
    done = run([sys.executable, "-c", block], tmp_path)
    assert done.stderr.splitlines()[-1] == (
        f"rlinf_async.errors.LaunchError: rlinf_async is imported from {here}, which is not installed here: "
        f"pip install -e {here}"
    )

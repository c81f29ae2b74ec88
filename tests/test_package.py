"""The package as it is shipped: what sdist and wheel hold, a fresh environment, other Pythons, pins."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rlinf_async import __version__
from tests._support.virtual_environments import make_interpreter

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.[0-9]+)'", str(PROJECT["classifiers"]))
OTHER_PYTHONS = [version for version in PYTHONS if version != "{}.{}".format(*sys.version_info)]
GREETINGS = [f"hello world, from rank {rank} of 4" for rank in range(4)]

# What a checkout that is worked in has beside its files.
STRAYS = (
    *("logs/rank_0.log", ".venv/bin/python", "MUJOCO_LOG.TXT", "benches/.peers/ray/train.py"),
    *("tests/__pycache__/test_package.cpython-311.pyc", "rlinf_async/__pycache__/work.cpython-311.pyc"),
)
NOT_COPIED = (
    *("logs", "build", "dist", "*.egg-info", "__pycache__", "MUJOCO_LOG.TXT"),
    *(".git", ".venv*", ".peers", ".hypothesis", ".*_cache"),
)


def run(*command: object, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that must succeed, in an environment that names no checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    # What several processes load is compiled once, also where the environment forbids to keep it.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [str(word) for word in command],
        env={**environment, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def files_below(folder: Path) -> set[str]:
    """Paths of the files below a folder; a link to a folder is none."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


@dataclass(frozen=True)
class Built:
    """What ``python -m build`` has made.

    Attributes:
        files: of the checkout, without what lies about there.
        sdist, wheel: the two archives; the wheel is built from the sdist.
    """

    files: set[str]
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Of a copy of the checkout, with strays; with what is installed here, so that nothing is fetched."""
    if find_spec("build") is None:
        pytest.skip("the front end of builds is not installed: pip install -e '.[test]', or pip install build")
    folder = tmp_path_factory.mktemp("package") / "checkout"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    files = files_below(folder)
    for stray in STRAYS:
        (folder / stray).parent.mkdir(parents=True, exist_ok=True)
        (folder / stray).write_text("")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder.parent, cwd=folder)
    (sdist,), (wheel,) = folder.parent.glob("*.tar.gz"), folder.parent.glob("*.whl")
    return Built(files, sdist, wheel)


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a fresh environment's commands: the wheel is installed there, its requirements are found here."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False, symlinks=True)
    # Before this environment's packages are in sight: pip would take the package for installed.
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index"]
    run(*pip, "--no-compile", built.wheel)
    return make_interpreter(folder).parent


@pytest.mark.slow
def test_the_sdist_holds_the_whole_checkout_and_nothing_that_lies_about_there(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive)
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    made = {name for name in names if name.startswith("rlinf_async.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert names - made == built.files - {".gitignore"}


def test_the_wheel_holds_both_packages_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
        about = archive.read(f"rlinf_async-{__version__}.dist-info/METADATA").decode()
    information = {name for name in names if name.startswith(f"rlinf_async-{__version__}.dist-info/")}
    sources = {name for name in built.files if re.match(r"(rlinf_async|launcher)/", name)}
    assert names - information == {re.sub("^launcher/", "rlinf_launcher/", name) for name in sources}
    assert {"rlinf_async/py.typed", "rlinf_launcher/py.typed", "rlinf_launcher/control/page/page.html"} <= names
    assert f"rlinf_async-{__version__}.dist-info/licenses/LICENSE" in information
    assert "License-Expression: Apache-2.0\n" in about


@pytest.mark.slow
def test_the_installed_package_is_imported_from_its_environment(environment: Path) -> None:
    where = "import rlinf_async, rlinf_launcher; print(rlinf_async.__file__); print(rlinf_launcher.__file__)"
    for path in run(environment / "python", "-c", where, cwd=environment).stdout.splitlines():
        assert Path(path).is_relative_to(environment.parent / "lib")


@pytest.mark.slow
def test_the_installed_package_runs_hello_from_a_folder_with_nothing_else(environment: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "hello.py", tmp_path)
    for command in ([environment / "python"], [environment / "rlinf-launch", "-q"]):
        assert run(*command, "hello.py", cwd=tmp_path).stdout.splitlines() == GREETINGS


DEADLOCK = """\
from rlinf_async import Cluster, NodePlacementStrategy, Worker

class Peer(Worker):
    def ask(self):
        self.recv("peers", 1 - self._rank)

if __name__ == "__main__":
    with Cluster(num_nodes=1) as cluster:
        peers = Peer.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="peers").wait_ready()
        print(cluster.run_id, flush=True)
        peers.ask().wait()
"""


@pytest.mark.slow
def test_the_installed_package_tells_its_own_frames_from_the_users_in_a_verdict(
    environment: Path, tmp_path: Path
) -> None:
    (tmp_path / "deadlock.py").write_text(DEADLOCK)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(environment / "python"), "deadlock.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=variables, **pipes) as script:
        assert script.stdout is not None
        try:
            stuck = [str(environment / "rlinf-ctl"), "stuck", script.stdout.readline().strip()]
            for _ in range(20):  # what has begun to wait a moment ago may be answered yet
                told = subprocess.run(stuck, env=variables, timeout=60, check=False, **pipes)
                if told.returncode:
                    break
        finally:
            script.send_signal(signal.SIGINT)
            script.communicate()
    assert told.returncode == 1, told.stdout
    assert told.stdout.startswith("deadlock: ")
    assert "deadlock.py:5 in Peer.ask()" in told.stdout
    assert "site-packages" not in told.stdout


def test_commands_and_package_tell_one_version(environment: Path) -> None:
    for command in ("rlinf-launch", "rlinf-ctl"):
        assert run(environment / command, "--version").stdout == f"{command} {__version__}\n"
    told = run(environment / "python", "-m", "rlinf_async", "--version").stdout.splitlines()
    assert told[0] == f"rlinf_async {__version__}"
    assert told[1] == "Python {}.{}.{}".format(*sys.version_info)
    assert told[2:] == [f"{name} {metadata.version(name)}" for name in ("torch", "grpcio")]


def test_the_package_tells_its_version_and_its_commands_without_importing_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "rlinf_async"]
    usage, version = run(*command, cwd=ROOT), run(*command, "--version", cwd=ROOT)
    assert "rlinf-launch --help" in usage.stdout
    assert "rlinf-ctl --help" in usage.stdout
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", usage.stderr + version.stderr, re.MULTILINE))
    assert "rlinf_async" in imported
    assert not imported & {"torch", "grpc", "asyncio"}


@pytest.fixture(params=OTHER_PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    """An interpreter of each other version that pyproject.toml declares."""
    version: str = request.param
    name = f"python{version}"
    environment = {**os.environ, "PYENV_VERSION": version}  # pyenv has the name on the path for all its versions
    if shutil.which(name) is not None:
        told = [name, "-c", "import sys; print(sys.executable)"]
        done = subprocess.run(told, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    pytest.skip(f"{name} is not on the PATH: install it by the system's packages, or by pyenv install {version}")


@pytest.mark.slow
def test_every_other_python_compiles_every_file_without_a_warning(python: str, tmp_path: Path) -> None:
    words = ["-W", "error", "-X", f"pycache_prefix={tmp_path}", "-m", "compileall", "-q", "-f"]
    assert run(python, *words, "rlinf_async", "launcher", "examples", cwd=ROOT).stdout == ""


@pytest.mark.slow
def test_every_other_python_that_has_torch_runs_hello(python: str, tmp_path: Path) -> None:
    found = run(python, "-c", "import importlib.util as u; print(u.find_spec('torch') and u.find_spec('grpc'))")
    if found.stdout == "None\n":
        name = Path(python).name
        pytest.skip(f"torch or grpcio is not installed for {name}; all tests: make test PYTHON={name} VENV=.venv-other")
    told = run(python, ROOT / "examples" / "hello.py", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert told.stdout.splitlines() == GREETINGS


def test_every_requirement_is_pinned_to_a_version_that_it_admits() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for text in [*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name.lower()]), text

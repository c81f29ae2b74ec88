"""Attacks by unauthenticated clients: nothing is unpickled, no secret is readable."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pickle
import random
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlinf_async import Cluster, NodePlacementStrategy, WorkerDied
from rlinf_async._core import frames
from rlinf_async._wire.credentials import NodeCredentials, RunAuthority
from tests._support import leaks
from tests._support.broken_runs import Broken
from tests._support.fake_hosts import CHECKOUT
from tests._support.unauthenticated_clients import Canary, Listener, hello, listeners, listeners_of
from tests._support.workers import Plain, SeedWorker

pytestmark = pytest.mark.shared_cluster

BOTH = NodePlacementStrategy([0, 1])
NOBODY = 65534


@dataclass
class Run:
    """A run that is alive while strangers knock."""

    run: str
    secrets: list[str]
    ask: Callable[[], None]
    """Fails unless everything still works."""


# ---- the run, in this process


@pytest.fixture(scope="module")
def issued() -> Iterator[list[NodeCredentials]]:
    """Every node's credentials, as they are made."""
    made: list[NodeCredentials] = []
    issue = RunAuthority.issue

    def recorded(self: RunAuthority, node: int) -> NodeCredentials:
        made.append(issue(self, node))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunAuthority, "issue", recorded)
        yield made


@pytest.fixture(scope="module")
def cluster(issued: list[NodeCredentials]) -> Iterator[Cluster]:
    with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def group(cluster: Cluster) -> Iterator[Any]:
    group = Plain.create_group().launch(cluster, placement=BOTH, name="plain")
    yield group.wait_ready()
    group.close()


@pytest.fixture(scope="module")
def torch_group(cluster: Cluster) -> Iterator[Any]:
    group = SeedWorker.create_group().launch(cluster, placement=BOTH, name="torch")
    group.initialize().wait()
    yield group
    group.close()


@pytest.fixture(scope="module")
def alive(cluster: Cluster, group: Any, torch_group: Any, issued: list[NodeCredentials]) -> Run:
    def ask() -> None:
        assert group.hello().wait(timeout=10) == [0, 1]
        assert [float(sum_) for sum_ in torch_group.initialize().wait(timeout=10)] == [2.0, 2.0]
        assert [cluster.status(node)["node"] for node in (0, 1)] == [0, 1]

    secrets = [line.marker for line in cluster._lifelines]
    return Run(cluster.run_id, secrets + key_lines(issued), ask)


def key_lines(issued: Sequence[NodeCredentials]) -> list[str]:
    """What nobody may read, in pieces that survive being wrapped: the lines of the private keys."""
    return [line for one in issued for line in one.key.splitlines() if line and "-----" not in line]


# ---- who listens


def look_at_the_listeners(run: str) -> list[Listener]:
    """All of the run; none of TCP on every interface, none of UNIX where others could come by."""
    found = listeners_of(run)
    for listener in found:
        if listener.is_tcp:
            assert not ipaddress.ip_address(listener.address).is_unspecified, listener
        else:
            path = Path(listener.address)
            assert path.is_absolute(), f"{listener} has an abstract name, which has no owner"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert path.parent.stat().st_uid == os.getuid()
    return found


def test_a_listener_on_every_interface_would_be_seen() -> None:
    with socket.create_server(("", 0)) as everywhere, socket.create_server(("::1", 0), family=socket.AF_INET6) as one:
        found = [(listener.address, listener.port) for listener in listeners([os.getpid()])]
        assert ("0.0.0.0", everywhere.getsockname()[1]) in found
        assert ("::1", one.getsockname()[1]) in found


# ---- strangers at the door


def knocks(canary: bytes) -> dict[str, tuple[bytes, NodeCredentials | bool | None]]:
    """What a stranger sends, and as whom: without TLS (False), without a certificate (None), with one of its own."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
    call = (frames.CALL, 0, 0, [[node, [1, 0, 2, 1, 3, 2]] for node in (0, 1)], 1, "hello", 0, canary)
    hello = (frames.HELLO, 0, 0, {"role": "driver", "protocol": frames.PROTOCOL})
    noise = random.Random(5).randbytes(4096)
    own = RunAuthority("0badcafe").issue(0)
    return {
        "noise": (noise, False),
        "HTTP/2": (preface + canary, False),
        "pickle": (canary, False),
        "frames": (frames.pack(hello) + frames.pack(call), False),
        "TLS without a certificate": (preface + canary, None),
        "TLS with a certificate of its own": (preface + canary, own),
    }


def knock(
    address: str, port: int, payload: bytes, identity: NodeCredentials | bool | None, patience: float = 0.2
) -> bytes:
    """How the answer begins, where there is one within ``patience`` seconds; of TLS what is inside."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5) as plain:
        plain.settimeout(patience)
        if identity is False:
            return said_by(plain, payload)
        with contextlib.closing(tls_context(identity).wrap_socket(plain)) as secure:
            return said_by(secure, payload)
    return b""


def said_by(sock: socket.socket, payload: bytes) -> bytes:
    sock.sendall(payload)
    answer = b""
    with contextlib.suppress(OSError):
        while len(answer) < 10 and (data := sock.recv(4096)):
            answer += data
    return answer


def tls_context(identity: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if identity is not None:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(f"{identity.cert}\n{identity.key}")
            file.flush()
            context.load_cert_chain(file.name)
    return context


SETTINGS = 4
"""The type of the HTTP/2 frame that a server begins with."""


def is_http2(answer: bytes) -> bool:
    return len(answer) > 9 and answer[3] == SETTINGS


def test_the_canary_sings_where_it_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Canary(tmp_path / "canary"))).close()
    assert (tmp_path / "canary").exists()


def test_a_node_is_let_in_by_the_door_at_which_strangers_are_turned_away(
    alive: Run, issued: list[NodeCredentials]
) -> None:
    answers = [
        knock(listener.address, listener.port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", issued[0], 10)
        for listener in listeners_of(alive.run)
        if listener.port is not None and is_daemon(listener.pid)
    ]
    assert [is_http2(answer) for answer in answers] == [True, True]


def answers_of(
    found: Sequence[Listener], payload: bytes, identity: NodeCredentials | bool | None
) -> list[tuple[Listener, bytes]]:
    """How everybody who listens by TCP answers; they are asked at once, since most of them say nothing."""
    doors = [(listener, listener.address, listener.port) for listener in found if listener.port is not None]
    with ThreadPoolExecutor(len(doors)) as pool:
        asked = [pool.submit(knock, address, port, payload, identity) for _, address, port in doors]
        return [(listener, answer.result()) for (listener, *_), answer in zip(doors, asked, strict=True)]


def is_daemon(pid: int) -> bool:
    return psutil.Process(pid).cmdline()[-1] == "rlinf_launcher.daemon"


def turn_strangers_away(alive: Run, folder: Path) -> None:
    canary = folder / "canary"
    found = look_at_the_listeners(alive.run)
    assert len([listener for listener in found if listener.is_tcp]) >= 4  # two daemons, a store, gloo's pairs
    assert len([listener for listener in found if not listener.is_tcp]) == 2
    for name, (payload, identity) in knocks(pickle.dumps(Canary(canary))).items():
        for listener, answer in answers_of(found, payload, identity):
            assert not is_http2(answer), f"{name} was let in at {listener}"
        alive.ask()
        assert not canary.exists(), name
    assert set(look_at_the_listeners(alive.run)) == set(found)


def test_strangers_get_nowhere_at_a_cluster_of_this_process(alive: Run, tmp_path: Path) -> None:
    turn_strangers_away(alive, tmp_path)


def test_no_secret_of_a_cluster_lies_about(alive: Run, cluster: Cluster) -> None:
    alive.ask()
    assert len(alive.secrets) > 6
    folders = [Path(cluster.log_dir), Path(os.environ["XDG_RUNTIME_DIR"], f"rlinf-{alive.run}")]
    assert secrets_in(alive.secrets, [os.getpid(), *leaks.processes_of_run(alive.run)], folders) == []


# ---- the same through the launcher

LAUNCHER = """
import sys
from rlinf_launcher.cli import main
from rlinf_launcher.remote import host_check
from rlinf_async._wire import credentials

def told(secret):
    with open({secrets!r}, "a") as file:
        file.write(secret + "\\n")

issue, fresh_marker = credentials.RunAuthority.issue, host_check.fresh_marker

def issued(self, node):
    made = issue(self, node)
    told(made.key)
    return made

def marked():
    made = fresh_marker()
    told(made)
    return made

credentials.RunAuthority.issue, host_check.fresh_marker = issued, marked
sys.exit(main.main())
"""

SCRIPT = """
import sys
from rlinf_async import Cluster, NodePlacementStrategy
from tests._support.workers import Plain, SeedWorker

with Cluster(num_nodes=2) as cluster:
    both = NodePlacementStrategy([0, 1])
    plain = Plain.create_group().launch(cluster, placement=both, name="plain")
    torch = SeedWorker.create_group().launch(cluster, placement=both, name="torch")
    print("run", cluster.run_id, cluster.log_dir, flush=True)
    while True:
        assert plain.hello().wait(timeout=10) == [0, 1]
        assert [float(sum_) for sum_ in torch.initialize().wait(timeout=10)] == [2.0, 2.0]
        print("answered", flush=True)
        if not sys.stdin.readline():
            break
"""


@pytest.mark.slow
def test_strangers_get_nowhere_and_no_secret_lies_about_under_the_launcher(tmp_path: Path) -> None:
    script, secrets = tmp_path / "train.py", tmp_path / "secrets"
    script.write_text(SCRIPT)
    with Broken(tmp_path, "-c", LAUNCHER.format(secrets=str(secrets)), "--local-nodes", "2", str(script)) as run:
        run.until(lambda: "answered" in run.out)

        def ask() -> None:
            answers = run.out.count("answered")
            run.say("once more")
            run.until(lambda: run.out.count("answered") > answers)

        (line,) = [line for line in run.out.splitlines() if line.startswith("run ")]
        _, run_id, log_dir = line.split()
        found = [line for line in secrets.read_text().splitlines() if line and "-----" not in line]
        assert len(found) > 6
        turn_strangers_away(Run(run_id, found, ask), tmp_path)
        assert listeners([run.process.pid]) == []
        folders = [Path(log_dir), Path(os.environ["XDG_RUNTIME_DIR"], f"rlinf-{run_id}")]
        assert secrets_in(found, [run.process.pid, *leaks.processes_of_run(run_id)], folders) == []
        assert not [secret for secret in found if secret in run.out]
        assert run.process.stdin is not None
        run.process.stdin.close()
        assert run.process.wait(30) == 0, run.out


# ---- secrets


def secrets_in(secrets: Sequence[str], pids: Sequence[int], folders: Sequence[Path]) -> list[str]:
    """Where one of the secrets can be read: command lines, environments, files."""
    places = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("cmdline", "environ")]
    places += [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    found = []
    for place in places:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            text = place.read_bytes().decode(errors="replace")
            found += [str(place) for secret in (*secrets, "PRIVATE KEY") if secret in text]
    return found


def test_a_secret_that_lies_about_would_be_found(tmp_path: Path) -> None:
    secret = "c2VjcmV0"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0.out").write_text(f"key: {secret}")
    argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", secret]
    with subprocess.Popen(argv, env={"KEY": secret}, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            found = secrets_in([secret], [process.pid], [tmp_path])
        finally:
            process.kill()
    assert sorted(Path(path).name for path in found) == ["cmdline", "environ", "rank_0.out"]


# ---- other users of this machine

AS_NOBODY = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(5)
sock.connect(sys.argv[1])
sock.sendall(bytes.fromhex(sys.argv[2]))
print("answer:", sock.recv(100))
"""


def speak_as_nobody(path: str, payload: bytes) -> str:
    """What another user hears at a UNIX socket, or how that fails."""
    argv = [sys.executable, "-I", "-S", "-c", AS_NOBODY, path, payload.hex()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("to become another user the tests must run as root (sudo make test)")


@pytest.mark.usefixtures("as_root")
def test_another_user_cannot_connect(alive: Run) -> None:
    paths = [listener.address for listener in listeners_of(alive.run) if not listener.is_tcp]
    assert len(paths) == 2
    for path in paths:
        assert "PermissionError" in speak_as_nobody(path, hello())


@pytest.mark.usefixtures("as_root")
def test_another_user_is_refused_even_where_the_directory_lies_open(
    alive: Run, cluster: Cluster, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    call = (frames.CALL, 0, 0, [[0, [1, 0, 2, 1]]], 1, "echo", 0, pickle.dumps(Canary(canary)))
    payload = hello() + frames.pack(call) + frames.pack((frames.REQUEST, 0, 0, 0, 1, "NodeStatus", {}))
    path = next(listener.address for listener in listeners_of(alive.run) if listener.address.endswith("0/node.sock"))
    endpoints = cluster.status(0)["endpoints"]
    with contextlib.ExitStack() as stack:
        for place in [Path(path), *list(Path(path).parents)[:3]]:
            stack.callback(place.chmod, stat.S_IMODE(place.stat().st_mode))
            place.chmod(0o777)
        said = speak_as_nobody(path, payload)
    assert said == "answer: b''" or "ConnectionResetError" in said or "BrokenPipeError" in said
    assert cluster.status(0)["endpoints"] == endpoints
    log = Path(cluster.log_dir, "daemon_0.log").read_text()
    assert f"a connection was refused: the other end of the UNIX socket belongs to user {NOBODY}" in log
    alive.ask()
    assert not canary.exists()


# ---- what a daemon does with what it carries

HOOK = """
import os, sys
if "rlinf_launcher.daemon" in sys.orig_argv:
    def hook(event, arguments):
        if event == "pickle.find_class":
            open(f"{folder}/fired-{os.getpid()}", "w").close()
            os._exit(86)
    sys.addaudithook(hook)
    open(f"{folder}/hooked-{os.getpid()}", "w").close()
"""


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A daemon that is started from here ends where it would unpickle; the folder tells."""
    (tmp_path / "sitecustomize.py").write_text(HOOK.replace("{folder}", str(tmp_path)))
    path = [str(tmp_path), str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in path if entry))
    return tmp_path


def test_a_daemon_that_unpickled_would_be_seen(hooked: Path) -> None:
    code = f"import pickle; pickle.loads({pickle.dumps(Canary(hooked / 'canary'))!r})"
    done = subprocess.run([sys.executable, "-c", code, "rlinf_launcher.daemon"], check=False)
    assert done.returncode == 86
    assert len(list(hooked.glob("fired-*"))) == 1
    assert not (hooked / "canary").exists()


def test_a_daemon_never_unpickles(hooked: Path) -> None:
    with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        daemons = [cluster.status(node)["pid"] for node in (0, 1)]
        group = Plain.create_group(3).launch(cluster, placement=BOTH, name="watched")
        assert group.scaled(2).wait() == [6, 6]
        large = {"numbers": list(range(100_000)), "path": Path("x")}
        assert group.echo(large).wait()[1] == ((large,), {})
        with pytest.raises(ValueError, match="as told"):
            group.fail([1]).wait()
        assert sorted(item for _, item in group.count(20)) == sorted(list(range(20)) * 2)
        with pytest.raises(WorkerDied):
            group.die([1], "SIGKILL").wait()
        group.close()
        assert [cluster.status(node)["pid"] for node in (0, 1)] == daemons
        guardians = {psutil.Process(daemon).ppid() for daemon in daemons}
        assert {int(path.name.removeprefix("hooked-")) for path in hooked.glob("hooked-*")} == guardians
    assert list(hooked.glob("fired-*")) == []

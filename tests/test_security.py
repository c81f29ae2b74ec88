"""Strangers get nowhere: no byte of theirs is unpickled, no secret lies about, and no frame lies about its sender."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlinf_async import Cluster, LaunchError, NodePlacementStrategy, VersionMismatch, WorkerDied
from rlinf_async.core import codec, frames
from rlinf_async.wire.credentials import NodeCredentials, RunAuthority
from rlinf_async.wire.local_socket import connect
from tests import leaks
from tests.namespaces import CHECKOUT
from tests.orphans import Broken
from tests.workers import Plain, SeedWorker

pytestmark = pytest.mark.shared_cluster

BOTH = NodePlacementStrategy([0, 1])
NOBODY = 65534


class Canary:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> Any:
        return open, (self._path, "w")


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


@dataclass(frozen=True)
class Listener:
    """A listening socket: of TCP an address and a port, of UNIX a path."""

    pid: int
    address: str
    port: int | None = None

    @property
    def is_tcp(self) -> bool:
        return self.port is not None


def listeners(pids: Sequence[int]) -> list[Listener]:
    """Every listening socket of these processes, each once."""
    found = {}
    for pid in pids:
        open_files = set()
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                open_files.add(os.readlink(f"/proc/{pid}/fd/{number}"))
        for inode, listener in listening_sockets(pid):
            if f"socket:[{inode}]" in open_files:
                found[inode] = listener
    return list(found.values())


def listening_sockets(pid: int) -> Iterator[tuple[str, Listener]]:
    """(inode, socket) for every listening socket of a process's network."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[start : start + 8])[::-1] for start in range(0, len(address), 8)]
                found = ipaddress.ip_address(b"".join(words))
                yield fields[9], Listener(pid, str(getattr(found, "ipv4_mapped", None) or found), int(port, 16))
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & 0x10000:
            yield fields[6], Listener(pid, fields[7] if len(fields) > 7 else "")


def listeners_of(run: str) -> list[Listener]:
    return listeners(leaks.processes_of_run(run))


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


def is_daemon(pid: int) -> bool:
    return psutil.Process(pid).cmdline()[-1] == "launcher.daemon"


def turn_strangers_away(alive: Run, folder: Path) -> None:
    canary = folder / "canary"
    found = look_at_the_listeners(alive.run)
    assert len([listener for listener in found if listener.is_tcp]) >= 4  # two daemons, a store, gloo's pairs
    assert len([listener for listener in found if not listener.is_tcp]) == 2
    for name, (payload, identity) in knocks(pickle.dumps(Canary(canary))).items():
        for listener in found:
            if listener.port is not None:
                answer = knock(listener.address, listener.port, payload, identity)
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
from launcher import cli, inspection
from rlinf_async.wire import credentials

def told(secret):
    with open({secrets!r}, "a") as file:
        file.write(secret + "\\n")

issue, fresh_marker = credentials.RunAuthority.issue, inspection.fresh_marker

def issued(self, node):
    made = issue(self, node)
    told(made.key)
    return made

def marked():
    made = fresh_marker()
    told(made)
    return made

credentials.RunAuthority.issue, inspection.fresh_marker = issued, marked
sys.exit(cli.main())
"""

SCRIPT = """
import sys
from rlinf_async import Cluster, NodePlacementStrategy
from tests.workers import Plain, SeedWorker

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


def hello(**facts: Any) -> bytes:
    return frames.pack((frames.HELLO, 0, 0, {"role": "driver", "protocol": frames.PROTOCOL, **facts}))


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
    payload = hello() + frames.pack(call) + frames.pack((frames.ASK, 0, 0, 0, 1, "status", None))
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
if "launcher.daemon" in sys.orig_argv:
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
    done = subprocess.run([sys.executable, "-c", code, "launcher.daemon"], check=False)
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


# ---- frames that lie


def test_a_frame_in_the_name_of_another_is_not_believed(cluster: Cluster) -> None:
    placement = NodePlacementStrategy([0, 0, 1])
    mixed = Plain.create_group().launch(cluster, placement=placement, name="mixed")
    with contextlib.closing(mixed.wait_ready()) as group:
        honest, liars = group.execute_on(0), group.execute_on(1, 2)
        number, driver, daemon = group._members.endpoints[0], cluster.client.endpoint, frames.endpoint(0, 0)
        waiting = honest.sleep(60)
        assert honest.noted().wait() == [["sleeping"]]
        lookup = cluster.client.ask("lookup", {"name": "not yet"}, node=0)
        forged = codec.encode("forged").to_bytes()
        route = frames.route_to([number])
        for kind in [
            "(2, 0, {number}, {driver}, call, 0, 0, {forged})",  # a REPLY: the call's result
            "(2, 0, {number}, {driver}, call, 0, 1, {forged})",  # its failure
            "(2, 0, {daemon}, {driver}, call, 0, 5, {forged})",  # the worker's death
            "(3, 0, {driver}, {route}, call)",  # a CANCEL
            "(6, 0, {daemon}, {driver}, call, True, 'forged')",  # an ANSWER
            "(7, 0, {daemon}, {driver}, 'died', {{'endpoint': {number}}})",  # an EVENT
            "(7, 0, {daemon}, {driver}, 'node_lost', {{'node': 1, 'name': 'x', 'reason': 'forged'}})",
            "(8, 0, {daemon}, {{'endpoint': 1, 'node': 0}})",  # a HELLO
            "(9, 0, {daemon}, 0.0)",  # a STOP
            "(10, 0, {daemon}, {number}, True)",  # a GONE
            "(10, 0, {daemon}, {driver}, False)",
        ]:
            frame = kind.format(number=number, driver=driver, daemon=daemon, forged=forged, route=route)
            send = "__import__('rlinf_async.worker.here', fromlist=['client']).client._send"
            liars.run(f"[{send}({frame}) for call in range(1, 1 + {next(cluster.client._ids)})] and None").wait()
        assert group.hello().wait() == [0, 1, 2]
        assert honest.was_cancelled().wait() == [False]
        assert not waiting.done()
        assert not lookup.done()
        waiting.cancel()
        cluster.client.ask("forget_lookup", {"name": "not yet"}, node=0).wait()


def test_a_rank_answers_for_itself_only(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="ranks").wait_ready()
    with contextlib.closing(group):
        send = "__import__('rlinf_async.worker.here', fromlist=['client']).client._send"
        forged = codec.encode("forged").to_bytes()
        calls = 20 + next(cluster.client._ids)
        frame = f"(2, 0, 0, {cluster.client.endpoint}, call, 0, 0, {forged})"
        honest = "__import__('time').sleep(0.3) or 'honest'"
        forge = f"[{send}({frame}) for call in range({calls})] and 'done'"
        assert group.run(f"{honest} if self._rank == 0 else {forge}").wait()[0] == "honest"


def test_a_rank_answers_for_itself_only_on_its_own_socket_to_the_caller(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="direct").wait_ready()
    with contextlib.closing(group):
        shortcuts = "next(it for it in __import__('gc').get_objects() if type(it).__name__ == 'Shortcuts')"
        forged = codec.encode("forged").to_bytes()
        calls = 20 + next(cluster.client._ids)
        frames_of = f"[(2, 0, 0, 0, call, 0, status, {forged}) for call in range({calls}) for status in (0, 5)]"
        honest = "__import__('time').sleep(0.3) or 'honest'"
        forge = f"[{shortcuts}.to({cluster.client.endpoint}).send(frame) for frame in {frames_of}] and 'done'"
        assert group.run(f"{honest} if self._rank == 0 else {forge}").wait() == ["honest", "done"]


# ---- frames that make no sense

scalars = [st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats()]
plain_data = st.recursive(
    st.one_of(*scalars, st.text(max_size=5), st.binary(max_size=5)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
numbers = st.sampled_from([0, 1, 2, 3, 7, 1 << 32, (1 << 32) + 1])
routes = st.lists(st.tuples(st.sampled_from([0, 1, 7]), st.lists(numbers, max_size=6)), max_size=3)
words = st.sampled_from(["hello", "echo", "spawn", "publish", "lookup", "close", "status", "__init__"])
field = numbers | routes | words | plain_data


@st.composite
def sent_frames(draw: st.DrawFn) -> bytes:
    """A frame of the right length, whose fields may or may not be what they should."""
    kind = draw(st.sampled_from(list(frames.LENGTHS)))
    return frames.pack([kind, 0, *(draw(field) for _ in range(frames.LENGTHS[kind] - 2))])


@given(st.lists(sent_frames() | st.binary(max_size=20), max_size=5).map(b"".join))
@settings(
    max_examples=200, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_nonsense_from_a_driver_harms_nobody_else(alive: Run, cluster: Cluster, group: Any, payload: bytes) -> None:
    with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(hello() + payload)
            sock.shutdown(socket.SHUT_WR)
        read_to_the_end(sock)
    assert group.hello().wait(timeout=10) == [0, 1]
    assert [cluster.status(node)["node"] for node in (0, 1)] == [0, 1]


def node_directory(cluster: Cluster) -> str:
    return os.path.join(os.environ["XDG_RUNTIME_DIR"], f"rlinf-{cluster.run_id}", "node-0")


def read_to_the_end(sock: socket.socket) -> bytes:
    sock.settimeout(10)
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            heard += data
    return heard


EVERYBODY = [[node, [number for slot in range(9) for number in (slot, slot)]] for node in (0, 1)]

NONSENSE = {
    "not msgpack": b"\xc1",
    "no frame": frames.pack("hello"),
    "too short": frames.pack([frames.CALL, 0, 0]),
    "unknown kind": frames.pack([99, 0, 0, 0]),
    "a body that says it comes by another way": frames.pack([frames.CALL, 0, 0, EVERYBODY, 1, "hello", 0, [1, 8]]),
    "a body that says nothing": frames.pack([frames.CALL, 0, 0, EVERYBODY, 1, "hello", 0, []]),
    "a body that is nowhere": frames.pack([frames.CALL, 0, 0, EVERYBODY, 1, "hello", 0, 1 << 40]),
    "a method that is no name": frames.pack([frames.CALL, 0, 0, EVERYBODY, 1, 5, 0, b""]),
    "a route that is none": frames.pack([frames.CALL, 0, 0, 7, 1, "hello", 0, b""]),
    "a call that is none": frames.pack([frames.CALL, 0, 0, EVERYBODY, {}, "hello", 0, b""]),
    "descriptors that are not there": frames.pack([frames.CALL, 1, 0, EVERYBODY, 1, "hello", 0, 8]),
    "an item that says it comes by another way": frames.pack([frames.PUT, 0, 0, 1 << 32, 1, 0, b"", 0, 0, [1, 8]]),
    "an item that says nothing": frames.pack([frames.PUT, 0, 0, 1 << 32, 1, 0, b"", 0, 0, []]),
    "an answer of the wrong kind": frames.pack([frames.REPLY, 0, 0, 1, 1, 0, 0, [1, 8]]),
}


@pytest.mark.parametrize("payload", list(NONSENSE.values()), ids=list(NONSENSE))
def test_a_frame_that_makes_no_sense_ends_its_connection_only(alive: Run, cluster: Cluster, payload: bytes) -> None:
    with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
        sock.sendall(hello() + payload)
        read_to_the_end(sock)
    alive.ask()


@pytest.mark.parametrize("depth", [10, 600])
def test_a_question_that_cannot_be_answered_harms_nobody(alive: Run, cluster: Cluster, depth: int) -> None:
    number = b"\x91" * depth + b"\0"  # nested deeper than a packer would make it
    with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
        payload = hello()
        for operation in ("status", "nonsense", ""):
            for node in (0, 1):
                start = b"\x97" + frames.pack(frames.ASK) + b"\0\0" + frames.pack(node)
                payload += start + number + frames.pack(operation) + frames.pack(None)
        sock.sendall(payload)
        sock.shutdown(socket.SHUT_WR)
        read_to_the_end(sock)
    alive.ask()


@pytest.mark.parametrize("body", [b"inline", 1 << 20, 1 << 62, -1, [1, 8]], ids=str)
@pytest.mark.parametrize("what", ["pipe", "unsealed memory"])
def test_a_descriptor_that_holds_no_body_ends_its_connection_only(
    alive: Run, cluster: Cluster, what: str, body: Any
) -> None:
    fds = list(os.pipe()) if what == "pipe" else [os.memfd_create("mine")]
    files = len(os.listdir(f"/proc/{cluster.status(0)['pid']}/fd"))
    try:
        with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
            sock.sendall(hello())
            frame = frames.pack([frames.CALL, 1, 0, EVERYBODY, 1, "hello", 0, body])
            socket.send_fds(sock, [frame], fds[:1])
            read_to_the_end(sock)
    finally:
        for fd in fds:
            os.close(fd)
    alive.ask()
    assert len(os.listdir(f"/proc/{cluster.status(0)['pid']}/fd")) == files


def test_whoever_does_not_say_hello_first_is_not_heard(alive: Run, cluster: Cluster) -> None:
    with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
        sock.sendall(frames.pack((frames.ASK, 0, 0, 0, 1, "status", None)))
        assert read_to_the_end(sock) == b""
    alive.ask()


# ---- versions


def test_a_driver_of_another_protocol_is_told_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_async.cluster.PROTOCOL", 99)
    python = ".".join(map(str, sys.version_info[:3]))
    with pytest.raises(VersionMismatch) as caught:
        Cluster(num_nodes=1)
    assert str(caught.value) == (
        f"protocol 99 of the driver (rlinf_async in Python {python}) is not protocol {frames.PROTOCOL} of the daemon "
        f"({sys.executable}): both must be the same version"
    )


def test_a_driver_of_another_protocol_is_not_heard(alive: Run, cluster: Cluster) -> None:
    with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
        sock.sendall(hello(protocol=99) + frames.pack((frames.ASK, 0, 0, 0, 1, "status", None)))
        (refusal,) = frames.FrameReader().feed(read_to_the_end(sock))
    assert refusal[4] == "refused"
    assert refusal[5]["error"][0] == "VersionMismatch"


def test_a_daemon_of_another_protocol_is_told_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_async.wire.mesh.PROTOCOL", 99)
    told = f"the launcher speaks protocol 99, the rlinf_async of this node protocol {frames.PROTOCOL}"
    with pytest.raises(LaunchError, match=f"VersionMismatch: {told}"):
        Cluster(num_nodes=1)

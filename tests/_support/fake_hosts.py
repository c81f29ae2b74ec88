"""Several hosts on one machine: each with a network, mounts, a host name, processes and an sshd of its own.

    with FakeHosts(2, hidden={1: [CHECKOUT]}) as hosts:
        hosts.driver.run(["ssh", *hosts.ssh_args, "node1", "hostname"]).stdout    # "node1\n"
        hosts[0].link_down()

``hosts.driver`` is the host that the user sits at.  It shares ``/tmp``, ``/dev/shm`` and the process ids with the
test, so that ``popen(...).pid`` is the command's own.  The others (``node0``, ``node1``, …) have ``/tmp``, ``/run``,
``/dev/shm``, process ids, machine id and boot id of their own; all of them see the checkout and Python's prefix,
but for what ``hidden`` covers.

A host is an *init* process (this file, run as a script) in new namespaces, and lives until its standard input ends.
No namespace has a name and the switch between the hosts stands inside the driver's network.  So nothing in the
machine's own network is touched, runs side by side cannot meet, and a test process that is killed takes all of it
along.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import IO, Any, overload

CHECKOUT = Path(__file__).resolve().parents[2]
_NETWORK = "10.77.0"
_MS_BIND, _MS_REC = 0x1000, 0x4000


def missing() -> str | None:
    """What this machine lacks for fake hosts and how to get it, or ``None``."""
    if os.geteuid() != 0:
        return "fake hosts need root: run the tests as root (sudo make test)"
    packages = {"sshd": "openssh-server", "ssh": "openssh-client", "ip": "iproute2", "nsenter": "util-linux"}
    lacking = [name for name in packages if not _tool(name)]
    if lacking:
        install = " ".join(sorted({packages[name] for name in lacking}))
        return f"fake hosts need {', '.join(lacking)}: apt-get install {install}"
    probe = subprocess.run(["unshare", "-n", "-m", "-u", "-p", "--fork", "true"], capture_output=True, text=True)
    if probe.returncode:
        return f"fake hosts need namespaces: {probe.stderr.strip()} (in a container: run it privileged)"
    return None


class Host:
    """One fake host: ``address``, ``hostname``, commands that run on it, its cable and its power switch."""

    def __init__(self, hostname: str, address: str, port: str, own_pids: bool, log: Path) -> None:
        self.hostname, self.address = hostname, address
        self._port, self._own_pids, self._log = port, own_pids, log
        own = ["--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"] if own_pids else []
        with log.open("wb") as stderr:
            self._init = subprocess.Popen(
                ["unshare", "--net", "--mount", "--uts", *own, sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._pid = self._init.pid
        self._network = ""
        self._switch: Host = self

    @property
    def network(self) -> str:
        """The file of its network, for ``nsenter --net=``."""
        return f"/proc/{self._pid}/ns/net"

    def command(
        self, command: Sequence[str | Path], *, cwd: Path | str | None = None, env: Mapping[str, str] | None = None
    ) -> list[str]:
        """The argument list that runs ``command`` on this host, for ``subprocess`` or ``asyncio``."""
        enter = ["nsenter", f"--target={self._pid}", "--net", "--mount", "--uts"]
        enter += ["--pid"] if self._own_pids else []
        # folders of the test process that this host does not have
        forgotten = ["-u", "XDG_RUNTIME_DIR", "-u", "TMPDIR"] if self._own_pids else []
        settings = [f"{name}={value}" for name, value in (env or {}).items()]
        return [*enter, "--", "env", "-C", str(cwd or "/"), *forgotten, *settings, *map(str, command)]

    def popen(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Starts ``command`` here.  On the driver the ``pid`` is the command's own, elsewhere that of an nsenter
        which takes no signals for it: leave that one alone and let ``kill`` end the host.
        """
        return subprocess.Popen(self.command(command, cwd=cwd, env=env), **options)

    def run(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 60,
        input: str | None = None,  # as in subprocess.run
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``command`` here and captures its text.

        Raises:
            AssertionError: it failed and ``check`` is set; the message holds all that it said.
            subprocess.TimeoutExpired: it took more than ``timeout`` seconds.
        """
        argv = self.command(command, cwd=cwd, env=env)
        stdin: dict[str, Any] = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False, **stdin)
        if check and done.returncode:
            shown = " ".join(map(str, command))
            raise AssertionError(
                f"on {self.hostname}: exit code {done.returncode} of: {shown}\n{done.stdout}{done.stderr}"
            )
        return done

    def processes(self, run_id: str | None = None) -> list[int]:
        """Pids, as the test sees them, of this host's processes whose environment names the run (or of all)."""
        return list(_processes_in(self._network, run_id))

    def link_down(self) -> None:
        """Pulls the cable: packets are lost both ways, nobody is told."""
        self._switch.run([_tool("ip"), "link", "set", self._port, "down"])

    def link_up(self) -> None:
        self._switch.run([_tool("ip"), "link", "set", self._port, "up"])

    def kill(self) -> None:
        """Power-off: the cable first, so that nothing gets out, then every process at once."""
        if self._init.poll() is None:
            self.link_down()
            self._end()

    def sshd_log(self) -> str:
        return self._log.read_text(errors="replace")

    def _hear(self, word: str) -> None:
        assert self._init.stdout is not None
        heard = self._init.stdout.readline().strip()
        if heard != word:
            raise RuntimeError(f"{self.hostname} did not come up (said {heard!r}):\n{self.sshd_log()}")

    def _born(self) -> None:
        """Waits until the namespaces exist."""
        self._hear("born")
        if self._own_pids:  # what unshare forked is the init; only it lives in the new pid namespace
            self._pid = int(Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text())
        self._network = os.readlink(f"/proc/{self._pid}/ns/net")

    def _tell(self, **orders: Any) -> None:
        assert self._init.stdin is not None
        self._init.stdin.write(json.dumps(orders) + "\n")
        self._init.stdin.flush()

    def _end(self) -> None:
        """Ends every process of the host, then waits until the init has been reaped."""
        init = self._init
        if init.poll() is None:
            if self._network and not self._own_pids:
                _kill_all(self._network, spare={init.pid})
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # the kernel ends what lives in its pid namespace along with it
        init.wait()
        if self._network:
            # An nsenter stands outside the pid namespace and ends by itself once it has reaped its command.  Killed
            # before that, it would leave the reaping, for which the kernel waits above, to the machine's own init.
            _kill_all(self._network)
        for pipe in (init.stdin, init.stdout):
            assert pipe is not None
            pipe.close()


class FakeHosts(Sequence[Host]):
    """``count`` fake hosts and a driver on one switch; a context manager, empty before and after.

    Args:
        count: how many hosts besides the driver.
        hidden: directories that are empty on a host, by the host's number.
        names: host names, ``node0``, ``node1``, … by default.

    Attributes:
        driver: the host that the user sits at.
        ssh_args: arguments for ``ssh``, or for ``rlinf-launch --ssh-args``: identity, known hosts, strict checking.
        known_hosts, identity: the files that ``ssh_args`` leads to.
        directory: a folder that every host sees under the same path.

    Entering skips the test, with the reason, on a machine that cannot have fake hosts.
    """

    driver: Host

    def __init__(
        self,
        count: int,
        *,
        hidden: Mapping[int, Sequence[Path | str]] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._names = list(names) if names else [f"node{number}" for number in range(count)]
        if len(self._names) != count:
            raise ValueError(f"{count} hosts but {len(self._names)} names: {self._names}")
        self._hidden = {number: [Path(path).resolve() for path in paths] for number, paths in (hidden or {}).items()}
        self._hosts: list[Host] = []
        self._stack = contextlib.ExitStack()
        self.ssh_args: list[str] = []

    def __enter__(self) -> FakeHosts:
        if lack := missing():
            import pytest  # not at the top: a host's init runs this file without site-packages

            pytest.skip(lack)
        with contextlib.ExitStack() as stack:
            self.directory = Path(tempfile.mkdtemp(prefix="rlinf-hosts-"))
            stack.callback(shutil.rmtree, self.directory)
            self.directory.chmod(0o755)
            addresses = [f"{_NETWORK}.{10 + number}" for number in range(len(self._names))]
            self.driver = self._host(stack, "driver", f"{_NETWORK}.1", "switch", own_pids=False)
            self._hosts = [
                self._host(stack, name, address, f"port{number}", own_pids=True)
                for number, (name, address) in enumerate(zip(self._names, addresses, strict=True))
            ]
            self._write_files()
            everyone = [self.driver, *self._hosts]
            for host in everyone:
                host._switch = self.driver
                host._born()
            self._join_cables()
            self.driver._tell(**self._orders(self.driver, covers=[], keeps=[]))
            for number, host in enumerate(self._hosts):
                hidden = self._hidden.get(number, [])
                keeps = {self.directory, Path(sys.prefix), Path(sys.base_prefix)}
                if not any(CHECKOUT.is_relative_to(path) for path in hidden):
                    keeps.add(CHECKOUT)
                host._tell(**self._orders(host, [Path("/tmp"), Path("/dev/shm"), *hidden], sorted(keeps)))
            for host in everyone:
                host._hear("up")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        self._hosts = []

    @overload
    def __getitem__(self, number: int) -> Host: ...
    @overload
    def __getitem__(self, number: slice) -> list[Host]: ...
    def __getitem__(self, number: int | slice) -> Host | list[Host]:
        return self._hosts[number]

    def __len__(self) -> int:
        return len(self._hosts)

    def processes(self, run_id: str) -> dict[str, list[int]]:
        """Host name → pids of the run's processes on it, for the hosts (driver included) that have any."""
        found = {host.hostname: host.processes(run_id) for host in [self.driver, *self._hosts]}
        return {name: pids for name, pids in found.items() if pids}

    def _host(self, stack: contextlib.ExitStack, name: str, address: str, port: str, own_pids: bool) -> Host:
        host = Host(name, address, port, own_pids, self.directory / f"{name}.log")
        stack.callback(host._end)
        return host

    def _join_cables(self) -> None:
        lines = ["link add switch type bridge"]
        for host in self._hosts:
            lines.append(f"link add {host._port} type veth peer name eth0 netns {host._pid}")
            lines.append(f"link set {host._port} master switch up")
        enter = ["nsenter", f"--target={self.driver._pid}", "--net", _tool("ip"), "-batch", "-"]
        subprocess.run(enter, input="\n".join(lines), text=True, check=True)

    def _orders(self, host: Host, covers: Sequence[Path], keeps: Sequence[Path]) -> dict[str, Any]:
        """What the host's init has to set up, as it reads it."""
        own = self.directory / host.hostname
        return {
            "hostname": host.hostname,
            "address": f"{host.address}/24",
            "interface": "switch" if host is self.driver else "eth0",
            "covers": [str(path) for path in covers],
            "keeps": [str(path) for path in keeps],
            "files": {
                "/etc/hosts": str(self.directory / "hosts"),
                "/etc/shadow": str(self.directory / "shadow"),
                "/etc/machine-id": f"{own}.machine_id",
                "/proc/sys/kernel/random/boot_id": f"{own}.boot_id",
            },
            "sshd": [_tool("sshd"), "-D", "-e", "-f", f"{own}.sshd_config"],
        }

    def _write_files(self) -> None:
        """Keys, known hosts, ssh configurations, and the files in ``/etc`` that make hosts different machines."""
        everyone = [self.driver, *self._hosts]
        self.identity, self.known_hosts = self.directory / "identity", self.directory / "known_hosts"
        _make_key(self.identity)
        known = []
        for host in everyone:
            own = self.directory / host.hostname
            _make_key(key := Path(f"{own}.host_key"))
            known.append(f"{host.hostname},{host.address} {Path(f'{key}.pub').read_text().strip()}")
            Path(f"{own}.sshd_config").write_text(_SSHD.format(host=host, own=own, identity=self.identity))
            Path(f"{own}.machine_id").write_text(uuid.uuid4().hex + "\n")
            Path(f"{own}.boot_id").write_text(f"{uuid.uuid4()}\n")
        self.known_hosts.write_text("\n".join(known) + "\n")
        names = [f"{host.address} {host.hostname}" for host in everyone]
        (self.directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        shadow = self.directory / "shadow"
        shadow.write_text("root:*:19000:0:99999:7:::\n")  # "!" there would lock the account, keys included
        shadow.chmod(0o600)
        config = self.directory / "ssh_config"
        config.write_text(_SSH.format(identity=self.identity, known_hosts=self.known_hosts))
        self.ssh_args = ["-F", str(config)]


_SSHD = """\
Port 22
ListenAddress {host.address}
HostKey {own}.host_key
AuthorizedKeysFile {identity}.pub
PidFile none
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 64
PrintMotd no
"""

_SSH = """\
Host *
  User root
  IdentityFile {identity}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  UpdateHostKeys no
  BatchMode yes
"""


def _tool(name: str) -> str:
    """The path of a system command, also where a user's PATH lacks the folders of those; empty if there is none."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])) or ""


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path], check=True)


def _processes_in(network: str, run_id: str | None = None) -> Iterator[int]:
    wanted = f"RLINF_RUN_ID={run_id}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended while we looked
                if os.readlink(entry / "ns/net") == network and (
                    run_id is None or wanted in (entry / "environ").read_bytes().split(b"\0")
                ):
                    yield int(entry.name)


def _kill_all(network: str, spare: Set[int] = frozenset()) -> None:
    """SIGKILL for every process of the network namespace, and for what they fork meanwhile, until none is left."""
    while pids := set(_processes_in(network)) - spare:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError), open(os.pidfd_open(pid)) as handle:
                signal.pidfd_send_signal(handle.fileno(), signal.SIGKILL)
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                poll.poll()  # readable once it has ended


# ---- the init of a host: runs as a script, in the new namespaces, with the standard library only


def _be_init() -> None:
    print("born", flush=True)
    orders = json.loads(sys.stdin.readline())
    socket.sethostname(orders["hostname"])
    _arrange_mounts(orders["covers"], orders["keeps"])
    Path("/run/sshd").mkdir(mode=0o755)
    for target, source in orders["files"].items():
        if Path(target).exists():
            _mount(source, target, flags=_MS_BIND)
    interface, address = orders["interface"], orders["address"]
    lines = f"link set lo up\naddr add {address} dev {interface}\nlink set {interface} up\n"
    subprocess.run([_tool("ip"), "-batch", "-"], input=lines, text=True, check=True)
    sshd = subprocess.Popen(orders["sshd"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGCHLD, _reap)
    assert sshd.stderr is not None
    for line in sshd.stderr:
        sys.stderr.write(line)
        if line.startswith("Server listening"):
            break
    else:
        sys.exit("sshd ended at once")
    threading.Thread(target=_copy_lines, args=[sshd.stderr], daemon=True).start()
    print("up", flush=True)
    sys.stdin.read()  # ends with the test process, however that ends
    _kill_all(os.readlink("/proc/self/ns/net"), spare={os.getpid()})
    os._exit(0)


def _arrange_mounts(covers: Sequence[str], keeps: Sequence[str]) -> None:
    """Puts an empty tmpfs over each of ``covers``, and what is kept back into its place inside them."""
    handles = {path: os.open(path, os.O_PATH) for path in keeps}
    covered: list[Path] = []
    for path in sorted({"/run", *covers, *keeps}):  # parents come before what lies in them
        inside = any(Path(path).is_relative_to(cover) for cover in covered)
        if inside:
            Path(path).mkdir(parents=True, exist_ok=True)
        if path not in handles:
            _mount("tmpfs", path, kind="tmpfs", options="mode=1777" if path in ("/tmp", "/dev/shm") else "mode=755")
            covered.append(Path(path))
        elif inside:
            _mount(f"/proc/self/fd/{handles[path]}", path, flags=_MS_BIND | _MS_REC)
    for handle in handles.values():
        os.close(handle)


def _mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    # mount(8) would resolve /proc/self/fd/N to the path that has just been covered
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount {source} on {target}")


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _copy_lines(stream: IO[str]) -> None:
    for line in stream:
        sys.stderr.write(line)
        sys.stderr.flush()


if __name__ == "__main__":
    _be_init()

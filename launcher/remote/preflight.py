"""Preflight program on each host: checks Python, packages and paths, unpacks ``--sync``, and becomes the daemon.

It reports missing requirements, waits for the command, and becomes the node's daemon with the same stdin and stdout.
The program arrives over the stdin of ssh or srun, so that even a host without an installation answers readably: it is
one file that needs only the standard library, in the syntax of Python 3.6.
"""
# ruff: noqa: UP006, UP035, UP036, UP045

import fcntl
import importlib.machinery
import importlib.util
import io
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

Read = Callable[[int], bytes]
Request = Dict[str, Any]

_SIOCGIFADDR = 0x8915
_MIN_OPEN_FILES = 4096
_MIN_FREE_BYTES = 100 << 20
_BLOCK_BYTES = 1 << 20
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def main(read: Read) -> None:
    """Serve one request.  ``read(n)`` returns exactly ``n`` bytes of stdin, and exits the process at end-of-file."""
    request = json.loads(read(int(read(10))).decode())
    survey = HostSurvey(request)
    # Slurm sends SIGTERM to every process of a job at once, so no other process would remove the folder.
    for number in _ENDING:
        signal.signal(number, lambda *_: survey.end())
    try:
        try:
            survey.unpack(read)
            survey.look()
        except Exception as error:
            survey.miss("preflight", f"{type(error).__name__}: {error}", "see the text; --check repeats this alone")
        say(request["marker"], survey.answer())
        order = wait_for_order(request["patience"])
        if order.get("op") == "go":
            become(order, survey)
    except Exception as error:
        say(request["marker"], {"event": "failed", "error": f"the daemon cannot be started: {error}"})
    finally:
        survey.clean_up()


def say(marker: str, message: Dict[str, Any]) -> None:
    rest = (marker + json.dumps(message) + "\n").encode()
    while rest:
        rest = rest[os.write(1, rest) :]


def wait_for_order(patience: float) -> Dict[str, Any]:
    """Read the next line of stdin and not a byte more, because the rest belongs to the daemon."""
    line = b""
    deadline = time.monotonic() + patience
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([0], [], [], max(0.0, deadline - time.monotonic()))
        byte = os.read(0, 1) if readable else b""
        if not byte:
            return {"op": "no"}
        line += byte
    order = json.loads(line.decode())
    return order if isinstance(order, dict) else {"op": "no"}


def become(order: Dict[str, Any], survey: "HostSurvey") -> None:
    """Replace this process with the daemon; return only by raising an exception."""
    environment = dict(os.environ)
    environment.update(order["env"])
    if survey.python_path:
        environment["PYTHONPATH"] = os.pathsep.join(survey.python_path)
    environment["RLINF_PREPARED_DIR"] = str(survey.run_dir or "")
    os.chdir(survey.cwd)
    # Keep the signals blocked until the guardian, which this process becomes, handles them:
    # tests/launcher/test_over_slurm.py
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    os.execvpe(order["argv"][0], order["argv"], environment)


class HostSurvey:
    """Survey of this host: its facts, and the requirements that it does not meet."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.missing: List[Dict[str, str]] = []
        self.warnings: List[str] = []
        self.run_dir: Optional[Path] = None
        self.sync: Optional[Path] = None
        self.cwd = Path(request["cwd"])
        self.python_path: List[str] = []
        self.iface_address: Optional[str] = None

    def miss(self, what: str, detail: str, fix: str) -> None:
        self.missing.append({"what": what, "detail": detail, "fix": fix})

    def unpack(self, read: Read) -> None:
        """Create the run's directory, and unpack the archive that follows the request into it."""
        size = self.request["archive_size"]
        archive = ArchiveStream(read, size)
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # a signal must not leave an unrecorded directory
        try:
            self.run_dir = make_run_dir(self.request["run"], self.request["node"], wants_exec=bool(size))
        except OSError as error:
            self.miss("run directory", str(error), "set XDG_RUNTIME_DIR or TMPDIR there to a folder that is writable")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        try:
            if size and self.run_dir:
                # The daemon's directory is inside the run's directory and removed with it.
                own = self.run_dir / f"node-{self.request['node']}"
                own.mkdir(0o700)
                self.sync = own / "sync"
                extract(archive, self.sync)
        except (OSError, ValueError, tarfile.TarError) as error:
            fix = "make room there, or ship less: what .gitignore names is left out"
            self.miss("--sync", f"cannot unpack into {self.sync}: {error}", fix)
        finally:
            archive.drain()  # the launcher writes the whole archive before it reads the answer

    def look(self) -> None:
        self.look_for_cwd()
        if self.look_at_python():
            self.look_at_kernel()
            self.look_for_packages()
        self.look_for_script()
        self.look_for_interface()
        self.look_at_limits()

    def look_at_python(self) -> bool:
        """True if this Python is new enough for the other checks."""
        least = self.request["python_minimum"]
        if list(sys.version_info[:2]) >= least:
            return True
        detail = f"{sys.executable} is Python {version_text()}, and the least is {least[0]}.{least[1]}"
        self.miss("Python", detail, "name a newer one: --python PATH, or python=PATH after the host")
        return False

    def look_at_kernel(self) -> None:
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError as error:
            detail = f"Linux {os.uname().release} refuses pidfd_open there: {error.strerror}"
            fix = "Linux 5.4 or newer; in a container, a runtime and a seccomp profile that allow it"
            self.miss("kernel", detail, fix)

    def mapped(self, path: str) -> Path:
        """Translate a path on the launcher's machine, into the unpacked folder if it is inside the shipped folder."""
        if self.sync is not None:
            inner = os.path.relpath(path, self.request["sync_dir"])
            if inner.split("/")[0] != os.pardir:
                return self.sync / inner
        return Path(path)

    def look_for_cwd(self) -> None:
        wanted = self.mapped(self.request["cwd"])
        if self.sync is not None and not os.path.isdir(str(wanted)):
            wanted = self.sync
        is_there = os.path.isdir(str(wanted))
        if not is_there or not os.access(str(wanted), os.X_OK):
            detail = f"the working directory {wanted} {'may not be entered' if is_there else 'is not there'}"
            self.miss("directory", detail, "--sync DIR ships a folder; --cwd DIR names one that is there")
            wanted = Path("/")
        self.cwd = wanted

    def look_for_packages(self) -> None:
        first = self.sync or self.request["sync_dir"]
        parts = [first, *self.request["python_path"].split(os.pathsep)]
        self.python_path = [str(part) for part in parts if part]
        sys.path[:0] = self.python_path
        lacking = [name for name in self.request["packages"] if find(name) is None]
        if lacking:
            fix = "pip install " + " ".join(lacking) + " there"
            if "rlinf_async" in lacking or "rlinf_launcher" in lacking:
                fix = "pip install rlinf-async there, --sync the checkout, or name another Python with --python PATH"
            detail = f"{sys.executable} cannot import {', '.join(lacking)}"
            self.miss("package" if len(lacking) == 1 else "packages", detail, fix)
            return
        if self.sync is not None and str(find("rlinf_async").origin).startswith(str(self.sync)):
            return  # the shipped code is the launcher's own version
        installed, expected = distribution_version("rlinf-async"), self.request["version"]
        if installed and expected and installed != expected:
            fix = f"install the same version on every host: pip install rlinf-async=={expected}"
            self.miss("version", f"rlinf-async is {installed} there and {expected} here", fix)

    def look_for_script(self) -> None:
        script, module = self.request["script"], self.request["module"]
        if script and not os.path.exists(str(self.mapped(script))):
            fix = "--sync DIR ships the folder that holds it; a shared file system also does"
            self.miss("script", f"{self.mapped(script)} is not there", fix)
        if module:
            sys.path.insert(0, str(self.cwd))
            if find(module) is None:
                detail = f"{sys.executable} finds no module {module} in {self.cwd}"
                self.miss("module", detail, "--sync DIR ships a folder; or install it there")
            del sys.path[0]

    def look_for_interface(self) -> None:
        name = self.request["iface"]
        if name:
            self.iface_address = interface_address(name)
            if self.iface_address is None:
                interfaces = ", ".join(sorted(known for _, known in socket.if_nameindex()))
                self.miss("interface", f"{name} has no address there; there are: {interfaces}", "--iface NAME")

    def look_at_limits(self) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if 0 <= files < _MIN_OPEN_FILES:
            self.warnings.append(f"at most {files} open files (ulimit -n)")
        if self.run_dir is not None and shutil.disk_usage(str(self.run_dir)).free < _MIN_FREE_BYTES:
            self.warnings.append(f"little space left in {self.run_dir.parent}")

    def answer(self) -> Dict[str, Any]:
        return {
            "event": "preflight",
            "ok": not self.missing,
            "missing": self.missing,
            "warnings": self.warnings,
            "python": version_text(),
            "executable": sys.executable,
            "torch": distribution_version("torch"),
            "version": distribution_version("rlinf-async"),
            "hostname": socket.gethostname(),
            "machine_id": first_line("/etc/machine-id"),
            "boot_id": first_line("/proc/sys/kernel/random/boot_id"),
            "uid": os.getuid(),
            "time": time.time(),
            "slurm_node": os.environ.get("SLURMD_NODENAME", ""),
            "pid": os.getpid(),
            "reached_at": reached_at(),
            "iface_address": self.iface_address,
            "run_dir": str(self.run_dir) if self.run_dir else None,
            "sync": str(self.sync) if self.sync else None,
            "cwd": str(self.cwd),
            "python_path": self.python_path,
        }

    def end(self) -> None:
        self.clean_up()
        os._exit(1)

    def clean_up(self) -> None:
        if self.run_dir:
            shutil.rmtree(str(self.run_dir), ignore_errors=True)


def version_text() -> str:
    return "{}.{}.{}".format(*sys.version_info[:3])


def first_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def find(name: str) -> Any:
    """Return the spec of a module without importing its parents; None if it does not exist."""
    path = None  # type: Any
    spec = None  # type: Any
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        full = ".".join(parts[:length])
        look = importlib.util.find_spec if length == 1 else importlib.machinery.PathFinder.find_spec
        spec = look(full, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and length < len(parts):
            return None
    return spec


def distribution_version(name: str) -> Optional[str]:
    """Return the version of an installed distribution; None if it is not installed, or merely on the path."""
    if sys.version_info < (3, 8):
        return None
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def reached_at() -> Optional[str]:
    """Return this host's address on the route from the machine that started this process by ssh or srun."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4:
        return connection[2]
    launcher = os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    return address_towards(launcher) if launcher else None


def address_towards(address: str) -> Optional[str]:
    """Return the local address on the route to ``address``, without sending a packet; None if there is no route."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None


def interface_address(name: str) -> Optional[str]:
    """Return a network interface's IPv4 address, else its global IPv6 address; None if it has neither."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            return socket.inet_ntoa(packed[20:24])
        except OSError:
            pass
    try:
        with open("/proc/net/if_inet6") as table:
            rows = [line.split() for line in table]
    except OSError:
        return None
    for digits, _, _, scope, _, interface in rows:
        if interface == name and scope in ("00", "10"):  # global or loopback; a link-local address needs a zone
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    return None


def make_run_dir(run: str, node: int, wants_exec: bool) -> Path:
    """Create a private directory for the run; a second node on the same machine gets a separate one."""
    places = []
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    # Compiled modules of a shipped folder cannot be loaded from a file system mounted noexec.
    is_there = runtime and os.path.isdir(runtime)
    if runtime and is_there and not (wants_exec and os.statvfs(runtime).f_flag & os.ST_NOEXEC):
        places.append(Path(runtime) / f"rlinf-{run}")
    trouble = OSError()
    try:
        places.append(Path(tempfile.gettempdir()) / f"rlinf-{os.getuid()}-{run}")
    except OSError as error:
        trouble = error
    for place in places:
        for path in (place, place.with_name(f"{place.name}-{node}")):
            try:
                path.mkdir(0o700)
                path.chmod(0o700)
                return path
            except FileExistsError as error:
                trouble = error
            except OSError as error:
                trouble = error
                break
    raise trouble


class ArchiveStream(io.RawIOBase):
    """The next ``size`` bytes of stdin as a file."""

    def __init__(self, read: Read, size: int) -> None:
        super().__init__()
        self._read = read
        self._left = size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        count = self._left if size < 0 else min(size, self._left)
        self._left -= count
        return self._read(count)

    def drain(self) -> None:
        while self._left:
            self.read(_BLOCK_BYTES)


def extract(archive: ArchiveStream, target: Path) -> None:
    """Unpack plain files, folders and links that stay inside ``target``; raise ValueError for anything else."""
    target.mkdir(0o700)
    links = []
    with tarfile.open(fileobj=archive, mode="r|gz", bufsize=_BLOCK_BYTES) as members:
        for member in members:
            place = target / inner_path(member.name)
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                place.parent.mkdir(parents=True, exist_ok=True)
                write_file(members, member, place)
            elif member.issym():
                inner_path(str(Path(member.name).parent / member.linkname))
                links.append((place, member.linkname))
            else:
                raise ValueError(f"{member.name} is neither a file nor a folder nor a link")
    # Create links last, so that no file is written through a link.
    for place, destination in links:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(destination)


def write_file(members: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    source = members.extractfile(member)
    assert source is not None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with source, open(os.open(str(place), flags, 0o700 if member.mode & 0o100 else 0o600), "wb") as sink:
        shutil.copyfileobj(source, sink, _BLOCK_BYTES)
    os.utime(str(place), (member.mtime, member.mtime))


def inner_path(name: str) -> str:
    path = os.path.normpath(name)
    if path.startswith("/") or path.split("/")[0] == os.pardir:
        raise ValueError(f"{name} leads out of the folder")
    return path

"""``SshConnector``: builds the command line of the system's ``ssh`` for a host, and explains its failures."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlinf_async._wire.remote_exit import RemoteExit, describe_exit
from rlinf_async.errors import ConfigError

from ..options import Options
from .bootstrap import TOO_OLD
from .host import Host
from .prologue import bootstrap_argv, explain_prologue

_HOST: Final = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.:%\-]*", re.ASCII)

_NO_COMMAND: Final = re.compile(r"Command not found\.?$", re.IGNORECASE)

_ALWAYS: Final = ("BatchMode=yes", "ForwardAgent=no", "ClearAllForwardings=yes")
_UNLESS_SAID: Final = ("ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
"""Options placed after the user's arguments, so that they act as defaults: ssh uses an option's first value."""


@dataclass(frozen=True)
class SshConnector:
    """Connector for one host reached by ssh, with a fixed command line."""

    host: Host
    argv: Sequence[str]
    probe: Sequence[str]  # the same ssh command with a trivial program, for the user to try by hand
    python: str
    prologue: str | None

    is_here: bool = False

    def end_command(self, answer: Mapping[str, Any]) -> Sequence[str]:
        return ()

    def explain(self, exited: RemoteExit) -> str:
        return explain(self, exited)


def ssh_connector(host: Host, options: Options, default: str) -> SshConnector:
    """Return the connector for a host; ``default`` is the interpreter if none is named.  Raises ConfigError."""
    if not _HOST.fullmatch(host.name):
        raise ConfigError(f"{host.source or '--hosts'}: {host.name!r} is not a host name\n  fix: check it")
    keys = "accept-new" if options.accept_new_host_keys else "yes"
    first = [word for option in (*_ALWAYS, f"StrictHostKeyChecking={keys}") for word in ("-o", option)]
    own = _words("-l", host.user or options.ssh_user) + _words("-p", host.port or options.ssh_port)
    own += _words("-i", options.ssh_key) + list(options.ssh_args)
    last = [word for option in _UNLESS_SAID for word in ("-o", option)]
    python = host.python or options.python
    command = " ".join(["exec", *map(_shell_path, bootstrap_argv(python, default, options.prologue))])
    return SshConnector(
        host=host,
        argv=("ssh", "-T", *first, *own, *last, "--", host.name, command),
        probe=("ssh", *own, host.name, "true"),
        python=python or default,
        prologue=options.prologue,
    )


def _words(flag: str, value: object) -> list[str]:
    return [] if value is None else [flag, str(value)]


def _shell_path(path: str) -> str:
    """Quote a path for the remote shell, but let the shell expand ``~``."""
    if path.startswith("~/"):
        return "~/" + shlex.quote(path[2:])
    return shlex.quote(path)


def explain(connector: SshConnector, exited: RemoteExit) -> str:
    """Explain ssh's error in one line, with a hint; otherwise return the remote program's last lines."""
    if text := explain_prologue(exited, connector.prologue):
        return text
    probe = shlex.join(connector.probe)
    if exited.exit_code in (126, 127) or _NO_COMMAND.search(_last(exited)):
        verb = "cannot be run there" if exited.exit_code == 126 else "is not there"
        return f"{connector.python} {verb}\nfix: name the host's Python: --python PATH, or python=PATH after the host"
    for line in exited.stderr:
        if line.startswith(TOO_OLD):
            return f"{line.removeprefix(TOO_OLD)}, which is too old\nfix: --python PATH, or python=PATH after the host"
    if exited.exit_code == 255:
        text = "\n".join(exited.stderr)
        for pattern, cause in _CAUSES:
            if match := re.search(pattern, text, re.IGNORECASE):
                return cause(connector, match, probe)
        output = "\n".join(f"ssh | {line}" for line in exited.stderr[-8:])
        return f"ssh: {_last(exited)}\n{output}\ntry: {probe}" if output else f"ssh failed without a word\ntry: {probe}"
    if exited.exit_code is not None and exited.exit_code < 0:
        return "\n".join([f"its ssh client {exited.outcome()}, on this machine", *exited.last_lines()])
    return describe_exit(exited)


def _last(exited: RemoteExit) -> str:
    return exited.stderr[-1] if exited.stderr else "no connection"


def _key_unknown(connector: SshConnector, match: re.Match[str], probe: str) -> str:
    port = connector.host.port
    name = f"[{connector.host.name}]:{port}" if port else connector.host.name
    return (
        f"ssh: the host key of {name} is not known here\n"
        f"try: {probe}, compare the fingerprint, answer yes; or --accept-new-host-keys for a network that you trust"
    )


def _key_changed(connector: SshConnector, match: re.Match[str], probe: str) -> str:
    port = connector.host.port
    name = f"[{connector.host.name}]:{port}" if port else connector.host.name
    return (
        f"ssh: the host key of {name} has changed: another machine, or somebody in between\n"
        f"try: ask who runs it; if the machine was set up anew: ssh-keygen -R {shlex.quote(name)}"
    )


def _plainly(cause: str, hint: str = "") -> Callable[[SshConnector, re.Match[str], str], str]:
    def text(connector: SshConnector, match: re.Match[str], probe: str) -> str:
        found = {key: value or "" for key, value in match.groupdict().items()}
        tip = (hint or "{probe}").format(probe=probe, name=connector.host.name, **found)
        return f"ssh: {cause.format(name=connector.host.name, **found)}\ntry: {tip}"

    return text


_CAUSES: Final[Sequence[tuple[str, Callable[[SshConnector, re.Match[str], str], str]]]] = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed", _key_changed),
    (r"Host key verification failed|No .* host key is known", _key_unknown),
    (r"(?P<what>Permission denied \([^)]*\))", _plainly("{what}")),
    (r"Too many authentication failures", _plainly("too many keys were offered", "--ssh-key FILE, or {probe}")),
    (r"Could not resolve hostname (?P<what>\S+?):", _plainly("the name {what} is not known", "getent hosts {what}")),
    (
        r"connect to (?:host|address) .* port (?P<port>\d+): Connection refused",
        _plainly("nothing listens on port {port}", "is sshd running there? is the port right? {probe}"),
    ),
    (
        r"(?:Connection timed out|Operation timed out|timed out during banner exchange)",
        _plainly("no answer from {name}: it is off, or a firewall drops the packets", "ping {name}; {probe}"),
    ),
    (r"(?P<what>No route to host|Network is unreachable)", _plainly("{what}", "ping {name}; {probe}")),
    (
        r"Timeout, server \S+ not responding",
        _plainly("the connection died: {name} did not answer for 15 s", "ping {name}"),
    ),
    (
        r"(?P<what>Connection (?:closed|reset) by .*|kex_exchange_identification: .*|closed by remote host.*)",
        _plainly("{what}", "its sshd may turn away many logins at once (MaxStartups); {probe}"),
    ),
    (r"(?P<what>(?:Bad|unknown) .*option.*)", _plainly("{what}", "check --ssh-args and ~/.ssh/config")),
    (r"(?P<what>.*UNPROTECTED PRIVATE KEY FILE.*)", _plainly("others can read the private key", "chmod 600 it")),
)

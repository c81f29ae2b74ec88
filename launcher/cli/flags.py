"""The table of ``rlinf-launch``'s flags, from which ``--help`` is generated, and hints about other launchers' flags."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..remote.exported_env import EXPORTED
from . import flag_values as values
from .flag_values import FlagValue


@dataclass(frozen=True)
class Flag:
    """One flag: its spellings and help, and ``read``, which converts a value into the field of ``Options``.

    ``metavar`` is empty for a flag without a value.  If ``has_twin`` is True, the environment variable ``RLINF_<NAME>``
    also sets the flag; if the flag ``repeats``, the variable holds several words, quoted as in a shell.
    """

    name: str
    metavar: str
    help: str
    short: str = ""
    aliases: tuple[str, ...] = ()
    repeats: bool = False
    has_twin: bool = True
    read: Callable[[FlagValue], Any] = values.text

    def read_all(self, given: Sequence[FlagValue]) -> Any:
        """Return all values if the flag repeats, else the last; a flag without values gives a bool or a count."""
        if not self.metavar:
            total = 0
            for value in given:
                times = values.times(value)
                total = total + times if times else 0
            return total if self.name == "verbose" else total > 0
        return tuple(self.read(value) for value in given) if self.repeats else self.read(given[-1])

    @property
    def spellings(self) -> tuple[str, ...]:
        return (*((f"-{self.short}",) if self.short else ()), f"--{self.name}", *self.aliases)

    @property
    def variable(self) -> str:
        return "RLINF_" + self.name.upper().replace("-", "_")


GROUPS: dict[str, tuple[Flag, ...]] = {
    "where": (
        Flag(
            "hosts",
            "FILE|-|a,b:8",
            "hosts file, '-' for stdin, or a list. Without it: $RLINF_HOSTS, the Slurm, PBS or LSF allocation, an MPI "
            "operator's hosts file, else this machine.",
            short="H",
            aliases=("--hostfile", "--machinefile"),
            has_twin=False,  # $RLINF_HOSTS is a separate source with a lower priority than --hosts
        ),
        Flag("nnodes", "N", "use the first N hosts only.", short="n", read=values.positive),
        Flag("local-nodes", "N", "N nodes on this machine, without ssh: for development.", read=values.local_nodes),
        Flag(
            "fake-gpus",
            "N",
            "declare N GPUs on every host, whatever it has, to rehearse a placement; torch sees none. "
            "Hosts with gpus= or fake_gpus= of their own keep those.",
            read=values.gpus,
        ),
        Flag("allow-duplicate-hosts", "", "a host listed twice is one host with the slots of both."),
        Flag("iface", "NAME", "network interface that the nodes talk over.", read=values.interface),
        Flag(
            "port-range",
            "A-B",
            "ports that nodes and groups of workers listen on, on every host (default: the kernel's choice).",
            read=values.port_range,
        ),
    ),
    "what runs": (
        Flag("module", "", "the script is a module's name, as in python -m.", short="m"),
        Flag("python", "PATH", "interpreter of the script and on the nodes (default: the one that runs this)."),
        Flag("cwd", "DIR", "working directory on the nodes (default: this one).", read=values.path_text),
        Flag(
            "sync",
            "[DIR]",
            "ship a folder to every node, and put it first on the path there (default: this one, or the nearest "
            "above with a pyproject.toml or .git). "
            "The next word is taken for DIR if it is a folder; --sync=DIR says so plainly.",
            read=values.folder,
        ),
        Flag(
            "rlinf",
            "",
            "run a program of RLinf's own, unedited: its rlinf.scheduler is this framework in every process.",
        ),
        Flag(
            "fail-fast",
            "",
            "end what the script waits for when another call has failed, whose error it does not await.",
        ),
        Flag("pdb", "", "keep a rank whose method has raised for `rlinf-ctl debug`, for an hour at most."),
        Flag(
            "timeout",
            "SECONDS",
            "end the run after so long, in order, with exit code 124 (default: never).",
            read=values.timeout,
        ),
    ),
    "environment": (
        Flag(
            "env",
            "K=V|K",
            "set a variable on every node; K alone copies it from here.",
            short="e",
            repeats=True,
            read=values.assignment,
        ),
        Flag("env-file", "FILE", "variables from a file of K=V lines.", repeats=True, read=values.path),
        Flag(
            "export",
            "PATTERN",
            "export the variables whose names match, beside the default ones; '!PATTERN' keeps them back.",
            repeats=True,
        ),
        Flag(
            "prologue",
            "COMMANDS",
            "shell commands (bash) that run on every host before its node: 'source /opt/conda/bin/activate rl'. "
            "Without --python the node's is the python3 that they put first on the PATH.",
            read=values.prologue,
        ),
    ),
    "the way to the hosts": (
        Flag(
            "launcher",
            "ssh|srun|auto",
            "how nodes are started on other hosts. auto (the default): by srun where all of them are nodes of the "
            "Slurm job that this runs in, else by ssh.",
            read=values.launcher,
        ),
        Flag("ssh-user", "NAME", "user on the hosts, where the hosts file names none.", read=values.user),
        Flag("ssh-port", "PORT", "port, where the hosts file names none.", read=values.port),
        Flag("ssh-key", "FILE", "private key (ssh -i).", read=values.path),
        Flag(
            "ssh-args",
            "ARGS",
            "more arguments of ssh, quoted as one word: '-J jump -C'.",
            repeats=True,
            read=values.split_shell,
        ),
        Flag("accept-new-host-keys", "", "trust hosts that are seen for the first time; changed keys stay refused."),
        Flag(
            "start-timeout",
            "SECONDS",
            "until every node must be up (default 60; 0 waits for ever).",
            read=values.timeout,
        ),
    ),
    "output": (
        Flag(
            "log-dir",
            "DIR",
            "where the log of every rank goes (default: $TMPDIR/rlinf-logs-UID/RUN; 20 failed runs and 20 more stay).",
            read=values.path,
        ),
        Flag(
            "trace",
            "FILE",
            "write what the run does when to FILE, here, for https://ui.perfetto.dev.",
            read=values.path,
        ),
        Flag("tee", "all|none|0,3", "ranks of each group whose output is shown here (default all).", read=values.tee),
        Flag("json", "", "one JSON object per line instead of the table."),
        Flag("quiet", "", "only errors and the script's own output.", short="q"),
        Flag("verbose", "", "say more; -vv says all.", short="v"),
    ),
    "instead of a run": (
        Flag("dry-run", "", "print the hosts, variables and commands; start nothing."),
        Flag(
            "show-placement",
            "[FILE]",
            "plan a configuration's component_placement on the hosts and their gpus=, fake_gpus= or slots=, print "
            "who is where and draw it; start nothing. The next word is taken for FILE if it ends in .yaml; without "
            "it, the one that the script's words name (--config FILE).",
            read=values.text_or_nothing,
        ),
        Flag("placement-svg", "FILE", "where --show-placement draws (default: placement.svg here).", read=values.path),
        Flag("check", "", "look at every host, say what was checked and what is missing, start nothing."),
        Flag(
            "sweep",
            "RUN",
            "kill what a run has left on the hosts, and remove its directories; refused while a daemon of it answers.",
            read=values.run_id,
        ),
        Flag("force", "", "--sweep a run that is alive, too.", has_twin=False),
        Flag(
            "print-completion",
            "bash|zsh|fish",
            "print a script with which that shell completes these flags; rlinf-ctl has the same flag.",
            has_twin=False,
        ),
        Flag("version", "", "print the version.", has_twin=False),
        Flag("help", "", "print this.", short="h", has_twin=False),
    ),
}

FLAGS = tuple(flag for flags in GROUPS.values() for flag in flags)

BY_SPELLING = {spelling: flag for flag in FLAGS for spelling in flag.spellings}

FOREIGN = {
    "--nproc-per-node": "slots are said per host: node01 slots=8",
    "--np": "slots are said per host: node01 slots=8",
    "--num-gpus": "slots are said per host: node01 slots=8",
    "--include": "name the hosts with --hosts, and their GPUs with gpus=0,2 in the hosts file",
    "--exclude": "name the hosts with --hosts, and their GPUs with gpus=0,2 in the hosts file",
    "-x": "write -e NAME=VALUE",
    "-i": "write --ssh-key FILE for a key; name hosts with --hosts",
    "--master-addr": "the nodes agree on one by themselves; --iface chooses the network",
    "--master-port": "the nodes agree on one by themselves",
    "--rdzv-endpoint": "the nodes meet by themselves; name them with --hosts",
    "--ssh-jump": "write --ssh-args '-J HOST'",
    "--venv": "write --python DIR/bin/python",
}
"""Advice shown to users who pass flags of other launchers."""


def help_text() -> str:
    out = [
        "usage: rlinf-launch [options] [--] train.py [args ...]",
        "",
        "Starts a node on every host, by ssh or by Slurm's srun, then the script on this machine.",
        "Words after the script are the script's own.",
    ]
    for title, flags in GROUPS.items():
        out += ["", f"{title}:"]
        for flag in flags:
            names = ", ".join(flag.spellings) + (f" {flag.metavar}" if flag.metavar else "")
            out.append(f"  {names}")
            out += textwrap.wrap(flag.help, 92, initial_indent=" " * 8, subsequent_indent=" " * 8)
    out += ["", "- and _ are the same inside a flag's name. Every flag but --force, --print-completion, --version and"]
    out += ["--help has a variable, RLINF_<FLAG> (RLINF_LOG_DIR=logs, RLINF_JSON=1); the flag wins.", ""]
    out += ["These variables of your shell reach every node, where they are set:"]
    out += textwrap.wrap(" ".join(EXPORTED), 92, initial_indent="  ", subsequent_indent="  ")
    out += ["", "exit code: the script's own; 1 also when a rank's failure or a node's loss went unnoticed;"]
    out += ["2 wrong usage; 124 after --timeout; 130 after Ctrl-C; 255 no nodes."]
    return "\n".join(out)

"""The command line of ``rlinf-ctl``: its commands with their arguments, options and ``--help`` texts."""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

from rlinf_async import __version__

from ..source_text import suggestion
from .completion import SHELLS, completion_script

DEFAULT_TIMEOUT_S: Final = 10.0
DEFAULT_TAIL: Final = 20

_UNKNOWN_COMMAND: Final = re.compile(r"argument COMMAND: invalid choice: '([^']*)' \(choose from (.*)\)")

_EXIT_CODES: Final = """\
exit code: 0; 1 the run is stuck (`stuck`), or what was asked for was not done;
2 wrong usage; 3 no such run, group or rank, or no daemon of the run answers; 130 after Ctrl-C."""


def parser() -> argparse.ArgumentParser:
    """Return the parser; its result has the command's name as ``command``."""
    everywhere = _options_of_all()
    root: argparse.ArgumentParser = _Parser(
        prog="rlinf-ctl",
        description="Look at the runs of this user that have a node on this machine, and end them.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[everywhere],
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"rlinf-ctl {__version__}", help="print the version")
    root.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=SHELLS,
        metavar="|".join(SHELLS),
        help="print a script with which that shell completes these words",
    )
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=about, description=about, parents=[everywhere], allow_abbrev=False)

    command("ps", "list the runs: since when, where, whose script.")
    for name, about in (
        ("status", "show nodes, ranks, devices and channels of a run."),
        ("stuck", "say why a run does not go on: who waits for whom, and who should have done what."),
        ("down", "end a run in order."),
    ):
        command(name, about).add_argument("run_id", nargs="?", metavar="RUN", help=_RUN_HELP)
    logs = command("logs", "show what ranks have written, also those of a run that has ended.")
    logs.add_argument("ranks", nargs="?", metavar="GROUP[:RANKS]", help=_RANKS_HELP + "; without it all groups")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what they write, to the end of the run")
    logs.add_argument(
        "--tail", type=_tail, default=DEFAULT_TAIL, metavar="N|all", help=f"last lines of each log ({DEFAULT_TAIL})"
    )
    stack = command("stack", "show what threads and tasks of ranks do, those that do not answer as well.")
    which = stack.add_mutually_exclusive_group()
    which.add_argument("ranks", nargs="?", metavar="GROUP[:RANKS]|driver", help=_RANKS_HELP + ", or the script")
    which.add_argument("--all", action="store_true", help="all processes of the run, as without a group")
    kill = command("kill", "end ranks with SIGKILL; their callers get WorkerDied.")
    kill.add_argument("ranks", metavar="GROUP[:RANKS]", help=_RANKS_HELP)
    restart = command("restart", "end ranks of a group that has launch(restart=), and start them again.")
    restart.add_argument("ranks", metavar="GROUP[:RANKS]", help=_RANKS_HELP)
    debug = command("debug", "stop ranks where they are, or at their breakpoint(), and debug them here with pdb.")
    debug.add_argument("ranks", metavar="GROUP[:RANKS]", help=_RANKS_HELP)
    bundle = command("bundle", "keep all that is known of a run, alive or ended, in one file.")
    bundle.add_argument("run_id", nargs="?", metavar="RUN", help=_RECORDED_HELP)
    bundle.add_argument(
        "--output", type=Path, metavar="FILE", help="in place of rlinf-RUN.zip in the current directory"
    )
    page = command("page", "show a run or a bundle as a page in a browser: timelines, waits, channels, logs.")
    page.add_argument("run_id", nargs="?", metavar="RUN|BUNDLE", help=_RECORDED_HELP + "; or a bundle's file")
    page.add_argument(
        "--port", type=_port, default=0, metavar="P", help="of 127.0.0.1, where it is served (a free one)"
    )
    page.add_argument("--output", type=Path, metavar="FILE.html", help="write it with all its data, and serve nothing")
    commands.add_parser("check", help="look at all hosts: `rlinf-launch --check` with the words that follow.")
    commands.add_parser(
        "sweep",
        help="kill what a run has left: `rlinf-launch --sweep RUN` with the words that follow.",
        description=_SWEEP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="rlinf-ctl sweep [RUN] [--force] [--hosts FILE] [words of rlinf-launch]",
    )
    return root


_SWEEP: Final = """\
Kill what a run has left: every process of this user that bears the run's id in its environment (SIGTERM, three seconds
later SIGKILL), on this machine or on those of --hosts; then remove the run's directories of sockets. Logs stay.

RUN is an id, or its beginning where the run has left a directory here; it may be left out where one run has ended so.
A run of which a daemon answers is not swept: `rlinf-ctl down RUN` ends it in order; --force sweeps it anyway."""
_RUN_HELP: Final = "the run's id or its beginning; may be left out where one run is alive here"
_RECORDED_HELP: Final = (
    "a run's id or its beginning, or the directory of its logs (./logs); not needed for a lone live one"
)
_RANKS_HELP: Final = "a group, or some of its ranks: rollout, rollout:3, rollout:0-3,7"


def _options_of_all() -> argparse.ArgumentParser:
    # No defaults here: a command's parser would overwrite options given before the command with its defaults.
    options = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = options.add_argument_group("for every command")
    group.add_argument("--run", metavar="RUN", help=_RUN_HELP)
    group.add_argument("--json", action="store_true", help="JSON in place of tables and text")
    group.add_argument("--timeout", type=_seconds, metavar="SECONDS", help=f"for all answers ({DEFAULT_TIMEOUT_S:g})")
    group.add_argument(
        "--run-dir",
        type=_folder,
        metavar="DIR",
        help="look for runs in this folder (a run's $XDG_RUNTIME_DIR or $TMPDIR)",
    )
    return options


class _Parser(argparse.ArgumentParser):
    """Parser that suggests the closest command for an unknown one."""

    def error(self, message: str) -> NoReturn:
        if match := _UNKNOWN_COMMAND.match(message):
            known = re.findall(r"\w+", match[2])
            message = (
                f"there is no command {match[1]!r}{suggestion(match[1], known)}\n  fix: write one of {', '.join(known)}"
            )
        super().error(message)


class _PrintCompletion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, __: str | None = None) -> None:
        sys.stdout.write(completion_script(parser, shell) + "\n")
        parser.exit()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0, as 10 or 0.5")
    return seconds


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return Path(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: a number below 65536, 0 for a free one")
    return int(text)


def _tail(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of lines nor 'all'")
    return int(text)

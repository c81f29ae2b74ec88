"""Completion scripts of both commands for a shell: made by shtab from their flags, so that no TAB starts Python."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final

from rlinf_async.errors import ConfigError

from .flags import FLAGS

SHELLS: Final = ("bash", "zsh", "fish")

_LAUNCHERS_COMMANDS: Final = {"check", "sweep"}
"""Commands of ``rlinf-ctl`` that take ``rlinf-launch``'s words."""
_BASH_FOLDER: Final = "~/.local/share/bash-completion/completions"
_USAGE: Final = re.compile(r"# Usage:\n# 1\).*\n# 2\).*bashrc:\n#    source .*\n")
"""shtab's, for bash; its folder is one that bash-completion does not look into."""

# shtab's bash offers flags behind the script too, where they are the script's own; zsh's and fish's do not.  To bash
# --launcher=ssh is three words.
_BASH_UP_TO_SCRIPT: Final = """

_rlinf_launch() {
  local word words=() at=0 current=$COMP_CWORD
  for word in "${COMP_WORDS[@]}"; do
    if [[ $word != "=" ]]; then words+=("$word")
    elif ((at == COMP_CWORD)); then words+=("")
    else ((at < COMP_CWORD && current--))
    fi
    ((++at))
  done
  local COMP_WORDS=("${words[@]}") COMP_CWORD=$current
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $word == *.py ]] && { COMPREPLY=(); return; }
  done
  _shtab_rlinf_launch
}
complete -o bashdefault -o default -F _rlinf_launch rlinf-launch"""


def launch_script(shell: str) -> str:
    """The script for ``rlinf-launch``; see `completion_script` for the errors."""
    text = completion_script(_launch_parser(), shell)
    return text + _BASH_UP_TO_SCRIPT if shell == "bash" else text


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script that completes the words of ``parser``'s command; values named FILE, PATH or DIR are paths.

    Raises:
        ConfigError: a shell that is not in `SHELLS`, or shtab is not installed.
    """
    if shell not in SHELLS:
        raise ConfigError(f"--print-completion: {shell!r} is no shell of {', '.join(SHELLS)}\n  fix: name one of them")
    try:
        import shtab  # only here: hosts and commands do without
    except ImportError as error:
        raise ConfigError(f"--print-completion: {error}\n  fix: pip install shtab") from error
    for command in _LAUNCHERS_COMMANDS & _commands(parser).keys():
        _add_flags(_commands(parser)[command])
    for action in _actions(parser):
        names = _metavar_names(action.metavar)
        if names & {"FILE", "PATH", "FILE.html", "BUNDLE"}:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif "DIR" in names:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return _USAGE.sub(rf"# Usage: copy this to {_BASH_FOLDER}/{parser.prog}\n", shtab.complete(parser, shell))


def _launch_parser() -> argparse.ArgumentParser:
    """``rlinf-launch``'s flags as argparse has them: to be completed, not to parse with."""
    parser = argparse.ArgumentParser(prog="rlinf-launch", add_help=False)
    _add_flags(parser)
    return parser


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """``rlinf-launch``'s flags and its script, beside what the parser has (``--help``)."""
    for flag in FLAGS:
        about = flag.help.replace("%", "%%")
        spellings = [each for each in flag.spellings if each not in parser._option_string_actions]
        if not spellings:
            continue
        if not flag.metavar:
            parser.add_argument(*spellings, action="store_true", help=about)
            continue
        words = [name for name in _metavar_names(flag.metavar) if name.isalpha() and name.islower() and len(name) > 1]
        parser.add_argument(
            *spellings,
            metavar=flag.metavar,
            action="append" if flag.repeats else "store",
            choices=sorted(words) or None,
            help=about,
        )
    parser.add_argument("script", metavar="FILE")
    parser.add_argument("args", metavar="FILE", nargs=argparse.REMAINDER)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of its commands, by name."""
    return {
        name: command
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, command in action.choices.items()
    }


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of its commands."""
    yield from parser._actions
    for command in _commands(parser).values():
        yield from _actions(command)


def _metavar_names(metavar: str | tuple[str, ...] | None) -> set[str]:
    return set(metavar.strip("[]").split("|")) if isinstance(metavar, str) else set()

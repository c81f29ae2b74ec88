"""``Options``: the flags and script of an ``rlinf-launch`` command line, as one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Options:
    """The user's launcher settings, by flag; a flag that is not given is None or empty.

    Attributes:
        script, args: the script (or module, with ``module``) and its arguments.
        hosts: ``--hosts`` as given; `rlinf_launcher.cli.allocation.find_hosts` reads ``$RLINF_HOSTS``.
        sync: absolute path of the folder to ship.
        env: ``-e`` settings in order; a value of None is taken from the user's environment.
        prologue: shell commands to run on every host before its node.
        launcher: ``"ssh"``, ``"srun"``, or ``"auto"`` to choose between them.
        port_range: first and last port to listen on.
        start_timeout: seconds; None waits forever.
        pdb: True if a rank whose method raises waits for a debugger.
        timeout: seconds for the whole run; None for no limit.
        tee: ``"all"``, ``"none"``, or comma-separated ranks: ``"0,3"``.
        verbosity: -1 quiet, 0, 1, 2.
        show_placement: configuration whose placement is shown; empty for the script's own.
        placement_svg: absolute path of the drawing.
    """

    script: str | None = None
    args: tuple[str, ...] = ()
    module: bool = False
    hosts: str | None = None
    nnodes: int | None = None
    local_nodes: int | None = None
    fake_gpus: int | None = None
    allow_duplicate_hosts: bool = False
    iface: str | None = None
    python: str | None = None
    cwd: str | None = None
    sync: Path | None = None
    env: tuple[tuple[str, str | None], ...] = ()
    env_file: tuple[Path, ...] = ()
    export: tuple[str, ...] = ()
    prologue: str | None = None
    launcher: str = "auto"
    port_range: tuple[int, int] | None = None
    ssh_user: str | None = None
    ssh_port: int | None = None
    ssh_key: Path | None = None
    ssh_args: tuple[str, ...] = ()
    accept_new_host_keys: bool = False
    start_timeout: float | None = DEFAULT_START_TIMEOUT_S
    rlinf: bool = False
    fail_fast: bool = False
    pdb: bool = False
    timeout: float | None = None
    log_dir: Path | None = None
    trace: Path | None = None
    tee: str = "all"
    json: bool = False
    verbosity: int = 0
    dry_run: bool = False
    show_placement: str | None = None
    placement_svg: Path | None = None
    check: bool = False
    sweep: str | None = None
    force: bool = False
    print_completion: str | None = None
    version: bool = False
    help: bool = False

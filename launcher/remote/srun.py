"""``SrunConnector``: builds the command line of a Slurm step on one node of the job, and explains its failures.

Each node gets a step.  ``--overlap`` lets the step run alongside other steps; without ``--exact``, it gets all of the
job's CPUs on the node, but GPUs must be requested.  ``--unbuffered`` must not be used, because it would replace the
daemon's stdin and stdout pipes with a terminal.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlinf_async._wire.remote_exit import RemoteExit, describe_exit

from ..options import Options
from .bootstrap import TOO_OLD
from .host import Host, SlurmNode
from .prologue import bootstrap_argv, explain_prologue

_UNSET: Final = (
    *("SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_EXACT"),
    *("SLURM_EXCLUSIVE", "SLURM_THREADS_PER_CORE", "SLURM_HINT", "SLURM_DISTRIBUTION", "SLURM_HOSTFILE"),
    *("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_NODE"),
    *("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_CPUS_PER_GPU", "SLURM_GPU_BIND", "SLURM_STDINMODE"),
    *("SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_LABELIO", "SLURM_UNBUFFEREDIO"),
)
"""Variables of the batch script that srun reads as flags; they describe the job's tasks, and would restrict this step
or change its pipes."""

_STEP: Final = (
    *("--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mem=0", "--mpi=none"),
    *("--export=ALL", "--chdir=/", "--job-name=rlinf"),
)

_END: Final = 'kill "$0" && timeout 6 tail --pid="$0" --sleep-interval=0.1 -f /dev/null; rm -rf -- "$1"'


@dataclass(frozen=True)
class SrunConnector:
    """Connector for one node of the job, reached by srun, with a fixed command line."""

    host: Host
    argv: Sequence[str]
    run_there: Sequence[str]  # prefix of every command for the node
    probe: Sequence[str]  # the same step with a trivial command, for the user to try by hand
    python: str
    prologue: str | None

    is_here: bool = False

    def end_command(self, answer: Mapping[str, Any]) -> Sequence[str]:
        # If srun is killed, the step keeps running with the daemon's stdin open, unless another srun process kills it.
        # So another step ends the guardian, and removes the directory that a killed guardian would leave behind.
        return (*self.run_there, "sh", "-c", _END, str(answer["pid"]), str(answer["run_dir"] or ""))

    def explain(self, exited: RemoteExit) -> str:
        return explain(self, exited)


def srun_connector(host: Host, options: Options, default: str) -> SrunConnector:
    """Return the connector for a node of the job; ``default`` is the interpreter if the user names none."""
    place = host.slurm or SlurmNode()
    step = [*_STEP, f"--nodelist={host.name}"]
    step += [] if place.component is None else [f"--het-group={place.component}"]
    # If the job requested GPUs in total or per task, a step that gives no number requests too many GPUs, or too few.
    # Such a job refuses a step with `--gres` or `--gpus-per-node`.
    step += [f"--gpus={place.gpus}"] if place.gpus else []
    python = host.python or options.python
    python = os.path.expanduser(python) if python else None  # noqa: PTH111  # Path's raises without a home
    unset = [word for name in _UNSET for word in ("-u", name)]
    run_there = ("env", *unset, "srun", *step, "--")
    return SrunConnector(
        host=host,
        argv=(*run_there, *bootstrap_argv(python, default, options.prologue)),
        run_there=run_there,
        probe=("srun", *step, "true"),
        python=python or default,
        prologue=options.prologue,
    )


def explain(connector: SrunConnector, exited: RemoteExit) -> str:
    """Explain Slurm's error in one line, with a hint; otherwise return the remote program's last lines."""
    if text := explain_prologue(exited, connector.prologue):
        return text
    output = "\n".join(exited.stderr)
    if match := re.search(r"execve\(\): (?P<path>\S+): (?P<why>.+)", output):
        return (
            f"{match['path']} cannot be run there: {match['why']}\n"
            "fix: name the node's Python: --python PATH, or python=PATH after the host"
        )
    for line in exited.stderr:
        if line.startswith(TOO_OLD):
            return f"{line.removeprefix(TOO_OLD)}, which is too old\nfix: --python PATH, or python=PATH after the host"
    for pattern, fix in _CAUSES:
        if match := re.search(pattern, output):
            hint = fix.format(name=connector.host.name, probe=shlex.join(connector.probe))
            return "\n".join([f"srun: {match['what']}", *_quoted(exited, match["what"]), f"try: {hint}"])
    if exited.exit_code is not None and exited.exit_code < 0:
        return "\n".join([f"its srun {exited.outcome()}, on this machine", *exited.last_lines()])
    return describe_exit(exited)


def _quoted(exited: RemoteExit, shown: str) -> list[str]:
    """Return the other lines of srun's output that report a failure."""
    lines = [line for line in exited.stderr if "error:" in line or "CANCELLED" in line]
    return [f"srun | {line}" for line in lines[-8:] if shown not in line]


_CAUSES: Final[Sequence[tuple[str, str]]] = (
    (
        r"(?P<what>(?:JOB|STEP) \S+ ON \S+ CANCELLED AT .*TIME LIMIT)",
        "ask for more with sbatch --time, or end in order before: sbatch --signal=B:TERM@60",
    ),
    (r"(?P<what>(?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+)", "was it scancel, or a failure of {name}? squeue; sacct"),
    (
        r"(?P<what>(?:Invalid job id specified|Job/step already completing or completed|Expired or invalid job \d+))",
        "the job has ended, or $SLURM_JOB_ID is another one's: run inside of sbatch or salloc, or --launcher ssh",
    ),
    (
        r"(?P<what>Requested node configuration is not available|Invalid node name specified)",
        "is {name} a node of this job? squeue --job $SLURM_JOB_ID; {probe}",
    ),
    (r"(?P<what>Invalid generic resource \(gres\) specification)", "scontrol show job -d $SLURM_JOB_ID; {probe}"),
    (r"(?P<what>Requested nodes are busy)", "another step holds {name} for itself (srun --exclusive); {probe}"),
    (
        r"Task launch for StepId=\S+ failed on node \S+: (?P<what>.+)",
        "does slurmd run on {name}? scontrol show node {name}",
    ),
    (r"(?P<what>Node failure on \S+)", "scontrol show node {name}; sbatch --requeue starts the job again"),
    (r"(?P<what>Required node not available.*)", "scontrol show node {name}"),
    (r"(?P<what>Unable to contact slurm controller.*)", "scontrol ping"),
    (
        r"(?P<what>(?:Munge|auth_g_|If munged).*)",
        "does munged run, with the cluster's key? munge -n | unmunge",
    ),
    (r"srun: (?P<what>(?:unrecognized|invalid) option .*)", "is this srun older than 20.11? srun --version"),
)

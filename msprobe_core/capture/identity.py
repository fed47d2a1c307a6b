"""Identity of the run that this process is part of: equal on all ranks of a job, without communication."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msprobe_core.model import RunIdentity
from msprobe_core.store.runs import RUN_VARIABLE

_LAUNCHERS: tuple[tuple[str, ...], ...] = (
    (RUN_VARIABLE,),
    # torchrun's default run id is "none" for every job, and its default port is always the same.
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("RAY_JOB_ID",),
    ("MS_SCHED_HOST", "MS_SCHED_PORT"),
    ("MASTER_ADDR", "MASTER_PORT"),
)
"""Environment variables that identify a job, per launcher; the first launcher whose first variable is set is used."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def job_of(environment: Mapping[str, str], host: str) -> str:
    """Return a text that all processes of a job share; empty if no launcher's variables are set.

    Args:
        environment: Variables of the process.
        host: Name of the process's host.
    """
    for variables in _LAUNCHERS:
        if not environment.get(variables[0]):
            continue
        found = {name: environment[name] for name in variables if environment.get(name)}
        if found.get("MASTER_ADDR") in _LOOPBACK:  # every machine has one
            found["MASTER_ADDR"] += f" of {host}"
        return ", ".join(f"{name}={value}" for name, value in found.items())
    return ""


@cache
def _process_began(process: int) -> float:
    """Return when this process began, in seconds since 1970, or the time of the first call if that is unknown."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()
    return time.time() - max(age_s, 0.0)


def own_identity() -> RunIdentity:
    """Return the identity of this process."""
    host = socket.gethostname()
    process = os.getpid()
    return RunIdentity(job=job_of(os.environ, host), host=host, process=process, started=_process_began(process))

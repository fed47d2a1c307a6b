"""What the core itself finds out about a process for its manifest."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from msprobe_core.manifest.cleaning import cleaned_settings, without_secrets
from msprobe_core.manifest.environment import arguments_of, kept_variables
from msprobe_core.manifest.facts import Library, Manifest, RunFacts, Scalar
from msprobe_core.manifest.libraries import digest_of
from msprobe_core.manifest.secrets import NOT_KEPT, is_secret_text

PROGRAM = "program"
"""Name of the settings that the program was started with, beside those of trainers."""

_MAX_PROGRAM_BYTES = 16 << 20


def manifest_of(
    run: RunFacts,
    *,
    rank: int | None,
    libraries: Iterable[Library],
    settings: Mapping[str, Mapping[str, Scalar]],
) -> Manifest:
    """Return the manifest of this process, without optimizers that are not known yet, and without data.

    Args:
        run: What the framework contributes.
        rank: Rank in the job; ``None`` outside of a job.
        libraries: Installed libraries.
        settings: Settings of trainers, by the name of the trainer.
    """
    program = _program()
    name = program.name if program is not None else ""
    all_settings = {trainer: cleaned_settings(given) for trainer, given in settings.items()}
    if len(sys.argv) > 1 and not _is_of_ray(program):
        all_settings.setdefault(PROGRAM, arguments_of(sys.argv[1:]))
    return Manifest(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        rank=rank,
        world_size=_world_size(run),
        host=digest_of(socket.gethostname().encode()),
        python=platform.python_version(),
        program=NOT_KEPT if is_secret_text(name) else name,
        program_digest=_digest_of_file(program),
        run=without_secrets(run),
        libraries=tuple(libraries),
        environment=kept_variables(os.environ),
        settings=all_settings,
    )


def _is_of_ray(program: Path | None) -> bool:
    """Whether the program is Ray's own worker: its arguments are sockets and ports, others in each run."""
    return program is not None and program.parts[-4:] == ("ray", "_private", "workers", "default_worker.py")


def _program() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file) if isinstance(file, str) else None


def _digest_of_file(path: Path | None) -> str | None:
    try:
        if path is None or path.stat().st_size > _MAX_PROGRAM_BYTES:
            return None
        return digest_of(path.read_bytes())
    except OSError:
        return None


def launched_size() -> int | None:
    """Return how many processes the launcher says that the job has; ``None`` if it does not say so."""
    given = [os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK_SIZE")]
    return next((int(size) for size in given if size.isdecimal() and len(size) < 9), None)


def _world_size(run: RunFacts) -> int:
    return max([1, launched_size() or 1, *(len(group.ranks) for group in run.groups)])

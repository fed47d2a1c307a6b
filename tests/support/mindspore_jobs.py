"""Run a script as a job of two processes, as MindSpore's ``msrun`` does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]


def run_job(script: str, directory: Path, *arguments: str) -> None:
    """Run a script of ``tests/support`` on two ranks.

    Args:
        script: Its file name.
        directory: Where it runs, and where its logs go.
        arguments: Are given to it.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(_REPOSITORY / part) for part in ("examples/llama_pair", "tests/support")),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # msrun starts "python"
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable, "-m", "mindspore.parallel.cluster.run", "--worker_num=2", "--local_worker_num=2",
        f"--master_port={_free_port()}", "--log_dir=log", "--join=True",
        str(_REPOSITORY / "tests/support" / script), *arguments,
    ]  # fmt: skip
    job = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=600)
    logs = "\n".join(path.read_text() for path in sorted(directory.glob("log/worker_*.log")))
    assert job.returncode == 0, job.stdout + job.stderr + logs


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]

"""Runs of verl that several tests look at: each is made once.

Whole runs of `main_ppo` are `healthy_run`, and `faulty_run`, which a tutorial makes.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from ray_python import ray_python
from tutorial import follow

from msprobe_core.cli import main

REPOSITORY = Path(__file__).resolve().parents[3]
RIG = REPOSITORY / "examples" / "verl_cpu"
WORKERS = REPOSITORY / "tests" / "support" / "verl_workers.py"

_LONGEST_JOB_S = 600

_IMPORTED = (
    "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "tensordict", "datasets", "peft",
    "transformers.models.qwen2.modeling_qwen2", "transformers.models.auto.modeling_auto", "accelerate", "hydra",
    "codetiming", "torchdata.stateful_dataloader", "fastapi", "uvicorn", "aiohttp", "zmq",
)  # fmt: skip
"""What the processes of a whole run import before they do anything, except Ray, which reads its variables then.

Not verl, nor what loads our plugin with it: each process does that itself.
"""

_PROGRAMS = ("tiny.py", "train.py", "verl.trainer.main_ppo")

_NO_START = "The current node timed out during startup"
"""Ray has half a minute to start, which is little on a machine that others use; nothing of ours has run by then."""

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false",
    "VERL_USE_EXTERNAL_PLUGINS": "auto",
}  # fmt: skip

WHOLE = """\
out: {out}
steps: [1, 2]
level: L0
task: statistics
statistics: {{summary_mode: md5}}
per_stage:
  rollout_generate: {{task: tensor, tensor_format: safetensors}}
  actor_compute_log_prob: {{task: tensor, tensor_format: safetensors}}
  ref_compute_log_prob: {{task: tensor, tensor_format: safetensors}}
"""
"""What is recorded of a whole run: tensors where stages are compared module by module."""


@dataclass(frozen=True)
class Run:
    """A process, or several, that have ended well."""

    out: Path
    output: str


def end_with(process, mark, timeout_s):
    """Wait for a process; then end whatever it has left that has ``mark`` in its command line."""
    try:
        output = process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0] + "\n(took too long)"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
                if str(mark).encode() in command:
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue
    return output


def run(command, *, mark, timeout_s, **environment):
    for _ in range(3):
        process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY,
            env={**os.environ, **_ENVIRONMENT, **environment},
        )  # fmt: skip
        output = end_with(process, mark, timeout_s)
        if not process.returncode or _NO_START not in output:
            break
    assert process.returncode == 0, output[-6000:]
    return output


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """A Python whose processes have imported what verl needs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _ENVIRONMENT.items():
            patch.setenv(name, value)
        with ray_python(tmp_path_factory.mktemp("python"), _IMPORTED, _PROGRAMS) as program:
            patch.undo()
            yield program


@pytest.fixture(scope="session")
def work(python, tmp_path_factory):
    """A directory with a tiny model and its data."""
    directory = tmp_path_factory.mktemp("verl_work")
    subprocess.run(
        [python, RIG / "tiny.py", directory], check=True, capture_output=True, env={**os.environ, **_ENVIRONMENT}
    )
    return directory


@pytest.fixture(scope="session")
def worker_jobs(tmp_path_factory):
    """Return a function that has a job run by the process that all jobs of workers come from."""
    log = tmp_path_factory.mktemp("worker_jobs") / "log"
    with log.open("w") as stderr:
        server = subprocess.Popen(
            [sys.executable, "-W", "ignore", WORKERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            text=True, cwd=REPOSITORY, env={**os.environ, **_ENVIRONMENT}, start_new_session=True,
        )  # fmt: skip

    def ask(request):
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answers, _, _ = select.select([server.stdout], [], [], _LONGEST_JOB_S)
        answer = server.stdout.readline() if answers else ""
        assert answer, f"no answer\n{log.read_text()}"
        return json.loads(answer)

    yield ask
    server.stdin.close()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    server.stdout.close()


@pytest.fixture(scope="session")
def run_workers(work, worker_jobs, tmp_path_factory):
    """Return a function that runs the stages in verl's workers, recorded as a YAML text says, or not at all."""

    def start(*arguments, ranks=1, record=None, place=None):
        place = place or tmp_path_factory.mktemp("workers")
        environment = {}
        if record is not None:
            (place / "record.yaml").write_text(record.format(out=place / "run"))
            environment["MSPROBE_VERL"] = str(place / "record.yaml")
        request = {
            "arguments": [str(place / "found"), "--work", str(work), *map(str, arguments)],
            "ranks": ranks, "environment": environment, "log": str(place / "log"),
        }  # fmt: skip
        statuses = worker_jobs(request)
        output = (place / "log").read_text()
        assert not any(statuses), output[-6000:]
        found = [json.loads((place / f"found.rank{rank}.json").read_text()) for rank in range(ranks)]
        return Run(place / "run", output), found

    return start


def whole_run(python, work, place, *arguments, is_switched_by_hydra=False, **environment):
    """Run `main_ppo`, recorded as the environment says, or as one setting on its command line does."""
    path = place / "record.yaml"
    path.write_text(WHOLE.format(out=place / "run"))
    switch = [f"+ray_kwargs.ray_init.runtime_env.env_vars.MSPROBE_VERL={path}"] if is_switched_by_hydra else [
        "--record", path
    ]  # fmt: skip
    if environment:
        switch = []
    ray_directory = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # the names of sockets have to be short
    try:
        output = run(
            [
                python, RIG / "train.py", "--work", work, *switch, *arguments,
            ],
            mark=ray_directory, timeout_s=900, RAY_TMPDIR=str(ray_directory), **environment,
        )  # fmt: skip
    finally:
        shutil.rmtree(ray_directory, ignore_errors=True)
    return Run(place / "run", output)


@pytest.fixture(scope="session")
def start_run(python, work):
    """Return a function that runs the whole of `main_ppo` with the variables that are given, in a directory."""
    return partial(whole_run, python, work)


@pytest.fixture(scope="session")
def healthy_run(start_run, tmp_path_factory):
    """The whole of `main_ppo`: v1 trainer, PPO with a critic, 2 FSDP2 workers, packed, balanced over ranks.

    Its recording is switched on by the hydra override; that of the others by the environment.
    """
    return start_run(tmp_path_factory.mktemp("healthy"), is_switched_by_hydra=True)


@pytest.fixture(scope="session")
def faulty_run(python, tmp_path_factory):
    """The run of the tutorial on training against rollout, which is followed.

    ``model.layers.1.mlp.down_proj.weight`` is left as it is whenever weights come to the engine.
    """
    place = tmp_path_factory.mktemp("tutorial")
    (place / "examples").symlink_to(REPOSITORY / "examples")
    path = os.pathsep.join([str(Path(python).parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    ray_directory = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # the names of sockets have to be short
    try:
        follow("rollout.md", place, RAY_TMPDIR=str(ray_directory), **{**_ENVIRONMENT, "PATH": path})
    finally:
        shutil.rmtree(ray_directory, ignore_errors=True)
    return Run(place / "work" / "verl_run", (place / "training.log").read_text())


@pytest.fixture(scope="session")
def replayed_pair(start_run, tmp_path_factory):
    """A run that keeps its rollouts, and one that has them again: one step of GRPO, with verl's older trainer."""
    kept = tmp_path_factory.mktemp("rollouts")
    settings = [
        "--v0", "--workers", "1", "--steps", "1", "algorithm.adv_estimator=grpo", "skip.rollout.enable=True",
        f"skip.rollout.dump_dir={kept}", "skip.rollout.steps=[1]",
    ]  # fmt: skip
    return [start_run(tmp_path_factory.mktemp(name), *settings) for name in ("first", "replayed")]


@pytest.fixture
def compare(capsys, tmp_path):
    """Return a function that compares and returns status, verdict and result."""

    def compare(command, *arguments):
        with pytest.raises(SystemExit) as ended:
            main(["verl", "compare", command, *map(str, arguments), "-o", str(tmp_path)])
        out, err = capsys.readouterr()
        path = tmp_path / f"verl_{command}.json"
        assert path.exists(), err
        return ended.value.code, out.splitlines()[-1], json.loads(path.read_bytes())

    return compare

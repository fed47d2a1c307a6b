"""Files of a recorded run of an RL trainer other than the dumps of its stages; `docs/verl.md` shows the directory tree.

Imports neither torch nor verl: runs are read on machines that have neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import DamagedDumpError, DumpError, MissingDumpError, StoreError
from msprobe_core.store import (
    DTYPES,
    SAFETENSORS_DTYPES,
    create_file,
    find_steps,
    find_units,
    load_struct,
    make_directory,
    open_member,
    read_plain,
    save_struct,
    shard_keys,
    tensor_file_name,
    unit_directory,
)
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.untrusted.files import reading

VERSION = 1
RUN_FILE = "run.json"
WEIGHTS_FILE = "weights.json"
BATCH_FILE = "batch.json"
TENSORS_FILE = "batch.safetensors"
_PROCESSES = "processes"

Array: TypeAlias = NDArray[Any]


class RLStage(str, Enum):
    """The stages of a step, in the order in which a trainer runs them; ``routing`` has choices of experts in others."""

    ROLLOUT = "rollout_generate"
    REWARD = "reward"
    ACTOR_LOG_PROB = "actor_compute_log_prob"
    REF_LOG_PROB = "ref_compute_log_prob"
    VALUES = "compute_values"
    ROUTING = "routing"
    CRITIC_UPDATE = "critic_update"
    ACTOR_UPDATE = "actor_update"
    WEIGHTS_SENT = "update_weights_send"
    WEIGHTS_RECEIVED = "update_weights_recv"
    TRAINER = "trainer"


class HookStatus(str, Enum):
    """State of a hook: in place, waiting for its module's import, missing its function, or failed to attach."""

    ATTACHED = "attached"
    WAITING = "waiting"
    ABSENT = "absent"
    FAILED = "failed"


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all files: unknown fields are errors."""


class Capability(_File, frozen=True, kw_only=True):
    """One hook in one process.

    Attributes:
        hook: What it records.
        target: Module and function that it wraps.
        status: Whether it is in place.
        reason: Why it is not.
    """

    hook: str
    target: str
    status: HookStatus
    reason: str | None = None


class ProcessInfo(_File, frozen=True, kw_only=True):
    """One process of the job: what is recorded there, and which errors occurred.

    Attributes:
        host: Host name.
        pid: Process id.
        role: ``driver``, ``worker`` or ``rollout``.
        rank: Rank in its group of workers, or the number of the replica.
        capabilities: Its hooks.
        errors: Failures of the recording, which are kept from the training.
    """

    host: str
    pid: int
    role: str
    rank: int | None = None
    capabilities: tuple[Capability, ...] = ()
    errors: tuple[str, ...] = ()


class Sampling(_File, frozen=True, kw_only=True):
    """How responses were sampled; ``None`` for unknown values.

    Attributes:
        temperature: Logits are divided by it.
        top_p: Share of probability kept.
        top_k: Number of tokens kept; -1 or 0 keeps all.
        do_sample: Whether tokens are drawn at all.
        logprobs_mode: Whether the engine's log-probs are ``raw`` or ``processed`` (after temperature, top-p, top-k).
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    do_sample: bool | None = None
    logprobs_mode: str | None = None


class RunInfo(_File, frozen=True, kw_only=True):
    """``run.json``, written by the driver, with the processes' own files merged in.

    Attributes:
        version: Version of the format.
        versions: Versions of packages, by name.
        config: The trainer's configuration, resolved and unchanged.
        sampling: Sampling in training; each batch file has its own.
        stages: Recorded stages.
        processes: All processes that recorded.
    """

    version: int = VERSION
    versions: dict[str, str] = {}
    config: dict[str, Any] = {}
    sampling: Sampling = Sampling()
    stages: tuple[str, ...] = ()
    processes: tuple[ProcessInfo, ...] = ()

    @property
    def errors(self) -> list[str]:
        """What could not be recorded, each with the process that reported it."""
        return [f"{p.role} {p.host}:{p.pid}: {error}" for p in self.processes for error in p.errors]


class Weight(_File, frozen=True, kw_only=True):
    """One parameter that was sent or received.

    Attributes:
        name: Canonical name, without the additions of wrappers; a part of a fused parameter has its place in brackets.
        key: Name in the vocabulary that trainers and engines share; empty in files of former versions.
        shape: Shape of the whole parameter, or of the part.
        dtype: Without the framework's prefix: ``float32``.
        hash: Sum of the mixed bits and positions of its elements, ``0x`` and 16 hex digits; see docs/formats.md.
        casts: The same of its values rounded to other dtypes, by dtype.
        turned: The same of the transposed matrix, in all these dtypes.
        sketch: 64 numbers, from which distances are estimated.
        crc32: CRC-32 of its contiguous bytes, 8 hex digits, in files of former versions, which have no hash.
        l2: L2 norm, accumulated in float64; ``None`` if not finite.
        mean: Mean; ``None`` if not finite.
        min: Smallest element; ``None`` if not finite.
        max: Largest element; ``None`` if not finite.
        placement: Placement in the trainer, before it was gathered, such as ``Shard(dim=0)``.
    """

    name: str
    key: str = ""
    shape: tuple[int, ...]
    dtype: str
    hash: str = ""
    casts: dict[str, str] = {}
    turned: dict[str, str] = {}
    sketch: bytes = b""
    crc32: str = ""
    l2: float | None = None
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    placement: str | None = None

    @property
    def identity(self) -> str:
        """What equal values of one dtype have in common."""
        return self.hash or self.crc32


class WeightsFile(_File, frozen=True, kw_only=True):
    """The content of ``weights.json``: one transfer of all parameters.

    Attributes:
        version: Version of the format.
        step: The trainer's step.
        rank: Rank of the sender, or number of the replica that received.
        policy_version: Version of these weights.
        parameters: In the order of transfer.
    """

    version: int
    step: int
    rank: int
    policy_version: int | None = None
    parameters: tuple[Weight, ...] = ()


class BatchRow(_File, frozen=True, kw_only=True):
    """One sample of the batch: as `Row`; its position in the list is its row in the tensors."""

    id: str
    prompt_id: str
    uid: str | None = None
    prompt_length: int = 0
    total_length: int = 0


class PolicyVersions(_File, frozen=True, kw_only=True):
    """Oldest and newest version of the weights that generated a batch."""

    min: int | None = None
    max: int | None = None


class BatchFile(_File, frozen=True, kw_only=True):
    """The content of ``batch.json``; the tensors are in ``batch.safetensors``, each ``[rows, …]``, padded.

    Attributes:
        version: Version of the format.
        step: The trainer's step.
        rows: Number of samples in the batch.
        sampling: How the responses were sampled.
        policy_version: Version of the weights that generated them.
        metrics: Numeric metrics that the trainer logged for this step.
        tensors: Names of the tensors.
        samples: One for each row, in the tensors' order.
    """

    version: int
    step: int
    rows: int
    sampling: Sampling = Sampling()
    policy_version: PolicyVersions | None = None
    metrics: dict[str, float | None] = {}
    tensors: tuple[str, ...] = ()
    samples: tuple[BatchRow, ...] = ()


class Reward(_File, frozen=True, kw_only=True):
    """Reward of one sample.

    Attributes:
        id: As in `Row`.
        prompt_id: As in `Row`.
        uid: As in `Row`.
        score: The reward; ``None`` if it is not a finite number.
        extra: Further results of the reward function: numbers, and everything else as text.
    """

    id: str
    prompt_id: str
    uid: str | None = None
    score: float | None = None
    extra: dict[str, float | str | None] = {}


# --- directories -------------------------------------------------------------------------------------------------


def rank_directory(run: Path, stage: str, step: int, rank: int) -> Path:
    """Return the directory of one rank, or one replica, in one stage and step."""
    return unit_directory(run / stage, step, rank)


def trainer_directory(run: Path, step: int) -> Path:
    """Return the directory of a step's batch, which the driver writes."""
    return run / RLStage.TRAINER.value / f"step{step}"


def stages_of(run: Path) -> list[str]:
    """Return the recorded stages: known ones first, in the trainer's order, then the others.

    Raises:
        DumpError: ``run`` cannot be read.
    """
    with reading(run, advice="; give the directory of a recorded run"):
        found = {path.name for path in run.iterdir() if path.is_dir() and find_steps(path)}
    known = [stage.value for stage in RLStage]
    return [name for name in known if name in found] + sorted(found - set(known))


def steps_of(run: Path, stage: str) -> list[int]:
    """Return the steps of a stage; empty if it was not recorded."""
    return list(find_steps(run / stage)) if (run / stage).is_dir() else []


def ranks_of(run: Path, stage: str, step: int) -> dict[int, Path]:
    """Return the directories of a stage's ranks in one step; empty if there is none."""
    directory = run / stage / f"step{step}"
    if not directory.is_dir():
        return {}
    return {unit.rank: unit.directory for unit in find_units(directory) if unit.rank is not None}


# --- reading and writing -----------------------------------------------------------------------------------------


def save_run(run: Path, info: RunInfo) -> None:
    """Write ``run.json``, without its processes, which `save_process` writes.

    Raises:
        StoreError: it cannot be written.
    """
    save_struct(run / RUN_FILE, info)


def save_process(run: Path, info: ProcessInfo) -> None:
    """Write the record of one process into a file of its own, since many processes write at once.

    Raises:
        StoreError: it cannot be written.
    """
    save_struct(run / _PROCESSES / f"{info.role}-{tensor_file_name(info.host, '')}-{info.pid}.json", info)


def holds_run(path: Path) -> bool:
    """Return whether a directory is that of a recorded run of an RL trainer."""
    return (path / RUN_FILE).is_file() or next((path / _PROCESSES).glob("*.json"), None) is not None


def load_run(run: Path) -> RunInfo:
    """Return ``run.json`` with all processes; its fields are empty if only workers recorded.

    Raises:
        DumpError: ``run`` holds no recorded run of an RL trainer, or a file in it cannot be read.
    """
    processes = tuple(load_struct(path, ProcessInfo) for path in sorted((run / _PROCESSES).glob("*.json")))
    if not holds_run(run):
        raise MissingDumpError(
            f"{run}: holds no {RUN_FILE}; give the directory that 'out' named when the run was recorded"
        )
    info = load_struct(run / RUN_FILE, RunInfo) if (run / RUN_FILE).exists() else RunInfo()
    return msgspec.structs.replace(info, processes=processes)


def recorded_config(run: Path) -> Mapping[str, Any]:
    """Return the trainer's configuration in ``run.json``; empty before the driver has written it."""
    return load_struct(run / RUN_FILE, RunInfo).config if (run / RUN_FILE).exists() else {}


def save_weights(directory: Path, weights: WeightsFile) -> None:
    """Write ``weights.json`` into the directory of a rank.

    Raises:
        StoreError: it cannot be written.
    """
    save_struct(directory / WEIGHTS_FILE, weights)


def load_weights(directory: Path) -> WeightsFile:
    """Return the content of ``weights.json`` in the directory of a rank.

    Raises:
        DumpError: it is missing or invalid.
    """
    return load_struct(directory / WEIGHTS_FILE, WeightsFile)


class RewardWriter:
    """Writes the rewards that one process computes in one step, one line per sample; the file is valid after each."""

    def __init__(self, run: Path, step: int, name: str) -> None:
        """Create the file.

        Args:
            run: Directory of the run.
            step: The trainer's step.
            name: Name of the process, unique in the job.

        Raises:
            StoreError: the file cannot be created.
        """
        directory = run / RLStage.REWARD.value / f"step{step}"
        make_directory(directory, below=run)
        self._path = directory / f"{tensor_file_name(name, '')}.jsonl"
        create_file(self._path).close()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def add(self, reward: Reward) -> None:
        """Write one reward.

        Raises:
            StoreError: it cannot be written.
        """
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(reward) + b"\n")
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be written ({error.strerror})") from error


def load_rewards(run: Path, step: int) -> list[Reward]:
    """Return the rewards of one step, of all processes; empty if none were recorded.

    Raises:
        DumpError: a file cannot be read.
    """
    paths = sorted((run / RLStage.REWARD.value / f"step{step}").glob("*.jsonl"))
    return [reward for path in paths for reward in _rewards_in(path)]


def _rewards_in(path: Path) -> list[Reward]:
    try:
        return [msgspec.json.decode(line, type=Reward) for line in read_plain(path).splitlines()]
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedDumpError(f"{path}: is cut off or holds something else than rewards ({error})") from error


class _Announced(_File, frozen=True, kw_only=True):
    policy_version: int


def announce_policy_version(run: Path, version: int) -> None:
    """Record which weights are being sent, for engines in other processes, which verl does not inform.

    Raises:
        StoreError: it cannot be written.
    """
    save_struct(run / _PROCESSES / "policy_version", _Announced(policy_version=version))


def announced_policy_version(run: Path) -> int | None:
    """Return the version of the weights sent last, or being sent; ``None`` if none was announced."""
    try:
        return load_struct(run / _PROCESSES / "policy_version", _Announced).policy_version
    except DumpError:
        return None


def save_batch(directory: Path, batch: BatchFile, tensors: Mapping[str, Array]) -> None:
    """Write ``batch.json`` and ``batch.safetensors``; sets ``batch.tensors`` to the names of ``tensors``.

    Args:
        directory: Directory of the step.
        batch: Everything but the tensors.
        tensors: Arrays by name, of any dtype that safetensors supports.

    Raises:
        StoreError: they cannot be written, or safetensors does not support a dtype.
    """
    make_directory(directory, below=directory.parents[1])
    save_tensors(directory / TENSORS_FILE, tensors)
    save_struct(directory / BATCH_FILE, msgspec.structs.replace(batch, tensors=tuple(sorted(tensors))))


def save_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write arrays by name as a ``.safetensors`` file, completely or not at all; its directory exists.

    Raises:
        StoreError: it cannot be written, or safetensors does not support a dtype.
    """
    arrays = {name: _contiguous(path, name, array) for name, array in sorted(tensors.items())}
    header, end = dict[str, Any](), 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _SAFETENSORS[_code(array)],
            "shape": array.shape,
            "data_offsets": (end, end + array.nbytes),
        }
        end += array.nbytes
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    with whole_file(path) as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in arrays.values():
            file.write(array.tobytes())


def load_batch(directory: Path) -> tuple[BatchFile, dict[str, Array]]:
    """Return the batch of one step, and its tensors by name.

    Raises:
        DumpError: a file is missing, truncated or invalid.
    """
    batch = load_struct(directory / BATCH_FILE, BatchFile)
    path = directory / TENSORS_FILE
    tensors = load_tensors(path)
    if missing := set(batch.tensors) - tensors.keys():
        raise DumpError(f"{path}: lacks the tensor {min(missing)!r} that {BATCH_FILE} names; record again")
    return batch, tensors


def load_tensors(path: Path) -> dict[str, Array]:
    """Return the arrays of a ``.safetensors`` file by name.

    Raises:
        DumpError: it is missing or damaged.
    """
    return {name: _read_tensor(path, name) for name in shard_keys(path)}


def _read_tensor(path: Path, name: str) -> Array:
    try:
        return open_member(path, name).read()
    except DumpError as error:
        raise DamagedDumpError(
            f"{path}: the tensor {name!r} is cut off, or its description is wrong; record again"
        ) from error


_SAFETENSORS = {
    DTYPES[dtype]: name for name, dtype in SAFETENSORS_DTYPES.items() if str(np.dtype(DTYPES[dtype])) == dtype
}
"""NumPy dtypes by their names in the file's header, for those that NumPy has."""


def _contiguous(path: Path, name: str, array: Array) -> Array:
    array = np.asarray(array)
    if _code(array) not in _SAFETENSORS:
        raise StoreError(f"{path}: the tensor {name!r} is of dtype {array.dtype}, which safetensors does not have")
    # A scalar would get a dimension.
    return np.require(array, requirements="C")


def _code(array: Array) -> str:
    dtype: Any = array.dtype
    return dtype.str

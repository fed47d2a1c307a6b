"""What all parts of a framework's contract need: values, the session, and how results are checked."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from msprobe_core.capture import Session
from msprobe_core.config import load_config
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.model import Digest, Stats
from msprobe_core.store import layout
from msprobe_core.testing.rig import TrainingRig

Array: TypeAlias = NDArray[Any]

_Rig = TypeVar("_Rig", bound=TrainingRig)

_RNG = np.random.default_rng(20)

VALUES: dict[str, Array] = {
    "float32": _RNG.normal(size=(3, 4, 5)).astype(np.float32),
    "float64": _RNG.normal(size=(7,)),
    "float16": _RNG.normal(size=(6, 2)).astype(np.float16),
    "float16 whose sum of squares overflows float16": np.full((300,), 300.0, np.float16),
    "float32 whose sum of squares overflows float32": np.full((4,), 3e38, np.float32),
    "int64": np.array([[-8, 3, 50], [7, 0, -41]], np.int64),
    "int32": np.array([[3, -1], [2, 2]], np.int32),
    "uint8": np.array([0, 255, 7], np.uint8),
    "bool": np.array([True, False, True]),
    "all false": np.zeros((3,), bool),
    "0-d": np.array(-2.5, np.float32),
    "one element": np.array([4.0], np.float32),
    "NaN": np.array([1.0, np.nan, 3.0], np.float32),
    "Inf": np.array([1.0, np.inf, -np.inf, 3.0], np.float32),
    "NaN and Inf": np.array([np.nan, np.inf, np.nan], np.float64),
    "zeros": np.zeros((2, 3), np.float32),
}
"""Arrays whose statistics are checked against NumPy in float64."""

LEVELS = ("L0", "L1", "mix")
_TASK_SETTINGS = {"summary_mode", "list", "scope", "data_mode"}

MODES = (
    *(("statistics", mode) for mode in ("statistics", "md5", "xor", "hash", "sketch", "fp8")),
    ("tensor", "statistics"),
)


class RiggedContract(Generic[_Rig]):
    """Base of contracts that need a rig."""

    @pytest.fixture
    def rig(self) -> _Rig:
        """Return the framework under test."""
        raise NotImplementedError(f"{type(self).__name__} inherits a contract and defines no fixture 'rig'")


class ContractBase(RiggedContract[TrainingRig]):
    """Flags, fixtures and helpers; a contract inherits them, and the plugin gives the fixture ``rig``."""

    supports_bfloat16: ClassVar[bool] = False
    """Whether the framework supports bfloat16."""

    records_apis: ClassVar[bool] = True
    """Whether levels L1 and mix record APIs."""

    is_immutable: ClassVar[bool] = False
    """Whether tensors cannot be overwritten, as those of JAX; ``rig.overwrite`` is then not called."""

    @pytest.fixture
    def open_session(self, rig: TrainingRig, tmp_path: Path) -> Callable[..., Session]:
        """Return a function that creates a session with the given settings, writing under ``tmp_path``."""

        def make(**settings: Any) -> Session:
            options = {key: settings.pop(key) for key in _TASK_SETTINGS & settings.keys()}
            task = settings.setdefault("task", "statistics")
            return session_of(rig, tmp_path, {"risk_level": "ALL", task: options, **settings})

        return make

    def _digest(self, rig: TrainingRig, kind: str, tensor: Any) -> Digest:
        """Return what the method ``kind`` of a reducer computes of a tensor."""
        digest, reducer = Digest(), rig.framework.reducer()
        getattr(reducer, kind)(tensor, digest)
        reducer.collect()
        return digest

    def _statistics(self, rig: TrainingRig, tensor: Any) -> Stats:
        return self._digest(rig, "statistics", tensor).stats or Stats()

    def _record(self, rig: TrainingRig, session: Session) -> Session:
        model = rig.make_model(3)
        session.start([model])
        rig.train_step(model, 0)
        session.stop()
        return session

    def _directory(self, session: Session) -> Path:
        directory = session.directory
        assert directory is not None
        return directory

    def _dump(self, session: Session) -> dict[str, Any]:
        content = json.loads((self._directory(session) / layout.DUMP_FILE).read_text())
        return cast("dict[str, Any]", content["data"])


def session_of(rig: TrainingRig, directory: Path, settings: Mapping[str, Any]) -> Session:
    """Return a session with settings; the run is written to ``run`` in a directory."""
    path = directory / "config.json"
    path.write_text(json.dumps(settings))
    config = load_config(path, dump_path=str(directory / "run"))
    return Session(config, rig.framework)


def bits_of(state: Mapping[str, Array]) -> dict[str, bytes]:
    """Return the bytes of every array of a model's state."""
    return {name: values.tobytes() for name, values in state.items()}


def crc32(values: Array) -> str:
    """Return the CRC-32 of the bytes of an array."""
    return f"{zlib.crc32(np.ascontiguousarray(values).tobytes()):08x}"


def hash_text(values: Array) -> str:
    """Return the hash of an array, as text."""
    return f"0x{int(hash_of(values)[0]) & (1 << 64) - 1:016x}"


def assert_sketch(sketch: bytes | None, values: Array) -> None:
    """Check a sketch against the core's; the difference may be a few roundings of the largest number."""
    assert sketch is not None
    found = np.frombuffer(sketch, np.dtype("<f4"))
    expected = cast("Array", Sketcher(NumpyArrays()).sketch(values))
    size = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * float(size))


def assert_statistics(stats: Stats, values: Array, rel: float = 1e-6) -> None:
    """Check statistics against NumPy in float64.

    Args:
        stats: The plugin's result.
        values: Real values of any dtype.
        rel: Allowed relative difference of mean and norm; extremes and counts must be exact.
    """
    wide = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (wide.max(), wide.min(), wide.mean(), np.sqrt((wide**2).sum()))
    for found, right in zip((stats.max, stats.min), expected[:2], strict=True):
        assert found == right or (np.isnan(right) and found is not None and np.isnan(found))
    for found, right in zip((stats.mean, stats.l2_norm), expected[2:], strict=True):
        assert found == pytest.approx(right, rel=rel, abs=1e-12 * max(1.0, abs(expected[3])), nan_ok=True)
    assert (stats.num_nan, stats.num_inf) == (int(np.isnan(wide).sum()), int(np.isinf(wide).sum()))


def assert_same_state(rig: TrainingRig, expected: Any, found: Any) -> None:
    """Check that two models have bitwise equal parameters and gradients."""
    right, state = rig.state_of(expected), rig.state_of(found)
    assert right.keys() == state.keys()
    for name, values in right.items():
        assert values.tobytes() == state[name].tobytes(), name

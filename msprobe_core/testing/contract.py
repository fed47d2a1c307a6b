"""The contract of a framework plugin, as tests that each plugin inherits."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias, cast

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from msprobe_core import names
from msprobe_core.capture import Session
from msprobe_core.capture.window import Model
from msprobe_core.config import load_config
from msprobe_core.errors import ConfigError, MsprobeError, ReplayError
from msprobe_core.fingerprint import fp8
from msprobe_core.fingerprint.arrays import Arrays, NumpyArrays
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.model import Digest, Phase, ReplayCall, Site, SiteKind, Stats
from msprobe_core.plugins import registry
from msprobe_core.protocols.capabilities import (
    DeviceReplayingFramework,
    ExtraReducer,
    Fp8Reducer,
    ScriptingFramework,
    WatchingFramework,
)
from msprobe_core.protocols.framework import Framework
from msprobe_core.store import layout
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.store.shards import ShardWriter
from msprobe_core.store.tensors import open_tensor, read_tensor
from msprobe_core.testing.rig import TrainingRig

Array: TypeAlias = NDArray[Any]

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


class FrameworkContract:
    """Inherit this class, set the flags, and define the fixture ``rig``."""

    supports_bfloat16: ClassVar[bool] = False
    """Whether the framework supports bfloat16."""

    records_apis: ClassVar[bool] = True
    """Whether levels L1 and mix record APIs."""

    is_immutable: ClassVar[bool] = False
    """Whether tensors cannot be overwritten, as those of JAX; ``rig.overwrite`` is then not called."""

    @pytest.fixture
    def rig(self) -> TrainingRig:
        """Return the framework under test."""
        raise NotImplementedError("a class that inherits FrameworkContract defines the fixture 'rig'")

    @pytest.fixture
    def open_session(self, rig: TrainingRig, tmp_path: Path) -> Callable[..., Session]:
        """Return a function that creates a session with the given settings, writing under ``tmp_path``."""

        def make(**settings: Any) -> Session:
            options = {key: settings.pop(key) for key in _TASK_SETTINGS & settings.keys()}
            task = settings.setdefault("task", "statistics")
            path = tmp_path / "config.json"
            path.write_text(json.dumps({"risk_level": "ALL", task: options, **settings}))
            config = load_config(path, dump_path=str(tmp_path / "run"))
            return Session(config, rig.framework, registry().processors(), registry().writers())

        return make

    # --- tensors ----------------------------------------------------------------------------------------------

    def test_recognises_its_own_tensors_and_models(self, rig: TrainingRig) -> None:
        """Tensors are recognised as tensors, models as models, and no other object as either."""
        framework = rig.framework
        tensor, model = rig.make_tensor(np.ones(2, np.float32)), rig.make_model(0)
        assert framework.is_tensor(tensor)
        assert framework.is_model(model)
        for other in (None, 1, "text", [tensor], np.ones(2), object()):
            assert not framework.is_tensor(other)
            assert not framework.is_model(other)
        assert not framework.is_model(tensor)

    @pytest.mark.parametrize("case", VALUES)
    def test_describes_shape_and_dtype(self, rig: TrainingRig, case: str) -> None:
        """The shape is the array's; the dtype's name contains NumPy's, in any spelling."""
        values = VALUES[case]
        meta = rig.framework.describe(rig.make_tensor(values))
        assert meta.shape == values.shape
        assert str(values.dtype) in meta.dtype.lower()
        assert meta.type

    @pytest.mark.parametrize("case", VALUES)
    def test_statistics_agree_with_numpy_in_float64(self, rig: TrainingRig, case: str) -> None:
        """Maximum, minimum, mean, norm and counts are correct, for every dtype and for special values."""
        assert_statistics(self._statistics(rig, rig.make_tensor(VALUES[case])), VALUES[case])

    def test_statistics_of_bfloat16_are_wide(self, rig: TrainingRig) -> None:
        """Sums over bfloat16 are accumulated in a wider dtype: 4,000 times 1.0 is not 256."""
        if not self.supports_bfloat16:
            pytest.skip("this framework has no bfloat16")
        values = np.ones(4000, np.float32)
        stats = self._statistics(rig, rig.make_bfloat16(values))
        assert stats.mean == 1.0
        assert stats.l2_norm == pytest.approx(np.sqrt(4000), rel=1e-6)

    def test_an_empty_tensor_has_no_statistics(self, rig: TrainingRig) -> None:
        """Requesting them is not an error."""
        stats = self._statistics(rig, rig.make_tensor(np.zeros((0, 3), np.float32)))
        assert (stats.max, stats.min, stats.mean, stats.l2_norm) == (None, None, None, None)

    def test_values_are_taken_before_they_are_overwritten(self, rig: TrainingRig) -> None:
        """A digest has the tensor's values when it was reduced, even if it is collected later."""
        values = np.array([1.0, 2.0, 3.0], np.float32)
        tensor, reducer = rig.make_tensor(values), rig.framework.reducer()
        statistics, checksum, hashed, sketched = Digest(), Digest(), Digest(), Digest()
        reducer.statistics(tensor, statistics)
        reducer.checksum(tensor, checksum)
        reducer.hash(tensor, hashed)
        reducer.sketch(tensor, sketched)
        snapshot = rig.framework.snapshot(tensor)
        if not self.is_immutable:
            rig.overwrite(tensor, -7.0)
        reducer.collect()
        assert statistics.stats is not None
        assert statistics.stats.max == 3.0
        assert checksum.checksum == crc32(values)
        assert hashed.checksum == hash_text(values)
        assert_sketch(sketched.sketch, values)
        again = Digest()
        copy = snapshot if rig.framework.is_tensor(snapshot) else rig.make_tensor(np.asarray(snapshot))
        reducer.checksum(copy, again)
        reducer.collect()
        assert again.checksum == crc32(values)

    def test_a_part_of_a_tensor_is_a_tensor(self, rig: TrainingRig) -> None:
        """It has the statistics and the checksum of that slice, and its copy contains nothing else."""
        values = VALUES["float32"]
        framework, expected = rig.framework, values[1:3, :, 2:4]
        part = framework.narrow(rig.make_tensor(values), {0: (1, 3), 2: (2, 4)})
        assert_statistics(self._statistics(rig, part), expected)
        assert framework.describe(part).shape == expected.shape
        digest, reducer = Digest(), framework.reducer()
        reducer.checksum(part, digest)
        reducer.collect()
        assert digest.checksum == crc32(expected)

    @pytest.mark.parametrize("case", VALUES)
    def test_checksum_is_the_crc32_of_the_bytes(self, rig: TrainingRig, case: str) -> None:
        """CRC-32 of the contiguous bytes, as 8 hex digits."""
        digest, reducer = Digest(), rig.framework.reducer()
        reducer.checksum(rig.make_tensor(VALUES[case]), digest)
        reducer.collect()
        assert digest.checksum == crc32(VALUES[case])

    @pytest.mark.parametrize("case", VALUES)
    def test_xor_is_that_of_the_words(self, rig: TrainingRig, case: str) -> None:
        """Exclusive or of the 64-bit words of the contiguous bytes, padded with zeros."""
        digest, reducer = Digest(), rig.framework.reducer()
        reducer.xor(rig.make_tensor(VALUES[case]), digest)
        reducer.collect()
        content = np.ascontiguousarray(VALUES[case]).tobytes()
        word = 0
        for start in range(0, len(content), 8):
            word ^= int.from_bytes(content[start : start + 8], "little")
        assert digest.checksum == f"0x{word:016x}"

    @pytest.mark.parametrize("case", VALUES)
    def test_hash_is_that_of_the_core(self, rig: TrainingRig, case: str) -> None:
        """Bitwise equal in every framework, so that dumps of two frameworks can be compared."""
        digest, reducer = Digest(), rig.framework.reducer()
        reducer.hash(rig.make_tensor(VALUES[case]), digest)
        reducer.collect()
        assert digest.checksum == hash_text(VALUES[case])

    def test_hash_of_bfloat16_is_that_of_its_bits(self, rig: TrainingRig) -> None:
        """The upper half of the float32 with the same value."""
        if not self.supports_bfloat16:
            pytest.skip("this framework has no bfloat16")
        values = np.array([1.0, -2.5, 0.0, -0.0, np.inf], np.float32)
        digest, reducer = Digest(), rig.framework.reducer()
        reducer.hash(rig.make_bfloat16(values), digest)
        reducer.collect()
        assert digest.checksum == hash_text(np.frombuffer(values.tobytes(), np.dtype("<u2"))[1::2])

    @pytest.mark.parametrize("case", VALUES)
    def test_sketch_is_that_of_the_core(self, rig: TrainingRig, case: str) -> None:
        """Equal except for rounding; NaN and Inf are at the same positions."""
        digest, reducer = Digest(), rig.framework.reducer()
        reducer.sketch(rig.make_tensor(VALUES[case]), digest)
        reducer.collect()
        assert_sketch(digest.sketch, VALUES[case])

    @pytest.mark.parametrize("case", VALUES)
    def test_losses_of_fp8_are_those_of_the_core(self, rig: TrainingRig, case: str) -> None:
        """The squared error is equal except for rounding; a tensor that is not floating point has none."""
        digest, reducer, values = Digest(), rig.framework.reducer(), VALUES[case]
        if not isinstance(reducer, Fp8Reducer):
            pytest.skip("the framework has no statistics of FP8")
        reducer.fp8(rig.make_tensor(values), digest)
        reducer.collect()
        if values.dtype.kind != "f":
            assert digest.fp8 is None
            return
        expected = fp8.losses(fp8.quantised(values, NumpyArrays()).tolist(), values.size)
        assert digest.fp8 is not None
        found, wanted = (
            {name: number for name, number in msgspec.structs.asdict(stats).items() if number is not None}
            for stats in (digest.fp8, expected)
        )
        assert found == pytest.approx(wanted, rel=1e-6)

    @pytest.mark.parametrize("case", VALUES)
    def test_extra_statistics_get_the_elements(self, rig: TrainingRig, case: str) -> None:
        """As `Statistic` describes them; what they return is the digest's, under the names that they return."""
        digest, reducer, values = Digest(), rig.framework.reducer(), VALUES[case]
        if not isinstance(reducer, ExtraReducer):
            pytest.skip("the framework has no extra statistics")
        ndims: list[int] = []

        def measure(vector: Any, arrays: Arrays) -> tuple[list[str], Any]:
            ndims.append(vector.ndim)
            numbers = arrays.zeros(2)
            numbers[0], numbers[1] = abs(vector).max(), (vector == 0).sum()
            return ["absmax", "zeros"], numbers

        reducer.extra_statistics(rig.make_tensor(values), digest, measure)
        reducer.collect()
        sizes = np.abs(values).astype(np.float64)
        expected = {"absmax": float(sizes.max()), "zeros": float((sizes == 0).sum())}
        assert ndims == [1]
        assert digest.extra == pytest.approx(expected, rel=1e-6, nan_ok=True)

    def test_an_empty_tensor_has_no_sketch_and_the_hash_0(self, rig: TrainingRig) -> None:
        """Requesting them is not an error."""
        digest, reducer = Digest(), rig.framework.reducer()
        tensor = rig.make_tensor(np.zeros((0, 3), np.float32))
        reducer.hash(tensor, digest)
        reducer.sketch(tensor, digest)
        if isinstance(reducer, Fp8Reducer):
            reducer.fp8(tensor, digest)
        if isinstance(reducer, ExtraReducer):
            reducer.extra_statistics(tensor, digest, lambda _, arrays: (["zeros"], arrays.zeros(1)))
        reducer.collect()
        assert (digest.checksum, digest.sketch, digest.fp8, digest.extra) == ("0x0000000000000000", None, None, None)

    def test_a_digest_has_the_values_of_its_moment(self, rig: TrainingRig) -> None:
        """A later write changes the next digest, but not an earlier one that may still wait for its result."""
        if self.is_immutable:
            pytest.skip("tensors of this framework cannot be written")
        reducer = rig.framework.reducer()
        tensor, digests = rig.make_tensor(np.ones(3, np.float32)), [Digest(), Digest()]
        for value, digest in zip((1.0, 2.0), digests, strict=True):
            rig.overwrite(tensor, value)
            reducer.statistics(tensor, digest)
            reducer.checksum(tensor, digest)
        reducer.collect()
        assert [digest.stats.max for digest in digests if digest.stats is not None] == [1.0, 2.0]
        assert digests[0].checksum != digests[1].checksum

    @pytest.mark.parametrize("case", VALUES)
    def test_saved_tensors_are_read_without_the_framework(self, rig: TrainingRig, case: str, tmp_path: Path) -> None:
        """The core reads files of ``save`` bitwise, and only their owner can read them."""
        path = tmp_path / f"tensor{rig.framework.tensor_suffix}"
        rig.framework.save(rig.framework.snapshot(rig.make_tensor(VALUES[case])), path)
        np.testing.assert_array_equal(read_tensor(path), VALUES[case])
        assert path.stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize("case", VALUES)
    def test_content_is_the_bytes_of_a_snapshot(self, rig: TrainingRig, case: str, tmp_path: Path) -> None:
        """It has NumPy's name of the dtype; the core reads it back from a shard bitwise."""
        content = rig.framework.content(rig.framework.snapshot(rig.make_tensor(VALUES[case])))
        if content is None:
            pytest.skip("this framework has no plain bytes of such a tensor; it is written by 'save'")
        assert (content.dtype, content.shape) == (str(VALUES[case].dtype), VALUES[case].shape)
        assert bytes(content.data) == VALUES[case].tobytes()
        shards = ShardWriter(tmp_path)
        reference = shards.add("tensor", content)
        shards.close()
        np.testing.assert_array_equal(read_tensor(tmp_path / reference), VALUES[case])

    def test_the_content_of_bfloat16_is_named_so(self, rig: TrainingRig, tmp_path: Path) -> None:
        """Its two bytes are the upper ones of float32."""
        if not self.supports_bfloat16:
            pytest.skip("this framework has no bfloat16")
        values = np.array([1.0, -2.5, 3.0], np.float32)
        content = rig.framework.content(rig.framework.snapshot(rig.make_bfloat16(values)))
        assert content is not None
        assert content.dtype == "bfloat16"
        shards = ShardWriter(tmp_path)
        reference = shards.add("tensor", content)
        shards.close()
        np.testing.assert_array_equal(read_tensor(tmp_path / reference), values)

    # --- harmless ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize(("task", "summary_mode"), MODES)
    def test_training_is_bitwise_unchanged(
        self, rig: TrainingRig, open_session: Callable[..., Session], level: str, task: str, summary_mode: str
    ) -> None:
        """Losses, weights and gradients of three steps are the same with and without recording."""
        if summary_mode == "fp8" and not isinstance(rig.framework.reducer(), Fp8Reducer):
            pytest.skip("the framework has no statistics of FP8")
        plain, probed = rig.make_model(3), rig.make_model(3)
        expected = [rig.train_step(plain, step) for step in range(3)]
        session = open_session(level=level, task=task, summary_mode=summary_mode)
        losses: list[float] = []
        for step in range(3):
            session.start([probed])
            losses.append(rig.train_step(probed, step))
            session.stop()
            session.step()
        session.close()
        assert losses == expected
        assert_same_state(rig, plain, probed)

    @pytest.mark.parametrize("level", LEVELS)
    def test_nothing_is_left_behind(self, rig: TrainingRig, open_session: Callable[..., Session], level: str) -> None:
        """Nothing is hooked before start, and nothing after stop, even if a step raised."""
        model = rig.make_model(3)
        untouched = rig.traces_in(model)
        session = open_session(level=level)
        assert rig.traces_in(model) == untouched
        session.start([model])
        rig.train_step(model, 0)
        session.stop()
        assert rig.traces_in(model) == untouched
        session.start([model])
        with pytest.raises(ArithmeticError):
            rig.fail_in_step(model)
        session.stop()
        assert rig.traces_in(model) == untouched
        session.close()

    def test_an_unselected_step_or_rank_is_not_touched(
        self, rig: TrainingRig, open_session: Callable[..., Session], tmp_path: Path
    ) -> None:
        """Nothing is hooked, and nothing is written to disk."""
        model = rig.make_model(3)
        untouched = rig.traces_in(model)
        for settings in ({"step": [5]}, {"rank": [7]}, {"dump_enable": False}):
            session = open_session(level="L0", **settings)
            session.start([model])
            assert rig.traces_in(model) == untouched
            assert not session.is_running
            session.stop()
            session.close()
        assert not (tmp_path / "run").exists()

    def test_a_raising_step_loses_no_record(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Everything recorded before the exception is on disk, and training can continue."""
        model, session = rig.make_model(3), open_session(level="L0")
        session.start([model])
        with pytest.raises(ArithmeticError):
            rig.fail_in_step(model)
        session.stop()
        raised = self._dump(session)
        session.step()
        session.start([model])
        rig.train_step(model, 0)
        session.stop()
        complete = self._dump(session)
        session.close()
        assert raised
        assert len(complete) > len(raised)

    # --- records ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("level", LEVELS)
    def test_entries_follow_the_grammar_and_the_level(
        self, rig: TrainingRig, open_session: Callable[..., Session], level: str
    ) -> None:
        """Every name can be parsed and formatted; L0 has modules only, L1 has APIs only, mix has both."""
        session = self._record(rig, open_session(level=level))
        entries = self._dump(session)
        session.close()
        sites = [names.parse_entry(entry) for entry in entries]
        assert [names.format_entry(site) for site in sites] == list(entries)
        kinds = {site.kind for site in sites}
        expected = {"L0": {SiteKind.MODULE}, "L1": {SiteKind.API}, "mix": {SiteKind.MODULE, SiteKind.API}}[level]
        assert kinds == (expected if self.records_apis else expected - {SiteKind.API})

    def test_modules_have_both_directions_and_gradients(
        self, rig: TrainingRig, open_session: Callable[..., Session]
    ) -> None:
        """Each module, the root too, has a forward and a backward entry; those with parameters also have gradients."""
        session = self._record(rig, open_session(level="L0"))
        entries = self._dump(session)
        session.close()
        sites = [names.parse_entry(entry) for entry in entries]
        forward = {site.path for site in sites if site.phase is Phase.FORWARD}
        backward = {site.path for site in sites if site.phase is Phase.BACKWARD}
        assert "" in forward
        assert len(forward) >= 3
        assert backward == forward
        with_parameters = {names.parse_entry(name).path for name, record in entries.items() if record.get("parameters")}
        assert {site.path for site in sites if site.phase is Phase.PARAMETERS_GRAD} == with_parameters

    @pytest.mark.parametrize("level", ["L0", "mix"])
    def test_children_come_before_their_parents(
        self, rig: TrainingRig, open_session: Callable[..., Session], level: str
    ) -> None:
        """This holds for the order in the file, in both directions; the stored sequence is that order."""
        session = self._record(rig, open_session(level=level))
        entries = self._dump(session)
        directory = self._directory(session)
        session.close()
        positions = {entry: i for i, entry in enumerate(entries)}
        parents: dict[str, str | None] = json.loads((directory / layout.CONSTRUCT_FILE).read_text())
        nested = [(entry, parent) for entry, parent in parents.items() if parent in positions and entry in positions]
        assert nested
        assert all(positions[entry] < positions[parent] for entry, parent in nested if parent is not None)
        stored = [record["execution"]["sequence"] for record in entries.values()]
        assert stored == list(range(len(stored)))

    def test_indices_count_calls_within_a_step(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """A second window in the same step continues the count; the next step begins at 0."""
        model, session = rig.make_model(3), open_session(level="L0")
        for _ in range(2):
            session.start([model])
            rig.train_step(model, 0)
            session.stop()
        first = self._dump(session)
        session.step()
        session.start([model])
        rig.train_step(model, 0)
        session.stop()
        second = self._dump(session)
        session.close()
        assert {names.parse_entry(entry).index for entry in first} == {0, 1}
        assert {names.parse_entry(entry).index for entry in second} == {0}

    def test_files_are_strict_json_for_the_owner_only(
        self, rig: TrainingRig, open_session: Callable[..., Session]
    ) -> None:
        """No bare NaN, no permissions for others."""
        session = self._record(rig, open_session(level="mix", task="tensor"))
        directory = self._directory(session)
        session.close()
        for name in (layout.DUMP_FILE, layout.STACK_FILE, layout.CONSTRUCT_FILE):
            json.loads((directory / name).read_text(), parse_constant=_refuse)
        for path in [directory, *directory.rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path

    def test_tensors_are_kept_as_they_were(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Every stored tensor has the statistics of its record."""
        session = self._record(rig, open_session(level="mix", task="tensor"))
        directory = self._directory(session)
        session.close()
        frame = read_json_dump(directory / layout.DUMP_FILE).frame.filter(kind="tensor")
        assert frame["file_name"].null_count() == 0
        for row in frame.rows(named=True):
            values = read_tensor(directory / layout.TENSOR_DIRECTORY / row["file_name"]).astype(np.float64)
            assert str(list(values.shape)) == row["shape"]
            assert values.max() == pytest.approx(row["max"], rel=1e-6)
            assert np.sqrt((values**2).sum()) == pytest.approx(row["norm"], rel=1e-5)

    @pytest.mark.parametrize(
        ("modes", "parts"),
        [
            (["forward"], {"input_args", "input_kwargs", "output", "parameters"}),
            (["backward"], {"input", "output"}),
            (["forward", "input"], {"input_args", "input_kwargs", "parameters"}),
            (["output"], {"output"}),
        ],
        ids=["forward", "backward", "forward inputs", "outputs"],
    )
    def test_data_mode(
        self, rig: TrainingRig, open_session: Callable[..., Session], modes: list[str], parts: set[str]
    ) -> None:
        """Only the requested directions and sides are recorded."""
        session = self._record(rig, open_session(level="L0", data_mode=modes))
        entries = self._dump(session)
        session.close()
        found = {
            part
            for entry, record in entries.items()
            if names.parse_entry(entry).phase is not Phase.PARAMETERS_GRAD
            for part in record
        }
        assert found - {"execution", "output_kwargs"} == parts

    def test_list_keeps_what_contains_a_string(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Only entries whose name contains the string are kept, with the same indices as without it."""
        session = self._record(rig, open_session(level="L0"))
        everything = list(self._dump(session))
        session.close()
        wanted = names.parse_entry(next(e for e in everything if names.parse_entry(e).path)).path
        session = self._record(rig, open_session(level="L0", list=[wanted]))
        kept = list(self._dump(session))
        session.close()
        assert kept == [entry for entry in everything if wanted in entry]

    def test_scope_includes_both_ends(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """From the start of the first entry to the end of the last, inclusive."""
        session = self._record(rig, open_session(level="L0"))
        complete = self._dump(session)
        session.close()
        forwards = [entry for entry in complete if names.parse_entry(entry).phase is Phase.FORWARD]
        children = [entry for entry in forwards if names.parse_entry(entry).path.isidentifier()]
        first, last = children[:2]
        session = self._record(rig, open_session(level="L0", scope=[first, last]))
        scoped = self._dump(session)
        session.close()
        # Nothing runs before the root's first child; everything inside the scope runs before its last entry.
        assert list(scoped) == forwards[: forwards.index(last) + 1]
        assert scoped[last]["output"] == complete[last]["output"]

    def test_values_are_saved_at_level_debug(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Without start and stop; values are recorded as they are when saved, in structures of any nesting."""
        session = open_session(level="debug", task="tensor")
        values = VALUES["float32"]
        tensor = rig.make_tensor(values)
        session.save({"k": [tensor, 3]}, "state", save_backward=True)
        if not self.is_immutable:
            rig.overwrite(tensor, -7.0)
        session.step()
        directory = self._directory(session)
        session.close()
        data = json.loads((directory / layout.DEBUG_FILE).read_text(), parse_constant=_refuse)["data"]
        assert data["state_grad.0.debug"] == {"k": [None, None]}
        found, number = data["state.0.debug"]["k"]
        assert number == {"type": "int", "value": 3}
        assert found["Max"] == pytest.approx(values.max())
        np.testing.assert_array_equal(read_tensor(directory / layout.TENSOR_DIRECTORY / found["data_name"]), values)

    # --- functions that users register -----------------------------------------------------------------------

    def test_registered_functions_are_recorded(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """With arguments and results, the outermost call only, and only between start and stop."""
        if not self.records_apis:
            pytest.skip("this framework records no APIs")
        first, second = (rig.make_tensor(np.full(2, value, np.float32)) for value in (3.0, 5.0))
        own = SimpleNamespace()

        def swap(a: object, b: object) -> tuple[object, object]:
            return b, a

        def twice(a: object, b: object) -> tuple[object, object]:
            return own.swap(*own.swap(a, b))

        own.swap, own.twice = swap, twice
        before = dict(vars(own))
        session = open_session(level="L1")
        for name in before:
            session.custom_apis.register(own, name, "Own")
        assert vars(own) == before
        session.start([])
        assert own.swap(first, b=second) == (second, first)
        assert own.twice(first, second) == (first, second)
        session.custom_apis.restore(own, "swap")
        own.swap(first, second)
        session.stop()
        assert vars(own) == before
        entries = self._dump(session)
        session.close()
        forwards = [name for name in entries if names.parse_entry(name).phase is Phase.FORWARD]
        assert forwards == ["Own.swap.0.forward", "Own.twice.0.forward"]
        record = entries["Own.swap.0.forward"]
        assert record["input_args"][0]["Max"] == record["output"][1]["Max"] == 3.0
        assert record["input_kwargs"]["b"]["Max"] == record["output"][0]["Max"] == 5.0

    def test_a_registered_function_may_raise(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Its exception propagates, and later calls are recorded."""
        if not self.records_apis:
            pytest.skip("this framework records no APIs")

        def fail(_: object) -> None:
            raise ArithmeticError("planted")

        def keep(value: object) -> object:
            return value

        own = SimpleNamespace(fail=fail, keep=keep)
        session, tensor = open_session(level="mix"), rig.make_tensor(np.ones(2, np.float32))
        session.custom_apis.register(own, "fail", "Own")
        session.custom_apis.register(own, "keep", "Own")
        session.start([rig.make_model(0)])
        with pytest.raises(ArithmeticError, match="planted"):
            own.fail(tensor)
        own.keep(tensor)
        session.stop()
        assert own.fail is fail
        entries = self._dump(session)
        session.close()
        assert "Own.keep.0.forward" in entries
        assert "output" not in entries["Own.fail.0.forward"]

    # --- parts of a window --------------------------------------------------------------------------------------

    def test_a_range_of_forwards_is_like_a_window_around_them(
        self, rig: TrainingRig, open_session: Callable[..., Session]
    ) -> None:
        """Calls outside of ``token_range`` are not counted either; nothing stays attached."""
        _watching(rig.framework)
        session, model = open_session(level="L0"), rig.make_model(3)
        before = rig.traces_in(model)
        session.start([model], token_range=[1, 2])
        for step in range(4):
            rig.train_step(model, step)
        session.stop()
        assert rig.traces_in(model) == before
        found = self._dump(session)
        session.close()
        session, model = open_session(level="L0"), rig.make_model(3)
        rig.train_step(model, 0)
        session.start([model])
        rig.train_step(model, 1)
        rig.train_step(model, 2)
        session.stop()
        assert found == self._dump(session)
        session.close()

    def test_one_module_alone(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Its calls are recorded under the given name as under their own, and no other call is."""
        session = self._record(rig, open_session(level="L0"))
        root = next(iter(_roots(self._dump(session))))
        expected = [_without_sequence(record) for name, record in self._dump(session).items() if name in _roots([name])]
        session.close()
        session, model = open_session(level="mix"), rig.make_model(3)
        before = rig.traces_in(model)
        session.start([model])
        session.dump_module(model, "alone")
        rig.train_step(model, 0)
        session.end_module_dump()
        rig.train_step(model, 1)
        session.stop()
        assert rig.traces_in(model) == before
        dump = self._dump(session)
        session.close()
        alone = {name: record for name, record in dump.items() if names.parse_entry(name).path.startswith("alone")}
        assert {names.parse_entry(name).path for name in alone} == {"alone"}  # nothing of what is inside
        assert [_without_sequence(record) for record in alone.values()] == expected
        assert names.parse_entry(next(iter(alone))).type_name == names.parse_entry(root).type_name
        assert len(_roots(dump)) == len(expected)  # of the second step, under their own names again
        assert len({names.parse_entry(name).path for name in dump}) > 3

    def test_a_watcher_gets_around_calls_and_can_change_their_arguments(self, rig: TrainingRig) -> None:
        """It is notified of every call that it wants, including one that raises, and of none once it is removed."""
        framework, model = _watching(rig.framework), rig.make_model(3)
        before = rig.traces_in(model)
        watcher = _Watcher()
        attachment = framework.watch([Model("", model)], watcher)
        loss = rig.train_step(model, 0)
        with contextlib.suppress(ArithmeticError):
            rig.fail_in_step(model)
        attachment.detach()
        assert rig.traces_in(model) == before
        rig.train_step(model, 0)
        assert watcher.told == ["begin", "end", "begin", "end"]
        watcher.changes = True
        model = rig.make_model(3)
        attachment = framework.watch([Model("", model)], watcher)
        # Unchanged arguments give the same loss, and no call receives them twice.
        assert rig.train_step(model, 0) == loss
        attachment.detach()

    def test_a_tensor_that_was_saved_can_be_loaded(self, rig: TrainingRig, tmp_path: Path) -> None:
        """Bitwise, as a replacement for another tensor, and with that tensor's ``requires_grad``."""
        framework = _watching(rig.framework)
        values = VALUES["float32"]
        path = tmp_path / f"x{rig.framework.tensor_suffix}"
        rig.framework.save(rig.framework.snapshot(rig.make_tensor(values)), path)
        like = rig.make_tensor(np.zeros_like(values))
        loaded = framework.load(path, like)
        assert rig.framework.describe(loaded) == rig.framework.describe(like)
        digest, reducer = Digest(), rig.framework.reducer()
        reducer.checksum(loaded, digest)
        reducer.collect()
        assert digest.checksum == crc32(values)
        path.write_bytes(path.read_bytes()[:40])
        with pytest.raises(Exception):  # noqa: B017, PT011  # of any kind
            framework.load(path, like)

    @pytest.mark.parametrize("name", [*VALUES, "no elements", "bfloat16"])
    def test_a_tensor_is_rebuilt_from_its_bytes(self, rig: TrainingRig, tmp_path: Path, name: str) -> None:
        """From the bytes in a shard: the same dtype, shape and bits, and the replaced tensor's ``requires_grad``."""
        framework = _watching(rig.framework)
        if name == "bfloat16" and not self.supports_bfloat16:
            pytest.skip("the framework has no bfloat16")
        empty = np.zeros((0, 3), np.float32)
        tensor = (
            rig.make_bfloat16(VALUES["float32"]) if name == "bfloat16"
            else rig.make_tensor(VALUES.get(name, empty))
        )  # fmt: skip
        content = rig.framework.content(rig.framework.snapshot(tensor))
        if content is None:
            pytest.skip("the framework gives no bytes of tensors")
        shards = ShardWriter(tmp_path)
        reference = shards.add("x", content)
        shards.close()
        rebuilt = framework.rebuild(open_tensor(tmp_path / reference).content(), tensor)
        assert rig.framework.describe(rebuilt) == rig.framework.describe(tensor)
        found = rig.framework.content(rig.framework.snapshot(rebuilt))
        assert found is not None
        assert (found.dtype, found.shape, bytes(found.data)) == (content.dtype, content.shape, bytes(content.data))
        like = rig.make_tensor(np.zeros(2, np.float32))
        if VALUES.get(name, empty).dtype.kind == "f":
            assert rig.framework.describe(framework.rebuild(content, like)).requires_grad == (
                rig.framework.describe(like).requires_grad
            )

    # --- misuse -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("path", ["system", "__import__('os').system", 'relu("")\n'])
    def test_only_functions_that_are_replayed_are_written_in_scripts(self, rig: TrainingRig, path: str) -> None:
        """Names in dumps may be anything."""
        framework = rig.framework
        if not isinstance(framework, ScriptingFramework):
            pytest.skip("this framework does not write scripts of calls")
        for prefix in ("Functional", "Torch", "os"):
            site = Site(kind=SiteKind.API, prefix=prefix, path=path, type_name="", phase=Phase.FORWARD, index=0)
            with pytest.raises(ReplayError):
                framework.script(ReplayCall(site=site, args=[], kwargs={}))

    def test_a_device_that_is_not_there_is_refused(self, rig: TrainingRig) -> None:
        """Before anything is replayed; and each device that is there is named once."""
        framework = rig.framework
        if not isinstance(framework, DeviceReplayingFramework):
            pytest.skip("the framework replays calls on the host only")
        present = framework.replay_devices()
        assert len(set(present)) == len(present)
        call = ReplayCall(site=names.parse_entry("Torch.abs.0.forward"), args=[], kwargs={})
        with pytest.raises(ConfigError, match="no-such-device"):
            framework.replay(call, None, "no-such-device:7")

    def test_a_missing_or_wrong_model_is_a_clear_error(
        self, rig: TrainingRig, open_session: Callable[..., Session]
    ) -> None:
        """The session stays usable."""
        session = open_session(level="L0")
        with pytest.raises(MsprobeError, match="start"):
            session.start([])
        with pytest.raises(MsprobeError, match="not a model"):
            session.start(["model"])
        session.start([rig.make_model(0)])
        session.stop()
        session.close()

    # --- helpers ----------------------------------------------------------------------------------------------

    def _statistics(self, rig: TrainingRig, tensor: Any) -> Stats:
        digest, reducer = Digest(), rig.framework.reducer()
        reducer.statistics(tensor, digest)
        reducer.collect()
        return digest.stats or Stats()

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


class _Watcher:
    """Records the calls of the root."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.changes = False

    def wants(self, path: str, type_name: str) -> bool:  # noqa: ARG002
        return not path

    def before(self, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:  # noqa: ARG002
        self.told.append("begin")
        return (args, kwargs) if self.changes else None

    def after(self, stem: str) -> None:  # noqa: ARG002
        self.told.append("end")


def _watching(framework: Framework) -> WatchingFramework:
    if not isinstance(framework, WatchingFramework):
        pytest.skip("this framework does not offer to watch calls")
    return framework


def _roots(entries: Iterable[str]) -> list[str]:
    return [name for name in entries if not names.parse_entry(name).path]


def _without_sequence(record: dict[str, Any]) -> dict[str, Any]:
    return {part: value for part, value in record.items() if part != "execution"}


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


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")

"""The part of a framework's contract about tensors: what is computed from them, and their bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from msprobe_core.fingerprint import fp8
from msprobe_core.fingerprint.arrays import Arrays, NumpyArrays
from msprobe_core.model import Digest
from msprobe_core.protocols.capabilities import (
    ExtraReducer,
    Fp8Reducer,
)
from msprobe_core.store.safetensors_writer import ShardWriter
from msprobe_core.store.tensors import read_tensor
from msprobe_core.testing.contract_base import (
    VALUES,
    ContractBase,
    assert_sketch,
    assert_statistics,
    crc32,
    hash_text,
)
from msprobe_core.testing.rig import TrainingRig


class TensorContract(ContractBase):
    """Tensors are described, reduced, saved and rebuilt as the core does."""

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
        assert self._digest(rig, "checksum", part).checksum == crc32(expected)

    @pytest.mark.parametrize("case", VALUES)
    def test_checksum_is_the_crc32_of_the_bytes(self, rig: TrainingRig, case: str) -> None:
        """CRC-32 of the contiguous bytes, as 8 hex digits."""
        digest = self._digest(rig, "checksum", rig.make_tensor(VALUES[case]))
        assert digest.checksum == crc32(VALUES[case])

    @pytest.mark.parametrize("case", VALUES)
    def test_xor_is_that_of_the_words(self, rig: TrainingRig, case: str) -> None:
        """Exclusive or of the 64-bit words of the contiguous bytes, padded with zeros."""
        digest = self._digest(rig, "xor", rig.make_tensor(VALUES[case]))
        content = np.ascontiguousarray(VALUES[case]).tobytes()
        word = 0
        for start in range(0, len(content), 8):
            word ^= int.from_bytes(content[start : start + 8], "little")
        assert digest.checksum == f"0x{word:016x}"

    @pytest.mark.parametrize("case", VALUES)
    def test_hash_is_that_of_the_core(self, rig: TrainingRig, case: str) -> None:
        """Bitwise equal in every framework, so that dumps of two frameworks can be compared."""
        digest = self._digest(rig, "hash", rig.make_tensor(VALUES[case]))
        assert digest.checksum == hash_text(VALUES[case])

    def test_hash_of_bfloat16_is_that_of_its_bits(self, rig: TrainingRig) -> None:
        """The upper half of the float32 with the same value."""
        if not self.supports_bfloat16:
            pytest.skip("this framework has no bfloat16")
        values = np.array([1.0, -2.5, 0.0, -0.0, np.inf], np.float32)
        digest = self._digest(rig, "hash", rig.make_bfloat16(values))
        assert digest.checksum == hash_text(np.frombuffer(values.tobytes(), np.dtype("<u2"))[1::2])

    @pytest.mark.parametrize("case", VALUES)
    def test_sketch_is_that_of_the_core(self, rig: TrainingRig, case: str) -> None:
        """Equal except for rounding; NaN and Inf are at the same positions."""
        digest = self._digest(rig, "sketch", rig.make_tensor(VALUES[case]))
        assert_sketch(digest.sketch, VALUES[case])

    @pytest.mark.parametrize("case", VALUES)
    def test_losses_of_fp8_are_those_of_the_core(self, rig: TrainingRig, case: str) -> None:
        """The squared error is equal except for rounding; a tensor that is not floating point has none."""
        if not isinstance(rig.framework.reducer(), Fp8Reducer):
            pytest.skip("the framework has no statistics of FP8")
        values = VALUES[case]
        digest = self._digest(rig, "fp8", rig.make_tensor(values))
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

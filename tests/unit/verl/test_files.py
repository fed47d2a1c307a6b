"""The files of a recorded verl run: what is written is read back, and what is not such a file is refused in words."""

from pathlib import Path

import numpy as np
import pytest

from msprobe_core.errors import DumpError, StoreError
from msprobe_core.rl import files
from msprobe_core.store import (
    SAMPLES_FILE,
    BatchLayout,
    CallPhase,
    MicroBatch,
    Row,
    StageSamples,
    load_samples,
    sample_id,
    save_samples,
)


def one_row(**changes):
    fields = {"id": sample_id([1, 2, 3]), "prompt_id": sample_id([1]), "uid": "u0"}
    numbers = {"length": 3, "prompt_length": 1, "total_length": 3}
    return Row(**(fields | numbers | changes))


def some_samples():
    micro = MicroBatch(
        call=1, mini=0, micro=1, layout=BatchLayout.PACKED, phase=CallPhase.TRAIN,
        rows=(one_row(), one_row(offset=3)),
    )  # fmt: skip
    return StageSamples(version=1, stage="actor_update", step=3, rank=1, policy_version=2, micro_batches=(micro,))


def a_weight():
    return files.Weight(
        name="model.norm.weight", shape=(4,), dtype="float32", crc32="0badcafe", l2=2.0, mean=1.0, max=1.0
    )


class TestIdentity:
    def test_an_identity_is_that_of_the_numbers_whatever_holds_them(self):
        # printf '\\1\\0\\0\\0\\0\\0\\0\\0\\2\\0\\0\\0\\0\\0\\0\\0' | sha1sum
        assert sample_id([1, 2]) == "bfc7e924eea68b337b7599cc5e3dcbda910e662d"
        assert sample_id(np.array([1, 2], dtype=np.int32)) == sample_id((1, 2))
        assert sample_id(np.array([[1, 9], [2, 9]])[:, 0]) == sample_id([1, 2])

    def test_other_tokens_are_another_sample(self):
        assert len({sample_id(ids) for ids in ([], [0], [0, 0], [1, 2], [2, 1], [513])}) == 6


class TestRoundTrips:
    def test_samples(self, tmp_path):
        save_samples(tmp_path / "rank1", some_samples())
        assert load_samples(tmp_path / "rank1") == some_samples()

    def test_weights(self, tmp_path):
        weights = files.WeightsFile(version=1, step=1, rank=0, policy_version=1, parameters=(a_weight(),))
        files.save_weights(tmp_path, weights)
        assert files.load_weights(tmp_path) == weights

    def test_batch_with_tensors_of_every_kind(self, tmp_path):
        tensors = {
            "prompts": np.arange(6, dtype=np.int64).reshape(2, 3),
            "mask": np.array([[True, False], [True, True]]),
            "log_probs": np.array([[0.5, np.nan], [-np.inf, 1e-8]], dtype=np.float32).T,
            "nothing": np.zeros((2, 0), dtype=np.float16),
            "scalar": np.float64(3.5),
        }
        row = files.BatchRow(id=sample_id([1]), prompt_id=sample_id([1]), total_length=1)
        batch = files.BatchFile(
            version=1, step=2, rows=2, metrics={"actor/loss": 0.25}, samples=(row, row),
            sampling=files.Sampling(temperature=0.7), policy_version=files.PolicyVersions(min=0, max=1),
        )  # fmt: skip
        files.save_batch(tmp_path, batch, tensors)
        read, arrays = files.load_batch(tmp_path)
        assert read.tensors == tuple(sorted(tensors))
        assert (read.sampling.temperature, read.policy_version, read.samples) == (
            0.7, files.PolicyVersions(min=0, max=1), (row, row),
        )  # fmt: skip
        for name, array in tensors.items():
            assert arrays[name].dtype == array.dtype
            np.testing.assert_array_equal(arrays[name], array)

    def test_batch_is_a_safetensors_file(self, tmp_path):
        from safetensors.numpy import load_file

        values = np.linspace(0, 1, 5, dtype=np.float32)
        files.save_batch(tmp_path, files.BatchFile(version=1, step=0, rows=5), {"values": values})
        np.testing.assert_array_equal(load_file(tmp_path / files.TENSORS_FILE)["values"], values)

    def test_run_gathers_what_all_processes_say(self, tmp_path):
        capability = files.Capability(hook="actor_update", target="m:f", status=files.HookStatus.ABSENT, reason="gone")
        worker = files.ProcessInfo(host="a/b", pid=7, role="worker", rank=1, errors=("no room",))
        driver = files.ProcessInfo(host="a/b", pid=6, role="driver", capabilities=(capability,))
        for process in (worker, driver):
            files.save_process(tmp_path, process)
        assert set(files.load_run(tmp_path).processes) == {worker, driver}
        files.save_run(tmp_path, files.RunInfo(versions={"verl": "0.9.1"}, config={"a": {"b": [1]}}))
        run = files.load_run(tmp_path)
        assert run.config == {"a": {"b": [1]}}
        assert run.errors == ["worker a/b:7: no room"]

    def test_files_are_for_their_owner_only(self, tmp_path):
        save_samples(tmp_path / "new" / "rank0", some_samples())
        files.save_batch(tmp_path / "new", files.BatchFile(version=1, step=0, rows=0), {"a": np.zeros(1)})
        for path in (tmp_path / "new").rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path
        assert not list(tmp_path.rglob("*.part"))


class TestRewards:
    def test_each_process_writes_its_own(self, tmp_path):
        one, two = (files.Reward(id=i * 40, prompt_id="", score=0.5, extra={"acc": 1.0, "text": "a"}) for i in "ab")
        for name, reward in (("h/1", one), ("h/2", two)):
            files.RewardWriter(tmp_path, 3, name).add(reward)
        assert sorted(files.load_rewards(tmp_path, 3), key=lambda reward: reward.id) == [one, two]
        assert files.load_rewards(tmp_path, 4) == []

    def test_a_link_in_the_place_of_a_step_is_not_followed(self, tmp_path):
        (tmp_path / "theirs").mkdir()
        for stage in ("reward", "batch"):
            (tmp_path / "run" / stage).mkdir(parents=True)
            (tmp_path / "run" / stage / "step3").symlink_to(tmp_path / "theirs")
        with pytest.raises(StoreError, match=r"reward/step3: is a symbolic link"):
            files.RewardWriter(tmp_path / "run", 3, "h")
        with pytest.raises(StoreError, match=r"batch/step3: is a symbolic link"):
            files.save_batch(
                tmp_path / "run" / "batch" / "step3", files.BatchFile(version=1, step=3, rows=0), {"a": np.zeros(1)}
            )
        assert not list((tmp_path / "theirs").iterdir())

    def test_a_line_that_is_cut_off(self, tmp_path):
        writer = files.RewardWriter(tmp_path, 3, "h")
        writer.add(files.Reward(id="a", prompt_id=""))
        path = tmp_path / "reward" / "step3" / "h.jsonl"
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(DumpError, match=r"h\.jsonl: is cut off"):
            files.load_rewards(tmp_path, 3)


class TestWhatIsRefused:
    def test_a_missing_file(self, tmp_path):
        with pytest.raises(DumpError, match=r"samples\.json: cannot be read \(No such file"):
            load_samples(tmp_path)
        with pytest.raises(DumpError, match=r"holds no run\.json; give the directory"):
            files.load_run(tmp_path)

    @pytest.mark.parametrize("keep", [0, 10, 200])
    def test_a_file_that_is_cut_off(self, tmp_path, keep):
        save_samples(tmp_path, some_samples())
        path = tmp_path / SAMPLES_FILE
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(DumpError, match=r"samples\.json: is cut off or no JSON"):
            load_samples(tmp_path)

    def test_an_unknown_field(self, tmp_path):
        (tmp_path / files.WEIGHTS_FILE).write_text('{"version":1,"step":1,"rank":0,"colour":"red"}')
        with pytest.raises(DumpError, match=r"unknown field `colour`.*another version"):
            files.load_weights(tmp_path)

    def test_a_field_of_another_type_is_named(self, tmp_path):
        (tmp_path / files.WEIGHTS_FILE).write_text('{"version":1,"step":"one","rank":0}')
        with pytest.raises(DumpError, match=r"\$\.step"):
            files.load_weights(tmp_path)

    @pytest.mark.parametrize("keep", [0, 7, 40, -1])
    def test_tensors_that_are_cut_off(self, tmp_path, keep):
        files.save_batch(tmp_path, files.BatchFile(version=1, step=0, rows=3), {"a": np.arange(3)})
        path = tmp_path / files.TENSORS_FILE
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(DumpError, match=r"batch\.safetensors: .*cut off"):
            files.load_batch(tmp_path)

    def test_a_tensor_that_is_not_there(self, tmp_path):
        files.save_batch(tmp_path, files.BatchFile(version=1, step=0, rows=1), {"a": np.zeros(1), "b": np.zeros(1)})
        content = (tmp_path / files.BATCH_FILE).read_bytes()
        files.save_batch(tmp_path, files.BatchFile(version=1, step=0, rows=1), {"a": np.zeros(1)})
        (tmp_path / files.BATCH_FILE).write_bytes(content)
        with pytest.raises(DumpError, match="lacks the tensor 'b'"):
            files.load_batch(tmp_path)

    def test_a_dtype_that_cannot_be_stored(self, tmp_path):
        with pytest.raises(StoreError, match="'uids' is of dtype object"):
            files.save_batch(tmp_path, files.BatchFile(version=1, step=0, rows=1), {"uids": np.array([{}])})


class TestDirectories:
    def test_stages_come_in_the_order_in_which_they_run(self, tmp_path: Path):
        for stage in ("trainer", "mine", "actor_update", "rollout_generate"):
            files.rank_directory(tmp_path, stage, 2, 0).mkdir(parents=True)
        (tmp_path / "processes").mkdir()
        assert files.stages_of(tmp_path) == ["rollout_generate", "actor_update", "trainer", "mine"]
        assert files.steps_of(tmp_path, "actor_update") == [2]
        assert files.steps_of(tmp_path, "reward") == []
        assert files.ranks_of(tmp_path, "mine", 2) == {0: tmp_path / "mine" / "step2" / "rank0"}
        assert files.ranks_of(tmp_path, "mine", 1) == {}

    def test_a_run_that_is_not_there(self, tmp_path):
        with pytest.raises(DumpError, match="give the directory of a recorded run"):
            files.stages_of(tmp_path / "none")

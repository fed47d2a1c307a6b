"""A trainer with stages, on the NumPy framework: each stage is a run of its own, and failures stay with us."""

import json
import logging

import numpy as np
import pytest
from numpy_layers import Array, ArrayFramework, Layer, Network, multiply, train_step
from recorded import Recorded

from msprobe_core import names
from msprobe_core.capture.stages import StageRecorder, trainer_stages
from msprobe_core.config.stages import check_stage_config
from msprobe_core.errors import ConfigError, PluginError, StoreError
from msprobe_core.names import class_without_wrapper, without_wrappers
from msprobe_core.store.samples import BatchLayout, Row, load_samples, sample_id
from msprobe_core.store.training_metrics import load_updates

STAGES = ("score", "train", "sync")


@pytest.fixture
def open_recorder(tmp_path):
    opened = []

    def make(failures=None, **fields):
        config = check_stage_config({"out": str(tmp_path / "run"), **fields}, "stages.yaml", STAGES)
        recorder = StageRecorder(config, ArrayFramework(), on_failure=None if failures is None else failures.append)
        opened.append(recorder)
        return recorder

    yield make
    for recorder in opened:
        recorder.close()


def row(*tokens):
    return Row(id=sample_id(tokens), prompt_id=sample_id(tokens[:1]), length=len(tokens), total_length=len(tokens))


def run_stage(recorder, name, step, *, minis=None, model=None):
    """Train a network once for each micro-batch of each mini-batch, inside of a stage."""
    model, minis = model or Network(), minis or [(row(1, 2),)]
    losses = []
    with recorder.stage(name) as stage:
        for mini in minis:
            stage.begin([model], step=step, policy_version=step - 1)
            stage.mini_batch()
            for rows in mini:
                stage.micro_batch([rows], BatchLayout.PACKED)
                losses.append(train_step(model, step))
                stage.loss(losses[-1])
            stage.update(0.5)
    return losses


def dump_of(tmp_path, stage, step):
    directory = tmp_path / "run" / stage / f"step{step}" / "rank0"
    return directory, json.loads((directory / "dump.json").read_text())["data"]


class TestRecording:
    def test_each_stage_and_step_is_a_run_of_its_own(self, tmp_path, open_recorder):
        recorder = open_recorder(steps=[1, 2], stages=["score", "train"])
        for step in (0, 1, 2):
            for name in STAGES:
                run_stage(recorder, name, step)
        recorder.close()
        assert sorted(str(p.relative_to(tmp_path / "run").parent) for p in (tmp_path / "run").rglob("dump.json")) == [
            f"{stage}/step{step}/rank0" for stage in ("score", "train") for step in (1, 2)
        ]

    def test_a_micro_batch_has_the_index_of_its_calls_through_all_mini_batches(self, tmp_path, open_recorder):
        minis = [(row(1), row(2)), (row(3), row(4), row(5))]
        losses = run_stage(open_recorder(), "train", 1, minis=minis)
        directory, data = dump_of(tmp_path, "train", 1)
        samples = load_samples(directory)
        assert [(m.call, m.mini, m.micro) for m in samples.micro_batches] == [
            (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 1, 2),
        ]  # fmt: skip
        assert [m.rows[0].id for m in samples.micro_batches] == [sample_id([n]) for n in (1, 2, 3, 4, 5)]
        assert (samples.stage, samples.step, samples.rank, samples.policy_version) == ("train", 1, 0, 0)
        assert {f"Module.last.Dense.forward.{call}" for call in range(5)} <= data.keys()
        assert "Module.last.Dense.forward.5" not in data
        updates = load_updates(directory)
        assert [loss.loss for loss in updates.losses] == losses
        assert [(u.mini, u.grad_norm) for u in updates.updates] == [(0, 0.5), (1, 0.5)]

    def test_a_stage_that_comes_twice_in_a_step_goes_on_counting(self, tmp_path, open_recorder):
        recorder = open_recorder()
        for tokens in ((1,), (2,)):
            run_stage(recorder, "train", 1, minis=[(row(*tokens),)])
            run_stage(recorder, "score", 1)
        directory, data = dump_of(tmp_path, "train", 1)
        assert [(m.call, m.mini) for m in load_samples(directory).micro_batches] == [(0, 0), (1, 1)]
        assert {"Module.last.Dense.forward.0", "Module.last.Dense.forward.1"} <= data.keys()

    def test_a_stage_inside_of_another_is_part_of_it(self, tmp_path, open_recorder):
        recorder = open_recorder()
        with recorder.stage("train"), recorder.stage("score") as inner:
            assert inner is None
            assert recorder.current.name == "train"
        assert recorder.current is None

    def test_each_stage_has_its_own_settings(self, tmp_path, open_recorder):
        recorder = open_recorder(per_stage={"train": {"level": "mix", "task": "tensor"}})
        run_stage(recorder, "train", 1)
        run_stage(recorder, "score", 1)
        headers = [Recorded(tmp_path / "run" / stage, 1).header for stage in ("train", "score")]
        assert [(h["level"], h["task"]) for h in headers] == [("mix", "tensor"), ("L0", "statistics")]

    def test_what_is_paused_is_not_recorded(self, tmp_path, open_recorder):
        recorder, model = open_recorder(), Network()
        with recorder.stage("score") as stage:
            stage.begin([model], step=1, rank=3)
            stage.micro_batch([], BatchLayout.REQUEST)
            model.forward(Array(np.ones((2, 4))))
            stage.pause()
            model.forward(Array(np.ones((2, 4))))
            stage.resume([model])
            model.forward(Array(np.ones((2, 4))))
        data = json.loads((tmp_path / "run" / "score" / "step1" / "rank3" / "dump.json").read_text())["data"]
        assert [name for name in data if "last" in name] == [f"Module.last.Dense.forward.{n}" for n in (0, 1)]

    def test_samples_are_named_when_they_are_known(self, tmp_path, open_recorder):
        recorder = open_recorder()
        with recorder.stage("score") as stage:
            stage.begin([Network()], step=1)
            stage.micro_batch([Row(id="request 7", prompt_id="")], BatchLayout.REQUEST)
            stage.name_samples(lambda old: row(1, 2) if old.id == "request 7" else old)
        assert load_samples(tmp_path / "run" / "score" / "step1" / "rank0").micro_batches[0].rows == (row(1, 2),)

    def test_modules_and_parameters_have_their_names_without_wrappers(self, tmp_path, open_recorder):
        class FullyShardedDataParallel(Layer):
            def __init__(self):
                super().__init__()
                self._fsdp_wrapped_module = Network()

        model = FullyShardedDataParallel()
        with open_recorder().stage("train") as stage:
            stage.begin([model], step=1)
            train_step(model._fsdp_wrapped_module)
        names = dump_of(tmp_path, "train", 1)[1].keys()
        assert {"Module.last.Dense.forward.0", "Module.last.Dense.parameters_grad.0"} <= names
        assert not [name for name in names if "_fsdp" in name]

    def test_training_is_unchanged_bit_by_bit(self, open_recorder):
        def train(recorder):
            model = Network()
            losses = [run_stage(recorder, "train", step, model=model) for step in range(3)]
            return losses, [p.values.tobytes() for _, layer in model.named_layers() for p in layer.parameters.values()]

        assert train(open_recorder()) == train(open_recorder(ranks=[7]))


class TestFailures:
    def test_a_failure_is_one_warning_and_is_told_once(self, tmp_path, open_recorder, caplog):
        (tmp_path / "run").write_text("a file where a directory should be")
        failures = []
        recorder = open_recorder(failures)
        with caplog.at_level(logging.WARNING):
            for step in (1, 2):
                assert run_stage(recorder, "train", step) == [train_step(Network(), step)]
        assert len([r for r in caplog.records if "not recorded, the training goes on" in r.message]) == 1
        assert failures
        assert "cannot be created" in failures[0]

    def test_strict_raises(self, tmp_path, open_recorder):
        (tmp_path / "run").write_text("a file")
        with pytest.raises(StoreError):
            run_stage(open_recorder(strict=True), "train", 1)

    def test_an_error_of_the_training_leaves_the_stage_written(self, tmp_path, open_recorder):
        recorder = open_recorder()
        model = Network()
        model.fails = True
        with pytest.raises(ArithmeticError):
            run_stage(recorder, "train", 1, model=model)
        assert recorder.current is None
        directory, _ = dump_of(tmp_path, "train", 1)
        assert len(load_samples(directory).micro_batches) == 1


class TestConfiguration:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"stages": ["triin"]}, r"'stages' has 'triin', which is no stage; known: score, train, sync"),
            ({"per_stage": {"triin": {}}}, r"'per_stage' has 'triin'"),
            ({"per_stage": ["train"]}, r"must hold fields by stage"),
            ({"step": [1]}, r"'step' does not apply; use 'steps'"),
            ({"dump_path": "x"}, r"'dump_path' does not apply; use 'out'"),
            ({"load": {}}, r"'load' does not apply to a trainer with stages"),
            ({"stepps": [1]}, r"unknown field 'stepps'.*of a trainer with stages also out, steps, ranks"),
            ({"per_stage": {"train": {"levle": "L0"}}}, r"unknown field 'levle'"),  # codespell:ignore levle
            ({"level": "L9"}, r"'level' is 'L9'"),
            ({"strict": "yes"}, r"'strict' is 'yes', but must be true or false"),
            ({"out": ""}, r"'out' is ''"),
            ({"steps": ["a"]}, r"'steps'"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_what_is_wrong_is_said(self, fields, message):
        with pytest.raises(ConfigError, match=message):
            check_stage_config(fields, "stages.yaml", STAGES)

    def test_a_trainer_that_no_plugin_offers(self):
        with pytest.raises(PluginError, match="no plugin offers the stages of the trainer 'unknown'"):
            trainer_stages("unknown")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module.mlp", "model.layers.0.mlp"),
        ("model.layers.0._checkpoint_wrapped_module._orig_mod.mlp", "model.layers.0.mlp"),
        ("module.module.decoder", "decoder"),
        ("encoder.module.decoder", "encoder.module.decoder"),
        ("base_model.model.model.embed", "model.embed"),
        ("_fsdp_wrapped_module", ""),
        ("", ""),
    ],
)
def test_names_are_those_without_wrappers(path, expected):
    assert without_wrappers(path) == expected


def test_classes_are_those_before_sharding():
    assert [class_without_wrapper(name) for name in ("FSDPLinear", "Linear", "FSDP")] == ["Linear", "Linear", "FSDP"]


class TestWrongValues:
    """What a trainer's plugin gives by mistake costs that alone, and is said."""

    @pytest.mark.parametrize("loss", ["high", None, [1, 2], object()], ids=["text", "none", "list", "object"])
    def test_a_loss_or_norm_that_is_no_number(self, tmp_path, open_recorder, caplog, loss):
        recorder, model = open_recorder(), Network()
        with recorder.stage("train") as stage:
            stage.begin([model], step=1)
            stage.micro_batch([row(1)], BatchLayout.PACKED)
            train_step(model, 1)
            stage.loss(loss)
            stage.update(loss)
            stage.micro_batch([row(2)], BatchLayout.PACKED)
            stage.loss(0.5)
        assert "train, loss: not recorded, the training goes on" in caplog.text
        updates = load_updates(dump_of(tmp_path, "train", 1)[0])
        assert [each.loss for each in updates.losses] == [0.5]

    @pytest.mark.parametrize(
        "rows",
        [["a sample"], 5, [{"id": "a"}], [Row(id=1, prompt_id="b")], [Row(id="a", prompt_id="b", row=np.int64(1))]],
        ids=["text", "number", "mapping", "field", "numpy"],
    )
    def test_rows_that_the_file_cannot_hold(self, tmp_path, open_recorder, caplog, rows):
        recorder, model = open_recorder(), Network()
        with recorder.stage("train") as stage:
            stage.begin([model], step=1)
            for each in (rows, [row(2)]):
                stage.micro_batch(each, BatchLayout.PACKED)
                train_step(model, 1)
        assert "train, samples of micro-batch 0: not recorded, the training goes on" in caplog.text
        samples = load_samples(dump_of(tmp_path, "train", 1)[0])
        assert [(micro.call, len(micro.rows)) for micro in samples.micro_batches] == [(0, 0), (1, 1)]

    def test_names_of_samples_that_fail(self, tmp_path, open_recorder, caplog):
        recorder = open_recorder()
        with recorder.stage("train") as stage:
            stage.begin([Network()], step=1)
            stage.micro_batch([row(1)], BatchLayout.PACKED)
            stage.name_samples(lambda _: 1 / 0)
        assert "names of samples: not recorded, the training goes on: ZeroDivisionError" in caplog.text
        assert load_samples(dump_of(tmp_path, "train", 1)[0]).micro_batches[0].rows == (row(1),)

    def test_a_stage_that_nobody_registered(self, open_recorder, caplog):
        run_stage(open_recorder(), "validate", 1)
        assert "there is no stage 'validate'; the trainer's plugin has registered score, train, sync" in caplog.text

    def test_whatever_is_raised_stays_here(self, open_recorder, caplog):
        recorder = open_recorder(failures=[])
        recorder._on_failure = leave
        with recorder.guard("here"):
            leave()
        assert "here: not recorded, the training goes on: SystemExit: 3" in caplog.text


def leave(*_args):
    raise SystemExit(3)


class TestMicroSteps:
    def test_parts_of_a_model_that_run_several_times_belong_to_one_micro_step(self, tmp_path, open_recorder):
        """A trainer that calls submodules itself, never the model: its own count is taken."""
        recorder, model = open_recorder(level="mix"), Network()
        with recorder.stage("train") as stage:
            stage.begin([model], step=1)
            for k in range(2):
                stage.micro_batch([row(k)], BatchLayout.PACKED)
                for _ in range(3):
                    y = model.first.forward(Array(np.ones((2, 4))))
                    model.first.backward(Array(y.values))
                multiply(y, Array(np.ones((5, 2))))
        _, data = dump_of(tmp_path, "train", 1)
        seen = {name: (record["execution"].get("micro_step", 0)) for name, record in data.items()}
        assert {name: value for name, value in seen.items() if "forward" in name} == {
            name: int(names.parse_entry(name).index >= 3) for name in seen if "forward" in name
        }

    def test_without_micro_batches_calls_of_the_model_are_counted(self, tmp_path, open_recorder):
        recorder, model = open_recorder(level="mix"), Network()
        with recorder.stage("train") as stage:
            stage.begin([model], step=1)
            for k in range(3):
                train_step(model, k)
        _, data = dump_of(tmp_path, "train", 1)
        assert [data[f"Module.Network.forward.{k}"]["execution"].get("micro_step", 0) for k in range(3)] == [0, 1, 2]

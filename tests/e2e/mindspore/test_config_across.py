"""Configurations of a run in MindSpore and one in PyTorch: healthy pairs are the same, what is planted is named."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("mindspore")
torch = pytest.importorskip("torch")

import msprobe_core  # noqa: E402
from bench.cross.families import PAIRS  # noqa: E402
from bench.cross.recording import Mode, record, state_of, training_of  # noqa: E402
from msprobe_core.cli import main  # noqa: E402
from msprobe_core.config_check.differences import Section, Severity  # noqa: E402
from msprobe_core.config_check.runs import compare_runs  # noqa: E402

PROGRAM = Path(msprobe_core.__file__).parents[1] / "tests" / "support" / "checked_program.py"
SLOW = ("MobileNet 8", "GPT 2 layers", "DCGAN 8 Adam", "recommender 3 tables")
HEALTHY = [
    "BERT Adam", "ResNet momentum", "WaveNet 3 layers", "LSTM tagger 1 layer",
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
]  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pairs")
    torch.set_num_threads(1)

    def recorded(framework, name, plant=None):
        place = directory / f"{framework} {name} {plant.__name__ if plant else ''}"
        if not place.exists():
            pair = PAIRS[name]
            training = training_of(framework, pair, state_of(pair))
            pair = (plant(training, pair) or pair) if plant else pair
            record(framework, pair, training, place, Mode("L0"))
        return place

    return recorded


def above_info(result):
    return [each for each in result.differences if each.severity is not Severity.INFO]


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_pair_has_no_difference_that_matters(recorded, name):
    mindspore, pytorch = recorded("mindspore", name), recorded("pytorch", name)
    for target, golden in ((mindspore, pytorch), (pytorch, mindspore)):
        result = compare_runs(target, golden)
        assert [each.finding.text for each in above_info(result)] == []
        compared = {each.section: each.compared for each in result.sections}
        assert all(compared[section] for section in (Section.MODEL, Section.PARAMETERS, Section.OPTIMIZER))


def other_eps(training, _):
    training.module("norm").epsilon = 1e-3


def other_rate(training, _):
    training.rate = 2.0


def swapped_samples(_, pair):
    return replace(pair, batch=lambda seed: {name: array[::-1].copy() for name, array in pair.batch(seed).items()})


def evaluation(training, _):
    training.model.set_train(False)


PLANTED = [
    ("BERT Adam", other_eps, "eps"), ("BERT Adam", other_rate, "lr"), ("BERT Adam", swapped_samples, "args.0"),
    ("ResNet momentum", evaluation, ""), ("ResNet momentum", other_rate, "lr"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "plant", "path"), PLANTED)
def test_what_is_planted_is_named_and_nothing_else(recorded, name, plant, path):
    result = compare_runs(recorded("mindspore", name, plant), recorded("pytorch", name))
    found = above_info(result)
    assert found, result
    assert found[0].path.endswith(path)
    assert len(found) == 1, [each.finding.text for each in found]


def pack(directory, framework, *settings):
    path = directory / f"{framework}.zip"
    command = [sys.executable, str(PROGRAM), framework, str(path), *settings]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return path


@pytest.mark.slow
def test_packs_of_both_frameworks_are_compared_with_weights_data_and_random_calls(tmp_path, capsys):
    mindspore, pytorch = pack(tmp_path, "mindspore"), pack(tmp_path, "pytorch")
    with zipfile.ZipFile(mindspore) as archive:
        calls = json.loads(archive.read("random/rank0.json"))
        weights = json.loads(archive.read("weights/step2/rank0/weight.json"))
    assert {"mindspore.ops.rand", "mindspore.set_seed", "np.random.rand"} <= calls.keys()
    assert calls["mindspore.ops.rand"][0]["count"] == 3
    assert set(weights) == {"0.weight", "0.bias", "1.gamma", "1.beta", "2.weight", "2.bias"}

    def status(*packs):
        with pytest.raises(SystemExit) as ended:
            main(["config_check", "-c", *map(str, packs), "-o", str(tmp_path / "out")])
        return ended.value.code, capsys.readouterr().out

    code, said = status(pytorch, mindspore)
    assert (code, "equal    weights" in said, "equal    data" in said) == (0, True, True), said
    code, said = status(pytorch, pack(tmp_path, "mindspore", "flip=1", "eps=1e-3"))
    assert code == 1
    assert "eps is 0.001 instead of 1e-05" in said
    assert "args.0 has the same 12 samples in another order" in said

"""Repetitions of a run with other last digits: what is the same for every framework."""

import json

import numpy as np
import pytest
from numpy_layers import ArrayFramework, Network, PerturbedFramework, train_step
from numpy_rig import ArrayDebugger

from msprobe_core.capture.step_repetition import calibration
from msprobe_core.compare import compare_dumps
from msprobe_core.config import load_config
from msprobe_core.config.repetition import REQUEST_VARIABLE, RepetitionRequest
from msprobe_core.errors import ConfigError, PluginError, SessionError
from msprobe_core.interception.perturbation import FLIPPED, relative_changes, seed_of
from msprobe_core.model import Perturbation, PerturbMode, RoundingUnit


class Debugger(ArrayDebugger):
    def _framework(self, model):
        return PerturbedFramework(0)


class Unable(ArrayDebugger):
    def _framework(self, model):
        return ArrayFramework(0)


@pytest.fixture
def make():
    made = []

    def make(kind=Debugger, **settings):
        made.append(kind(level="mix", **settings))
        return made[-1]

    yield make
    for debugger in made:
        debugger.close()


def bits(model):
    return [p.values.tobytes() for _, layer in model.named_layers() for p in layer.parameters.values()]


def train(debugger, repeats=2, body=lambda run: None):
    model, losses, numbers = Network(3), [], []
    np.random.seed(0)
    for _ in range(3):
        with calibration(debugger, model, repeats=repeats) as runs:
            for run in runs:
                loss = train_step(model, seed=np.random.randint(100))
                numbers.append(run.number)
                if run.is_golden:
                    losses.append(loss)
                body(run)
        debugger.step()
    return losses, bits(model), numbers, np.random.get_state()[1].tolist()


def bare():
    model, losses = Network(3), []
    np.random.seed(0)
    for _ in range(3):
        losses.append(train_step(model, seed=np.random.randint(100)))
    return losses, bits(model), np.random.get_state()[1].tolist()


def test_selected_steps_are_repeated_and_the_training_does_not_notice(make, tmp_path):
    losses, weights, numbers, random = train(make(dump_path=tmp_path / "run", step=[1]))
    assert (losses, weights, random) == bare()
    assert numbers == [0, 0, 1, 2, 0]
    golden = tmp_path / "run/step1/rank0"
    for number in (1, 2):
        unit = compare_dumps(tmp_path / f"run/calibration/run{number}/step1/rank0", golden).units[0]
        assert {verdict for verdict, count in unit.counts.items() if count} == {"pass"}
        assert unit.rows["norm_diff"].abs().max() > 0


def test_the_body_may_start_stop_and_step_itself(make, tmp_path):
    debugger = make(dump_path=tmp_path / "run")
    model = Network(3)
    for _ in range(2):
        with calibration(debugger, model, repeats=1) as runs:
            for _ in runs:
                debugger.start(model)
                train_step(model)
                debugger.stop()
                debugger.step()
    found = sorted(str(path.parent.parent.relative_to(tmp_path / "run")) for path in tmp_path.rglob("dump.json"))
    assert found == ["calibration/run1/step0", "calibration/run1/step1", "step0", "step1"]


def test_leaving_the_loop_early_restores_everything(make, tmp_path):
    debugger, model = make(dump_path=tmp_path / "run"), Network(3)
    with calibration(debugger, model, repeats=3) as runs:
        for run in runs:
            train_step(model)
            if run.number == 0:
                weights = bits(model)
            if run.number == 2:
                break
    assert bits(model) == weights
    debugger.step()
    assert not (tmp_path / "run/calibration/run2/step0/rank0/dump.json").exists()
    assert (tmp_path / "run/calibration/run1/step0/rank0/dump.json").exists()


def test_an_error_in_a_repetition_is_said_and_one_in_the_step_is_raised(make, tmp_path, caplog):
    def fail(number):
        def body(run):
            if run.number == number:
                raise ArithmeticError("planted")

        return body

    losses, weights, _, random = train(make(dump_path=tmp_path / "run", step=[1]), body=fail(1))
    assert (losses, weights, random) == bare()
    assert "calibration ends: a repetition has failed (ArithmeticError: planted)" in caplog.text


def test_an_error_in_the_step_itself_is_raised(make, tmp_path):
    model = Network(3)
    with pytest.raises(ArithmeticError), calibration(make(dump_path=tmp_path / "run"), model) as runs:  # noqa: PT012
        for _ in runs:
            raise ArithmeticError


def test_a_framework_that_does_not_offer_it_runs_each_step_once(make, tmp_path, caplog):
    assert train(make(Unable, dump_path=tmp_path / "run"))[2] == [0, 0, 0]
    assert "the plugin of numpy does not offer it" in caplog.text


def test_a_framework_that_does_not_offer_it_refuses_the_setting(make, tmp_path):
    with pytest.raises(PluginError, match="'perturb' is not available for numpy"):
        make(Unable, dump_path=tmp_path / "run", perturb={"seed": 1})


def test_not_inside_of_a_window(make, tmp_path):
    debugger, model = make(dump_path=tmp_path / "run"), Network(3)
    debugger.start(model)
    with pytest.raises(SessionError, match="records by itself"), calibration(debugger, model):
        pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"repeats": 0}, "'repeats' is 0"),
        ({"repeats": True}, "'repeats' is True"),
        ({"mode": "all"}, "everywhere"),
        ({"dtype": "int8"}, "bfloat16"),
    ],
    ids=lambda value: str(value),
)
def test_arguments_are_checked(make, tmp_path, arguments, said):
    with pytest.raises(ConfigError, match=said), calibration(make(dump_path=tmp_path / "run"), Network(3), **arguments):
        pass


# --- a whole program ------------------------------------------------------------------------------------------------


def test_the_setting_changes_windows_only(make, tmp_path):
    debugger = make(dump_path=tmp_path / "run", perturb={"seed": 3, "dtype": "bfloat16"}, step=[1])
    model, losses = Network(3), []
    for _ in range(2):
        with debugger.start(model):
            losses.append(train_step(model))
        debugger.step()
    plain = Network(3)
    assert losses[0] == train_step(plain)  # not selected
    assert losses[1] != (second := train_step(plain))
    assert losses[1] == pytest.approx(second, rel=0.05)


def test_the_variable_makes_a_run_a_repetition(monkeypatch, tmp_path):
    golden = tmp_path / "golden"
    monkeypatch.setenv(REQUEST_VARIABLE, "2")
    config = load_config(dump_path=golden)
    assert config.directory == golden / "calibration/run2"
    assert config.perturb == Perturbation(seed=2)
    request = RepetitionRequest(
        number=1, mode=PerturbMode.INPUTS, dtype=RoundingUnit.FLOAT16, golden=str(tmp_path / "moved")
    )
    monkeypatch.setenv(REQUEST_VARIABLE, request.encoded())
    config = load_config(dump_path=golden)
    assert config.directory == tmp_path / "moved/calibration/run1"
    assert config.perturb == Perturbation(seed=1, mode=PerturbMode.INPUTS, dtype=RoundingUnit.FLOAT16)
    for nothing in ("", "0"):
        monkeypatch.setenv(REQUEST_VARIABLE, nothing)
        assert load_config(dump_path=golden).perturb is None


@pytest.mark.parametrize("value", ["-1", "yes", "{}", '{"number": 0}', '{"number": 1, "other": 2}'])
def test_a_variable_that_says_nothing_is_an_error(monkeypatch, value):
    monkeypatch.setenv(REQUEST_VARIABLE, value)
    with pytest.raises(ConfigError, match="MSPROBE_PERTURB is"):
        load_config()


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"sed": 1}, "did you mean 'seed'"),
        ({"seed": -1}, "'seed' is -1"),
        ({"mode": "input"}, "did you mean 'inputs'"),
        ({"dtype": "bf16"}, "bfloat16"),
    ],
    ids=lambda value: str(value),
)
def test_the_block_is_checked(tmp_path, block, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"perturb": block}))
    with pytest.raises(ConfigError, match=said):
        load_config(path)


# --- the changes ----------------------------------------------------------------------------------------------------


def test_changes_have_the_variance_of_two_independent_roundings():
    random = np.random.default_rng(0).random(200_000)
    changes = relative_changes(random, 2.0**-24, None)
    assert set(np.unique(changes)) == {-(2.0**-24), 0.0, 2.0**-24}
    assert (changes != 0).mean() == pytest.approx(FLIPPED, rel=0.02)
    values = np.random.default_rng(1).uniform(1, 2, 200_000).astype(np.float32)
    flipped = values + values * changes.astype(np.float32)
    ulps = (flipped.view(np.int32) - values.view(np.int32)).astype(float)
    rounded = np.random.default_rng(2).uniform(-0.5, 0.5, (2, 200_000))
    assert ulps.var() == pytest.approx((rounded[0] - rounded[1]).var(), rel=0.03)


def test_seeds_differ_by_run_step_and_window():
    seeds = {seed_of(Perturbation(seed=seed), step, window) for seed in (1, 2) for step in (0, 1) for window in (0, 1)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)

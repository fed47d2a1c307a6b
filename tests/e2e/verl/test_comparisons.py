"""What `msprobe verl compare` finds in whole runs of `main_ppo`: nothing in a healthy one, a planted fault by name."""

from __future__ import annotations

import json

import pytest

from msprobe_core.cli import main

PARAMETER = "model.layers.1.mlp.down_proj.weight"
MODULE = "model.layers.1.mlp.down_proj"


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


@pytest.mark.parametrize("command", ["logprob", "weights", "layers", "actor-vs-ref"])
def test_a_healthy_run_agrees(compare, healthy_run, command):
    code, verdict, result = compare(command, healthy_run.out)
    assert (code, result["verdict"]) == (0, "agree"), verdict


def test_measures_are_those_that_verl_logs(compare, healthy_run, faulty_run):
    from msprobe.verl._files import load_batch, trainer_directory

    for run in (healthy_run.out, faulty_run.out):
        steps = compare("logprob", run)[2]["numbers"]["steps"]
        for step, own in steps.items():
            logged = load_batch(trainer_directory(run, int(step)))[0].metrics
            assert own["kl"] == pytest.approx(logged["rollout_corr/kl"], rel=1e-3, abs=1e-7)
            assert own["k3"] == pytest.approx(logged["rollout_corr/k3_kl"], rel=1e-2, abs=1e-7)
            assert own["chi2"] == pytest.approx(logged["rollout_corr/chi2_token"], rel=1e-2, abs=1e-6)
            assert own["ppl_ratio"] == pytest.approx(logged["rollout_corr/ppl_ratio"], abs=1e-6)
            assert own["probability_max"] == pytest.approx(
                logged["training/rollout_probs_diff_max"], rel=1e-3, abs=1e-8
            )
            assert own["pearson"] == pytest.approx(logged["training/rollout_actor_probs_pearson_corr"], abs=1e-4)


def test_the_parameter_that_was_not_sent_is_named(compare, faulty_run):
    code, verdict, result = compare("weights", faulty_run.out)
    assert code == 1
    assert verdict == f"DIFFERENT: step 1: {PARAMETER} is not synchronised."
    found = {(step, replica): own["unsynchronised"] for step, all_ in result["numbers"]["steps"].items()
             for replica, own in all_.items()}  # fmt: skip
    assert found == {(step, replica): [] if step == "0" else [PARAMETER] for step in "012" for replica in "01"}


def test_the_module_that_uses_it_is_the_first_to_differ(compare, faulty_run):
    code, verdict, result = compare("layers", faulty_run.out)
    assert code == 1
    assert verdict == f"DIFFERENT: step 2: training and rollout part first at {MODULE}."
    steps = result["numbers"]["steps"]
    assert steps["1"]["first"] == {"prefill": None, "decode": None}
    assert {phase: first["module"] for phase, first in steps["2"]["first"].items()} == {
        "prefill": MODULE, "decode": MODULE,
    }  # fmt: skip
    assert (steps["1"]["samples"], steps["2"]["samples"]) == (8, 8)


def test_the_log_probs_differ_because_of_it(compare, faulty_run):
    code, verdict, result = compare("logprob", faulty_run.out)
    assert code == 1
    assert verdict.endswith("unsynchronised parameter explains it.")
    causes = {step: [name for name, cause in own["causes"].items() if cause["is_named"]]
              for step, own in result["numbers"]["steps"].items()}  # fmt: skip
    assert causes == {"1": [], "2": ["unsynchronised parameter"]}


def test_a_replayed_run_is_equal_to_the_bit(compare, replayed_pair):
    first, replayed = replayed_pair
    code, verdict, result = compare("runs", replayed.out, first.out, "--exact")
    assert code == 0, result["findings"][:5]
    assert verdict.startswith("AGREE: equal to the bit, all ")
    assert set(result["numbers"]["likeness"]) == {"equal"}
    assert result["numbers"]["likeness"]["equal"] > 30


def test_runs_that_draw_anew_are_told_from_their_samples(compare, healthy_run, faulty_run):
    code, verdict, _ = compare("runs", faulty_run.out, healthy_run.out)
    assert code == 1
    assert "step 1: first in " in verdict

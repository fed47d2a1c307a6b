"""Whole runs of `main_ppo`: what is recorded of them, and what `msprobe verl compare` finds in that.

It finds nothing in a healthy run, and a planted fault by its name.
"""

import json

import numpy as np
import pytest

from msprobe_core.cli import main
from msprobe_core.rl import files
from msprobe_core.store import CallPhase, load_samples, sample_id
from msprobe_core.store.manifest_file import MANIFEST_FILE, read_manifest

pytestmark = pytest.mark.slow

STAGES = [
    "rollout_generate", "reward", "actor_compute_log_prob", "ref_compute_log_prob", "compute_values", "critic_update",
    "actor_update", "update_weights_send", "update_weights_recv", "trainer",
]  # fmt: skip
DUMPED = [STAGES[0], *STAGES[2:7]]
MODULE = "model.layers.1.mlp.down_proj"
PARAMETER = f"{MODULE}.weight"


def rows_of(run, stage, step):
    return [
        row
        for directory in files.ranks_of(run, stage, step).values()
        for micro in load_samples(directory).micro_batches
        for row in micro.rows
    ]


def test_all_stages_of_both_steps_are_recorded_on_both_ranks(healthy_run):
    run = healthy_run.out
    assert files.stages_of(run) == STAGES
    for stage in DUMPED:
        for step in (1, 2):
            assert sorted(files.ranks_of(run, stage, step)) == [0, 1], stage
    assert files.steps_of(run, "update_weights_recv") == [0, 1, 2]


def test_every_process_tells_of_its_hooks_and_of_no_failure(healthy_run):
    info = files.load_run(healthy_run.out)
    roles = sorted((process.role, process.rank or 0) for process in info.processes)
    assert roles == [("driver", 0), ("reward", 0), ("rollout", 0), ("rollout", 1), ("worker", 0), ("worker", 1)]
    assert info.errors == []
    assert info.versions["verl"].startswith("0.9")
    assert info.config["algorithm"]["adv_estimator"] == "gae"
    assert (info.sampling.temperature, info.sampling.top_p, info.sampling.do_sample) == (1.0, 1.0, True)


def test_every_stage_has_a_manifest_with_the_settings_of_the_trainer(healthy_run):
    """In each process from the first step on: the driver has told them before."""
    run = healthy_run.out
    paths = [files.rank_directory(run, stage, 1, rank) / MANIFEST_FILE for stage in DUMPED for rank in (0, 1)]
    (scored,) = (run / "reward").rglob(MANIFEST_FILE)
    for path in (*paths, scored):
        manifest = read_manifest(path)
        settings = manifest.settings["verl"]
        assert settings["algorithm.adv_estimator"] == "gae", path
        assert settings["actor_rollout_ref.rollout.temperature"] == 1.0, path
        roles = {name.split(".")[1] for name in settings if name.startswith("workers.")}
        is_worker = "rollout_generate" not in str(path) and path != scored
        assert bool(roles) == is_worker, path
        if path != scored:
            assert len(manifest.run.models) == 1, path
            assert manifest.data, path
    assert len(list(run.rglob(MANIFEST_FILE))) == len(paths) + 1


@pytest.mark.parametrize("step", [1, 2])
def test_samples_have_one_identity_in_all_stages_and_in_the_batch(healthy_run, step):
    run = healthy_run.out
    batch, tensors = files.load_batch(files.trainer_directory(run, step))
    identities = {row.id for row in batch.samples}
    assert (batch.rows, len(identities)) == (8, 8)
    for stage in DUMPED:
        assert {row.id for row in rows_of(run, stage, step)} == identities, stage
    prompts = {row.prompt_id for row in batch.samples}
    assert len(prompts) == 4  # two responses each
    assert {row.prompt_id for row in rows_of(run, "actor_update", step)} == prompts
    for row, ids, mask in zip(batch.samples, tensors["input_ids"], tensors["attention_mask"].astype(bool), strict=True):
        assert sample_id(ids[mask]) == row.id
        assert mask.sum() == row.total_length


def test_a_rollout_is_a_prompt_and_tokens_one_by_one(healthy_run):
    for directory in files.ranks_of(healthy_run.out, "rollout_generate", 1).values():
        samples = load_samples(directory)
        by_sample = {}
        for micro in samples.micro_batches:
            (row,) = micro.rows
            by_sample.setdefault(row.id, []).append((micro.phase, row))
        for parts in by_sample.values():
            (phase, prompt), *tokens = parts
            assert phase is CallPhase.PREFILL
            assert (prompt.start, prompt.length) == (0, prompt.prompt_length)
            assert [row.start for _, row in tokens] == list(range(prompt.prompt_length, prompt.total_length - 1))
            assert {phase for phase, _ in tokens} == {CallPhase.DECODE}


@pytest.mark.parametrize("step", [1, 2])
def test_the_batch_has_what_the_step_computed(healthy_run, step):
    batch, tensors = files.load_batch(files.trainer_directory(healthy_run.out, step))
    needed = {
        "prompts", "responses", "input_ids", "attention_mask", "response_mask", "rollout_log_probs", "old_log_probs",
        "ref_log_prob", "values", "advantages", "returns", "rm_scores",
    }  # fmt: skip
    assert needed <= set(batch.tensors)
    mask = tensors["response_mask"].astype(bool)
    difference = np.abs(tensors["rollout_log_probs"] - tensors["old_log_probs"])[mask]
    assert difference.max() < 1e-5
    assert (batch.policy_version.min, batch.policy_version.max) == (step - 1, step - 1)
    assert batch.metrics["actor/grad_norm"] > 0
    assert batch.metrics["critic/vf_loss"] > 0


@pytest.mark.parametrize("step", [1, 2])
def test_rewards_are_those_of_the_batch(healthy_run, step):
    batch, tensors = files.load_batch(files.trainer_directory(healthy_run.out, step))
    scores = {reward.id: reward.score for reward in files.load_rewards(healthy_run.out, step)}
    assert scores.keys() == {row.id for row in batch.samples}
    assert [scores[row.id] for row in batch.samples] == pytest.approx(tensors["rm_scores"].sum(1).tolist())


def test_stages_of_the_policy_know_its_version(healthy_run):
    for stage in ("rollout_generate", "actor_compute_log_prob", "actor_update"):
        for step in (1, 2):
            for directory in files.ranks_of(healthy_run.out, stage, step).values():
                assert load_samples(directory).policy_version == step - 1, (stage, step)


def transfers(run, step):
    sent = files.load_weights(files.rank_directory(run, "update_weights_send", step, 0))
    received = [
        files.load_weights(directory) for directory in files.ranks_of(run, "update_weights_recv", step).values()
    ]
    return {weight.name: weight for weight in sent.parameters}, [
        {weight.name: weight for weight in one.parameters} for one in received
    ]


def test_what_is_received_is_what_was_sent(healthy_run):
    for step in (0, 1, 2):
        sent, received = transfers(healthy_run.out, step)
        assert len(sent) == 27
        assert len(received) == 2
        for one in received:
            assert {name: weight.hash for name, weight in one.items()} == {n: w.hash for n, w in sent.items()}
    assert sent["model.embed_tokens.weight"].placement is not None
    assert sent["model.embed_tokens.weight"].l2 > 0
    assert all(weight.hash for weight in sent.values())


def test_a_parameter_that_stays_as_it_was_is_another_than_was_sent(faulty_run):
    sent, received = transfers(faulty_run.out, 1)
    for one in received:
        assert [name for name in sent if one[name].hash != sent[name].hash] == [PARAMETER]
    assert files.load_run(faulty_run.out).errors == []


@pytest.mark.parametrize("command", ["logprob", "weights", "layers", "actor-vs-ref"])
def test_a_healthy_run_agrees(compare, healthy_run, command):
    code, verdict, result = compare(command, healthy_run.out)
    assert (code, result["verdict"]) == (0, "agree"), verdict


def test_measures_are_those_that_verl_logs(compare, healthy_run, faulty_run):
    for run in (healthy_run.out, faulty_run.out):
        steps = compare("logprob", run)[2]["numbers"]["steps"]
        for step, own in steps.items():
            logged = files.load_batch(files.trainer_directory(run, int(step)))[0].metrics
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
    assert verdict == f"DIFFERENT: step 2: training and rollout first diverge at {MODULE}."
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


def test_runs_that_draw_anew_are_told_from_their_samples(compare, healthy_run, faulty_run):
    code, verdict, _ = compare("runs", faulty_run.out, healthy_run.out)
    assert code == 1
    assert "step 1: first in " in verdict


def test_the_published_variables_log_every_hop(start_run, tmp_path, capsys):
    run = start_run(tmp_path, "--fault", "freed", UWC_ENABLE="1", UWC_DUMP_DIR=str(tmp_path / "run"))
    with pytest.raises(SystemExit) as ended:
        main(["weights", "compare", str(run.out), "--uwc", "--enforce", "-o", str(tmp_path)])
    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert "DIFFERENT: sync 1, loaded to awake: model.layers.1.mlp.down_proj.weight, freed memory" in out
    for line in ("disk to exported: 27 tensors, all as before", "shard to sent: 54 tensors, all as before"):
        assert f"sync 0, {line}" in out
    stages = json.loads((tmp_path / "summary.json").read_text())["stages"]
    assert stages == {"stage1_bridge": "PASS", "stage2_transfer": "PASS", "stage3_vllm": "FAIL"}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("healthy_run", "Nothing is out of its limits in 3 steps."),
        ("faulty_run", f"Step 1, sent → received, is the first that is out of its limits: {PARAMETER}"),
    ],
)
def test_the_page_of_a_run_begins_with_the_cause(name, sentence, request, tmp_path, capsys):
    run = request.getfixturevalue(name)
    with pytest.raises(SystemExit) as ended:
        main(["view", str(run.out), "-o", str(tmp_path / "page.html")])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    assert out.startswith(sentence)
    assert "tokenizer" not in err  # the run names its model

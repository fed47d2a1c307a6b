"""Stages in verl's own FSDP workers: what is recorded, of which sample, and that it changes nothing."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from msprobe_core.cli import main
from msprobe_core.rl import files
from msprobe_core.store import BatchLayout, load_samples
from msprobe_core.store.manifest_file import MANIFEST_FILE, read_manifest
from msprobe_core.store.training_metrics import load_updates

STATISTICS = "out: {out}\nlevel: L0\n"
EVERYTHING = "out: {out}\nlevel: mix\ntask: tensor\ntensor: {{summary_mode: md5}}\n"
STAGES = ["actor_compute_log_prob", "ref_compute_log_prob", "actor_update"]
LAST = "Module.model.layers.1.mlp.down_proj.Linear"


def dump_of(directory):
    return json.loads((directory / "dump.json").read_text())["data"]


def output_of(directory, entry):
    value = dump_of(directory)[entry]["output"][0]
    return torch.load(directory / "dump_tensor_data" / value["data_name"], weights_only=True)


def by_sample(run, stage, step, entry):
    """Return what a module returned for each sample, by its identity, from all ranks."""
    found = {}
    for directory in files.ranks_of(run, stage, step).values():
        for micro in load_samples(directory).micro_batches:
            values = output_of(directory, f"{entry}.forward.{micro.call}")
            for row in micro.rows:
                found[row.id] = values[row.row, row.offset : row.offset + row.length]
    return found


@pytest.fixture(scope="module")
def plain(run_workers):
    return run_workers()


@pytest.fixture(scope="module")
def padded(run_workers):
    return run_workers(record=EVERYTHING)


@pytest.fixture(scope="module")
def packed(run_workers):
    return run_workers("--packed", ranks=2, record=EVERYTHING.replace("level: mix", "level: L0"))


def test_recording_changes_nothing_bit_by_bit(plain, padded):
    (_, expected), (_, found) = plain, padded
    assert found == expected  # log-probs, losses, gradient norms, and CRC-32 of every weight after two steps
    assert len(found[0]["weights"]) == 27


def test_every_stage_of_every_step_is_recorded(padded):
    run = padded[0].out
    assert files.stages_of(run) == STAGES
    for stage in STAGES:
        assert files.steps_of(run, stage) == [1, 2]
        data = dump_of(files.rank_directory(run, stage, 1, 0))
        assert {f"{LAST}.forward.{call}" for call in range(4)} <= data.keys()
        assert any(name.startswith("Functional.linear") for name in data)
        assert (f"{LAST}.backward.0" in data) == (stage == "actor_update")
        assert not any("FSDP" in name for name in data if name.startswith("Module"))


@pytest.mark.slow
def test_every_stage_has_a_manifest_of_its_process(padded, packed):
    """With the model, the optimizer of an update only if it steps, settings of the worker, and rows of token ids."""
    run = padded[0].out
    for stage in STAGES:
        manifest = read_manifest(files.rank_directory(run, stage, 1, 0) / MANIFEST_FILE)
        assert manifest.notes == ()
        assert manifest.run.framework.name == "torch"
        assert {"model.layers.1.mlp.down_proj"} <= {module.path for module in manifest.run.models[0].modules}
        settings = manifest.settings["verl"]
        assert settings["msprobe.role"] == "worker"
        (lr,) = {value for name, value in settings.items() if name.endswith("actor.optim.lr")}
        assert lr == 1e-3
        assert {library.name for library in manifest.libraries} >= {"torch", "transformers", "verl"}
        assert any(rows.name.endswith("input_ids") for rows in manifest.data)
        assert not list((run / stage / "step2").rglob(MANIFEST_FILE))
    assert [each.type for each in manifest.run.optimizers] == ["torch.optim.adamw.AdamW"]
    for rank in (0, 1):
        directory = files.rank_directory(packed[0].out, "actor_update", 1, rank)
        assert read_manifest(directory / MANIFEST_FILE).world_size == 2


def test_calls_are_micro_batches_through_all_mini_batches(padded):
    samples = load_samples(files.rank_directory(padded[0].out, "actor_update", 2, 0))
    assert [(m.call, m.mini, m.micro) for m in samples.micro_batches] == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    assert (samples.step, samples.policy_version) == (2, 1)
    assert {m.layout for m in samples.micro_batches} == {BatchLayout.PADDED}
    rows = [row for m in samples.micro_batches for row in m.rows]
    assert len({row.id for row in rows}) == 8
    assert sorted(row.total_length for row in rows) == sorted([12, 11, 12, 14, 7, 14, 12, 14])
    assert {row.prompt_length for row in rows} == {4, 6}
    assert {row.uid for row in rows} == {"u0", "u1", "u2", "u3"}


def test_losses_and_gradient_norms_are_those_of_the_trainer(padded):
    run, (found,) = padded
    for step in (1, 2):
        updates = load_updates(files.rank_directory(run.out, "actor_update", step, 0))
        assert [update.grad_norm for update in updates.updates] == found["steps"][step - 1]["grad_norm"]
        assert [(loss.mini, loss.micro) for loss in updates.losses] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_actor_and_reference_are_alike_in_the_first_step_only(padded):
    run = padded[0].out
    for step in (1, 2):
        actor, ref = (by_sample(run, stage, step, LAST) for stage in STAGES[:2])
        assert actor.keys() == ref.keys()
        assert all(torch.equal(actor[i], ref[i]) for i in actor) == (step == 1)


def test_packed_on_two_ranks_is_padded_on_one_sample_by_sample(padded, packed):
    one, two = (by_sample(run.out, "actor_compute_log_prob", 1, LAST) for run, _ in (padded, packed))
    assert one.keys() == two.keys()
    assert max(float((one[i] - two[i]).abs().max()) for i in one) < 1e-6
    samples = load_samples(files.rank_directory(packed[0].out, "actor_update", 1, 1))
    assert {m.layout for m in samples.micro_batches} == {BatchLayout.PACKED}
    assert samples.rank == 1
    for micro in samples.micro_batches:
        assert [row.offset for row in micro.rows] == [0, micro.rows[0].length]


def test_gradients_of_shards_are_recorded_on_each_rank(packed):
    directories = files.ranks_of(packed[0].out, "actor_update", 1)
    gradients = [dump_of(directory)[f"{LAST}.parameters_grad.0"]["weight"][0] for directory in directories.values()]
    assert [gradient["local_offset"] for gradient in gradients] == [[0, 0], [16, 0]]


ROWS_ELSEWHERE = ["--order", *"10325476"]
"""The same samples in each micro-batch, in another order."""


@pytest.fixture(scope="module")
def recorded(run_workers):
    return run_workers(record=STATISTICS)[0].out


@pytest.fixture
def located(capsys, tmp_path):
    """Return a function that returns status, verdict and result of `msprobe locate` of a stage of two runs."""

    def locate(target, golden, stage="actor_update"):
        with pytest.raises(SystemExit) as ended:
            main(["locate", str(target / stage), str(golden / stage), "-o", str(tmp_path)])
        out, err = capsys.readouterr()
        lines = out.splitlines() or err.splitlines()
        path = tmp_path / "locate.json"
        return ended.value.code, lines[-1], json.loads(path.read_bytes()) if path.exists() else None

    return locate


@pytest.mark.parametrize(
    ("arguments", "golden_arguments"),
    [
        pytest.param(ROWS_ELSEWHERE, [], id="rows in another order"),
        pytest.param(["--micro", "1"], [], id="smaller micro-batches", marks=pytest.mark.slow),
        pytest.param(["--packed", "--order", *"02134657"], ["--packed"], id="packed in another order",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_an_update_that_orders_or_cuts_its_samples_otherwise_is_healthy(
    run_workers, recorded, located, compare, arguments, golden_arguments
):
    golden = run_workers(*golden_arguments, record=STATISTICS)[0].out if golden_arguments else recorded
    target = run_workers(*arguments, record=STATISTICS)[0].out
    code, verdict, result = located(target, golden)
    assert (code, verdict) == (0, "AGREE: rounding explains every difference.")
    assert sum("only the first mini-batch was compared" in note for note in result["notes"]) == 2  # in each step
    assert {check["name"]: check["state"] for check in result["checks"]}["initial weights"] == "holds"
    code, verdict, result = compare("runs", target, golden)
    assert code == 0, verdict
    assert {"equal", "within limit"} & set(result["numbers"]["likeness"])


def test_a_fault_is_named_although_the_samples_are_ordered_otherwise(run_workers, recorded, located, compare):
    module = "model.layers.1.mlp.down_proj"
    wrong = run_workers(*ROWS_ELSEWHERE, "--wrong", module, record=STATISTICS)[0].out
    code, verdict, _ = located(wrong, recorded)
    assert code == 1
    assert verdict.startswith(f"FAULT: scale at step 1, rank 0: Module.{module}.Linear.forward.1 ")
    code, verdict, _ = compare("runs", wrong, recorded)
    assert code == 1
    assert verdict == f"DIFFERENT: step 1: first in actor_compute_log_prob, Module.{module}.Linear.forward.3."


@pytest.mark.slow
def test_what_cannot_be_compared_by_mini_batches_says_so(run_workers, recorded, located):
    """Padding in other places leaves the gradients, of which a stage without an update has none."""
    cut = run_workers("--order", *"02134657", record=STATISTICS)[0].out
    code, error, _ = located(cut, recorded, "actor_compute_log_prob")
    assert code == 2
    assert "have padding in other places" in error
    later = run_workers("--order", *"45670123", record=STATISTICS)[0].out
    code, error, _ = located(later, recorded)
    assert code == 2
    assert "take the same samples in other mini-batches or on other ranks" in error


@pytest.mark.slow
def test_with_ulysses_each_process_has_its_slice_of_the_samples(run_workers, padded, compare):
    run, found = run_workers("--packed", "--ulysses", 2, ranks=2, record=EVERYTHING.replace("level: mix", "level: L0"))
    expected = padded[1][0]["steps"][0]["log_probs"]
    for one in found:
        assert np.abs(np.subtract(one["steps"][0]["log_probs"], expected)).max() < 1e-5
    directories = files.ranks_of(run.out, "actor_compute_log_prob", 1)
    assert sorted(directories) == [0, 1]
    whole = by_sample(padded[0].out, "actor_compute_log_prob", 1, LAST)
    seen = dict.fromkeys(whole, 0)
    for directory in directories.values():
        for micro in load_samples(directory).micro_batches:
            values = output_of(directory, f"{LAST}.forward.{micro.call}")
            for row in micro.rows:
                assert row.offset + row.length <= values.shape[1]
                own, other = values[0, row.offset :][: row.length], whole[row.id][row.start :][: row.length]
                assert float((own - other).abs().max()) < 1e-6
                seen[row.id] += row.length
    assert seen == {sample: len(values) for sample, values in whole.items()}  # each position once
    code, verdict, _ = compare("actor-vs-ref", run.out)
    assert (code, verdict) == (0, "AGREE: actor and reference are equal to the bit.")


def test_each_process_says_what_it_has_hooked(padded):
    (process,) = files.load_run(padded[0].out).processes
    assert (process.role, process.rank, process.errors) == ("worker", 0, ())
    status = {capability.target: capability.status.value for capability in process.capabilities}
    assert status["verl.workers.engine_workers.ActorRolloutRefWorker.update_actor"] == "attached"
    assert status["vllm.v1.worker.gpu_model_runner.GPUModelRunner.execute_model"] == "waiting"


@pytest.mark.slow
def test_fsdp1_has_the_names_of_fsdp2(run_workers, padded):
    run, _ = run_workers("--strategy", "fsdp", record=STATISTICS)
    one, two = (
        {name for name in dump_of(files.rank_directory(found, "actor_compute_log_prob", 1, 0)) if "layers" in name}
        for found in (run.out, padded[0].out)
    )
    modules = {name for name in two if name.startswith("Module")}
    assert modules <= one
    assert {name.split(".")[-3] for name in one - modules} <= {"FullyShardedDataParallel"}


@pytest.mark.slow
def test_lora_has_the_names_of_the_model_without_it(run_workers, padded):
    run, _ = run_workers("--lora", record=STATISTICS)
    names = set(dump_of(files.rank_directory(run.out, "actor_update", 1, 0)))
    assert {"Module.model.layers.0.self_attn.q_proj.Linear.forward.0", f"{LAST}.forward.0"} <= names
    assert {name.split(".")[-3] for name in names if "base_model" in name} == {"LoraModel"}  # the wrapper itself


@pytest.mark.slow
def test_a_place_that_cannot_be_written_to_is_one_warning_and_no_end(run_workers, plain, tmp_path):
    (tmp_path / "file").write_text("")
    run, found = run_workers(record=f"out: {tmp_path / 'file' / 'run'}\n")
    assert found == plain[1]
    assert run.output.count("not recorded, the training goes on") == 1


@pytest.mark.slow
def test_a_configuration_that_is_wrong_is_said_and_no_end(run_workers, plain):
    run, found = run_workers(record="out: {out}\nstaages: [actor_update]\n")
    assert found == plain[1]
    assert "nothing is recorded:" in run.output
    assert "unknown field 'staages'" in run.output
    assert not run.out.exists()


@pytest.mark.slow
def test_verls_own_keys_of_a_precision_debugger_switch_it_on(run_workers, plain, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"level": "mix", "task": "statistics", "dump_path": "never"}))
    run, found = run_workers("--profiler", tmp_path / "config.json", place=tmp_path)
    assert found == plain[1]
    assert files.stages_of(run.out) == ["actor_compute_log_prob", "actor_update"]  # as asked for: without the reference
    for stage in files.stages_of(run.out):
        assert files.steps_of(run.out, stage) == [2]
        assert len(load_samples(files.rank_directory(run.out, stage, 2, 0)).micro_batches) == 4
    data = dump_of(files.rank_directory(run.out, "actor_update", 2, 0))
    assert {f"{LAST}.backward.0", f"{LAST}.parameters_grad.3"} <= data.keys()
    assert any(name.startswith("Functional.linear") for name in data)
    assert files.load_run(run.out).errors == []


def test_the_debugger_of_tutorials_works_in_the_workers(run_workers, plain, tmp_path):
    _, found = run_workers("--debugger", tmp_path / "dump")
    assert found == plain[1]
    steps = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert steps == [f"step{number}" for number in range(6)]  # three stages in each of two steps
    data = [dump_of(tmp_path / "dump" / step / "rank0") for step in steps]
    assert [any("backward" in name for name in one) for one in data] == [False, False, True] * 2
    assert any("FSDPQwen2ForCausalLM.forward.0" in name for name in data[0])
    assert any(name.startswith("Module.lm_head.") for name in data[0])
    assert np.all([np.isfinite(value["output"][0]["Norm"]) for name, value in data[0].items() if "lm_head" in name])


def test_the_doctor_finds_every_hook_in_the_verl_that_is_installed():
    done = subprocess.run([sys.executable, "-m", "msprobe_core", "verl", "doctor"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "installed: verl 0.9" in done.stdout
    assert "every hook that this verl has a module for attaches" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("missing")]

"""msprobe checkpoint on files of real libraries: a sound conversion is the same model, a planted bug is named."""

import gc
import json

import pytest
import torch
import transformers
from megatron_layout import shape_of, write_megatron
from msprobe.pytorch import PrecisionDebugger
from safetensors.torch import save_file

from msprobe_core.cli import main

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def config():
    return transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=160, tie_word_embeddings=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(config):
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("hf")
    model.save_pretrained(directory)
    return directory


@pytest.fixture
def run(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(["checkpoint", *map(str, words)])
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)])
def test_every_layout_of_megatron_is_the_same_model(run, model, config, saved, tmp_path, tp, pp):
    write_megatron(model.state_dict(), tmp_path / "m", shape_of(config), tp=tp, pp=pp)
    code, out, _ = run("compare", tmp_path / "m", saved)
    assert (code, "the same model" in out) == (0, True)
    code, out, _ = run("compare", saved, tmp_path / "m")
    assert code == 0


def test_a_cast_is_the_same_model_unless_strict(run, model, saved, tmp_path):
    torch.save({name: value.bfloat16() for name, value in model.state_dict().items()}, tmp_path / "half.pt")
    assert run("compare", tmp_path / "half.pt", saved)[0] == 0
    assert run("compare", "--strict", tmp_path / "half.pt", saved)[0] == 1


def test_a_tie_is_no_difference_even_if_strict(run, model, saved, tmp_path):
    tied = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    settings = model.config.to_diff_dict() | {"tie_word_embeddings": True}
    (tmp_path / "tied").mkdir()
    (tmp_path / "tied" / "config.json").write_text(json.dumps(settings, default=str))
    save_file(tied, tmp_path / "tied" / "model.safetensors")
    both = tied | {"lm_head.weight": tied["model.embed_tokens.weight"].clone()}
    torch.save(both, tmp_path / "both.pt")
    assert run("compare", "--strict", tmp_path / "tied", tmp_path / "both.pt")[0] == 0
    torch.save(both | {"lm_head.weight": model.state_dict()["lm_head.weight"]}, tmp_path / "own.pt")
    assert run("compare", tmp_path / "tied", tmp_path / "own.pt")[0] == 1


def test_a_wrong_tensor_is_named_and_written(run, model, saved, tmp_path):
    torch.save(model.state_dict() | {UP: model.state_dict()[UP] * 0}, tmp_path / "bad.pt")
    code, out, _ = run("compare", tmp_path / "bad.pt", saved, "-o", tmp_path / "out")
    assert code == 1
    assert f"{UP}: uninitialised" in out
    assert (tmp_path / "out" / "checkpoint_compare.json").exists()
    assert (tmp_path / "out" / "checkpoint_compare.csv").exists()


def test_fingerprints_stand_for_checkpoints(run, model, config, saved, tmp_path):
    write_megatron(model.state_dict(), tmp_path / "m", shape_of(config), tp=2, pp=2)
    golden = tmp_path / "hf.fingerprint.arrow"
    assert run("fingerprint", saved, "-o", golden)[0] == 0
    code, out, _ = run("compare", tmp_path / "m", golden)
    assert (code, "the same model" in out) == (0, True)
    torch.save(model.state_dict() | {UP: model.state_dict()[UP] * 2}, tmp_path / "bad.pt")
    code, out, _ = run("compare", tmp_path / "bad.pt", golden)
    assert code == 1
    assert f"{UP}: scaled" in out


def test_inspect_and_resume(run, saved):
    code, out, _ = run("inspect", saved)
    assert (code, "safetensors" in out) == (0, True)
    assert run("inspect", saved, "--json")[0] == 0
    assert run("resume", saved, saved)[0] == 0


class Job:
    """A training of a small model, with a schedule; it saves as most loops of their own do."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8))
        self.begin()
        self.step = 0

    def begin(self):
        """Make a new optimizer and schedule: what a job has that does not load them."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.9**step)

    def train(self, num_steps):
        for _ in range(num_steps):
            self.model(torch.ones(2, 6) * (self.step + 1)).square().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.step += 1
        return self

    def save(self, path, *, without=()):
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step,
            "lr_scheduler": self.schedule.state_dict(), "rng_state": torch.get_rng_state(),
        }  # fmt: skip
        torch.save({name: value for name, value in state.items() if name not in without}, path)
        return path


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_sound_resume_lost_nothing(run, tmp_path, num_steps):
    job = Job().train(10)
    before = job.save(tmp_path / "before.pt")
    code, out, _ = run("resume", before, job.train(num_steps).save(tmp_path / "after.pt"))
    assert (code, "weights, moments and step counts are as before" in out) == (0, True), out


@pytest.mark.parametrize("num_steps", [1, 3])
def test_an_optimizer_that_began_again_is_found(run, tmp_path, num_steps):
    """Weights are as before, so that a comparison of weights or of the first loss would find nothing."""
    job = Job().train(10)
    before = job.save(tmp_path / "before.pt")
    job.begin()
    code, out, _ = run("resume", before, job.train(num_steps).save(tmp_path / "after.pt"))
    assert code == 1
    assert "moments of optimizer.state.0." in out
    assert "it was reset" in out
    assert f".step went from 10 to {num_steps}" in out


def test_moments_that_were_not_saved_are_missing(run, tmp_path):
    job = Job().train(10)
    before = job.save(tmp_path / "before.pt")
    job.begin()  # an optimizer without a step has no states
    code, out, _ = run("resume", before, job.save(tmp_path / "after.pt"))
    assert code == 1
    assert "moments is not in the saved state: 8 tensors" in out
    assert "step counts is not in the saved state" in out


def test_step_counts_that_went_back_are_found(run, tmp_path):
    job = Job().train(10)
    before = job.save(tmp_path / "before.pt")
    for own in job.optimizer.state.values():
        own["step"].zero_()
    job.step = 5
    code, out, _ = run("resume", before, job.save(tmp_path / "after.pt"))
    assert code == 1
    assert "the training step went from 10 to 5" in out
    assert ".step went from 10 to 0" in out
    assert "it was reset" not in out


def test_a_schedule_that_was_not_saved_or_began_again_is_found(run, tmp_path):
    job = Job().train(10)
    before = job.save(tmp_path / "before.pt")
    code, out, _ = run("resume", before, job.save(tmp_path / "lost.pt", without={"lr_scheduler"}))
    assert (code, "scheduler is not in the saved state" in out) == (1, True)
    job.schedule = torch.optim.lr_scheduler.LambdaLR(job.optimizer, lambda step: 0.9**step)
    code, out, _ = run("resume", before, job.save(tmp_path / "again.pt"))
    assert (code, "last_epoch went from 10 to 0" in out) == (1, True)


def test_what_cannot_be_read_is_an_error(run, saved, tmp_path):
    code, _, err = run("compare", tmp_path / "missing", saved)
    assert code == 2
    assert "missing" in err
    foreign = tmp_path / "out" / "checkpoint_compare.json"
    foreign.parent.mkdir()
    foreign.write_text("{}")
    assert run("compare", saved, saved, "-o", foreign.parent)[0] == 2
    assert foreign.read_text() == "{}"
    bad = tmp_path / "map.yaml"
    bad.write_text("[1, 2]")
    assert run("compare", saved, saved, "--map", bad)[0] == 2


# --- a job that has not saved yet -----------------------------------------------------------------------------------


def record(job, path, num_steps=1):
    """Go on with a training, of which the first step is recorded."""
    gc.collect()  # the optimizers of other tests
    debugger = PrecisionDebugger(dump_path=str(path), task="structure", level="L0", step=[0])
    for _ in range(num_steps):
        debugger.start(job.model)
        job.train(1)
        debugger.stop()
        debugger.step()
    debugger.close()
    return path


def resumed(before, *, without=()):
    """Make a job that loads a checkpoint, but for some of what it holds."""
    state = torch.load(before, weights_only=False)
    job = Job()
    job.model.load_state_dict(state["model"])
    job.step = state["step"]
    if "optimizer" not in without:
        job.optimizer.load_state_dict(state["optimizer"])
    if "lr_scheduler" not in without:
        job.schedule.load_state_dict(state["lr_scheduler"])
    if "rng_state" not in without:
        torch.set_rng_state(state["rng_state"])
    else:
        torch.manual_seed(7)
    return job


def test_a_running_job_that_lost_nothing(run, tmp_path):
    before = Job().train(10).save(tmp_path / "before.pt")
    record(resumed(before), tmp_path / "run")
    code, out, _ = run("resume", before, tmp_path / "run")
    assert code == 0, out
    assert "1 steps: nothing was lost" in out
    assert "step counts and learning rates are those of the checkpoint" in out
    assert "random" not in out
    assert run("resume", before, next((tmp_path / "run").glob("step0/*/manifest.json")))[0] == 0


def test_a_running_job_that_lost_the_state_of_its_optimizer_is_found(run, tmp_path):
    before = Job().train(10).save(tmp_path / "before.pt")
    record(resumed(before, without={"optimizer", "rng_state"}), tmp_path / "run")
    code, out, _ = run("resume", before, tmp_path / "run")
    assert code == 1
    assert "the optimizer counts 1 step, and 10 in the checkpoint: its state was not loaded" in out
    assert "state of PyTorch's random generator is none of the checkpoint" in out


@pytest.mark.slow
def test_a_running_job_that_loaded_an_older_or_a_later_checkpoint_is_found(run, tmp_path):
    job = Job().train(10)
    older, before = job.save(tmp_path / "older.pt"), job.train(5).save(tmp_path / "before.pt")
    record(resumed(older), tmp_path / "older")
    code, out, _ = run("resume", before, tmp_path / "older")
    assert (code, "the optimizer counts 11 steps, and 15 in the checkpoint" in out) == (1, True)
    record(resumed(before), tmp_path / "ahead")
    code, out, _ = run("resume", older, tmp_path / "ahead")
    assert (code, "counts 16 steps, 6 more than the checkpoint" in out) == (0, True)


@pytest.mark.parametrize(("rate", "code", "said"), [
    ("initial", 1, "group 0 is 0.01, with which its schedule began, and 0.00349 in the checkpoint"),
    (0.002, 1, "group 0 is 0.002, and 0.00349 in the checkpoint"),
    # The rate is the optimizer's until the schedule steps.
    (None, 0, "group 0 went from 0.00349 to 0.009 within the first recorded step"),
])  # fmt: skip
def test_a_running_job_whose_schedule_began_again_is_found(run, tmp_path, rate, code, said):
    before = Job().train(10).save(tmp_path / "before.pt")
    job = resumed(before, without={"lr_scheduler"} if rate is None else ())
    for group in job.optimizer.param_groups if rate is not None else ():
        group["lr"] = group["initial_lr"] if rate == "initial" else rate
    found = run("resume", before, record(job, tmp_path / "run"))
    assert (found[0], said in found[1]) == (code, True), found[1]

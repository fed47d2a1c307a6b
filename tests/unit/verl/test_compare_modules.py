"""``msprobe verl compare layers``, ``actor-vs-ref``, ``onpolicy`` and ``runs`` on runs of a tiny policy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rl_runs import Recipe, Sample, make_weights, write_run

from msprobe_core.rl.modules import chosen_experts
from msprobe_core.store import BatchLayout

UNSENT = "model.layers.1.mlp.down_proj.weight"
FIRST = "model.layers.1.mlp.down_proj"
Run = Callable[..., tuple[int, str, str]]
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return the directory of a run recorded by a recipe; each is recorded once."""
    made: dict[str, Path] = {}

    def make(name: str, **recipe: object) -> Path:
        if name not in made:
            made[name] = write_run(tmp_path_factory.mktemp("run") / "run", Recipe(**recipe))
        return made[name]

    return make


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Sample]]:
    """Samples of a healthy run, for replays."""
    recipe = Recipe(task="statistics")
    write_run(tmp_path_factory.mktemp("replayed"), recipe)
    return recipe.recorded


def summary(directory: Path, command: str) -> dict:
    return json.loads((directory / f"verl_{command}.json").read_bytes())


@pytest.mark.parametrize("layout", [BatchLayout.PACKED, BatchLayout.PADDED], ids=lambda layout: layout.value)
class TestLayers:
    def test_a_healthy_run_agrees(self, run: Run, runs: Make, tmp_path: Path, layout: BatchLayout) -> None:
        code, out, _ = run("verl", "compare", "layers", runs(f"healthy {layout}", layout=layout), "-o", tmp_path)
        assert code == 0
        assert out.splitlines()[-1] == "AGREE: every module is within what rounding explains."
        own = summary(tmp_path, "layers")["numbers"]["steps"]["2"]
        assert own["first"] == {"prefill": None, "decode": None}
        assert all(1e-8 < error < 3e-6 for error in own["largest"].values())
        assert own["samples"] == 6

    def test_a_parameter_that_was_not_sent_shows_where_it_is_used(
        self, run: Run, runs: Make, tmp_path: Path, layout: BatchLayout
    ) -> None:
        root = runs(f"unsent {layout}", layout=layout, unsent=(UNSENT,))
        code, out, _ = run("verl", "compare", "layers", root, "-o", tmp_path)
        assert code == 1
        assert out.splitlines()[-1] == f"DIFFERENT: step 2: training and rollout first diverge at {FIRST}."
        steps = summary(tmp_path, "layers")["numbers"]["steps"]
        assert steps["1"]["first"] == {"prefill": None, "decode": None}
        assert {phase: first["module"] for phase, first in steps["2"]["first"].items()} == {
            "prefill": FIRST, "decode": FIRST,
        }  # fmt: skip
        assert "what it was given is not" in out


class TestLayersMore:
    def test_every_position_is_compared_once(self, run: Run, runs: Make, tmp_path: Path) -> None:
        run("verl", "compare", "layers", runs("healthy"), "-o", tmp_path, "--format", "parquet", "--steps", "1")
        (path,) = tmp_path.glob("*.parquet")
        rows = pl.read_parquet(path)
        samples = {(row.id, row.prompt_length, row.total_length) for row in self._rows(runs("healthy"))}
        prompt = sum(prompt for _, prompt, _ in samples)
        decoded = sum(total - prompt - 1 for _, prompt, total in samples)
        assert set(rows.filter(pl.col("phase") == "prefill")["positions"]) == {prompt}
        assert set(rows.filter(pl.col("phase") == "decode")["positions"]) == {decoded}
        assert rows["order"].is_sorted()

    @staticmethod
    def _rows(root: Path) -> list:
        from msprobe_core.rl.files import rank_directory
        from msprobe_core.store import load_samples

        calls = load_samples(rank_directory(root, "actor_compute_log_prob", 1, 0)).micro_batches
        return [row for call in calls for row in call.rows]

    def test_modules_that_the_engine_fuses_are_put_together(self, run: Run, runs: Make, tmp_path: Path) -> None:
        code, out, _ = run(
            "verl", "compare", "layers", runs("fused", fuses=True), "-o", tmp_path, "--format", "parquet"
        )
        assert code == 0, out
        assert "on one side only" not in out
        (path,) = tmp_path.glob("*.parquet")
        modules = set(pl.read_parquet(path)["module"])
        assert "model.layers.1.self_attn.qkv_proj" in modules
        assert not any(name.endswith(("q_proj", "k_proj", "v_proj")) and "qkv" not in name for name in modules)
        unsent = runs("fused and unsent", fuses=True, unsent=("model.layers.0.self_attn.k_proj.weight",))
        code, out, _ = run("verl", "compare", "layers", unsent, "-o", tmp_path)
        assert code == 1
        assert out.splitlines()[-1].endswith("first diverge at model.layers.0.self_attn.qkv_proj.")

    def test_padding_is_no_part_of_a_sample(self, run: Run, runs: Make, tmp_path: Path) -> None:
        padded = runs("healthy padded", layout=BatchLayout.PADDED)
        code, out, _ = run("verl", "compare", "runs", padded, runs("healthy"), "-o", tmp_path)
        assert code == 0, out

    def test_experts_that_are_chosen_otherwise_are_counted(self, run: Run, runs: Make, tmp_path: Path) -> None:
        root = runs("routers", unsent=("model.layers.0.mlp.gate.weight", "model.layers.1.mlp.gate.weight"))
        code, out, _ = run("verl", "compare", "layers", root, "-o", tmp_path, "--experts", "2")
        assert code == 1
        steps = summary(tmp_path, "layers")["numbers"]["steps"]
        assert steps["1"]["flipped_tokens"] == 0
        assert 0.05 < steps["2"]["flipped_tokens"] < 1
        assert steps["2"]["first"]["prefill"]["module"] == "model.layers.0.mlp.gate"
        assert "routing (top 2): other experts for" in out

    @pytest.mark.parametrize("layout", [BatchLayout.PACKED, BatchLayout.PADDED], ids=lambda layout: layout.value)
    def test_an_engine_and_routers_without_a_dimension_of_samples(
        self, run: Run, runs: Make, tmp_path: Path, layout: BatchLayout
    ) -> None:
        unsent = ("model.layers.0.mlp.gate.weight",)
        found = {}
        for is_flat in (False, True):
            root = runs(f"flat {is_flat} {layout}", unsent=unsent, is_flat=is_flat, layout=layout)
            code, _, _ = run("verl", "compare", "layers", root, "-o", tmp_path, "--experts", "2")
            assert code == 1
            found[is_flat] = summary(tmp_path, "layers")["numbers"]["steps"]
        assert found[True] == found[False]
        assert found[True]["2"]["flipped_tokens"] > 0.05

    @pytest.mark.parametrize("command", ["actor-vs-ref", "onpolicy"])
    def test_routers_are_compared_in_training_too(self, run: Run, runs: Make, tmp_path: Path, command: str) -> None:
        other = make_weights()
        other["model.layers.0.mlp.gate.weight"] = other["model.layers.0.mlp.gate.weight"][::-1].copy()
        root = runs("other router", ref_weights=other)
        code, out, _ = run("verl", "compare", command, root, "-o", tmp_path, "--experts", "2")
        assert code == (command == "actor-vs-ref")
        assert "routing (top 2): other experts for" in out
        step = summary(tmp_path, command)["numbers"]["steps"]["1"]
        assert (step["flipped_tokens"] > 0.05, step["experts"]) == (command == "actor-vs-ref", 2)

    def test_a_healthy_run_is_a_baseline(self, run: Run, runs: Make, tmp_path: Path) -> None:
        noisy = runs("noisy", noise=3e-5)
        assert run("verl", "compare", "layers", noisy, "-o", tmp_path)[0] == 1
        code, out, _ = run("verl", "compare", "layers", noisy, "--baseline", runs("noise", noise=2e-5), "-o", tmp_path)
        assert code == 0, out

    def test_statistics_are_refused(self, run: Run, runs: Make, tmp_path: Path) -> None:
        code, _, err = run("verl", "compare", "layers", runs("statistics", task="statistics"), "-o", tmp_path)
        assert code == 2
        assert "statistics only, which are of whole micro-batches" in err
        assert '"task": "tensor"' in err

    def test_a_stage_that_is_not_there(self, run: Run, runs: Make, tmp_path: Path) -> None:
        code, _, err = run("verl", "compare", "layers", runs("healthy"), "--stage", "compute_values", "-o", tmp_path)
        assert code == 2
        assert "holds nothing of compute_values" in err

    def test_a_tensor_that_is_cut_off(self, run: Run, tmp_path: Path) -> None:
        root = write_run(tmp_path / "run", Recipe(steps=1))
        path = next((root / "rollout_generate").rglob("*lm_head*.npy"))
        path.write_bytes(path.read_bytes()[:-4])
        code, _, err = run("verl", "compare", "layers", root, "-o", tmp_path)
        assert code == 2
        assert "cut off" in err


class TestTrainingStages:
    def test_actor_and_reference_are_equal_at_first(self, run: Run, runs: Make, tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "actor-vs-ref", runs("healthy"), "-o", tmp_path)
        assert code == 0
        assert out.splitlines()[-1] == "AGREE: actor and reference are equal to the bit."
        code, out, _ = run("verl", "compare", "actor-vs-ref", runs("healthy"), "--steps", "2", "-o", tmp_path)
        assert code == 1
        assert "only there must both be equal" in out

    @pytest.mark.parametrize("task", ["tensor", "statistics"])
    def test_a_reference_that_follows_the_actor_is_told(self, run: Run, tmp_path: Path, task: str) -> None:
        """Equal modules prove nothing good once the actor was updated."""
        root = write_run(tmp_path / "run", Recipe(follows_actor=True, task=task, is_cut_alike=True))
        assert run("verl", "compare", "actor-vs-ref", root, "-o", tmp_path)[0] == 0
        code, out, _ = run("verl", "compare", "actor-vs-ref", root, "--steps", "2", "-o", tmp_path)
        assert code == 1
        assert out.splitlines()[-1] == "DIFFERENT: step 2: the reference follows the actor."

    def test_another_reference_is_named_by_its_first_module(self, run: Run, runs: Make, tmp_path: Path) -> None:
        other = make_weights()
        other["model.layers.0.self_attn.v_proj.weight"] = other["model.layers.0.self_attn.v_proj.weight"] * 1.0001
        code, out, _ = run("verl", "compare", "actor-vs-ref", runs("ref", ref_weights=other), "-o", tmp_path)
        assert code == 1
        assert out.splitlines()[-1].endswith("first diverge at model.layers.0.self_attn.v_proj.")

    def test_the_first_mini_batch_is_on_policy(self, run: Run, runs: Make, tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "onpolicy", runs("healthy"), "-o", tmp_path)
        assert code == 0
        assert out.splitlines()[-1].endswith("are equal to the bit.")


class TestTrainingStagesByStatistics:
    @pytest.mark.parametrize("command", ["actor-vs-ref", "onpolicy"])
    @pytest.mark.parametrize("has_checksums", [False, True], ids=["statistics", "checksums"])
    def test_equal_stages_agree(self, run: Run, runs: Make, tmp_path: Path, command: str, has_checksums: bool) -> None:
        alike = runs(f"alike {has_checksums}", task="statistics", is_cut_alike=True, has_checksums=has_checksums)
        code, out, _ = run("verl", "compare", command, alike, "-o", tmp_path)
        assert code == 0
        verdict = out.splitlines()[-1]
        assert verdict.endswith("are equal to the bit, by checksums." if has_checksums else "have equal statistics.")
        assert "are of whole micro-batches" in out
        found = summary(tmp_path, command)["numbers"]
        assert found["by"] == ("checksums" if has_checksums else "statistics")
        # Two micro-batches, of which the first mini-batch of the update has both.
        assert found["steps"]["1"] == {
            "samples": 6, "micro_batches": 2, "other_micro_batches": 0, "is_equal": True, "first": None,
        }  # fmt: skip

    @pytest.mark.parametrize("has_checksums", [False, True], ids=["statistics", "checksums"])
    def test_another_reference_is_named_by_its_first_module(
        self, run: Run, runs: Make, tmp_path: Path, has_checksums: bool
    ) -> None:
        other = make_weights()
        other["model.layers.0.self_attn.v_proj.weight"] = other["model.layers.0.self_attn.v_proj.weight"] * 1.0001
        recipe = {"task": "statistics", "is_cut_alike": True, "has_checksums": has_checksums, "ref_weights": other}
        code, out, _ = run("verl", "compare", "actor-vs-ref", runs(f"ref {has_checksums}", **recipe), "-o", tmp_path)
        assert code == 1
        assert out.splitlines()[-1].endswith("first diverge at model.layers.0.self_attn.v_proj.")
        assert ("another checksum in call 0 of rank 0" in out) == has_checksums
        table = pl.read_csv(next(tmp_path.glob("*modules*.csv")))
        first = table.filter(~pl.col("is_equal")).row(0, named=True)
        assert (first["module"], first["by"]) == (
            "model.layers.0.self_attn.v_proj", "checksum" if has_checksums else "statistics",
        )  # fmt: skip
        if not has_checksums:
            assert first["error"] == pytest.approx(1e-4, rel=0.01)

    def test_what_rounding_explains_is_said(self, run: Run, runs: Make, tmp_path: Path) -> None:
        other = make_weights()
        name = "model.layers.0.self_attn.v_proj.weight"
        other[name] = np.nextafter(other[name], np.float32(np.inf))
        run_of = runs("rounding", task="statistics", is_cut_alike=True, ref_weights=other)
        code, out, _ = run("verl", "compare", "actor-vs-ref", run_of, "-o", tmp_path)
        assert code == 0
        assert out.splitlines()[-1] == ("AGREE: statistics of actor and reference are within what rounding explains.")
        assert "not equal, first at model.layers.0.self_attn.v_proj, statistics" in out

    def test_micro_batches_of_other_samples_say_nothing(self, run: Run, runs: Make, tmp_path: Path) -> None:
        code, _, err = run("verl", "compare", "actor-vs-ref", runs("statistics", task="statistics"), "-o", tmp_path)
        assert code == 2
        assert "none holds the same samples in both" in err
        assert '"task": "tensor"' in err


class TestRuns:
    def test_a_replay_is_equal_to_the_bit(
        self, run: Run, runs: Make, rollouts: dict[int, list[Sample]], tmp_path: Path
    ) -> None:
        replayed = runs("replayed", replay=rollouts)
        code, out, _ = run("verl", "compare", "runs", replayed, runs("healthy"), "--exact", "-o", tmp_path)
        assert code == 0, out
        assert out.splitlines()[-1].startswith("AGREE: equal to the bit, all ")
        assert summary(tmp_path, "runs")["numbers"]["likeness"] == {"equal": 38}

    def test_another_cut_and_order_is_no_difference(
        self, run: Run, runs: Make, rollouts: dict[int, list[Sample]], tmp_path: Path
    ) -> None:
        other = runs("other cut", replay=rollouts, order=3, micro=3, layout=BatchLayout.PADDED)
        code, out, _ = run("verl", "compare", "runs", other, runs("healthy"), "--exact", "-o", tmp_path)
        assert code == 0, out

    @pytest.mark.parametrize("fault", [None, "o_proj"])
    def test_an_order_of_samples_does_not_hide_the_true_place(
        self, run: Run, runs: Make, rollouts: dict[int, list[Sample]], tmp_path: Path, fault: str | None
    ) -> None:
        """Rounding of sums in another order is no difference, even if everything must be equal; a fault is."""
        name = f"model.layers.0.self_attn.{fault}.weight"

        def trained(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            rounded = {n: v * np.float32(1 + 1e-7) for n, v in weights.items()}
            return rounded | ({name: weights[name] * np.float32(1.01)} if fault else {})

        other = runs(f"order, {fault}", replay=rollouts, order=3, trained=trained)
        code, out, _ = run("verl", "compare", "runs", other, runs("healthy"), "--exact", "-o", tmp_path)
        assert code == (1 if fault else 0), out
        assert "takes its samples in other micro-batches or another order than golden" in out
        verdict = out.splitlines()[-1]
        if fault:
            assert verdict == f"DIFFERENT: step 1: first in update_weights_send, {name}."
        else:
            assert verdict.startswith("AGREE: equal to the bit before step 1, within limits from there")

    @pytest.mark.parametrize(
        ("how", "status", "said"),
        [
            ({"order": 3}, 0, "the two sides take the same 6 samples in other micro-batches"),
            ({"seed": 1}, 2, "only 0 of 6"),
        ],
        ids=["order", "samples"],
    )
    def test_locate_does_not_blame_calls_of_other_samples(
        self, run: Run, rollouts: dict[int, list[Sample]], tmp_path: Path, how: dict[str, int],
        status: int, said: str,
    ) -> None:  # fmt: skip
        replay = {} if "seed" in how else {"replay": rollouts}
        for name, recipe in (("golden", {}), ("target", {**replay, **how})):
            write_run(tmp_path / name, Recipe(task="statistics", steps=1, **recipe))
        sides = [tmp_path / name / "actor_update" for name in ("target", "golden")]
        code, out, err = run("locate", *sides, "-o", tmp_path / "out")
        assert code == status
        assert said in out + err
        assert "FAULT" not in out

    def test_what_differs_first_is_to_blame(
        self, run: Run, runs: Make, rollouts: dict[int, list[Sample]], tmp_path: Path
    ) -> None:
        name = "model.layers.0.self_attn.o_proj.weight"
        faulty = runs("faulty", replay=rollouts, trained=lambda weights: weights | {name: weights[name] * 1.01})
        code, out, _ = run("verl", "compare", "runs", faulty, runs("healthy"), "-o", tmp_path)
        assert code == 1
        assert out.splitlines()[-1] == f"DIFFERENT: step 1: first in update_weights_send, {name}."
        first = summary(tmp_path, "runs")["findings"][0]
        assert (first["step"], first["place"]) == (1, f"update_weights_send/{name}")

    def test_another_rule_of_rewards_is_to_blame(
        self, run: Run, runs: Make, rollouts: dict[int, list[Sample]], tmp_path: Path
    ) -> None:
        other = runs("another rule", replay=rollouts, reward=0.5)
        code, out, _ = run("verl", "compare", "runs", other, runs("healthy"), "-o", tmp_path)
        assert code == 1
        assert out.splitlines()[-1] == "DIFFERENT: step 1: first in reward, scores."
        assert "6 of 6 differ" in out

    def test_rounding_is_within_limits_but_not_exact(
        self, run: Run, runs: Make, rollouts: dict[int, list[Sample]], tmp_path: Path
    ) -> None:
        rounded = runs(
            "rounded", replay=rollouts, trained=lambda w: {n: v * np.float32(1 + 1e-7) for n, v in w.items()}
        )
        code, out, _ = run("verl", "compare", "runs", rounded, runs("healthy"), "-o", tmp_path)
        assert code == 0, out
        assert "within their limits" in out.splitlines()[-1]
        assert run("verl", "compare", "runs", rounded, runs("healthy"), "--exact", "-o", tmp_path)[0] == 1

    def test_other_rollouts_are_said_to_be_so(self, run: Run, runs: Make, tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "runs", runs("other", seed=1), runs("healthy"), "-o", tmp_path)
        assert code == 1
        assert "update_weights_send" in out.splitlines()[-1]
        assert "0 of 6 samples have the same token ids" in out

    def test_runs_without_a_common_step(self, run: Run, runs: Make, tmp_path: Path) -> None:
        code, _, err = run("verl", "compare", "runs", runs("healthy"), runs("healthy"), "--steps", "7", "-o", tmp_path)
        assert code == 2
        assert "has no step 7" in err


def test_experts_are_a_set() -> None:
    scores = np.array([[0.1, 0.9, 0.5, 0.2], [0.1, 0.5, 0.9, 0.2], [3.0, 0.5, 0.9, 0.2]])
    assert chosen_experts(scores, 2).tolist() == [[1, 2], [1, 2], [0, 2]]


RECORDER = {"job": "", "host": "h", "process": 1, "started": 1.0}


class TestEndedEarly:
    @pytest.fixture
    def broken(self, runs: Make, tmp_path: Path) -> Path:
        """A healthy run whose process was killed in the second step of a stage: its dump has no mark of its end."""
        root = shutil.copytree(runs("healthy packed"), tmp_path / "run")
        (dump,) = (root / "actor_compute_log_prob" / "step2").glob("rank*/dump.json")
        dump.write_text(json.dumps(json.loads(dump.read_text()) | {"run": RECORDER}))
        return root

    def test_it_is_said_and_does_not_agree(self, run: Run, broken: Path, tmp_path: Path) -> None:
        command = ("verl", "compare", "layers", broken, "-o", tmp_path / "out")
        code, out, _ = run(*command)
        assert code == 2
        assert "Incomplete: actor_compute_log_prob, step 2 of rank 0 ended early, after " in out
        assert out.splitlines()[-1].startswith("Of what is there, which is not all: AGREE")
        assert len(summary(tmp_path / "out", "layers")["incomplete"]) == 1
        assert run(*command, "--allow-incomplete")[0] == 0

    def test_of_two_runs_too(self, run: Run, broken: Path, runs: Make, tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "runs", broken, runs("healthy packed"), "-o", tmp_path / "out")
        assert code == 2
        assert "Incomplete: actor_compute_log_prob, target: step 2 of rank 0 ended early, after " in out

"""The page of a whole run of an RL trainer: which stage of which step is out of its limits, and how far."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from rl_runs import LAYERS, Recipe, write_run

from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Language, worded
from msprobe_core.rl import RLStage, RoutedTokens, RunWriter
from msprobe_core.rl.invariants import CHECKS
from msprobe_core.rl.recorded import open_run
from msprobe_core.rl_page.build import RLPageOptions, page_of
from msprobe_core.rl_page.sightings import _BY_PLACE, _STAGE_OF_CHECK
from msprobe_core.view.data import RLTraining, ViewData, text_of
from msprobe_core.view.page_file import write_page
from msprobe_core.view.stored_graphs import StoredGraphs

STALE = f"model.layers.{LAYERS - 1}.mlp.down_proj.weight"
HOP = "sent → received"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("healthy") / "run", Recipe())


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, of whose weights one never arrives."""
    return write_run(tmp_path_factory.mktemp("stale") / "run", Recipe(steps=3, unsent=(STALE,)))


def page(run: Path, **options: object) -> ViewData:
    return page_of(open_run(run), None, RLPageOptions(**options))


def training(data: ViewData) -> RLTraining:
    assert data.rl is not None
    return data.rl


def cells(found: RLTraining, row: str) -> list[float | None]:
    return list(found.severity[found.rows.index(row)])


def test_every_invariant_belongs_to_a_stage() -> None:
    assert _STAGE_OF_CHECK.keys() | _BY_PLACE.keys() == CHECKS.keys()
    assert not _STAGE_OF_CHECK.keys() & _BY_PLACE.keys()


def test_a_healthy_run_is_within_its_limits(healthy: Path) -> None:
    data = page(healthy)
    found = training(data)
    assert (data.verdict.state, data.verdict.counts.flagged) == ("agree", 0)
    assert text_of(data.verdict.sentence) == "Nothing is out of its limits in 3 steps."
    assert found.rows[:2] == ["rollout_generate", "reward"]
    assert found.rows[-2:] == ["update_weights_send", HOP]
    assert cells(found, "actor_compute_log_prob")[0] is None  # step 0 has the first transfer only
    assert all(0 < each < 0.5 for each in cells(found, "actor_compute_log_prob")[1:])
    assert not [each for each in found.findings if each.level == "error"]


def test_the_first_hop_is_blamed_and_the_log_probs_follow(stale: Path) -> None:
    data = page(stale)
    found = training(data)
    assert data.verdict.state == "fault"
    assert text_of(data.verdict.sentence).startswith(f"Step 1, {HOP}, is the first that is out of its limits: {STALE}")
    assert cells(found, HOP) == [0.0, 1.0, 1.0, 1.0]
    log_probs = cells(found, "actor_compute_log_prob")
    assert log_probs[1] < 0.5 < log_probs[2]
    first = found.findings[0]
    assert (found.rows[first.row], first.step, first.level) == (HOP, 1, "error")
    assert first.command == f"msprobe weights compare {stale}"
    assert [curve.target for curve in found.curves if curve.group == "hops"] == [[0, 1, 1, 1]]


def test_curves_are_those_of_the_comparison(
    run: Callable[..., tuple[int, str, str]], stale: Path, tmp_path: Path
) -> None:
    found = training(page(stale, reads_tensors=False))
    run("rl", "compare", "logprob", stale, "-o", tmp_path)
    steps = json.loads((tmp_path / "rl_logprob.json").read_text())["numbers"]["steps"]
    curves = {curve.name: curve for curve in found.curves if curve.group not in {"hops", "metrics"}}
    assert curves.keys() > {"kl", "k3", "ppl_ratio", "chi2", "ratio_p99", "ratio_max", "clipped_low", "effective_share"}
    for name, curve in curves.items():
        assert curve.target[1:] == [steps[step][name] for step in "123"], name
    score = steps["2"]["scores"]["root mean square"]
    assert curves["rms"].limit is not None
    assert curves["rms"].limit[2] == pytest.approx(score["value"] / score["score"] * score["limit"])


def test_the_worst_token_is_in_its_text(stale: Path, tmp_path: Path) -> None:
    words = {f"w{i}▁" if i % 2 else f"▁w{i}": i for i in range(24)}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}}))
    found = training(page(stale, tokenizer=tmp_path, reads_tensors=False))
    worst = next(token for token in found.tokens if token.step == 2)
    _, tensors = open_run(stale).batch(2)
    gaps = np.abs(tensors["old_log_probs"].astype(float) - tensors["rollout_log_probs"]) * tensors["response_mask"]
    sample, position = np.unravel_index(int(gaps.argmax()), gaps.shape)
    assert (worst.sample, worst.position) == (sample, position)
    number = int(tensors["responses"][sample, position])
    assert worst.texts[worst.at] == (f"w{number} " if number % 2 else f" w{number}")
    assert abs(worst.differences[worst.at]) == pytest.approx(gaps.max(), rel=1e-6)
    assert len(worst.texts) == len(worst.differences)
    assert found.scale is not None
    assert gaps.max() > found.scale


def test_the_prompt_without_its_padding_is_before_the_response(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", config={})
    prompts, responses = np.array([[0, 0, 5, 6], [1, 2, 3, 4]]), np.array([[7, 8, 9], [7, 8, 9]])
    mask = np.concatenate([prompts != 0, responses != 0], axis=1)
    old = np.full((2, 3), -1.0, np.float32)
    rollout = old + np.array([[0, 0.5, 0], [0, 0, 0]], np.float32)
    counts = np.array([[1, 1, 0], [1, 1, 1]])
    tensors = {"prompts": prompts, "responses": responses, "attention_mask": mask, "response_mask": counts}
    run.batch(1, {**tensors, "old_log_probs": old, "rollout_log_probs": rollout})
    worst = training(page(tmp_path / "run")).tokens[0]
    assert (worst.sample, worst.position, worst.at) == (0, 1, 3)
    assert worst.texts == [" 5", " 6", " 7", " 8", " 9"]
    assert worst.differences == [None, None, 0.0, -0.5, None]


def test_without_a_tokenizer_tokens_are_numbers_and_a_note_says_why(healthy: Path, tmp_path: Path) -> None:
    data = page(healthy, reads_tensors=False)
    assert all(text.strip().isdigit() for token in training(data).tokens for text in token.texts)
    assert any("--tokenizer" in text_of(note) for note in data.notes)
    with pytest.raises(DumpError, match="cannot be read"):
        page(healthy, reads_tensors=False, tokenizer=tmp_path / "nowhere.json")


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", config={})
    ids = np.ones((2, 3), np.int64)
    run.batch(1, {"prompts": ids, "responses": ids, "attention_mask": np.ones((2, 6)), "response_mask": ids})
    data = page_of(open_run(tmp_path / "run"))
    assert data.verdict.state == "agree"  # by the invariants of what there is
    told = [text_of(note) for note in data.notes]
    assert any(line.startswith("msprobe rl compare logprob was left out: ") for line in told)
    assert any(line.startswith("msprobe weights compare was left out: ") for line in told)
    with pytest.raises(CompareError, match="none of those asked for"):
        page_of(open_run(tmp_path / "run"), None, RLPageOptions(steps=[7]))


def test_choices_of_experts_have_a_row_and_a_curve(tmp_path: Path) -> None:
    run, ids = RunWriter(tmp_path / "run", config={"router_replay": {"mode": "R3"}}), np.arange(1, 41).reshape(2, 20)
    tensors = {"prompts": ids[:, :4], "responses": ids[:, 4:], "attention_mask": np.ones((2, 20), np.int64)}
    experts = np.random.default_rng(0).permuted(np.tile(np.arange(8), (2, 20, 3, 1)), axis=-1)[..., :2]
    for step in (1, 2):
        other = experts.copy()
        if step == 2:
            other[1, 7:9, 1] = (experts[1, 7:9, 1] + 1) % 8
        run.routing(step, RLStage.ROLLOUT, RoutedTokens(experts=experts), tensors)
        run.routing(step, RLStage.ACTOR_LOG_PROB, RoutedTokens(experts=other), tensors)
    data = page(tmp_path / "run")
    found = training(data)
    assert cells(found, "routing")[0] == 0
    assert cells(found, "routing")[1] > 0.5
    assert "1 of 3 layers use their own router's, layer 1" in text_of(found.findings[0].text)
    (curve,) = (each for each in found.curves if each.group == "routing")
    assert curve.target == [0, pytest.approx(0.05)]


def test_findings_are_in_chinese_too(stale: Path) -> None:
    data = page(stale, reads_tensors=False)
    for each in training(data).findings:
        assert not isinstance(each.text, str)
        text = worded(each.text.finding, Language.CHINESE)
        assert re.search(r"[\u4e00-\u9fff]", text), text


def test_a_golden_run_colours_the_stage_that_differs(tmp_path: Path) -> None:
    first = Recipe()
    golden = write_run(tmp_path / "golden", first)
    target = write_run(tmp_path / "target", Recipe(replay=first.recorded, reward=0.5))
    data = page_of(open_run(target), open_run(golden), RLPageOptions(reads_tensors=False))
    found = training(data)
    assert (data.kind, data.verdict.state) == ("comparison", "fault")
    reward = cells(found, "reward")
    assert all(each > 0.5 for each in reward[1:])
    assert any("compare runs" in each.command for each in found.findings)
    assert next(curve for curve in found.curves if curve.name == "rms").golden is not None


def test_chosen_steps_and_the_command(run: Callable[..., tuple[int, str, str]], stale: Path, tmp_path: Path) -> None:
    code, out, err = run("view", stale, "-o", tmp_path / "page.html", "--step", "1", "--no-maps")
    assert code == 0, err
    assert out.startswith(f"Step 1, {HOP}, is the first")
    assert (tmp_path / "page.html").read_text().count("msprobe-data") >= 1
    assert training(page(stale, steps=[1], reads_tensors=False)).steps == [1]


def test_hostile_names_do_not_leave_the_data(tmp_path: Path) -> None:
    data = page(write_run(tmp_path / "<b>bold", Recipe(steps=1)), reads_tensors=False)
    with closing(StoredGraphs()) as graphs:
        write_page(data, graphs, tmp_path / "page.html", [])
    assert "<b>bold" not in (tmp_path / "page.html").read_text()

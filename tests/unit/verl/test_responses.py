"""Answers that loop, are garbage or have log-probs that are NaN; in files, in recorded runs, and while generated."""

from __future__ import annotations

import importlib
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from rl_runs import Recipe, write_run

from msprobe_core.former_names.imports import offer_former_names
from msprobe_core.rl import AnomalyKind, ResponseGuard


def words(count, seed=0):
    return random.Random(seed).choices(range(5000), k=count)


def found(tokens, log_probs=None):
    guard = ResponseGuard()
    return guard.feed(0, tokens, log_probs) or guard.finish(0)


@pytest.mark.parametrize("period", [1, 2, 3, 4, 7, 8, 9, 30, 150, 500])
def test_a_loop_is_found_with_its_period_and_begin(period):
    unit = words(period, period)
    anomaly = found([*words(100), *(unit * (600 // period + 4))])
    assert anomaly.kind is AnomalyKind.LOOP
    assert (anomaly.period, anomaly.begin) == (period, 100)


def test_healthy_answers_have_no_anomaly():
    assert found(words(5000)) is None
    assert found([*words(100), *[7] * 100, *words(100, 1)]) is None, "a ruler"
    assert found(words(600), [-1.2] * 600) is None


def test_an_anomaly_of_a_stream_is_told_once():
    guard = ResponseGuard()
    answers = [guard.feed("a", [1, 2, 3, 4]) for _ in range(150)]
    assert sum(answer is not None for answer in answers) == 1
    assert guard.feed("b", [1, 2, 3, 4]) is None
    assert guard.finish("a") is not None
    assert guard.finish("a") is None


def test_garbage_and_nan_are_told_from_log_probs():
    anomaly = found(words(300), [-1.0] * 150 + [-9.0] * 150)
    assert anomaly.kind is AnomalyKind.GARBAGE
    assert 100 < anomaly.begin < 200
    anomaly = found(words(10), [-1.0] * 4 + [math.nan] + [-1.0] * 5)
    assert (anomaly.kind, anomaly.begin) == (AnomalyKind.NAN, 4)


@pytest.mark.parametrize("loop", [600, 1000, 1400])
def test_the_published_function_has_the_published_types(loop):
    offer_former_names()
    analyze = importlib.import_module("msprobe.core.response_anomaly").analyze_output_anomaly
    sharp = [[-0.1, -4.0]]
    answers = [[1, 2, 3, 4] * (loop // 4), words(600), words(600), words(600), words(600)]
    log_probs = [
        sharp * len(answers[0]), [[-9.0, -9.5]] * 600, [[math.nan, -1.0]] + sharp * 599, sharp * 599 + [[-7.0, -7.1]],
        sharp * 600,
    ]  # fmt: skip
    assert analyze(log_probs, answers, {}) == [[True, 3], [True, 2], [True, 4], [True, 1], [False, 0]]


def test_a_file_is_checked_by_steps(run, tmp_path):
    lines = [{"step": step, "output": " ".join(map(str, words(200, step)))} for step in range(6)]
    lines[4]["output"] = "the same again. " * 100
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    code, out, err = run("responses", tmp_path / "a.jsonl", "-o", tmp_path)
    assert (code, err) == (1, "")
    assert "1 of 6 answers are anomalous: 1 loop, first in step 4." in out
    assert "step 3: 1 answers, 0 anomalous" in out
    assert run("responses", tmp_path / "a.jsonl", "--max-share", 0.5, "-o", tmp_path)[0] == 0


def test_a_recorded_run_is_checked(run, tmp_path):
    write_run(tmp_path / "run", Recipe(steps=1))
    code, out, _ = run("responses", tmp_path / "run", "-o", tmp_path)
    assert code == 0
    assert "none anomalous" in out


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "holds no answers"),
        ("[1]", "line 1: is no object"),
        ('{"tokens": [1', "line 1: is no JSON"),
        ('{"tokens": {}}', "has no text or token ids"),
    ],
)
def test_bad_files_are_answered(run, tmp_path: Path, content, sentence):
    (tmp_path / "a.jsonl").write_text(content)
    code, _, err = run("responses", tmp_path / "a.jsonl", "-o", tmp_path)
    assert code == 2
    assert sentence in err


def answers_over_steps(path: Path, change: Callable[[int], tuple[int, float, int]], num_steps: int = 12) -> Path:
    """Write eight answers a step; the function gives their length, log-prob and vocabulary at a step."""
    own = random.Random(5)
    with path.open("w") as file:
        for step in range(num_steps):
            length, level, words = change(step)
            for _ in range(8):
                count = max(20, round(length * own.uniform(0.8, 1.2)))
                tokens = [own.randrange(words) for _ in range(count)]
                values = [level * own.uniform(0.7, 1.3) for _ in tokens]
                file.write(json.dumps({"step": step, "tokens": tokens, "logprobs": values}) + "\n")
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda step: (60, -1.0, 5000), None),
        (lambda step: (60 + 20 * step, -1.0, 5000), "tokens of an answer: grows from"),
        (lambda step: (300 - 20 * step, -1.0, 5000), "tokens of an answer: falls from"),
        (lambda step: (100, -1.0 - 0.3 * step, 5000), "minus the log-prob of a token: grows from"),
        (lambda step: (100, -1.0, max(2, 8 - step // 2)), "repeated share of sequences of four tokens: grows from"),
    ],
    ids=["steady", "longer", "shorter", "less probable", "repetitive"],
)
def test_a_drift_over_the_steps_is_named(run, tmp_path, change, said):
    path = answers_over_steps(tmp_path / "answers.jsonl", change)
    code, out, _ = run("responses", path, "-o", tmp_path)
    assert code == 0
    assert (said in out) if said else ("times" not in out)
    code, out, _ = run("responses", path, "-o", tmp_path, "--max-drift", "1.5")
    assert code == (1 if said else 0)
    assert out.splitlines()[-1].startswith(f"DIFFERENT: {said}" if said else "AGREE: ")


def test_few_steps_have_no_drift(run, tmp_path):
    path = answers_over_steps(tmp_path / "answers.jsonl", lambda step: (60 * (step + 1), -1.0, 5000), num_steps=5)
    assert run("responses", path, "-o", tmp_path, "--max-drift", "1.5")[0] == 0

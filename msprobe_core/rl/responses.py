"""``msprobe responses``: which answers of a training or a service are anomalous, and since when."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import msgspec

from msprobe_core.errors import DamagedDumpError, DumpError, MissingDumpError
from msprobe_core.findings import Finding as Said
from msprobe_core.judge.verdict import Verdict
from msprobe_core.rl.detail_codes import ComparedCode, LineCode
from msprobe_core.rl.drift import MAX_GROWTH, drift_of
from msprobe_core.rl.files import RUN_FILE, RLStage
from msprobe_core.rl.headline_codes import HeadlineCode
from msprobe_core.rl.outcome import Finding, Outcome, table_of
from msprobe_core.rl.recorded import open_run
from msprobe_core.rl.response_guard import Anomaly, ResponseGuard
from msprobe_core.rl.rl_codes import AnswersCode
from msprobe_core.store.reading import check_exists
from msprobe_core.untrusted.files import read_plain, reading

_TOKENS = ("tokens", "token_ids", "response_ids", "output_ids", "output_token_ids", "responses")
_TEXTS = ("output", "response", "text", "completion", "answer")
_LOG_PROBS = ("logprobs", "log_probs", "token_logprobs", "rollout_log_probs", "output_logprobs")
_STEPS = ("step", "global_step", "policy_version")
_PIECE = re.compile(r" ?[^\W\d_]{1,5}|\d{1,3}|\s{1,8}|([^\w\s])\1{0,3}|_")
"""Pieces of a text without token ids, about as long as tokens."""


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        place: Where it is, for people.
        step: Step, or version of the policy; ``None`` if unknown.
        tokens: Token ids, or numbers of pieces of the text.
        log_probs: Log-probs of the tokens, if known.
    """

    place: str
    step: int | None
    tokens: Sequence[int]
    log_probs: Sequence[float | None] | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """An anomalous answer.

    Attributes:
        place: Where it is.
        step: Step, or version of the policy.
        kind: What is wrong.
        begin: Number of the token from which on.
        length: Tokens of the answer.
        period: Tokens that repeat.
        reason: A sentence.
        verdict: Always an error; for the colours of tables.
    """

    place: str
    step: int | None
    kind: str
    begin: int
    length: int
    period: int
    reason: Said
    verdict: str = Verdict.ERROR.value


@dataclass(frozen=True)
class ResponseOptions:
    """What is looked at.

    Attributes:
        tokens: Field of the token ids or of the text; ``None`` for known names.
        by: Field by which answers are counted; ``None`` for known names of steps.
        max_share: Share of answers that may be anomalous.
        max_drift: How many times answers may change over all steps; ``None`` if a drift is a warning only.
    """

    tokens: str | None = None
    by: str | None = None
    max_share: float = 0.0
    max_drift: float | None = None


class Measure(str, Enum):
    """What answers are followed by over the steps; a mean over the answers of a step."""

    LENGTH = "tokens of an answer"
    SURPRISE = "minus the log-prob of a token"
    REPEATED = "repeated share of sequences of four tokens"


def check_responses(path: Path, options: ResponseOptions) -> Outcome:
    """Check all answers of a file of JSON lines, of a directory of such files, or of a recorded run.

    Raises:
        CompareError: there is nothing at ``path``.
        DumpError: it holds no answers, or a file cannot be read.
    """
    check_exists(path)
    guard = ResponseGuard()
    counts: Counter[int | None] = Counter()
    rows: list[AnswerRow] = []
    levels: dict[int | None, list[float]] = {}
    measured: dict[Measure, dict[int, list[float]]] = {measure: {} for measure in Measure}
    total = 0
    for answer in _answers(path, options):
        counts[answer.step] += 1
        total += len(answer.tokens)
        known = [value for value in answer.log_probs or () if value is not None and math.isfinite(value)]
        if known:
            levels.setdefault(answer.step, []).append(sum(known) / len(known))
        if answer.step is not None:
            for measure, value in _measured(answer, known):
                measured[measure].setdefault(answer.step, []).append(value)
        guard.feed(answer.place, answer.tokens, answer.log_probs)
        found = guard.finish(answer.place)
        if found is not None:
            rows.append(_row(answer, found))
    if not counts:
        raise MissingDumpError(
            f"{path}: holds no answers; give a file of JSON lines with {_TOKENS[0]} or {_TEXTS[0]} in each"
        )
    return _outcome(path, options, counts, rows, levels, total, _drifted(measured, options))


def _measured(answer: Answer, log_probs: Sequence[float]) -> Iterator[tuple[Measure, float]]:
    tokens = answer.tokens
    yield Measure.LENGTH, float(len(tokens))
    if log_probs:
        yield Measure.SURPRISE, -sum(log_probs) / len(log_probs)
    if len(tokens) >= _FEWEST_TOKENS:
        grams = zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False)
        yield Measure.REPEATED, 1 - len(set(grams)) / (len(tokens) - 3)


def _drifted(measured: Mapping[Measure, Mapping[int, Sequence[float]]], options: ResponseOptions) -> list[Finding]:
    """Return what changes over the steps, in either direction, by more than chance."""
    found: list[Finding] = []
    allowed = options.max_drift or MAX_GROWTH
    for measure, of_steps in measured.items():
        steps = sorted(of_steps)
        means = [sum(of_steps[step]) / len(of_steps[step]) for step in steps]
        values = [max(mean, _LEAST[measure]) for mean in means]
        for is_growth in (True, False):
            drift = drift_of(steps, values if is_growth else [1 / value for value in values])
            if drift is not None and drift.is_over(allowed):
                first, last = (drift.first, drift.last) if is_growth else (1 / drift.first, 1 / drift.last)
                code = AnswersCode.GROWS if is_growth else AnswersCode.FALLS
                said = Said.of(code, measure=measure, first=first, last=last, count=len(steps), growth=drift.growth)
                verdict = Verdict.WARNING if options.max_drift is None else Verdict.ERROR
                found.append(Finding(verdict=verdict, said=said, place=measure.value))
    return found


_FEWEST_TOKENS = 16
_LEAST: Mapping[Measure, float] = {Measure.LENGTH: 1.0, Measure.SURPRISE: 1e-2, Measure.REPEATED: 1e-2}
"""Smaller means count as this: from none to little is no growth."""


def _row(answer: Answer, found: Anomaly) -> AnswerRow:
    return AnswerRow(
        place=answer.place, step=answer.step, kind=found.kind.value, begin=found.begin, length=len(answer.tokens),
        period=found.period, reason=found.said,
    )  # fmt: skip


def _answers(path: Path, options: ResponseOptions) -> Iterator[Answer]:
    if path.is_dir() and (path / RUN_FILE).exists():
        yield from _of_run(path)
        return
    for file in sorted(path.glob("**/*.jsonl")) if path.is_dir() else [path]:
        yield from _of_file(file, options)


def _of_run(path: Path) -> Iterator[Answer]:
    run = open_run(path)
    for step in run.steps(RLStage.TRAINER.value):
        _, tensors = run.batch(step)
        names = ("responses", "response_mask", "rollout_log_probs")
        found: list[Any] = [tensors.get(name) for name in names]
        responses, mask, log_probs = found
        if responses is None:
            continue
        for row in range(len(responses)):
            shown: Any = slice(None) if mask is None else mask[row] != 0
            values: list[float] | None = None if log_probs is None else log_probs[row][shown].tolist()
            tokens: list[int] = responses[row][shown].tolist()
            yield Answer(f"step {step}, sample {row}", step, tokens, values)


def _of_file(path: Path, options: ResponseOptions) -> Iterator[Answer]:
    with reading(path):
        lines = read_plain(path).splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            fields: Any = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # Python writes NaN as a word that JSON does not have.
            fields = _with_nan(line, where, error)
        if not isinstance(fields, dict):
            raise DumpError(f"{where}: is no object; each line is one answer, with {_TOKENS[0]} or {_TEXTS[0]}")
        yield _answer(cast("dict[str, Any]", fields), where, options)


def _with_nan(line: bytes, where: str, error: Exception) -> Any:
    try:
        return msgspec.json.decode(re.sub(rb"(?<=[\[,:\s])-?(NaN|Infinity)(?=[\],}\s])", b'"NaN"', line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise DamagedDumpError(f"{where}: is no JSON ({error}); the file is cut off or of another kind") from error


def _answer(fields: Mapping[str, Any], where: str, options: ResponseOptions) -> Answer:
    names = [options.tokens] if options.tokens is not None else [*_TOKENS, *_TEXTS]
    given = next((fields[name] for name in names if name in fields), None)
    if isinstance(given, str):
        tokens: Sequence[int] = [hash(found[0]) for found in _PIECE.finditer(given)]
    elif isinstance(given, list) and all(type(token) is int for token in cast("list[Any]", given)):
        tokens = cast("list[int]", given)
    else:
        raise DumpError(f"{where}: has no text or token ids in {' or '.join(names)}; name their field with --tokens")
    log_probs = next((fields[name] for name in _LOG_PROBS if isinstance(fields.get(name), list)), None)
    steps = [options.by] if options.by is not None else _STEPS
    step = next((fields[name] for name in steps if type(fields.get(name)) is int), None)
    if step is not None and not 0 <= step < 1 << 63:
        raise DumpError(f"{where}: its step, {step}, is none")
    return Answer(where, step, tokens, None if log_probs is None else [_number(value) for value in log_probs])


def _number(value: Any) -> float | None:
    if value == "NaN":
        return math.nan
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:  # of an integer that no float holds
        return math.nan


def _outcome(
    path: Path, options: ResponseOptions, counts: Counter[int | None], rows: Sequence[AnswerRow],
    levels: Mapping[int | None, Sequence[float]], total: int, drifts: Sequence[Finding],
) -> Outcome:  # fmt: skip
    number = sum(counts.values())
    is_fault = len(rows) > options.max_share * number
    verdict = Verdict.ERROR if is_fault else Verdict.WARNING
    findings = [
        Finding(
            verdict=verdict,
            said=Said.of(AnswersCode.OF_PLACE, place=r.place, reason=r.reason),
            step=None,
            place=r.place,
        )
        for r in rows
    ]
    by_step = Counter(row.step for row in rows)
    kinds = [
        Said.of(HeadlineCode.KIND, count=count, kind=kind)
        for kind, count in Counter(row.kind for row in rows).most_common()
    ]
    lines = [
        Said.of(
            LineCode.ANSWERS, step=step, count=counts[step], anomalous=by_step[step], level=_level(levels.get(step))
        )
        for step in sorted(step for step in counts if step is not None)
    ]
    said = Said.of(HeadlineCode.NO_ANOMALY, count=number)
    if rows:
        first = min((row.step for row in rows if row.step is not None), default=None)
        since = [] if first is None else [Said.of(HeadlineCode.SINCE, step=first)]
        said = Said.of(HeadlineCode.ANOMALIES, anomalous=len(rows), count=number, kinds=kinds, since=since)
    if drifts and not is_fault and drifts[0].is_fault:
        said = drifts[0].said
    shown = lines if len(lines) <= _MAX_LINES else _changed(lines, by_step)
    return Outcome(
        command="responses", paths=[path],
        compared=Said.of(ComparedCode.ANSWERS, answers=number, tokens=total),
        said=said, findings=[*findings, *drifts], lines=shown,
        numbers={"answers": number, "tokens": total, "anomalous": len(rows)},
        tables={"answers": table_of(AnswerRow, rows)} if rows else {},
    )  # fmt: skip


_MAX_LINES = 30


def _changed(lines: Sequence[Said], by_step: Mapping[int | None, int]) -> list[Said]:
    wrong = [line for line in lines if line.fields["anomalous"]]
    return [*wrong[:_MAX_LINES], Said.of(LineCode.ANOMALOUS_STEPS, count=len(by_step), total=len(lines))]


def _level(values: Sequence[float] | None) -> list[Said]:
    return [Said.of(LineCode.LEVEL, mean=sum(values) / len(values))] if values else []

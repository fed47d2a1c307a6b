"""The tokens whose log-probs differ most, in the text around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from msprobe_core.errors import DumpError
from msprobe_core.rl.recorded import RecordedRun
from msprobe_core.rl.token_texts import TokenTexts
from msprobe_core.view.data import RLToken, number

MOST_OF_A_STEP = 8
MOST = 400
"""Tokens of a page; of many steps, each has fewer."""

_BEFORE, _AFTER = 24, 8
"""How many tokens around one are shown."""

_MODELS = ("actor_rollout_ref.model.tokenizer_path", "actor_rollout_ref.model.path")


def tokenizer_of(run: RecordedRun, given: Path | None) -> TokenTexts:
    """Return the tokenizer that was named, or that of the run's model.

    Raises:
        DumpError: there is none, or it cannot be read.
    """
    if given is not None:
        return TokenTexts(given)
    paths = [Path(path) for name in _MODELS if isinstance(path := run.setting(name), str) and path]
    if not paths:
        raise DumpError("the run does not say which model it trains")
    return TokenTexts(next((path for path in paths if path.is_dir()), paths[0]))


def worst_tokens(run: RecordedRun, table: pl.DataFrame, rollout: str, texts: TokenTexts | None) -> Iterator[RLToken]:
    """Yield the worst tokens of each step, as many as fit.

    Args:
        run: The run.
        table: Its worst tokens, worst of each step first, as the comparison of log-probs has them.
        rollout: Name of the tensor that the trainer's log-probs were compared with.
        texts: The tokenizer; ``None`` to show numbers.

    Raises:
        DumpError: a batch cannot be read.
    """
    steps = table["step"].unique(maintain_order=True).to_list()
    count = max(1, min(MOST_OF_A_STEP, MOST // max(1, len(steps))))
    for step in steps:
        _, tensors = run.batch(step)
        for row in table.filter(pl.col("step") == step).head(count).iter_rows(named=True):
            yield _token(step, row, tensors, rollout, texts)


def _token(
    step: int, row: Mapping[str, Any], tensors: Mapping[str, Any], rollout: str, texts: TokenTexts | None
) -> RLToken:
    sample, position = int(row["sample"]), int(row["position"])
    prompt = _prompt(tensors, sample)[-_BEFORE:]
    ids = [*prompt, *_ids(tensors, "responses", sample)]
    differences = [*(None for _ in prompt), *_differences(tensors, rollout, sample)]
    place = len(prompt) + position
    begin = max(0, place - _BEFORE)
    around = slice(begin, place + _AFTER + 1)
    return RLToken(
        step=step, sample=sample, id=str(row["id"] or ""), position=position, training=number(row["training"]),
        rollout=number(row["rollout"]), at=place - begin, texts=_texts(ids, texts)[around],
        differences=[number(each) for each in differences[around]],
    )  # fmt: skip


def _ids(tensors: Mapping[str, Any], name: str, sample: int) -> list[int]:
    return [] if name not in tensors else np.asarray(tensors[name])[sample].tolist()


def _prompt(tensors: Mapping[str, Any], sample: int) -> list[int]:
    """Return the prompt without its padding; nothing where the batch does not say what is padding."""
    mask = tensors.get("attention_mask")
    if mask is None:
        return []
    seen = np.asarray(mask)[sample].tolist()
    width = len(seen) - len(_ids(tensors, "responses", sample))
    return [each for each, is_seen in zip(_ids(tensors, "input_ids", sample)[:width], seen, strict=False) if is_seen]


def _texts(ids: Sequence[int], texts: TokenTexts | None) -> list[str]:
    return [f" {each}" for each in ids] if texts is None else texts.texts(ids)


def _differences(tensors: Mapping[str, Any], rollout: str, sample: int) -> list[float | None]:
    mask, old, other = (tensors.get(name) for name in ("response_mask", "old_log_probs", rollout))
    if mask is None or old is None or other is None:
        return []
    differences = np.asarray(old[sample], np.float64) - np.asarray(other[sample], np.float64)
    return [float(d) if counts else None for d, counts in zip(differences, mask[sample] != 0, strict=True)]

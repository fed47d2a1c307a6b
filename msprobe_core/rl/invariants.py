"""What must hold in every recorded step, without another run to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from msprobe_core.errors import DumpError
from msprobe_core.findings import Field
from msprobe_core.findings import Finding as Said
from msprobe_core.judge.verdict import Verdict
from msprobe_core.rl.advantages import EPSILON, KL, Array, Variants, gae, grpo, weights_of_tokens
from msprobe_core.rl.files import BatchFile, RLStage, load_rewards
from msprobe_core.rl.outcome import Finding
from msprobe_core.rl.recorded import RecordedRun
from msprobe_core.rl.rl_codes import CheckCode
from msprobe_core.store import load_updates

_RTOL = 1e-3
"""Relative tolerance of values that were computed in float32 from those recorded."""

_MOST_CLIPPED = 0.5
_ACTOR = "actor_rollout_ref.actor"
_LEAST_KL = 1e-6
"""KL losses below this are rounding."""


@dataclass(frozen=True)
class RecordedStep:
    """One step of a run, as the trainer kept it.

    Attributes:
        run: The run.
        step: The trainer's step.
        batch: Description of the batch.
        tensors: Its tensors.
    """

    run: RecordedRun
    step: int
    batch: BatchFile
    tensors: Mapping[str, Array]

    @property
    def mask(self) -> Array | None:
        """Which tokens of the responses count."""
        found = self.tensors.get("response_mask")
        return None if found is None else np.asarray(found) != 0

    def setting(self, name: str, default: object = None) -> object:
        """Return a value of the trainer's configuration."""
        found = self.run.setting(name)
        return default if found is None else found

    def number(self, name: str, default: float) -> float:
        """Return a number of the trainer's configuration."""
        found = self.run.number(name)
        return default if found is None else found

    def metric(self, name: str) -> float | None:
        """Return a metric of the step; ``None`` if it was not logged or is not finite."""
        return self.batch.metrics.get(name)

    def wrong(self, place: str, code: CheckCode, **fields: Field) -> Finding:
        """Return a finding of this step; ``place`` is among its fields."""
        return Finding(verdict=Verdict.ERROR, said=Said.of(code, place=place, **fields), step=self.step, place=place)

    @property
    def is_on_policy(self) -> bool:
        """Whether the policy is updated once in a step, so that its first update is that of the sampled policy."""
        rows = self.number(f"{_ACTOR}.ppo_mini_batch_size", 0) * self.number("actor_rollout_ref.rollout.n", 1)
        return self.number(f"{_ACTOR}.ppo_epochs", 1) == 1 and rows >= self.batch.rows > 0


Check = Callable[[RecordedStep], Iterator[Finding]]


def finite(own: RecordedStep) -> Iterator[Finding]:
    """Tokens that count have finite values."""
    mask = own.mask
    for name, values in own.tensors.items():
        if values.dtype.kind != "f":
            continue
        bad = ~np.isfinite(values)
        if mask is not None and bad.shape == mask.shape:
            bad &= mask
        if bad.any():
            first = str(tuple(int(i) for i in np.argwhere(bad)[0]))
            yield own.wrong(name, CheckCode.NOT_FINITE, count=int(bad.sum()), first=first)


def masks(own: RecordedStep) -> Iterator[Finding]:
    """Masks, ids and positions agree with each other."""
    whole, mask = own.tensors.get("attention_mask"), own.mask
    prompts, responses, ids = (own.tensors.get(name) for name in ("prompts", "responses", "input_ids"))
    if prompts is not None and responses is not None and ids is not None:
        made = np.concatenate([prompts, responses], axis=1)
        if made.shape == ids.shape and (made != ids).any():
            yield own.wrong("input_ids", CheckCode.INPUT_IDS, row=_row(made != ids))
    if whole is None:
        return
    whole = np.asarray(whole) != 0
    if mask is not None and mask.shape[1] <= whole.shape[1]:
        lost = mask & ~whole[:, whole.shape[1] - mask.shape[1] :]
        if lost.any():
            yield own.wrong("response_mask", CheckCode.HIDDEN, count=int(lost.sum()), row=_row(lost))
    positions = own.tensors.get("position_ids")
    if positions is not None and positions.shape == whole.shape:
        right = np.maximum(np.cumsum(whole, axis=1) - 1, 0)
        off = (positions != right) & whole
        if off.any():
            why = [Said(CheckCode.POSITIONS_PADDING)] if _counts_padding(positions, whole) else []
            count = int(off.any(axis=1).sum())
            yield own.wrong("position_ids", CheckCode.POSITIONS, count=count, total=len(off), why=why)


def _counts_padding(positions: Any, whole: Any) -> bool:
    width: int = whole.shape[1]
    return bool(((positions == np.arange(width)) | ~whole).all())


def _row(flags: Array) -> int:
    return int(np.argwhere(flags)[0][0])


def rewards(own: RecordedStep) -> Iterator[Finding]:
    """Rewards of the batch are those that the reward function returned."""
    name = next((n for n in ("rm_scores", "token_level_scores") if n in own.tensors), None)
    if name is None or not own.batch.samples:
        return
    known: dict[str, list[float]] = {}
    for reward in load_rewards(own.run.path, own.step):
        if reward.score is not None:
            known.setdefault(reward.id, []).append(reward.score)
    totals = own.tensors[name].astype(np.float64)
    totals = totals.sum(axis=1) if totals.ndim > 1 else totals
    compared, wrong = 0, list[int]()
    for row, sample in enumerate(own.batch.samples):
        scores = known.get(sample.id, [])
        compared += bool(scores)
        if scores and min(abs(score - totals[row]) for score in scores) > _RTOL * max(1.0, abs(totals[row])):
            wrong.append(row)
    if not wrong:
        return
    of_files = sorted(score for scores in known.values() for score in scores)
    is_shuffled = len(of_files) == len(totals) and np.allclose(of_files, np.sort(totals), rtol=_RTOL, atol=_RTOL)
    first = own.batch.samples[wrong[0]]
    yield own.wrong(
        name, CheckCode.REWARDS, count=len(wrong), total=compared, sample=first.id[:12], own=float(totals[wrong[0]]),
        other=known[first.id][0], why=[Said(CheckCode.REWARDS_SHUFFLED)] if is_shuffled else [],
    )  # fmt: skip


def kl_in_reward(own: RecordedStep) -> Iterator[Finding]:
    """Rewards are scores less the penalty."""
    scores, used = own.tensors.get("token_level_scores"), own.tensors.get("token_level_rewards")
    if scores is None or used is None or own.mask is None:
        return
    penalty = np.zeros_like(scores, np.float64)
    if own.setting("algorithm.use_kl_in_reward"):
        estimate = KL.get(str(own.setting("algorithm.kl_penalty", "kl")))
        old, ref = own.tensors.get("old_log_probs"), own.tensors.get("ref_log_prob")
        if estimate is None or old is None or ref is None:
            return
        size = own.metric("actor/reward_kl_penalty_coeff") or own.number("algorithm.kl_ctrl.kl_coef", 0.0)
        penalty = size * estimate(old.astype(np.float64) - ref) * own.mask
    variants = {"right": scores - penalty, "with the sign of the KL penalty reversed": scores + penalty}
    yield from _explained(own, "token_level_rewards", used, variants)


def advantages(own: RecordedStep) -> Iterator[Finding]:
    """Advantages follow from the rewards."""
    used = next((own.tensors[n] for n in ("token_level_rewards", "token_level_scores", "rm_scores")
                 if n in own.tensors), None)  # fmt: skip
    found, mask = own.tensors.get("advantages"), own.mask
    if used is None or found is None or mask is None or used.shape != found.shape:
        return
    kind = own.setting("algorithm.adv_estimator")
    if kind == "grpo" and all(sample.uid for sample in own.batch.samples):
        divides = bool(own.setting("algorithm.norm_adv_by_std_in_grpo", True))
        groups = [str(sample.uid) for sample in own.batch.samples]
        epsilon = own.number("algorithm.epsilon", EPSILON)
        right = grpo(used, mask, groups, divides=divides, epsilon=epsilon)
        yield from _explained(own, "advantages", found, right)
    elif kind == "gae" and "values" in own.tensors:
        gamma, lam = own.number("algorithm.gamma", 1.0), own.number("algorithm.lam", 1.0)
        variants, returned = gae(used, own.tensors["values"], mask, gamma, lam)
        yield from _explained(own, "advantages", found, variants)
        if "returns" in own.tensors:
            yield from _explained(own, "returns", own.tensors["returns"], {"right": returned})


def _explained(own: RecordedStep, name: str, found: Array, variants: Variants) -> Iterator[Finding]:
    """Say of values that are not the right ones which mistake makes them."""
    mask = own.mask
    assert mask is not None
    right = variants["right"]
    if _is_near(found, right, mask):
        return
    others = [text for text, values in variants.items() if text != "right" and _is_near(found, values, mask)]
    factor = _factor(found, right, mask)
    why = (
        [Said.of(CheckCode.MISTAKE, mistake=others[0])] if others
        else [Said.of(CheckCode.FACTOR, factor=factor)] if factor else []
    )  # fmt: skip
    off = np.abs(np.where(mask, found - right, 0.0))
    row, position = np.unravel_index(int(off.argmax()), off.shape)
    sides = {"own": float(found[row, position]), "other": float(right[row, position])}
    yield own.wrong(name, CheckCode.DERIVED, why=why, row=int(row), position=int(position), **sides)


def _is_near(found: Array, right: Array, mask: Array) -> bool:
    difference, size = np.where(mask, found - right, 0.0), np.where(mask, right, 0.0)
    return bool(np.abs(difference).max(initial=0.0) <= _RTOL * max(float(np.abs(size).max(initial=0.0)), 1e-3))


def _factor(found: Array, right: Array, mask: Array) -> float | None:
    square = float((right * right)[mask].sum())
    factor = float((found * right)[mask].sum()) / square if square else 0.0
    return factor if factor and _is_near(found, factor * right, mask) else None


def reference(own: RecordedStep) -> Iterator[Finding]:
    """The reference does not follow the policy."""
    old, ref, mask = own.tensors.get("old_log_probs"), own.tensors.get("ref_log_prob"), own.mask
    steps = own.run.steps(RLStage.TRAINER.value)
    before = [step for step in steps if step < own.step]
    if old is None or ref is None or mask is None or not before or old.shape != mask.shape:
        return
    if not (old[mask] == ref[mask]).all() or not mask.any():
        return
    if has_updated(own.run.batch(before[-1])[0]) is False:
        return
    yield own.wrong("ref_log_prob", CheckCode.REFERENCE)


def has_updated(batch: BatchFile) -> bool | None:
    """Return whether the actor's parameters were changed in a step, by its metrics; ``None`` if these do not say."""
    rate, norm = batch.metrics.get("actor/lr"), batch.metrics.get("actor/grad_norm")
    return None if rate is None or norm is None else rate > 0 and norm > 0


def kl_loss(own: RecordedStep) -> Iterator[Finding]:
    """The KL loss is not negative, and is what the log-probs make it."""
    logged = next((m for n in ("actor/kl_loss", "kl_loss") if (m := own.metric(n)) is not None), None)
    kind = str(own.setting(f"{_ACTOR}.kl_loss_type", "low_var_kl"))
    if logged is None or kind not in KL:
        return
    if kind not in {"kl", "k1"} and logged < -_LEAST_KL:
        yield own.wrong("actor/kl_loss", CheckCode.KL_NEGATIVE, own=logged, kind=kind)
        return
    old, ref, mask = own.tensors.get("old_log_probs"), own.tensors.get("ref_log_prob"), own.mask
    weights = (
        None if mask is None else weights_of_tokens(mask, str(own.setting(f"{_ACTOR}.loss_agg_mode", "token-mean")))
    )
    if old is None or ref is None or weights is None or not own.is_on_policy:
        return
    made = float((KL[kind](old.astype(np.float64) - ref) * weights).sum())
    if abs(made) > 10 * _LEAST_KL and abs(logged + made) < 0.05 * abs(made):
        yield own.wrong("actor/kl_loss", CheckCode.KL_SIGN, own=logged, other=made)


def loss_parts(own: RecordedStep) -> Iterator[Finding]:
    """The loss is the policy's, plus the coefficient times the KL loss, less the entropy's part."""
    whole, policy = own.metric("actor/loss"), own.metric("actor/pg_loss")
    kl = next((m for n in ("actor/kl_loss", "kl_loss") if (m := own.metric(n)) is not None), None)
    size = own.number(f"{_ACTOR}.kl_loss_coef", 0.0)
    entropy = own.number(f"{_ACTOR}.entropy_coeff", 0.0)
    if whole is None or policy is None or kl is None or not size or entropy:
        return
    tolerance = 0.02 * abs(size * kl) + 1e-6 * abs(policy) + 1e-9
    if abs(whole - policy + size * kl) <= tolerance and abs(size * kl) > 4 * tolerance:
        yield own.wrong("actor/loss", CheckCode.LOSS_SIGN, own=whole, policy=policy, size=size, kl=kl)


def micro_losses(own: RecordedStep) -> Iterator[Finding]:
    """Losses of the first mini-batch's micro-batches are those of their samples, once over all tokens."""
    found, mask = own.tensors.get("advantages"), own.mask
    mode = str(own.setting(f"{_ACTOR}.loss_agg_mode", "token-mean"))
    if found is None or mask is None or not own.is_on_policy or own.number(f"{_ACTOR}.entropy_coeff", 0.0):
        return
    weights = weights_of_tokens(mask, mode)
    if weights is None or own.setting(f"{_ACTOR}.policy_loss.loss_mode", "vanilla") != "vanilla":
        return
    terms = -found.astype(np.float64) * weights
    old, ref = own.tensors.get("old_log_probs"), own.tensors.get("ref_log_prob")
    if own.setting(f"{_ACTOR}.use_kl_loss") and old is not None and ref is not None:
        estimate = KL.get(str(own.setting(f"{_ACTOR}.kl_loss_type", "low_var_kl")))
        size = own.number(f"{_ACTOR}.kl_loss_coef", 0.0)
        terms = terms if estimate is None else terms + size * estimate(old.astype(np.float64) - ref) * weights
    of_row = terms.sum(axis=1)
    pairs = list(_loss_pairs(own, of_row))
    made, logged = (np.array(side) for side in zip(*pairs, strict=True)) if pairs else (np.empty(0), np.empty(0))
    square = float(made @ made)
    if len(pairs) < 2 or square < 1e-12:
        return
    factor = float(made @ logged) / square
    num_ranks = len(own.run.ranks(RLStage.ACTOR_UPDATE.value, own.step))
    is_proportional = float(np.abs(logged - factor * made).max()) <= 0.02 * float(np.abs(made).max()) * abs(factor)
    if is_proportional and not any(abs(factor - right) < 0.05 * right for right in {1, num_ranks}):
        per_rank = len(pairs) / num_ranks
        why = (
            CheckCode.ADDED
            if abs(factor / num_ranks - per_rank) < 0.05 * per_rank or abs(factor - per_rank) < 0.05 * per_rank
            else CheckCode.SCALE
        )
        yield own.wrong("actor_update loss", CheckCode.MICRO_LOSSES, count=len(pairs), factor=factor, why=Said(why))


def _loss_pairs(own: RecordedStep, of_row: Array) -> Iterator[tuple[float, float]]:
    """Yield the expected and the recorded loss of each micro-batch of the first mini-batch."""
    rows: dict[str, list[int]] = {}
    for number, sample in enumerate(own.batch.samples):
        rows.setdefault(sample.id, []).append(number)
    samples = own.run.samples(RLStage.ACTOR_UPDATE.value, own.step)
    for rank, directory in own.run.ranks(RLStage.ACTOR_UPDATE.value, own.step).items():
        try:
            losses = {(loss.mini, loss.micro): loss.loss for loss in load_updates(directory).losses}
        except DumpError:
            continue
        for call in samples[rank].micro_batches if rank in samples else ():
            logged = losses.get((call.mini, call.micro))
            if call.mini == 0 and logged is not None and all(row.id in rows for row in call.rows):
                yield float(sum(of_row[rows[row.id][0]] for row in call.rows)), logged


def clipping(own: RecordedStep) -> Iterator[Finding]:
    """Few ratios are clipped, and none in the only update of a step."""
    for name in ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "critic/vf_clipfrac"):
        share = own.metric(name)
        if share is None:
            continue
        if not 0 <= share <= 1:
            yield own.wrong(name, CheckCode.NO_SHARE, share=share)
        elif name == "actor/pg_clipfrac" and own.is_on_policy and share > 0 and not is_bypassed(own.run):
            yield own.wrong(name, CheckCode.CLIPPED_AT_ONCE, share=f"{share:.1%}")
        elif share > _MOST_CLIPPED:
            yield own.wrong(name, CheckCode.CLIPPED, share=f"{share:.1%}")
    for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"):
        size = own.run.number(f"{_ACTOR}.{name}")
        if size is not None and not 0 < size < 1:
            yield own.wrong(name, CheckCode.CLIP_RATIO, setting=f"{_ACTOR}.{name}", size=size)


def is_bypassed(run: RecordedRun) -> bool:
    """Whether the trainer takes the engine's log-probs for its own, without computing any."""
    return bool(run.setting("algorithm.rollout_correction.bypass_mode"))


def same_policy(own: RecordedStep) -> Iterator[Finding]:
    """The only update of a step begins with the policy that computed the log-probs."""
    divergence = own.metric("actor/ppo_kl")
    if divergence is None or not own.is_on_policy or is_bypassed(own.run):
        return
    limit = 1e-2 if own.run.dtypes() & {"bfloat16", "float16"} else 1e-4
    if abs(divergence) > limit:
        yield own.wrong("actor/ppo_kl", CheckCode.OTHER_POLICY, divergence=divergence)


def export(own: RecordedStep) -> Iterator[Finding]:
    """Weights that were updated are sent with other values than before."""
    steps = own.run.steps(RLStage.WEIGHTS_SENT.value)
    before = [step for step in steps if step < own.step]
    if own.step not in steps or not before or has_updated(own.batch) is not True:
        return
    files = [own.run.weights(RLStage.WEIGHTS_SENT, step) for step in (before[-1], own.step)]
    if not all(files):
        return
    last, now = ({w.name: w.identity for w in file[min(file)].parameters} for file in files)
    if now and all(last.get(name) == identity for name, identity in now.items()):
        rate, norm = own.metric("actor/lr"), own.metric("actor/grad_norm")
        yield own.wrong(
            next(iter(now)), CheckCode.STALE_EXPORT, before=before[-1], count=len(now), rate=rate, norm=norm
        )


CHECKS: Mapping[str, Check] = {
    "finite values": finite, "masks and positions": masks, "rewards": rewards, "KL in rewards": kl_in_reward,
    "advantages": advantages, "reference": reference, "KL loss": kl_loss, "sign of the KL loss": loss_parts,
    "losses of micro-batches": micro_losses, "same policy": same_policy, "clipping": clipping, "export": export,
}  # fmt: skip
"""All invariants, causes before effects."""

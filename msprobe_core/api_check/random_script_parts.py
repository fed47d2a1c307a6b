"""Functions that scripts of random calls have copies of, without their annotations; see `script_parts`."""

# The arrays of scripts have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import numpy as np

from msprobe_core.api_check.draw_tests import binomial_bound, distance_bound, distance_of, pairs, places_bound


def distribution(values: Any, first: float, second: float) -> Any:
    """Return the cumulative distribution function; a script has one of `draw_tests`."""
    raise NotImplementedError


def least_of_mask(marks: Any, is_valid: Any, chance: float) -> float:
    """Return the least p-value of how many elements are marked, where, and together with their neighbours."""
    own = marks[is_valid]
    together = [p for _, p in pairs(marks & is_valid, is_valid, chance, chance)]
    return min(binomial_bound(int(np.sum(own)), own.size, chance), places_bound(own), *together)


@np.errstate(all="ignore")
def judge_dropout(result: Any, given: Any, rule: dict[str, Any]) -> tuple[bool, str]:
    """Return whether elements are dropped by chance and the others scaled, and what was found in words."""
    result, given = (each.reshape(rule["shape"]).astype("f8") for each in (result, given))
    kept = given * rule["scale"] + rule["shift"]
    size = np.abs(given * rule["scale"]) + abs(rule["shift"]) + abs(rule["dropped"])
    allowed = rule["tolerance"] * size + rule["tiny"]
    is_dropped = np.abs(result - rule["dropped"]) <= (allowed if rule["dropped"] else 0.0)
    counts = np.isfinite(given) & np.isfinite(result) & (np.abs(kept - rule["dropped"]) > 2.0 * allowed)
    neither = int(np.sum(counts & ~is_dropped & ~(np.abs(result - kept) <= allowed)))
    lead = (*result.shape[: result.ndim - rule["unit_dims"]], -1)
    units, valid = (is_dropped & counts).reshape(lead), counts.reshape(lead)
    in_part = int(np.sum(units.any(-1) & (units != valid).any(-1)))
    least = least_of_mask(units.any(-1), valid.any(-1), rule["chance"]) if rule["is_by_chance"] else 1.0
    share = np.sum(is_dropped & counts) / max(np.sum(counts), 1)
    words = f"{neither} neither dropped nor kept, {in_part} channels in part, {share:.2%} dropped, least p {least:.2g}"
    return bool(neither == 0 and in_part == 0 and least >= 1e-7), words


def judge_bernoulli(result: Any, _: Any, rule: dict[str, Any]) -> tuple[bool, str]:
    """Return whether ones are drawn by chance, and what was found in words."""
    result = result.reshape(rule["shape"])
    outside = int(np.sum((result != 0) & (result != 1)))
    least = least_of_mask(result == 1, np.ones(result.shape, bool), rule["chance"])
    words = f"{outside} neither 0 nor 1, {np.mean(result == 1):.2%} ones, least p {least:.2g}"
    return outside == 0 and least >= 1e-7, words


def judge_draw(result: Any, _: Any, rule: dict[str, Any]) -> tuple[bool, str]:
    """Return whether values are distributed as they should be, and what was found in words."""
    result = result.reshape(rule["shape"]).astype("f8")
    outside = int(np.sum(~((result >= rule["low"]) & (result <= rule["high"]))))

    def of(values: Any) -> Any:
        return distribution(values, rule["first"], rule["second"])

    distance = distance_of(np.sort(result, axis=None), rule["roundoff"], rule["span"], of)
    together = [p for _, p in pairs(result < rule["median"], np.ones(result.shape, bool), *rule["chances"])]
    least = min(distance_bound(distance, result.size), *together)
    words = f"{outside} outside of the bounds, distance from the distribution {distance:.2g}, least p {least:.2g}"
    return outside == 0 and least >= 1e-7, words

"""Functions that scripts of ``op_generate`` have copies of, without their annotations; see `script_parts`.

The metrics are those of `msprobe_core.api_check.published`, and its description holds. A script has to carry them.
"""

# The arrays of scripts have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import numpy as np

SEED = 0
STEP = [0]
"""Of a script: the seed, and the number of the iteration."""


def load_drawn(dtype: Any, kind: str, shape: Any, number: int, low: Any, high: Any, digits: int, least: int) -> Any:  # noqa: ARG001, D103  # short
    draw, size = np.random.default_rng([SEED, STEP[0], number]), int(np.prod(shape))
    share, turn = draw.random(size), np.exp(2j * np.pi * draw.random(size)) if kind[1] == "c" else 1
    values = np.clip(low * (1 - share) + high * share, low, high) * turn
    if kind[1] in "iub":
        values = draw.integers(low, high, size, dtype="i1" if kind[1] == "b" else kind, endpoint=True)
    values[:1], values[-1:] = (values[:1], values[-1:]) if kind[1] == "c" else (low, high)
    if digits:  # numbers of a dtype that NumPy does not have
        digit = np.maximum(np.frexp(values)[1], least + 1) - digits
        values = np.ldexp(np.rint(np.ldexp(values, -digit)), digit)
    return np.ascontiguousarray(values.astype(kind).reshape(shape))


@np.errstate(all="ignore")
def measure(result: Any, exact: Any, c: dict[str, Any]) -> dict[str, float]:
    """Return the published metrics of a result."""
    if c["standard"] == "binary":
        return {"Error Rate": float(np.mean(result != exact))}
    result, exact = result.ravel().astype(exact.dtype), exact.ravel()
    if exact.dtype.kind == "c":
        result, exact = (np.concatenate([each.real, each.imag]) for each in (result, exact))
    rounded, size, error = exact.astype(c["rounded"]).astype("f8"), np.abs(exact), np.abs(result - exact)
    finite, relative = np.isfinite(result) & np.isfinite(rounded), error / (size + c["golden_eps"])
    small = finite & (size < c["small_value"])
    normal, n, k = finite & ~small, exact.size, np.sum(finite & ~small)
    first, second = (each[~finite].clip(-c["largest"], c["largest"]) for each in (result, exact))
    equal = np.abs(first - second) / (np.abs(second) + c["golden_eps"]) <= c["rtol"]
    found = {
        "Relative Error Ratio": np.sum(relative[normal] > c["rtol"]) / max(k, 1),
        "Absolute Error Ratio": np.sum(error[small] > c["absolute_atol"]) / max(np.sum(small), 1),
        "Small Value Error Proportion": np.sum(error[small] > c["benchmark_atol"]) / max(np.sum(small), 1),
        "Maximum Relative Error": np.max(relative[normal], initial=0.0),
        "Mean Relative Error": np.sum(relative[normal]) / max(k, 1),
        "Root Mean Squared Error": np.sqrt(np.sum(error[normal] ** 2) / n * (n / (k + 1e-4) + 1e-4)),
        "Error Balance": abs(np.sum(result > rounded) - np.sum(result < rounded)) / n,
        "Inf/NaN Error Ratio": np.sum(~(equal | np.isnan(first) & np.isnan(second))) / max(first.size, 1),
        "Thousandth ratio": np.mean(relative < 0.001),
    }
    if "mantissa_bits" in c:
        powers = np.where(exact == 0, 0, np.maximum(np.frexp(exact)[1] - 1, c["min_exponent"]))
        units = np.ldexp(error, c["mantissa_bits"] - powers)[finite]
        found |= {"Maximum ULP Error": np.max(units, initial=0.0), "Mean ULP Error": np.sum(units) / max(units.size, 1)}
        found["ULP Error Proportion"] = np.sum(units > c["threshold"]) / max(units.size, 1)
    return {name: float(value) for name, value in found.items()}


def verdicts(found: dict[str, float], own: dict[str, float], c: dict[str, Any]) -> dict[str, str]:
    """Return what the standard says of metrics: by their limits, or by ratios to those of the CPU."""
    said = {name: "pass" if found[name] <= most else "error" for name, most in c["most"].items()}
    for name, most in c["ratios"].items():
        ratio = found[name] / max(own[name], c["minimum_error"])
        said[name] = ("pass" if ratio <= 1 else "warning" if ratio <= most else "error") + f", ratio {ratio:.4g}"
    return said


def report(result: Any, exact: Any, own: Any, c: dict[str, Any]) -> tuple[bool, str]:
    """Return whether a result is wrong by its standard, and all that is found of it as text."""
    text = f"Shape: {result.shape}\nDtype of out_device: {c['dtype']}\nDtype of out_bench: {exact.dtype}\n"
    text += f"Compare Standard: {c['standard']}\n"
    if (is_wrong := result.shape != exact.shape) or not exact.size:
        return (
            is_wrong,
            f"{text}Verdict: {f'error, the shape is not {exact.shape}' if is_wrong else 'pass, no elements'}",
        )
    found = measure(result, exact, c)
    said = verdicts(found, measure(own, exact, c), c)
    text += "".join(f"{name}: {value:.6g} {said.get(name, '')}".rstrip() + "\n" for name, value in found.items())
    worst = next(word for word in ("error", "warning", "pass") if any(each.startswith(word) for each in said.values()))
    return worst == "error", f"{text}Verdict: {worst}"

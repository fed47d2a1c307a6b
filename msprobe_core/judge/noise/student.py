"""Student's t distribution, and the gamma-function derivatives for moments of log variances.

In plain Python: a comparison needs only a few values, which do not justify a dependency on a larger library.
"""

from __future__ import annotations

import math

_MAX_TERMS = 500
_TINY = 1e-300


def tail(score: float, dof: float) -> float:
    """Return the probability that ``|t|`` exceeds ``score >= 0`` with ``dof`` degrees of freedom, which may be +Inf.

    Source: Abramowitz and Stegun, *Handbook of Mathematical Functions*, 26.7.1: it is ``I_x(dof / 2, 1 / 2)`` with ``x
        = dof / (dof + t^2)``; for infinite degrees of freedom ``erfc(t / sqrt(2))``.
    """
    if math.isinf(dof):
        return math.erfc(score / math.sqrt(2))
    return _incomplete_beta(dof / (dof + score * score), dof / 2, 0.5)


def limit_of(probability: float, dof: float) -> float:
    """Return the score that ``|t|`` exceeds with ``probability``, which is above 0 and below 1."""
    low, high = 0.0, 1.0
    while tail(high, dof) > probability and high < 1e12:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, dof) > probability else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function ``I_x(a, b)``.

    Source: Abramowitz and Stegun 26.5.8, the continued fraction, by the modified Lentz method (Press et al.,
    *Numerical Recipes*, 3rd ed., sec. 5.2 and 6.4).
    """
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    upper, lower = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = lower
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        step = 1.0
        for term in (even, odd):
            lower = 1 / _not_zero(1 + term * lower)
            upper = _not_zero(1 + term / upper)
            step = lower * upper
            value *= step
        if abs(step - 1) < 1e-14:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def digamma(x: float) -> float:
    """Return the derivative of ``log(gamma(x))`` at ``x > 0``. Source: Abramowitz and Stegun 6.3.5 and 6.3.18."""
    value = 0.0
    while x < 10:
        value -= 1 / x
        x += 1
    square = 1 / (x * x)
    return value + math.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square / 252))


def trigamma(x: float) -> float:
    """Return the second derivative of ``log(gamma(x))`` at ``x > 0``. Source: see `digamma`, 6.4.6 and 6.4.12."""
    value = 0.0
    while x < 10:
        value += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    return value + 1 / x + square / 2 + square / x * (1 / 6 - square * (1 / 30 - square / 42))


def inverse_trigamma(value: float) -> float:
    """Return the ``x`` whose trigamma is ``value > 0``."""
    low, high = 1e-6, 1e8
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if trigamma(middle) > value else (low, middle)
    return high

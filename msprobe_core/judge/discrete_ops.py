"""Calls that draw random numbers or take discrete decisions, by the names of their APIs."""

from __future__ import annotations

import re

import polars as pl

from msprobe_core import names

RANDOM = re.compile(
    r"(^|_)(dropout\d?d?|alpha_dropout|feature_dropout|bernoulli|multinomial|rand\w*|normal|uniform|exponential|gumbel"
    r"\w*|poisson|cauchy|geometric|log_normal)_?$"
)
"""Names of APIs that draw random numbers."""

DECIDES = re.compile(r"^(topk|argmax|argmin|sort|argsort|max|min|kthvalue|nonzero|unique\w*|searchsorted|bucketize)$")
"""Names of APIs whose integer results are decisions, which rounding can change."""


def api_of(entry: str) -> str:
    """Return the API of an entry; empty for a module."""
    stem = names.stem_of(entry)
    return names.split_api(stem)[1] if stem is not None and not names.is_module(stem) else ""


def is_decision() -> pl.Expr:
    """Whether ``entry`` is the forward call of an API whose integer results are decisions."""
    api = pl.col("entry").str.extract(names.API_OF_FORWARD)
    return api.str.contains(DECIDES.pattern).fill_null(False)

"""Precision that a value inherits from its inputs: a float32 sum of bfloat16 products is no better than bfloat16.

A dump does not record data flow, so a tensor is recognised by its statistics: one with the size, extremes and norm of
an earlier value is that value, even if it was cast or reshaped in between; one that shares an extreme with it is a part
of it, or contains it, as views and concatenations do. So:

* an input is as coarse as the value that it is;
* a result is as coarse as the coarsest input of its call, including parameters;
* a gradient is as coarse as those of the calls that used the result, and as the forward inputs of the call itself;
* a value without a recorded origin was made inside the enclosing module: it is as coarse as that module's inputs and
  the results so far. Without such a module, it has the usual precision of the dump.

So one float8 tensor widens the limits of values computed from it, and of nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import polars as pl

from msprobe_core import names
from msprobe_core.judge.limits import LOWEST_FINITE
from msprobe_core.model import Phase, Role
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import Rows

_NONE = -1
"""Level of a value that is not floating-point and not derived from one."""

_MAX_MAKERS = 4
"""Maximum number of calls that are stored as makers of one value: the API, its module, and enclosing modules."""


def inherited_precision(rows: Rows, parents: Mapping[str, str | None]) -> pl.Series:
    """Return the coarsest precision that contributed to each row, `Precision` as integers; null for other dtypes.

    Args:
        rows: Aligned rows in execution order, with ``precision``: their own, the coarser of both sides.
        parents: The enclosing calls of the target's calls, as far as known.
    """
    own = rows["precision"]
    if own.drop_nulls().n_unique() < 2:  # as in nearly all dumps of float32
        return own
    found = _Flow(rows, parents).levels()
    levels = pl.Series("precision", found, dtype=pl.Int8)
    return rows.select(pl.when(pl.col("precision").is_not_null()).then(levels).alias("precision"))["precision"]


class _Flow:
    """Processes calls in order, and tracks how coarse each value is."""

    def __init__(self, rows: Rows, parents: Mapping[str, str | None]) -> None:
        self._parents = parents
        self._own: list[int] = rows["precision"].fill_null(_NONE).to_list()
        self._levels = list(self._own)
        texts = rows.select(*[pl.col(name).cast(pl.String) for name in ("role", "phase")], *_identity())
        self._keys: list[int | None] = texts["identity"].to_list()
        self._is_constant: list[bool] = texts["is_constant"].to_list()
        self._extremes: list[tuple[float | None, ...]] = texts.select("largest", "smallest").rows()
        self._roles: list[str] = texts["role"].to_list()
        self._phases: list[str] = texts["phase"].to_list()
        self._spans: dict[str, list[int]] = {}
        for row, entry in enumerate(rows["entry"].to_list()):
            self._spans.setdefault(entry, []).append(row)
        self._usual = _usual(self._own)
        self._seen: dict[int, int] = {}
        self._seen_extremes: dict[float, int] = {}
        self._makers: defaultdict[int, list[str]] = defaultdict(list)
        self._takers: defaultdict[str, list[str]] = defaultdict(list)
        self._scopes: dict[str, int] = {}
        self._forward: dict[str, int] = {}
        self._returned: dict[str, int] = {}
        self._of_module: dict[str, int] = {}

    def levels(self) -> Sequence[int]:
        """Return the level of each row."""
        self._see_parameters()
        for entry, span in self._spans.items():
            self._enter(self._parents.get(entry))
            self._take(entry, span)
        return self._levels

    def _see_parameters(self) -> None:
        """Register parameters first: the APIs inside a module precede its entry, and take them as inputs."""
        for row, role in enumerate(self._roles):
            key = self._keys[row]
            if role == Role.PARAMETERS.value and key is not None:
                self._see(row, key, self._own[row])

    def _see(self, row: int, key: int, level: int) -> None:
        self._seen[key] = level
        for extreme in self._extremes[row]:
            if extreme is not None:
                self._seen_extremes[extreme] = level

    def _enter(self, scope: str | None) -> None:
        """Process a module's inputs before anything inside it, because its entry follows the inner ones."""
        entered: list[str] = []
        while scope is not None and scope not in self._scopes and len(entered) < len(self._spans):
            entered.append(scope)
            self._scopes[scope] = _NONE
            scope = self._parents.get(scope)
        for each in reversed(entered):
            inputs = [row for row in self._spans.get(each, ()) if self._roles[row] == Role.INPUT.value]
            # Unknown inputs may be made inside: a gradient can come from inside as well as from outside.
            self._scopes[each] = max((self._level_of(row, each) for row in inputs), default=_NONE)

    def _take(self, entry: str, span: Sequence[int]) -> None:
        phase = self._phases[span[0]]
        if phase == Phase.DEBUG.value:  # values that are only observed, and made elsewhere
            self._take_inputs(entry, span)
            return
        if phase == Phase.PARAMETERS_GRAD.value:
            self._take_results(entry, span, self._level_of_gradient(entry))
            return
        is_scope = entry in self._scopes
        inputs = [row for row in span if self._roles[row] != Role.OUTPUT.value]
        given = self._take_inputs(entry, inputs)
        made = [row for row in span if self._roles[row] == Role.OUTPUT.value]
        if phase == Phase.BACKWARD.value:
            self._take_backward(entry, made, given, is_scope=is_scope)
            return
        level = self._take_results(entry, made, max(given, self._scopes[entry]) if is_scope else given)
        if phase == Phase.FORWARD.value:
            self._forward[entry] = level
            self._note_module(entry, level)
            for row in made:
                if (key := self._keys[row]) is not None:
                    self._makers[key] = [*self._makers[key][-_MAX_MAKERS + 1 :], entry]

    def _take_backward(self, entry: str, made: Sequence[int], given: int, *, is_scope: bool) -> None:
        forward = names.forward_of(entry) or ""
        level = max(given, self._forward.get(forward, _NONE), self._scopes[entry] if is_scope else _NONE)
        level = self._take_results(entry, made, level)
        self._returned[forward] = max(level, self._returned.get(forward, _NONE))
        self._note_module(entry, level)

    def _level_of_gradient(self, entry: str) -> int:
        """Return the level of a module's parameter gradients: that of its forward inputs and backward values."""
        backward = names.backward_of_parameters(entry)
        if backward is not None:  # its entry may follow this one
            self._enter(backward)
        stem = names.stem_of(entry)
        path = "" if stem is None else names.split_module(stem)[1]
        # A module that is never called itself is used by an enclosing one.
        while path and path not in self._of_module:
            path = path.rpartition(".")[0]
        levels = (self._of_module.get(path, self._usual), self._scopes.get(backward or "", _NONE))
        return max(levels)

    def _take_inputs(self, entry: str, rows: Sequence[int]) -> int:
        """Set the levels of a call's inputs, and return the coarsest."""
        found = _NONE
        for row in rows:
            key = self._keys[row]
            level = self._levels[row] = self._level_of(row, entry)
            if key is not None:
                self._see(row, key, level)
                if self._phases[row] == Phase.FORWARD.value:
                    for maker in self._makers.get(key, ()):
                        self._takers[maker].append(entry)
            found = max(found, level)
        return found

    def _level_of(self, row: int, entry: str) -> int:
        """Return the level of a value that a call takes."""
        key, own = self._keys[row], self._own[row]
        if self._roles[row] == Role.PARAMETERS.value or self._is_constant[row] or (key is None and own == _NONE):
            return own
        if key is not None and key in self._seen:
            return max(own, self._seen[key])
        parts = [self._seen_extremes[each] for each in self._extremes[row] if each in self._seen_extremes]
        return max(own, *parts) if parts else max(own, self._unknown(entry))

    def _take_results(self, entry: str, rows: Sequence[int], level: int) -> int:
        """Set the levels of results of a call whose inputs have ``level``; return the coarsest of all."""
        is_scope = entry in self._scopes
        coarsest = level
        for row in rows:
            key = self._keys[row]
            # A module returns values that something inside it has made.
            known = self._seen.get(key) if is_scope and key is not None else None
            found = self._levels[row] = max(self._own[row], level if known is None else known)
            if key is not None:
                self._see(row, key, found)
            coarsest = max(coarsest, found)
        made = max((self._levels[row] for row in rows), default=_NONE)
        scope = self._parents.get(entry)
        if scope is not None:
            self._scopes[scope] = max(self._scopes.get(scope, _NONE), made)
        return coarsest

    def _unknown(self, entry: str) -> int:
        """Return the level of a value without a recorded origin that ``entry`` takes."""
        if names.is_backward(entry):
            forward = names.forward_of(entry) or ""
            returned = [self._returned[taker] for taker in self._takers.get(forward, ()) if taker in self._returned]
            if returned:
                return max(returned)
        scope = self._parents.get(entry)
        return self._usual if scope is None else self._scopes.get(scope, self._usual)

    def _note_module(self, entry: str, level: int) -> None:
        if names.is_module(entry) and (stem := names.stem_of(entry)) is not None:
            path = names.split_module(stem)[1]
            self._of_module[path] = max(level, self._of_module.get(path, _NONE))


_COMMON = (0.0, 1.0, -1.0, *LOWEST_FINITE)


def _usual(own: Sequence[int]) -> int:
    """Return the median precision of the floating-point rows."""
    floats = sorted(level for level in own if level != _NONE)
    return floats[(len(floats) - 1) // 2]


def _identity() -> list[pl.Expr]:
    """Return the columns by which tensors are recognised: ``identity``, ``largest``, ``smallest``, and ``is_constant``.

    They are those of the golden side, which a fault does not change. Constants that every format represents exactly,
    such as zeros, identify nothing and have no identity; neither do common extremes.
    """
    is_tensor = {side: pl.col(f"kind_{side}") == RowKind.TENSOR.value for side in ("target", "golden")}

    def of(name: str) -> pl.Expr:
        return pl.when(is_tensor["golden"]).then(pl.col(f"{name}_golden")).otherwise(pl.col(f"{name}_target"))

    has_statistics = of("max").is_not_null() & of("min").is_not_null()
    is_constant = (of("max") == of("min")) & of("max").is_in([0.0, 1.0, -1.0])
    # Rounded, because the summation order of a norm depends on the tensor's memory layout.
    statistics = pl.struct(of("numel").alias("n"), of("max").alias("a"), of("min").alias("b"),
                           of("norm").round_sig_figs(4).alias("c"))  # fmt: skip
    is_any = is_tensor["target"].fill_null(value=False) | is_tensor["golden"].fill_null(value=False)
    identity = (
        pl.when(is_any & has_statistics & ~is_constant)
        .then(statistics.hash())
        .when(is_any & ~has_statistics & of("checksum").is_not_null())
        .then(of("checksum").hash())
    )
    extremes = [
        pl.when(is_any & of(name).is_finite() & ~of(name).is_in(_COMMON)).then(of(name)).alias(alias)
        for name, alias in (("max", "largest"), ("min", "smallest"))
    ]
    return [identity.alias("identity"), *extremes, (is_any & is_constant).fill_null(value=False).alias("is_constant")]

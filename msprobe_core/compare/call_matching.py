"""The calls of a dump in execution order, and their pairing with the calls of another dump.

A call is a forward entry with its backward entry, or a backward entry alone if no forward was recorded. Identities of
calls, from strict to loose: name, nesting, shapes and arguments; without the arguments; with the shapes of the results
alone; without the shapes; with the shapes, but ignoring enclosing modules that only one side has; and this without the
shapes.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import polars as pl

from msprobe_core import names
from msprobe_core.compare.canonical_names import Names
from msprobe_core.compare.lcs import Pair, align_sequences, settle
from msprobe_core.judge import limits
from msprobe_core.judge.formatting import formatted
from msprobe_core.judge.joining import by_entry, filtered
from msprobe_core.model import Phase, Role
from msprobe_core.order.communication_calls import is_communication
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_dump import StoredDump, rows_of

_SHAPED, _NESTED = 1, 3
"""Indices of two identities: name, nesting and shapes; and name and nesting only."""

_ALL_SHAPED = (0, 1, 4)
"""Indices of the identities that include the shapes."""

NO_CALL = -1

Identities: TypeAlias = Sequence[Sequence[int]]
"""Identities of the calls of one side, the strictest first."""


@dataclass(frozen=True)
class Calls:
    """The calls of one dump, in execution order; lists have one element per call.

    Attributes:
        entries: One row per entry, with ``entry``, ``phase``, ``stem``, ``index``, ``backward_pass`` and ``call``, the
            position of the call; null for entries that are not calls.
        leads: Entry that represents the call, forward if there is one.
        stems: Name without number, with the class of a module.
        indices: Number of the call, as text.
        texts: Canonical name.
        shapes: Equal if all positions of the call have the same kinds and shapes; between frameworks, if its tensors
            have the same shapes in any position.
        arguments: Equal if, in addition, all arguments other than tensors are equal; between frameworks, if its
            tensors, except for further results, have the same shapes.
        results: Equal if all results have the same kinds and shapes; between frameworks, if the first ones have one
            shape.
        are_named: Whether the user has named the call's partner; this and the following have a byte for each call, 1
            if it is so.
        are_backward: Whether no forward was recorded.
        have_backward: Whether a backward was recorded; calls of an optimizer have none.
        are_recomputed: Whether a forward ran inside a backward pass, as far as the dump shows.
        parents: Position of the enclosing call, or `NO_CALL`.
        chains: Equal if the enclosing calls have the same names; 0 if the nesting is unknown.
        owners: Canonical name of the enclosing module; empty if there is none, or it is unknown.
        is_foreign: Whether the other side is of another framework.
    """

    entries: pl.DataFrame
    leads: pl.Series
    stems: list[str]
    indices: list[str]
    texts: list[str]
    shapes: Sequence[int]
    arguments: Sequence[int]
    results: Sequence[int]
    are_named: bytes
    are_backward: bytes
    have_backward: bytes
    are_recomputed: bytes
    parents: Sequence[int]
    chains: Sequence[int]
    owners: list[str]
    dump: Dump
    is_foreign: bool = False

    def __len__(self) -> int:
        return len(self.leads)

    def values_of(self, call: int) -> Sequence[float | None]:
        """Return the norms of the tensors and the values of the numbers of a call, in the order of its rows."""
        norms, begins = self._values
        return norms.slice(begins[call], begins[call + 1] - begins[call]).to_list()

    @cached_property
    def _values(self) -> tuple[pl.Series, array[int]]:
        """Norms of all leads, and for each call the number of the first one of its own."""
        kinds = [RowKind.TENSOR.value] if self.is_foreign else [RowKind.TENSOR.value, RowKind.SCALAR.value]
        rows = filtered(rows_of(self.dump), ["entry", "norm"], pl.col("kind").is_in(kinds))
        calls = pl.DataFrame({"entry": self.leads}).with_row_index("call")
        listed = (
            rows.join(calls, on="entry", maintain_order="left").select("call", "norm").sort("call", maintain_order=True)
        )
        begins = listed["call"].search_sorted(pl.Series(range(len(self) + 1), dtype=pl.UInt32))
        return listed["norm"], array("q", begins.to_numpy().astype("int64"))


def list_entries(dump: Dump, *, is_foreign: bool = False) -> pl.DataFrame:
    """Return one row per entry, in execution order, with the columns for the identities of calls.

    Args:
        dump: The dump.
        is_foreign: Whether the other side is of another framework, whose arguments and their positions differ.
    """
    read = ["entry", "phase", "role", "key", "kind", "shape", "dtype", "text"]
    listed = by_entry(rows_of(dump), read, lambda part: _hashed_entries(part, is_foreign=is_foreign))
    entry = pl.col("entry")
    is_module = entry.str.contains(names.MODULE)
    found = listed.with_row_index("row").with_columns(
        pl.when(is_module)
        .then(numbered("entry").str.extract(names.MODULE_CALL, 1))
        .otherwise(entry.str.extract(names.API_CALL, 1))
        .alias("stem"),
        pl.when(is_module)
        .then(numbered("entry").str.extract(names.MODULE_CALL, 2))
        .otherwise(entry.str.extract(names.API_CALL, 2))
        .alias("index"),
        pl.when(pl.col("phase") == Phase.BACKWARD.value)
        .then(entry.str.extract(names.PASS_OF_BACKWARD))
        .fill_null("")
        .alias("backward_pass"),
    )
    # Thousands of calls have one stem, which is in memory once.
    return found.with_columns(pl.col("stem").cast(pl.Enum(sorted(found["stem"].drop_nulls().unique()))))


def numbered(entry: str) -> pl.Expr:
    """Return the names of entries as keys of rows begin with them: with a number, which some gradients have not."""
    is_without = pl.col(entry).str.ends_with(f".{Phase.PARAMETERS_GRAD.value}")
    return pl.when(is_without).then(pl.col(entry) + ".0").otherwise(pl.col(entry))


def _hashed_entries(rows: pl.DataFrame, *, is_foreign: bool) -> pl.DataFrame:
    """Return one row per entry with hashes of what its values are, from which the identities of calls are made."""
    place = pl.col("key").str.strip_prefix(pl.col("entry"))
    kinds = {dtype: limits.kind_of(dtype) for dtype in rows["dtype"].unique()}
    kind_of_dtype = pl.col("dtype").replace_strict(kinds, default=None, return_dtype=pl.String)
    shape = pl.struct("role", place.alias("place"), "kind", "shape", dtype_kind=kind_of_dtype)
    told = {
        "shapes": pl.col("shape_hash").bitwise_xor(),
        "arguments": pl.col("argument_hash").bitwise_xor(),
        "results": pl.col("shape_hash").filter(pl.col("role") == Role.OUTPUT.value).bitwise_xor().fill_null(0),
    }
    if is_foreign:
        is_tensor = (pl.col("kind") == RowKind.TENSOR.value) & (pl.col("role") != Role.PARAMETERS.value)
        is_further = (pl.col("role") == Role.OUTPUT.value) & ~place.str.contains(r"^\.output\.0(\.0)?$")
        tensor = formatted("{}{}", pl.col("role").cast(pl.String), pl.col("shape").fill_null(""))
        told = {
            name: tensor.filter(own).sort().str.join().hash()
            for name, own in (
                ("shapes", is_tensor),
                ("arguments", is_tensor & ~is_further),
                ("results", is_tensor & ~is_further & (pl.col("role") == Role.OUTPUT.value)),
            )
        }
    return (
        rows.with_columns(shape_hash=shape.hash(), argument_hash=pl.struct(place, "text").hash())
        .group_by("entry", maintain_order=True)
        .agg(pl.col("phase").first(), **told)
    )


def list_calls(dump: Dump, entries: pl.DataFrame, side: Names, crowded: frozenset[str], *, with_scopes: bool) -> Calls:
    """Return the calls of a dump.

    dump: The dump, for its nesting.
    entries: Result of `list_entries`.
    side: Provides the canonical names.
    crowded: Paths with more than one class of modules.
    with_scopes: Whether a name depends on the enclosing module.
    """
    is_forward = pl.col("phase") == Phase.FORWARD.value
    own = entries.filter(pl.col("stem").is_not_null() & (is_forward | (pl.col("phase") == Phase.BACKWARD.value)))
    forward = own.filter(is_forward)
    lone = own.filter(~is_forward).join(forward, on=["stem", "index"], how="anti", maintain_order="left")
    lone = lone.unique(["stem", "index"], keep="first", maintain_order=True)  # one for several passes through a call
    leads = pl.concat([forward, lone]).sort("row").with_row_index("call")
    entries = entries.join(
        leads.select("stem", "index", "call"), on=["stem", "index"], how="left", maintain_order="left"
    ).with_columns(
        # Gradients of parameters have their own numbers.
        call=pl.when(pl.col("phase") != Phase.PARAMETERS_GRAD.value).then(pl.col("call").cast(pl.Int64))
    )
    have_backward = bytearray(leads.height)
    for call in entries.filter(pl.col("phase") == Phase.BACKWARD.value)["call"].drop_nulls():
        have_backward[call] = True
    nesting = _Nesting(dump.parents, side, crowded)
    stems = _shared(leads["stem"])
    recomputed = dump.recomputed if isinstance(dump, StoredDump) else frozenset[str]()
    enclosing = [dump.parents.get(entry) for entry in leads["entry"]] if dump.parents else [None] * leads.height
    scopes = [nesting.scope(parent) for parent in enclosing] if with_scopes else [""] * len(stems)
    parents = pl.DataFrame({"entry": pl.Series(enclosing, dtype=pl.String)}).join(
        leads.select("entry", pl.col("call").cast(pl.Int64)), on="entry", how="left", maintain_order="left"
    )
    return Calls(
        entries=entries.drop("row", "shapes", "arguments", "results"),
        leads=leads["entry"],
        stems=stems,
        indices=_shared(leads["index"]),
        texts=[nesting.text(stem, scope) for stem, scope in zip(stems, scopes, strict=True)],
        shapes=array("Q", leads["shapes"].to_numpy()),
        arguments=array("Q", leads["arguments"].to_numpy()),
        results=array("Q", leads["results"].to_numpy()),
        are_named=bytes(not names.is_module(stem) and side.is_named(stem) for stem in stems),
        are_backward=(leads["phase"] == Phase.BACKWARD.value).to_numpy().tobytes(),
        have_backward=bytes(have_backward),
        are_recomputed=bytes(entry in recomputed for entry in leads["entry"]) if recomputed else bytes(leads.height),
        parents=array("q", parents["call"].fill_null(NO_CALL).to_numpy()),
        chains=array("q", [nesting.chain(parent) if dump.parents else 0 for parent in enclosing]),
        owners=[nesting.owner(parent) for parent in enclosing],
        dump=dump,
        is_foreign=side.words.is_foreign,
    )


def _shared(texts: Iterable[str]) -> list[str]:
    """Return texts of which equal ones are in memory once."""
    seen: dict[str, str] = {}
    return [seen.setdefault(text, text) for text in texts]


class _Nesting:
    """Canonical names of calls, and of their enclosing calls; each is computed once."""

    def __init__(self, parents: Mapping[str, str | None], side: Names, crowded: frozenset[str]) -> None:
        self._parents = parents
        self._side = side
        self._crowded = crowded
        self._texts: dict[tuple[str, str], str] = {}
        self._owners: dict[str, str] = {}
        self._chains: dict[str, int] = {}

    def text(self, stem: str, scope: str = "") -> str:
        known = self._texts.get((stem, scope))
        if known is None:
            known = self._texts[stem, scope] = canonical_text(self._side, stem, scope, self._crowded)
        return known

    def owner(self, entry: str | None) -> str:
        if entry is None:
            return ""
        known = self._owners.get(entry)
        if known is None:
            stem = names.stem_of(entry)
            known = self._owners[entry] = entry if stem is None else self.text(stem)
        return known

    def scope(self, entry: str | None) -> str:
        stem = None if entry is None else names.stem_of(entry)
        return names.split_module(stem)[1] if stem is not None and names.is_module(stem) else ""

    def chain(self, entry: str | None) -> int:
        """Return a number that identifies ``entry`` and everything around it; never 0."""
        path: list[str] = []
        seen: set[str] = set()
        while entry is not None and entry not in self._chains and entry not in seen:
            path.append(entry)
            seen.add(entry)
            entry = self._parents.get(entry)
        number = self._chains.get(entry or "", 1)
        for inner in reversed(path):
            # Other tools record a recomputed call inside a backward.
            number = hash((number, self.owner(inner), names.is_backward(inner))) or 1
            self._chains[inner] = number
        return number


def canonical_text(side: Names, stem: str, scope: str, crowded: frozenset[str]) -> str:
    """Return the name by which a call is known on both sides."""
    if not names.is_module(stem):
        return side.api_of(stem, scope)
    path = side.path_of(stem)
    return f"Module.{path}.{side.type_of(stem)}" if path in crowded else f"Module.{path}"


# --- pairing ------------------------------------------------------------------------------------------------------


class Matcher:
    """Pairs the calls of target and golden dump; pairs are positions, ascending in the target."""

    def __init__(self, target: Calls, golden: Calls, *, with_scopes: bool) -> None:
        """Prepare two sides; ``with_scopes``: canonical names already include the position of a call."""
        self._target = target
        self._golden = golden
        self._identities = _identities(target, golden, with_scopes=with_scopes)

    def in_sequence(self, *, is_fuzzy: bool) -> list[Pair]:
        """Return the pairs by position in the sequence; with ``is_fuzzy`` also by name and shapes, in any order."""
        own, other = self._identities
        if is_fuzzy:
            own, other = ([kind for i, kind in enumerate(side) if i in _ALL_SHAPED] for side in self._identities)
        pairs = align_sequences(own, other)
        pairs = settle(pairs, own[_SHAPED], other[_SHAPED], _Distance(self._target, self._golden))
        if self._share_updates():
            pairs = self._with_updates_by_value(pairs)
        left = _Left(self._target, self._golden, self._identities, pairs)
        del pairs  # which take 100 bytes each
        left.pair_moved_modules()
        left.pair_swapped()
        if is_fuzzy:
            left.pair_in_any_order()
            left.pair_in_sequence()
        return sorted(left.partners.items())

    def _share_updates(self) -> bool:
        """Whether ranks of one side each update a part of the parameters and communicate the rest, as ZeRO does."""
        sides = self._target, self._golden
        updates = [sum(owner == names.OPTIMIZER for owner in side.owners) for side in sides]
        exchanges = [sum(map(is_communication, side.leads)) for side in sides]
        return min(updates) > 0 and (updates[0] - updates[1]) * (exchanges[0] - exchanges[1]) < 0

    def _with_updates_by_value(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return pairs with those of an optimizer by name, shapes and values: a rank makes some of the other's calls.

        Parameters of many layers have one shape, so that the sequence does not tell whose updates are left out.
        """
        sides = self._target, self._golden
        by_kind: dict[tuple[str, int, int], tuple[list[int], list[int]]] = {}
        for number, side in enumerate(sides):
            for call, owner in enumerate(side.owners):
                if owner == names.OPTIMIZER:
                    by_kind.setdefault(_name_and_shapes(side, call), ([], []))[number].append(call)
        distance = _Distance(*sides)
        found: list[Pair] = []
        for own, other in by_kind.values():
            if len(own) <= len(other):
                found += ((i, _take_nearest(other, lambda j, i=i: distance(i, j))) for i in own)
            else:
                found += ((_take_nearest(own, lambda i, j=j: distance(i, j)), j) for j in other)
        others = [(i, j) for i, j in pairs if names.OPTIMIZER not in (sides[0].owners[i], sides[1].owners[j])]
        return sorted([*others, *found])

    def across_frameworks(self, *, is_fuzzy: bool) -> list[Pair]:
        """Return the pairs of two sides that compute the same in different ways.

        Modules are paired by path and number, in any order; APIs by operation and shapes, in sequence, within each pair
        of modules. The name alone never pairs calls: calls with one name and different shapes are different calls.
        """
        left = _Left(self._target, self._golden, self._identities, [])
        left.pair_numbered_modules()
        left.pair_inside_modules(_Distance(self._target, self._golden))
        if is_fuzzy:
            left.pair_in_any_order()
        return sorted(left.partners.items())

    def by_number(self) -> list[Pair]:
        """Return the pairs with equal names and numbers."""
        positions = {key: j for j, key in enumerate(zip(self._golden.texts, self._golden.indices, strict=True))}
        keys = enumerate(zip(self._target.texts, self._target.indices, strict=True))
        return [(i, positions[key]) for i, key in keys if key in positions]

    def disproves(self, pairs: Sequence[Pair], numbers: Sequence[Pair]) -> bool:
        """Whether ``pairs`` prove that the pairs in ``numbers`` are different calls.

        Different modules are a proof. Different shapes alone are not, since they may depend on the data, as for experts
        that get more or fewer tokens: then the values have to agree better too.
        """
        elsewhere, elsewhere_by_number = (len(p) - self._num_alike(p, _NESTED) for p in (pairs, numbers))
        if elsewhere != elsewhere_by_number:
            return elsewhere < elsewhere_by_number
        if self._num_alike(pairs, _SHAPED) <= self._num_alike(numbers, _SHAPED):
            return False
        distance = _Distance(self._target, self._golden)
        return distance.mean(pairs) <= distance.mean(numbers)

    def _num_alike(self, pairs: Sequence[Pair], kind: int) -> int:
        own, other = (side[kind] for side in self._identities)
        return sum(own[i] == other[j] for i, j in pairs)


def _identities(target: Calls, golden: Calls, *, with_scopes: bool) -> tuple[Identities, Identities]:
    """Return the identities of each side's calls, the strictest first."""
    if target.is_foreign:
        return _foreign_identities(target, golden)
    knows_nesting = any(target.chains) and any(golden.chains) and not with_scopes
    shared = {owner for owner in set(target.owners) & set(golden.owners) if owner}
    found: list[Identities] = []
    for side in (target, golden):
        bases = _hashes(side.texts, side.are_backward, side.are_recomputed)
        chains = side.chains if knows_nesting else array("q", bytes(8 * len(side)))
        owners = array("q", [hash(owner) if owner in shared else 0 for owner in side.owners])
        kinds: list[tuple[Sequence[int], ...]] = [
            (bases, chains, side.shapes, side.arguments),
            (bases, chains, side.shapes),
            (bases, chains, side.results),
            (bases, chains),
        ]
        if knows_nesting:
            kinds += [(bases, owners, side.shapes), (bases, owners)]
        found.append([_hashes(*kind) for kind in kinds])
    return found[0], found[1]


def _hashes(*columns: Sequence[object]) -> array[int]:
    """Return a hash for each row of columns, in a tenth of the memory of Python integers."""
    return array("q", map(hash, zip(*columns, strict=True)))


def _foreign_identities(target: Calls, golden: Calls) -> tuple[Identities, Identities]:
    """Return the identities of calls of two frameworks; their position is given by the enclosing pair of modules."""
    named = {text for text, is_named in zip(target.texts, target.are_named, strict=True) if is_named}
    found: list[Identities] = []
    for number, side in enumerate((target, golden)):
        by_shapes, by_arguments, by_results = (
            _hashes(side.texts, side.are_backward, kind) for kind in (side.shapes, side.arguments, side.results)
        )
        # First those with a backward on both sides, so that no call of the model is paired with one of the optimizer.
        by_gradients = _hashes(by_shapes, side.have_backward)
        # A pair named by the user matches even if its arguments differ; other calls do not.
        named_results = (
            identity if text in named else hash((number, i))
            for i, (identity, text) in enumerate(zip(by_results, side.texts, strict=True))
        )
        by_results = array("q", named_results)
        found.append([by_gradients, by_shapes, by_arguments, by_results])
    return found[0], found[1]


class _Distance:
    """The difference between the values of two calls."""

    def __init__(self, target: Calls, golden: Calls) -> None:
        self._target = target
        self._golden = golden

    def __call__(self, i: int, j: int) -> float:
        """Return the sum of the relative differences of their norms, each at most 1."""
        own, other = self._target.values_of(i), self._golden.values_of(j)
        return sum(_difference(a, b) for a, b in zip(own, other, strict=False))

    def mean(self, pairs: Sequence[Pair]) -> float:
        """Return the mean difference per value."""
        num_values = sum(len(self._target.values_of(i)) for i, _ in pairs)
        return sum(self(i, j) for i, j in pairs) / max(num_values, 1)


def _difference(a: float | None, b: float | None) -> float:
    if a is None or b is None or a == b:
        return float((a is None) != (b is None))
    ratio = abs(a - b) / max(abs(a), abs(b))
    return min(ratio, 1.0) if ratio == ratio else 1.0  # the ratio may be NaN


class _Left:
    """Pairs the calls that the sequences have left unmatched because their order differs."""

    def __init__(
        self,
        target: Calls,
        golden: Calls,
        identities: tuple[Identities, Identities],
        pairs: Sequence[Pair],
    ) -> None:
        self.partners = dict(pairs)
        self._taken = set(self.partners.values())
        self._target = target
        self._golden = golden
        self._identities = identities

    def _add(self, i: int, j: int) -> None:
        self.partners[i] = j
        self._taken.add(j)

    def _calls(self) -> tuple[list[int], list[int]]:
        own = [i for i in range(len(self._target)) if i not in self.partners]
        return own, [j for j in range(len(self._golden)) if j not in self._taken]

    def pair_moved_modules(self) -> None:
        """Pair modules with equal names and numbers, and the calls inside them in their order."""
        left, other_left = self._calls()
        if not left or not other_left:
            return
        target, golden = self._target, self._golden
        modules = {(golden.texts[j], golden.indices[j]): j for j in other_left if names.is_module(golden.stems[j])}
        inside, other_inside = _by_parent(target, left), _by_parent(golden, other_left)
        found: deque[Pair] = deque()
        for i in left:
            j = modules.get((target.texts[i], target.indices[i])) if names.is_module(target.stems[i]) else None
            if j is not None:
                self._add(i, j)
                found.append((i, j))
        while found:
            i, j = found.popleft()
            own = [k for k in inside.get(i, ()) if k not in self.partners]
            other = [k for k in other_inside.get(j, ()) if k not in self._taken]
            self._pair_in_sequence(own, other)

    def pair_numbered_modules(self) -> None:
        """Pair modules with equal paths, the first call with the first, and so on."""
        target, golden = self._target, self._golden
        calls: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
        for number, side in enumerate((target, golden)):
            for k in range(len(side)):
                if names.is_module(side.stems[k]):
                    calls.setdefault((side.texts[k], side.are_backward[k]), ([], []))[number].append(k)
        for own, other in calls.values():
            sides = ((own, target), (other, golden))
            sorted_calls = [sorted(listed, key=lambda k, side=side: int(side.indices[k])) for listed, side in sides]
            for i, j in zip(*sorted_calls, strict=False):
                self._add(i, j)

    def pair_inside_modules(self, distance: Callable[[int, int], float]) -> None:
        """Pair remaining calls by name and shapes, in sequence, inside each pair of modules and outside of all."""
        own, other = self._calls()
        partners = {j: i for i, j in self.partners.items()}
        inside = _by_enclosing(self._target, own, self.partners.keys())
        other_inside = _by_enclosing(self._golden, other, partners.keys())
        kinds, other_kinds = self._identities
        for (module, owner), rows in inside.items():
            columns = other_inside.get((self.partners[module] if module != NO_CALL else NO_CALL, owner), [])
            found = align_sequences(*([[kind[k] for k in listed] for kind in side] for side, listed in
                                      ((kinds, rows), (other_kinds, columns))))  # fmt: skip
            strict = [kinds[_SHAPED][k] for k in rows], [other_kinds[_SHAPED][k] for k in columns]
            found = settle(found, *strict, lambda i, j, rows=rows, columns=columns: distance(rows[i], columns[j]))
            for k, m in found:
                self._add(rows[k], columns[m])

    def pair_in_sequence(self) -> None:
        """Pair the remaining calls by their position in the sequence of remaining calls."""
        self._pair_in_sequence(*self._calls())

    def _pair_in_sequence(self, own: Sequence[int], other: Sequence[int]) -> None:
        kinds = [[kind[k] for k in own] for kind in self._identities[0]]
        other_kinds = [[kind[k] for k in other] for kind in self._identities[1]]
        for k, m in align_sequences(kinds, other_kinds):
            self._add(own[k], other[m])

    def pair_swapped(self) -> None:
        """Pair calls with equal names, numbers and shapes whose enclosing calls are a pair."""
        left, other_left = self._calls()
        target, golden = self._target, self._golden
        numbered = {(golden.texts[j], golden.indices[j]): j for j in other_left}
        own, other = (side[_SHAPED] for side in self._identities)
        for i in left:
            j = numbered.get((target.texts[i], target.indices[i]))
            if j is not None and own[i] == other[j]:
                parent = target.parents[i]
                if (NO_CALL if parent == NO_CALL else self.partners.get(parent)) == golden.parents[j]:
                    self._add(i, j)

    def pair_in_any_order(self) -> None:
        """Pair the first call with a name and shapes with the first such call of the other side, and so on."""
        left, other_left = self._calls()
        waiting: dict[tuple[str, int, int], deque[int]] = {}
        for j in other_left:
            waiting.setdefault(_name_and_shapes(self._golden, j), deque()).append(j)
        for i in left:
            if queue := waiting.get(_name_and_shapes(self._target, i)):
                self._add(i, queue.popleft())


def _by_parent(side: Calls, calls: Sequence[int]) -> dict[int, list[int]]:
    inside: dict[int, list[int]] = {}
    for call in calls:
        inside.setdefault(side.parents[call], []).append(call)
    return inside


_NOT_OF_MODEL = frozenset({names.OPTIMIZER, names.CLIP_GRAD})


def _by_enclosing(side: Calls, calls: Sequence[int], modules: Collection[int]) -> dict[tuple[int, str], list[int]]:
    """Return calls by the innermost enclosing module of ``modules``, or `NO_CALL`; those of an optimizer separately."""
    found: dict[tuple[int, str], list[int]] = {}
    for call in calls:
        module, seen = side.parents[call], {call}
        while module != NO_CALL and module not in modules and module not in seen:
            seen.add(module)
            module = side.parents[module]
        owner = side.owners[call] if side.owners[call] in _NOT_OF_MODEL else ""
        found.setdefault((NO_CALL if module in seen else module, owner), []).append(call)
    return found


def _take_nearest(calls: list[int], distance: Callable[[int], float]) -> int:
    """Remove and return the call at the smallest distance, the first of several."""
    nearest = min(calls, key=distance)
    calls.remove(nearest)
    return nearest


def _name_and_shapes(side: Calls, call: int) -> tuple[str, int, int]:
    return side.texts[call], side.are_backward[call], side.shapes[call]

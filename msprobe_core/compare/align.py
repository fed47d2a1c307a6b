"""Align two dumps: one row per pair of values, in the target's execution order.

If both sides have exactly the same calls, rows are paired by their names. Otherwise calls are paired first, by their
position in the sequence of calls, and rows within each pair by their position in the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from msprobe_core import names
from msprobe_core.compare.call_matching import Calls, Matcher, canonical_text, list_calls, list_entries, numbered
from msprobe_core.compare.canonical_names import Names, Naming, naming_of, note_unused
from msprobe_core.compare.contributions import without_lone_additions_to_zero
from msprobe_core.compare.keywords import with_keywords_paired
from msprobe_core.compare.layouts.micro_batches import MicroBatches
from msprobe_core.compare.lcs import Pair
from msprobe_core.compare.mapping import Matching, Rule
from msprobe_core.compare.pairing_codes import PairingCode
from msprobe_core.compare.row_pairs import SHARED, RowPairs, are_in_order, beside, pair_rows
from msprobe_core.compare.tools import are_foreign
from msprobe_core.findings import Finding
from msprobe_core.judge.columns import Match
from msprobe_core.judge.joining import any_of, filtered, hashed, kept, with_added_by_entry
from msprobe_core.judge.noise.operations import Operations, merged
from msprobe_core.model import Phase, Role
from msprobe_core.plugins import registry
from msprobe_core.protocols.storage import Dump
from msprobe_core.protocols.trainers import ApiMap
from msprobe_core.store.ending import ending_of
from msprobe_core.store.frame import COLUMNS, RowKind
from msprobe_core.store.stored_dump import rows_of
from msprobe_core.store.stored_rows import Rows, StoredRows, frame_of, narrowed, stored_as


@dataclass(frozen=True)
class Alignment:
    """Two dumps side by side.

    Attributes:
        rows: Columns of a dump's frame twice, ending in ``_target`` and ``_golden``; ``role`` and ``phase`` once;
            ``match`` says which sides have the row. ``entry`` is the target's, or a unique name for an entry that only
            the golden side has; ``entry_golden`` is the golden side's own. Rows are in the target's order; a row that
            only the golden side has follows its predecessor there.
        notes: How calls were paired.
        buffers: Canonical names of parameters that a framework may keep without recording them.
        wrappers: For target and golden dump, the path of the module around those that the other side has too.
        operations: Operations of the golden dump's calls; ``None`` within one framework.
    """

    rows: Rows
    notes: Sequence[Finding]
    buffers: Sequence[str] = ()
    wrappers: tuple[str, str] = ("", "")
    operations: Operations | None = None


def align(
    target: Dump,
    golden: Dump,
    matching: Matching = Matching(),  # noqa: B008  # frozen
    micro_batches: MicroBatches | None = None,
) -> Alignment:
    """Return two dumps side by side.

    Args:
        target: The target dump.
        golden: The golden dump.
        matching: How rows with different names are paired.
        micro_batches: Numbers of micro-batches if they differ: the last gradients of a parameter are then paired, into
            which those of all micro-batches were added, and what each micro-batch adds is left out.
    """
    frameworks = (target.header.framework, golden.header.framework)
    is_foreign = are_foreign(target.header, golden.header)
    is_plain = not matching.renames and not matching.rows and not is_foreign and micro_batches is None
    # Equal numbers of rows with different calls are rare, so try the fast path first.
    sides = rows_of(target), rows_of(golden)
    if is_plain and (rows := _beside_in_files(*sides)) is not None and not _have_other_shapes(rows):
        return Alignment(rows, [])
    if is_plain and (sides[0].height == sides[1].height or _have_same_entries(*sides)):
        own = _columns(target)
        other = with_keywords_paired(own, _columns(golden).with_columns(unit=pl.col("entry")))
        pairs = pair_rows(own, other)
        rows = beside(own, other, pairs)
        if not _may_be_shifted(rows, own, pairs, target, golden):
            return Alignment(without_lone_additions_to_zero(rows), [])
    return _align_calls(target, golden, matching, frameworks, micro_batches)


def _columns(dump: Dump) -> Rows:
    return narrowed(rows_of(dump), COLUMNS)


# --- rows ---------------------------------------------------------------------------------------------------------


def _beside_in_files(target: Rows, golden: Rows) -> StoredRows | None:
    """Return rows beside each other, if both sides are in files and have the same keys in the same order."""
    if isinstance(target, pl.DataFrame) or isinstance(golden, pl.DataFrame) or target.height != golden.height:
        return None
    golden = golden.in_parts(target.heights)
    pairs = zip(target.parts(["key"]), golden.parts(["key"]), strict=True)
    if not all(own.equals(other) for own, other in pairs):
        return None
    rest = [name for name in COLUMNS if name not in ("key", "entry", *SHARED)]
    own = {"key": "key"} | {f"{name}_target": name for name in rest} | {name: name for name in ("entry", *SHARED)}
    other = {f"{name}_golden": name for name in ("entry", *rest)}
    return target.named(own).beside(golden.named(other)).with_columns(match=pl.lit(Match.BOTH.value))


def _have_same_entries(target: Rows, golden: Rows) -> bool:
    own, other = (set(hashed(rows, "entry").unique()) for rows in (target, golden))
    return own == other


def _may_be_shifted(rows: Rows, own: Rows, pairs: RowPairs, target: Dump, golden: Dump) -> bool:
    """Whether pairs of one name may be different calls: a side lacks calls, or their shapes or order differ.

    Args:
        rows: The aligned rows.
        own: The target's rows.
        pairs: The pairs of rows.
        target: The target dump.
        golden: The golden dump.
    """
    if any_of(rows, pl.col("match") != Match.BOTH.value) and not _have_same_entries(rows_of(target), rows_of(golden)):
        return True
    if _have_other_shapes(rows):
        return True
    # Calls in another order may be different ones; only the nesting can decide.
    is_nested = bool(target.parents) and bool(golden.parents)
    return is_nested and not are_in_order(own, pairs, Phase.FORWARD.value)


def _have_other_shapes(rows: Rows) -> bool:
    """Whether a tensor of a forward has another shape on the other side."""
    is_pair = (pl.col("match") == Match.BOTH.value) & (pl.col("phase") == Phase.FORWARD.value)
    are_tensors = [pl.col(f"kind_{side}") == RowKind.TENSOR.value for side in ("target", "golden")]
    return any_of(rows, pl.all_horizontal(is_pair, *are_tensors, pl.col("shape_target") != pl.col("shape_golden")))


# --- calls --------------------------------------------------------------------------------------------------------


def _align_calls(
    target: Dump, golden: Dump, matching: Matching, frameworks: tuple[str, str], micro_batches: MicroBatches | None
) -> Alignment:
    is_foreign = are_foreign(target.header, golden.header)
    is_divided = micro_batches is not None
    paired = _pair_calls(target, golden, matching, frameworks, is_foreign=is_foreign, is_divided=is_divided)
    naming, entries, operations = paired.naming, paired.entries, paired.operations
    left, right = (
        _with_places(_columns(dump), listed, side, is_foreign=is_foreign)
        for dump, listed, side in ((target, entries[0], naming.target), (golden, entries[1], naming.golden))
    )
    right = _with_units(right, paired.units, *entries)
    if not is_foreign:
        right = with_keywords_paired(left, right)
    notes = [*naming.notes, *paired.notes]
    del paired, entries  # names of entries, before rows are made of both sides
    if matching.rows:
        right = stored_as(right, _with_given_pairs(frame_of(left), frame_of(right), matching.rows, notes))
    rows = without_lone_additions_to_zero(beside(left, right, pair_rows(left, right)))
    if micro_batches is not None:
        is_part = pl.coalesce("name_target", "name_golden").str.contains(names.CONTRIBUTION_ROW)
        rows = kept(rows, ~is_part)
    if is_foreign:
        rows = _without_unit_dimensions(rows, naming)
    return Alignment(
        rows,
        [*notes, *naming.unused(), *_note_nesting(target, golden, matching)],
        sorted({name for side in (naming.target, naming.golden) for name in side.words.map.buffers}),
        (naming.target.wrapper, naming.golden.wrapper),
        operations,
    )


@dataclass(frozen=True)
class _PairedCalls:
    """What rows are paired by once their calls are.

    Attributes:
        naming: Canonical names of both sides.
        entries: For each side the columns ``entry`` and ``stem``.
        units: The target's entry (``unit``) for each golden entry (``entry``) that has a partner.
        notes: How calls were paired.
        operations: Operations of the golden dump's calls; ``None`` within one framework.
    """

    naming: Naming
    entries: tuple[pl.DataFrame, pl.DataFrame]
    units: pl.DataFrame
    notes: Sequence[Finding]
    operations: Operations | None


def _pair_calls(
    target: Dump,
    golden: Dump,
    matching: Matching,
    frameworks: tuple[str, str],
    *,
    is_foreign: bool,
    is_divided: bool,
) -> _PairedCalls:
    """Pair the calls of two dumps."""
    listed = [list_entries(dump, is_foreign=is_foreign) for dump in (target, golden)]
    stems = [set(side["stem"].drop_nulls()) for side in listed]
    translates = matching.apis is not None or is_foreign
    maps: dict[str, ApiMap] = registry().api_maps() if translates else {}
    naming = naming_of(matching, frameworks, maps, (stems[0], stems[1]), is_foreign=is_foreign)
    crowded = _crowded(naming.target, stems[0]) | _crowded(naming.golden, stems[1])
    matched = _match_calls((target, golden), listed, matching, naming, crowded)
    return _PairedCalls(
        naming,
        (matched.entries[0].select("entry", "stem"), matched.entries[1].select("entry", "stem")),
        _units(matched.entries, matched.calls, naming, crowded, is_divided=is_divided),
        matched.notes,
        matched.operations,
    )


class _MatchedCalls(NamedTuple):
    """Pairs of calls.

    Attributes:
        entries: Entries of both sides, with the positions of their calls.
        calls: ``call`` and ``other_call``, the positions of pairs.
        notes: How calls were paired.
        operations: Operations of the golden dump's calls; ``None`` within one framework.
    """

    entries: tuple[pl.DataFrame, pl.DataFrame]
    calls: pl.DataFrame
    notes: Sequence[Finding]
    operations: Operations | None


def _match_calls(
    dumps: tuple[Dump, Dump], listed: list[pl.DataFrame], matching: Matching, naming: Naming, crowded: frozenset[str]
) -> _MatchedCalls:
    """Pair calls by what is known of each, which is given up on return.

    Args:
        dumps: Target and golden.
        listed: Their entries, which are taken out.
        matching: How calls are paired.
        naming: Canonical names of both sides.
        crowded: Paths with several classes of modules.
    """
    target, golden = dumps
    own, other = (
        list_calls(dump, listed.pop(0), side, crowded, with_scopes=naming.needs_scopes)
        for dump, side in zip(dumps, (naming.target, naming.golden), strict=True)
    )
    is_foreign = own.is_foreign
    matcher = Matcher(own, other, with_scopes=naming.needs_scopes)
    if is_foreign:
        pairs = matcher.across_frameworks(is_fuzzy=matching.is_fuzzy)
    else:
        pairs = matcher.in_sequence(is_fuzzy=matching.is_fuzzy)
    if naming.is_plain and _have_all_calls(target, golden, own.leads, other.leads):
        # Trust the numbers unless the sequence disproves them.
        by_number = matcher.by_number()
        if not matcher.disproves(pairs, by_number):
            pairs = by_number
    told = _note_translation(own, other, pairs, naming) if is_foreign else _note_numbers(own, other, pairs)
    columns = (np.fromiter((pair[side] for pair in pairs), np.int64, len(pairs)) for side in (0, 1))
    return _MatchedCalls(
        (own.entries, other.entries),
        pl.DataFrame(dict(zip(("call", "other_call"), columns, strict=True))),
        [*told, *_note_types(own, other, pairs, naming)],
        _operations(other, naming) if is_foreign else None,
    )


def _have_all_calls(target: Dump, golden: Dump, own: pl.Series, other: pl.Series) -> bool:
    """Whether each side has all calls of the other, except those that a truncated recording may lack."""
    sides = own.to_frame("entry"), other.to_frame("entry")
    lack = [others.join(calls, on="entry", how="anti").height for calls, others in (sides, sides[::-1])]
    may_lack = [not ending_of(dump).is_whole for dump in (target, golden)]
    return not any(lack) or (may_lack[0] and not lack[1]) or (may_lack[1] and not lack[0])


def _operations(golden: Calls, naming: Naming) -> Operations:
    """Return the operations of the golden dump's calls, and the approximation errors of both frameworks."""
    rows = golden.entries.filter(pl.col("phase") == Phase.FORWARD.value).drop_nulls("stem")
    side = naming.golden
    found = {
        stem: side.type_of(stem) if names.is_module(stem) else side.words.api(stem) for stem in rows["stem"].unique()
    }
    inexact = [words.map.inexact for words in (naming.target.words, side.words)]
    return Operations({entry: found[stem] for entry, stem in rows.select("entry", "stem").rows()}, merged(*inexact))


def _crowded(side: Names, stems: set[str]) -> frozenset[str]:
    """Return the paths with several classes of modules, so that the class is needed to distinguish them."""
    seen: dict[str, str] = {}
    crowded: set[str] = set()
    for stem in stems:
        if names.is_module(stem):
            path = side.path_of(stem)
            if seen.setdefault(path, stem) != stem:
                crowded.add(path)
    return frozenset(crowded)


def _units(
    entries: tuple[pl.DataFrame, pl.DataFrame],
    calls: pl.DataFrame,
    naming: Naming,
    crowded: frozenset[str],
    *,
    is_divided: bool,
) -> pl.DataFrame:
    """Return the target's entry (``unit``) for each golden entry (``entry``) that has a partner."""
    own, other = entries
    by_call = (
        other.select("entry", "phase", "backward_pass", other_call="call")
        .drop_nulls()
        .join(calls, on="other_call")
        .join(
            own.select("phase", "backward_pass", "call", unit="entry").drop_nulls(),
            on=["call", "phase", "backward_pass"],
        )
        .select("entry", "unit")
    )
    gradients = [_gradients(side, listed, crowded) for side, listed in ((naming.target, own), (naming.golden, other))]
    if is_divided:
        gradients = [own.filter("is_last").with_columns(index=pl.lit("last")) for own in gradients]
    by_module = gradients[1].join(gradients[0].rename({"entry": "unit"}), on=["text", "index"]).select("entry", "unit")
    # Saved values, and names of other tools without our structure.
    rest = [side.filter(pl.col("stem").is_null()).select("entry") for side in (other, own)]
    by_name = rest[0].join(rest[1], on="entry").with_columns(unit="entry")
    return pl.concat([by_call, by_module, by_name]).unique("entry", keep="first").unique("unit", keep="first")


def _gradients(side: Names, entries: pl.DataFrame, crowded: frozenset[str]) -> pl.DataFrame:
    """Return the entries of parameter gradients with canonical name and number, and whether each is the last one."""
    own = entries.filter((pl.col("phase") == Phase.PARAMETERS_GRAD.value) & pl.col("stem").is_not_null())
    stems = own["stem"].unique().to_list()
    texts = {stem: canonical_text(side, stem, "", crowded) for stem in stems}
    text = _translated(pl.col("stem").cast(pl.String), texts)
    number = pl.col("index").cast(pl.Int64, strict=False)
    return own.select("entry", "index", text=text, is_last=number == number.max().over("stem"))


def _translated(column: pl.Expr, texts: dict[str, str]) -> pl.Expr:
    return column.replace_strict(list(texts), list(texts.values()), default=None, return_dtype=pl.String)


def _with_places(rows: Rows, entries: pl.DataFrame, side: Names, *, is_foreign: bool) -> Rows:
    """Add ``place``, the canonical position of a row in its entry, and ``numbered``, the entry name used in keys."""

    def placed(part: pl.DataFrame) -> pl.DataFrame:
        rows = part.join(entries, on="entry", how="left", maintain_order="left").with_columns(
            numbered=numbered("entry")
        )
        rows = rows.with_columns(place=pl.col("key").str.strip_prefix(pl.col("numbered")).str.strip_prefix("."))
        if side.has_places():
            rows = _with_canonical_places(rows, side)
        if is_foreign:
            rows = _with_single_results_unpacked(rows)
        return rows.select("place", "numbered", key=_key("numbered"))

    return with_added_by_entry(rows, placed, ["entry", "key", "phase", "role"])


def _with_canonical_places(rows: pl.DataFrame, side: Names) -> pl.DataFrame:
    columns = ["stem", "phase", "role", "place"]
    known = rows.select(columns).unique().drop_nulls("stem")
    canonical = [_canonical_place(side, *cells) for cells in known.iter_rows()]
    rows = rows.join(
        known.with_columns(canonical=pl.Series(canonical, dtype=pl.String)),
        on=columns,
        how="left",
        maintain_order="left",
    )
    return rows.with_columns(place=pl.coalesce("canonical", "place")).drop("canonical")


def _with_single_results_unpacked(rows: pl.DataFrame) -> pl.DataFrame:
    """Treat the elements of a call's only result, if it is a sequence, as separate results.

    One framework returns a named tuple, recorded as one value, and another returns its elements: ``topk``, ``sort``.
    """
    is_backward = pl.col("phase") == Phase.BACKWARD.value
    of_results = pl.when(is_backward).then(pl.lit(Role.INPUT.value)).otherwise(pl.lit(Role.OUTPUT.value))
    is_result = pl.col("role").cast(pl.String) == of_results
    is_element = pl.col("place").str.contains(r"^(input|output)\.0\.\d")
    is_packed = is_result & (is_element | ~is_result).all().over("entry")
    unpacked = pl.col("place").str.replace(r"^(\w+)\.0\.", "${1}.")
    return rows.with_columns(place=pl.when(is_packed).then(unpacked).otherwise("place"))


def _canonical_place(side: Names, stem: str, phase: str, role: str, place: str) -> str:
    word = "" if role == Role.PARAMETERS_GRAD.value else f"{role}."
    if not place.startswith(word) or place == word:
        return place
    return word + side.place(stem, phase, role, place[len(word) :])


def _key(entry: str) -> pl.Expr:
    place = pl.col("place")
    return pl.when(place == "").then(pl.col(entry)).otherwise(pl.concat_str(entry, place, separator="."))


def _with_units(rows: Rows, units: pl.DataFrame, entries: pl.DataFrame, golden_entries: pl.DataFrame) -> Rows:
    """Add ``unit``, the name of a golden entry among the target's, and set ``key`` accordingly.

    Args:
        rows: Rows of the golden side, with places.
        units: The target's entry for each golden entry.
        entries: All entries of the target.
        golden_entries: All entries of the golden side.
    """
    named = (
        golden_entries.select("entry")
        .join(units, on="entry", how="left")
        .join(entries.select("entry", own=_FOREIGN), on="entry", how="left")
        # An unmatched entry with the name of a target's entry needs another name, so that the two stay separate.
        .with_columns(own=pl.when(pl.col("unit").is_null()).then("own").fill_null(""))
        .select(
            "entry",
            unit=pl.coalesce("unit", "entry") + pl.col("own"),
            unit_numbered=pl.coalesce(numbered("unit"), numbered("entry")) + pl.col("own"),
        )
    )

    def renamed(part: pl.DataFrame) -> pl.DataFrame:
        beside = part.join(named, on="entry", how="left", maintain_order="left")
        return beside.select("unit", key=_key("unit_numbered"))

    return with_added_by_entry(rows, renamed, ["entry", "place"])


FOREIGN = " (golden)"
"""Suffix for the entry of a call that only the golden dump has, if the target has a different one of that name."""

_FOREIGN = pl.lit(FOREIGN)


def _without_unit_dimensions(rows: Rows, naming: Naming) -> Rows:
    """Give parameters that one framework stores with additional dimensions of size 1 the shape of the other side."""
    maps = [side.words.map.unit_dimensions for side in (naming.target, naming.golden)]
    if not any(maps):
        return rows
    is_other = (pl.col("shape_target") != pl.col("shape_golden")).fill_null(False)
    is_parameter = pl.col("role").is_in([Role.PARAMETERS.value, Role.PARAMETERS_GRAD.value])
    columns = ("place_target", "entry", "entry_golden", "shape_target", "shape_golden")
    shapes: dict[int, str] = {}
    found = filtered(rows, columns, is_other & is_parameter, "position")
    for position, place, target, golden, shape, other in found.rows():
        parameter = place.rpartition(".")[2]
        stores_more = any(
            parameter in listed.get(names.split_module(names.stem_of(entry) or "")[2], ())
            for entry, listed in zip((target, golden), maps, strict=True)
        )
        if stores_more and _squeezed(shape) == _squeezed(other):
            shapes[position] = other
    if not shapes:
        return rows
    given = pl.int_range(pl.len(), dtype=pl.Int64).replace_strict(shapes, default=None, return_dtype=pl.String)
    return rows.with_columns(shape_target=pl.coalesce(given, "shape_target"))


def _squeezed(shape: str) -> list[str]:
    return [size for size in shape.strip("[]").split(", ") if size != "1"]


def _with_given_pairs(
    target: pl.DataFrame, golden: pl.DataFrame, rules: Sequence[Rule], notes: list[Finding]
) -> pl.DataFrame:
    """Return the golden side with the pairs of the user's data mapping; these rows have no other partner.

    A row mapped to nothing has no partner. Rules that cannot be applied are appended to ``notes``.
    """
    wanted = pl.DataFrame(
        {"name": [rule.target for rule in rules], "golden": [rule.golden for rule in rules]},
        schema={"name": pl.String, "golden": pl.String},
    ).with_row_index("rule")
    given = wanted.join(target.select("name", wanted_key="key", wanted_unit="entry").unique("name"), on="name").join(
        golden.select(golden="name").unique(), on="golden"
    )
    alone = wanted.filter(pl.col("golden") == "").join(
        target.select("name", wanted_key="key").unique("name"), on="name"
    )
    found = {*given["rule"], *alone["rule"]}
    notes += note_unused([rule for i, rule in enumerate(rules) if i not in found], len(rules), "a row of each dump")
    twice = given.filter(pl.col("golden").is_duplicated())
    count = twice["golden"].n_unique()
    notes += [
        Finding(PairingCode.ROW_PAIRED_TWICE, fields={"count": count, "first": name})
        for name in twice["golden"].head(1)
    ]
    golden = golden.with_row_index("position")
    mapped = (
        golden.join(given.select("golden", "wanted_key", "wanted_unit"), left_on="name", right_on="golden")
        .with_columns(key="wanted_key", unit="wanted_unit")
        .drop("wanted_key", "wanted_unit")
    )
    rest = golden.filter(~pl.col("name").is_in(given["golden"].to_list()))
    # A row whose partner is mapped to another row stays, without a partner.
    is_displaced = pl.col("key").is_in([*given["wanted_key"], *alone["wanted_key"]])
    rest = rest.with_columns(key=pl.when(is_displaced).then(pl.lit("displaced: ") + pl.col("key")).otherwise("key"))
    return pl.concat([rest, mapped]).sort("position").drop("position")


# --- notes --------------------------------------------------------------------------------------------------------


def _note_numbers(own: Calls, other: Calls, pairs: Sequence[Pair]) -> list[Finding]:
    shifted = [
        pair
        for pair in pairs
        if own.indices[pair[0]] != other.indices[pair[1]] and own.stems[pair[0]] == other.stems[pair[1]]
    ]
    if not shifted:
        return []
    fields = {"count": len(shifted), "first": _named(shifted[0], own, other)}
    return [Finding(PairingCode.BY_SEQUENCE, fields=fields)]


def _named(pair: Pair, own: Calls, other: Calls) -> Finding:
    return _with(own.leads[pair[0]], other.leads[pair[1]])


def _with(target: str, golden: str) -> Finding:
    return Finding(PairingCode.WITH, fields={"target": target, "golden": golden})


def _note_translation(own: Calls, other: Calls, pairs: Sequence[Pair], naming: Naming) -> list[Finding]:
    """Return a note on the translation of names, which happens without a request: frameworks or tools differ."""
    target, golden = (side.words.map.name for side in (naming.target, naming.golden))
    if not naming.knows_both:
        return []
    renamed = [(i, j) for i, j in pairs if own.stems[i] != other.stems[j]]
    first = [Finding(PairingCode.THE_FIRST, fields={"first": _named(pair, own, other)}) for pair in renamed[:1]]
    how = (
        Finding(PairingCode.BY_MAP, fields={"framework": target}) if target == golden
        else Finding(PairingCode.BY_MAPS, fields={"target": target, "golden": golden})
    )  # fmt: skip
    fields = {"how": how, "count": len(pairs), "renamed": len(renamed), "first": first}
    return [Finding(PairingCode.TRANSLATED, fields=fields)]


def _note_types(own: Calls, other: Calls, pairs: Sequence[Pair], naming: Naming) -> list[Finding]:
    modules = dict.fromkeys((own.stems[i], other.stems[j]) for i, j in pairs if names.is_module(own.stems[i]))
    differing = [(a, b) for a, b in modules if naming.target.type_of(a) != naming.golden.type_of(b)]
    if not differing:
        return []
    fields = {"count": len(differing), "first": _with(*differing[0])}
    return [Finding(PairingCode.OTHER_CLASSES, fields=fields)]


def _note_nesting(target: Dump, golden: Dump, matching: Matching) -> list[Finding]:
    if matching.layers is None:
        return []
    lacking = [dump.path for dump in (target, golden) if not dump.parents]
    return [Finding(PairingCode.NO_NESTING, fields={"path": str(path)}) for path in lacking]

"""Pairs of rows of two sides, by their keys."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from msprobe_core.compare.row_pairs import pair_rows

KEYS = st.lists(st.sampled_from("abcdef"), max_size=6)


def by_definition(target, golden):
    """Equal keys in order; the target's order, and a row of the golden side alone after its predecessor there."""
    left = list(enumerate(target))
    partners = {}
    for row, key in enumerate(golden):
        partner = next(((i, own) for i, own in left if own == key), None)
        if partner is not None:
            left.remove(partner)
            partners[row] = partner[0]
    after = {}
    anchor = -1
    for row in range(len(golden)):
        if row in partners:
            anchor = partners[row]
        else:
            after.setdefault(anchor, []).append((None, row))
    of_target = {own: row for row, own in partners.items()}
    pairs = after.get(-1, [])
    for row in range(len(target)):
        pairs += [(row, of_target.get(row)), *after.get(row, [])]
    return pairs


@given(KEYS, KEYS, KEYS, KEYS)
def test_rows_are_paired_by_key_whatever_both_sides_begin_and_end_with(head, own, other, tail):
    sides = [*head, *own, *tail], [*head, *other, *tail]
    found = pair_rows(*(pl.DataFrame({"key": keys}, schema={"key": pl.String}) for keys in sides))
    assert list(zip(found.target, found.golden, strict=True)) == by_definition(*sides)

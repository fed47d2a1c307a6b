"""Every stage of a comparison hands on the columns that its schema promises, of the dtypes it names, and no others."""

from pathlib import Path

import polars as pl
import pytest

from msprobe_core.compare import CompareOptions, compare_dumps, unit
from msprobe_core.judge.columns import ALIGNED, JUDGED, MEASURED, NODE, NODE_EVIDENCE, SCORED
from msprobe_core.judge.noise import NoiseModel

DATA = Path(__file__).parents[1] / "data"
TOOL = DATA / "mindstudio_probe"
PAIRS = {
    "statistics": (TOOL / "8.3.3_statistics", TOOL / "26.2.0_statistics"),
    "checksums": (TOOL / "26.2.0_md5", TOOL / "26.2.0_md5"),
    "structure": (TOOL / "26.2.0_structure", TOOL / "26.2.0_L1"),
    "tensors": (TOOL / "26.2.0_tensor", TOOL / "26.2.0_tensor"),
    "frameworks": (DATA / "frameworks" / "mindspore_fault", DATA / "frameworks" / "pytorch"),
}
SCHEMAS = (ALIGNED, MEASURED, JUDGED, SCORED, NODE, NODE_EVIDENCE)


@pytest.mark.parametrize("noise", [None, NoiseModel()], ids=["limits", "noise"])
@pytest.mark.parametrize("name", PAIRS)
def test_stages_hand_on_what_their_schemas_promise(name, noise, monkeypatch):
    found = {}
    align, judge, judge_nodes = unit.align, unit.judge, unit.judge_nodes

    def aligned(*dumps):
        alignment = align(*dumps)
        found[ALIGNED] = alignment.rows
        return alignment

    def judged(rows, **options):
        found[MEASURED], found[JUDGED] = rows, judge(rows, **options)
        return found[JUDGED]

    def nodes(rows):
        found[NODE] = judge_nodes(rows)
        return found[NODE]

    for stage, replacement in (("align", aligned), ("judge", judged), ("judge_nodes", nodes)):
        monkeypatch.setattr(unit, stage, replacement)
    own = compare_dumps(*PAIRS[name], options=CompareOptions(noise=noise)).units[0]
    found[SCORED], found[NODE_EVIDENCE] = own.weigh().rows, own.weigh().nodes
    assert {schema.name: schema.problems(found[schema]) for schema in SCHEMAS} == {each.name: [] for each in SCHEMAS}


def test_a_schema_names_what_is_lacking_unknown_and_of_another_dtype():
    problems = NODE.problems(pl.DataFrame({"position": [1], "entry": ["a"], "extra": [1.0]}))
    assert "node: lacks 'verdict'" in problems
    assert "node: has 'extra', which is in no schema" in problems
    assert "node: 'position' is Int64, not UInt32" in problems


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.name)
def test_every_column_says_what_it_means(schema):
    assert not schema.required.keys() & schema.optional.keys()
    assert all(column.meaning for column in (*schema.required.values(), *schema.optional.values()))

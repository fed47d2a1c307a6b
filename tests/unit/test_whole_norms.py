"""Norms of whole tensors, from what each rank has of them."""

import json
import os

import polars as pl
import pytest

from msprobe_core.cli import main
from msprobe_core.errors import DumpError
from msprobe_core.monitoring.files import read_monitored
from msprobe_core.monitoring.layout_file import Group, Layouts, Parts, read_layout
from msprobe_core.monitoring.parameter_classes import class_of
from msprobe_core.monitoring.whole_norms import layouts_of, whole_norms
from msprobe_core.protocols.monitoring import Part


def run_of(directory, norms):
    """Write what ranks have of ``grad_reduced``, and read it: a norm by rank and name."""
    for rank, own in norms.items():
        place = directory / f"Nov21_05-57-08-rank{rank}-95f81c46"
        place.mkdir()
        rows = [f"0,{name},0,{norm},[8],float32" for name, norm in own.items()]
        (place / "grad_reduced_0-0.csv").write_text("\n".join(["vpp_stage,name,step,norm,shape,dtype", *rows, ""]))
    return read_monitored(directory)


def norms_of(whole):
    return dict(whole.names.select("name", "norm").rows())


def half(number, whole=16):
    return Parts(update=Part(whole=(whole,), offset=(8 * number,), shape=(8,)))


def test_disjoint_parts_add_up_and_replicas_count_once(tmp_path):
    run = run_of(tmp_path, {rank: {"up": 3.0 + rank % 2, "bias": 12.0} for rank in range(4)})
    layouts = {rank: Layouts(rank=rank, parts={"0:up": half(rank % 2)}) for rank in range(4)}
    whole = whole_norms(run, layouts)
    assert norms_of(whole) == {"up": 5.0, "bias": 12.0}
    assert whole.gradient.rows() == [(0, 13.0)]


def test_a_missing_part_makes_no_norm(tmp_path):
    run = run_of(tmp_path, {0: {"up": 3.0, "bias": 12.0}})
    whole = whole_norms(run, {0: Layouts(rank=0, parts={"0:up": half(0)})})
    assert norms_of(whole) == {"up": None, "bias": 12.0}
    assert whole.gradient.rows() == [(0, None)]


def test_parts_that_are_no_blocks_make_no_norm(tmp_path):
    run = run_of(tmp_path, {rank: {"up": 3.0} for rank in range(2)})
    odd = Parts(update=Part(whole=(16,), offset=None, shape=(8,)))
    whole = whole_norms(run, {rank: Layouts(rank=rank, parts={"0:up": odd}) for rank in range(2)})
    assert norms_of(whole) == {"up": None}


def test_tensor_parallel_parts_add_up_and_stages_of_a_pipeline_do_not(tmp_path):
    run = run_of(tmp_path, {rank: {"up": 3.0 + rank % 2} for rank in range(4)})
    layouts = {
        rank: Layouts(
            rank=rank,
            groups={
                "tp": Group(ranks=(2 * (rank // 2), 2 * (rank // 2) + 1), index=rank % 2),
                "pp": Group(ranks=(rank % 2, rank % 2 + 2), index=rank // 2),
            },
            parts={"0:up": Parts(is_tensor_parallel=True)},
        )
        for rank in range(4)
    }
    whole = whole_norms(run, layouts)
    assert whole.names.select("pp", "name", "norm").rows() == [(0, "up", 5.0), (1, "up", 5.0)]
    assert whole.gradient.filter(pl.col("step") == 0)["norm"].to_list() == pytest.approx([50**0.5])


def test_the_command_prints_the_norm_of_each_step_and_writes_all(tmp_path, capsys):
    run_of(tmp_path, {0: {"up": 3.0}, 1: {"up": 4.0}})
    for rank, place in enumerate(sorted(tmp_path.glob("*-rank*"))):
        parts = {"0:up": {"update": {"whole": [16], "offset": [8 * rank], "shape": [8]}}}
        (place / "layout.json").write_text(json.dumps({"rank": rank, "parts": parts}))
    with pytest.raises(SystemExit) as end:
        main(["monitor", "norms", str(tmp_path), "-o", str(tmp_path / "out")])
    assert end.value.code == 0
    assert capsys.readouterr().out == "step 0: 5\n"
    assert pl.read_csv(tmp_path / "out" / "whole_norms.csv").rows() == [("grad_reduced", 0, 0, "up", 0, 5.0)]


@pytest.mark.parametrize(
    "content", ["", "[1]", '{"rank": -1}', '{"rank": 0, "parts": {"0:up": {"update": 3}}}', "\xff"]
)
def test_what_is_no_layout_is_refused_with_a_sentence(content, tmp_path):
    (tmp_path / "layout.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(DumpError, match="is no layout of a monitored rank"):
        read_layout(tmp_path)
    assert layouts_of(tmp_path.parent / "nothing") == {}


def test_the_latest_layout_of_a_rank_is_used(tmp_path):
    for number, name in enumerate("ba"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "layout.json").write_text(json.dumps({"rank": 3, "trainers": [str(number)]}))
        os.utime(tmp_path / name / "layout.json", (number, number))
    assert layouts_of(tmp_path)[3].trainers == ("1",)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.0.mlp.experts.3.up_proj.weight", "expert"),
        ("model.embed_tokens.weight", "embedding"),
        ("transformer.wte.weight", "embedding"),
        ("model.layers.0.input_layernorm.weight", "norm"),
        ("transformer.h.0.ln_1.bias", "bias"),
        ("layers.0.self_attention.linear_qkv.weight", "dense"),
        ("lm_head.weight", "dense"),
    ],
)
def test_names_tell_the_class_of_a_parameter(name, kind):
    assert class_of(name).value == kind

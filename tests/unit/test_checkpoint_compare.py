"""Checkpoints are compared across names, layouts and dtypes, and bugs of conversions get their class."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoint_bugs import BUGS, SETTINGS, as_bfloat16, held, llama, megatron
from unseen_checkpoint_bugs import UNSEEN

from msprobe_core.checkpoint.boxes import Box, part_of
from msprobe_core.checkpoint.compare import CheckpointOptions, compare_checkpoints
from msprobe_core.checkpoint.contents import Piece
from msprobe_core.checkpoint.fingerprints import (
    compare_prints,
    fingerprint_checkpoint,
    read_fingerprint,
    write_fingerprint,
)
from msprobe_core.checkpoint.resume import compare_resumed
from msprobe_core.checkpoint.similarity import similarity_of
from msprobe_core.checkpoint.structure import Relation
from msprobe_core.errors import DumpError
from msprobe_core.report.checkpoint import write_comparison
from msprobe_core.store.joined_tensor import JoinedTensor
from msprobe_core.store.tensor_source import HeldTensor, Storage, StoredTensor, read_whole

UP = "model.layers.1.mlp.up_proj.weight"
GATED = {**SETTINGS, "swiglu": True}


@pytest.mark.parametrize("bug", [*BUGS, *UNSEEN], ids=lambda bug: bug.name)
def test_a_planted_bug_gets_its_class_and_nothing_else_differs(bug):
    arrays = bug.model()
    bad = dict(arrays)
    bug.plant(bad)
    found = compare_checkpoints(held(bug.convert(bad)), held(arrays)).differing
    assert {row.relation for row in found} == {bug.relation}
    assert all(any(text in row.key for text in bug.tensors) for row in found)
    assert all(any(text in row.key for row in found) for text in bug.tensors)


def test_a_sound_conversion_to_fused_projections_is_equal():
    found = compare_checkpoints(held(megatron(llama())), held(llama()))
    assert found.is_exact
    assert len(found.rows) == len(llama())


@pytest.mark.parametrize("truncates", [False, True])
def test_a_cast_is_the_same_model_and_says_how_it_was_rounded(truncates):
    rounded = {name: as_bfloat16(values, truncates=truncates) for name, values in llama().items()}
    found = compare_checkpoints(held(rounded), held(llama()))
    assert found.is_same_model
    assert not found.is_exact
    assert found.counts == {Relation.CAST: len(found.rows)}
    expected = "checkpoint.cast.towards-zero" if truncates else "checkpoint.cast.nearest"
    assert {row.proof.code.value for row in found.rows} == {expected}


def test_a_cast_with_one_element_off_is_no_cast():
    values, dtype = as_bfloat16(llama()[UP])
    values[3, 5] *= 1.05
    found = compare_checkpoints(held({UP: (values, dtype)}), held({UP: llama()[UP]}))
    assert found.rows[0].relation is not Relation.CAST


def test_a_padded_vocabulary_is_the_same_model():
    arrays = llama()
    name = "model.embed_tokens.weight"
    padded = arrays | {name: np.concatenate([arrays[name], np.zeros((16, 64), np.float32)])}
    found = compare_checkpoints(held(padded), held(arrays))
    assert found.is_same_model
    assert found.counts[Relation.PADDED] == 1
    prints = compare_prints(fingerprint_checkpoint(held(padded)), fingerprint_checkpoint(held(arrays)))
    assert prints.counts[Relation.PADDED] == 1


def test_a_tied_head_that_is_equal_is_the_same_and_one_that_differs_is_untied():
    arrays = llama()
    arrays.pop("lm_head.weight")
    tied = arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"]}
    assert compare_checkpoints(held(tied), held(arrays)).is_same_model
    found = compare_checkpoints(held(llama()), held(arrays)).differing
    assert [row.relation for row in found] == [Relation.TIED_BROKEN]


def test_a_tensor_of_an_earlier_checkpoint_is_stale_and_distances_have_units():
    old = llama()
    new = {name: values + np.float32(1e-4) for name, values in old.items()}
    bad = new | {UP: old[UP]}
    options = CheckpointOptions(earlier=[held(old, step=90, name="old")])
    found = compare_checkpoints(held(bad, step=100), held(new, step=100), options).differing
    assert [row.relation for row in found] == [Relation.STALE]
    assert found[0].units == pytest.approx(10, rel=1e-3)


def test_a_mapping_pairs_names_and_equal_values_pair_the_rest():
    arrays = llama()
    renamed = {("extra." + name if name == UP else name): values for name, values in arrays.items()}
    found = compare_checkpoints(held(renamed), held(arrays))
    assert found.is_same_model
    assert any(row.proof.code.value == "checkpoint.maybe" for row in found.rows)
    options = CheckpointOptions(names={"extra." + UP: UP})
    assert compare_checkpoints(held(renamed), held(arrays), options).is_exact


def test_buffers_of_one_side_are_no_difference():
    with_buffer = llama() | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    found = compare_checkpoints(held(with_buffer), held(llama()))
    assert found.is_same_model
    assert found.counts[Relation.BUFFER] == 1


def test_replicas_that_differ_are_rows():
    checkpoint = held(llama())
    tensor = checkpoint.tensors[UP]
    copies = [np.array(llama()[UP]) for _ in range(2)]
    copies[1][0, 0] += 1
    replicas = [
        Piece(source=HeldTensor(values), begin=(0, 0), file=Path("x"), rank=f"tp{i}") for i, values in enumerate(copies)
    ]
    unlike = replace(checkpoint, tensors={**checkpoint.tensors, UP: replace(tensor, replicas=replicas)})
    found = compare_checkpoints(unlike, held(llama())).differing
    assert [row.relation for row in found] == [Relation.REPLICAS]
    assert "tp1" in found[0].proof.text
    assert "tp0" not in found[0].proof.text


def test_large_tensors_are_compared_in_several_pieces():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((1500, 2000)).astype(np.float32)  # three chunks
    other = values.copy()
    other[1400, 17] += 1
    found = compare_checkpoints(held({"a.weight": other}), held({"a.weight": values})).rows[0]
    assert found.first_differing == (1400, 17)
    assert found.share_differing == pytest.approx(1 / values.size)
    assert found.l2 == pytest.approx(1, rel=1e-5)
    swapped = compare_checkpoints(held({"a.weight": values[::-1].copy()}), held({"a.weight": values})).rows[0]
    assert swapped.relation is Relation.ROWS
    turned = compare_checkpoints(held({"a.weight": values.T.copy()}), held({"a.weight": values})).rows[0]
    assert turned.relation is Relation.TRANSPOSED


def test_a_fingerprint_does_not_depend_on_fusions_and_survives_its_file(tmp_path):
    golden = fingerprint_checkpoint(held(llama()))
    path = tmp_path / "a.fingerprint.arrow"
    write_fingerprint(fingerprint_checkpoint(held(megatron(llama()), settings=GATED)), path)
    read = read_fingerprint(path)
    assert compare_prints(read, golden).is_exact
    wrong = fingerprint_checkpoint(held(megatron(llama(), {1: "parts"}), settings=GATED))
    found = compare_prints(wrong, golden).differing
    assert {row.relation for row in found} == {Relation.QKV_ORDER}
    assert path.stat().st_mode & 0o077 == 0


def test_another_arrow_file_is_no_fingerprint(tmp_path):
    path = tmp_path / "a.fingerprint.arrow"
    path.write_bytes(b"no arrow")
    with pytest.raises(DumpError):
        read_fingerprint(path)


def test_a_cast_is_recognised_in_fingerprints():
    rounded = {name: as_bfloat16(values) for name, values in llama().items()}
    found = compare_prints(fingerprint_checkpoint(held(rounded)), fingerprint_checkpoint(held(llama())))
    assert found.counts == {Relation.CAST: len(found.rows)}


def test_the_similarity_has_the_established_form():
    target = llama() | {"model.norm.weight": np.ones(65, np.float32)}
    found = similarity_of(held(target), held(llama()))
    assert list(found) == sorted(found)
    assert found[UP] == {"l2": 0.0, "cos": 1.0, "numel": 96 * 64, "shape": [96, 64]}
    assert found["model.norm.weight"] == {"l2": None, "cos": None, "numel": [65, 64], "shape": [[65], [64]]}
    other = similarity_of(held(llama(seed=7)), held(llama()))[UP]
    a, b = llama(seed=7)[UP].astype(float).ravel(), llama()[UP].astype(float).ravel()
    assert other["l2"] == pytest.approx(np.linalg.norm(a - b))
    assert other["cos"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_a_resume_that_lost_a_weight_says_so():
    before, after = held(llama(), step=10), held(llama() | {UP: llama()[UP] * 2}, step=10)
    assert compare_resumed(before, held(llama(), step=10)).is_sound
    found = compare_resumed(before, after)
    assert not found.is_sound
    assert UP in found.findings[0].text


def test_results_are_written(tmp_path):
    bad = llama() | {UP: np.zeros((96, 64), np.float32)}
    found = compare_checkpoints(held(bad), held(llama()))
    paths = write_comparison(found, tmp_path)
    content = json.loads(paths[0].read_text())
    assert content["same_model"] is False
    assert content["counts"]["uninitialised"] == 1
    assert content["tensors"][0]["name"] == UP
    assert paths[1].read_text().splitlines()[0].startswith("name,golden_name,class,")


@pytest.mark.parametrize("begin", [(0, 0), (2, 0), (1, 3)])
def test_boxes_of_tensors_in_several_parts_are_read_from_these(tmp_path, begin):
    values = np.arange(60, dtype=np.float32).reshape(6, 10)
    path = tmp_path / "parts.bin"
    path.write_bytes(values.tobytes())
    parts = [
        StoredTensor(
            name=path, storage=Storage(file=path, begin=4 * first, num_bytes=4 * 20), stored=np.dtype("<f4"),
            dtype="float32", shape=(20,), strides=(1,),
        )
        for first in (0, 20, 40)
    ]  # fmt: skip
    joined = JoinedTensor(path, parts, (6, 10), "float32")
    sizes = (3, 10 - begin[1])
    found = read_whole(part_of(joined, Box(begin, sizes)))
    assert np.array_equal(found, values[begin[0] : begin[0] + 3, begin[1] :])
    inner = part_of(part_of(joined, Box(begin, sizes)), Box((1, 0), (1, 5)))
    assert np.array_equal(read_whole(inner), values[begin[0] + 1 : begin[0] + 2, begin[1] : begin[1] + 5])


def test_hashes_of_rows_name_the_rows_that_differ_and_rows_in_another_order():
    arrays = llama()
    name = "model.embed_tokens.weight"
    others = arrays[name].copy()
    others[[3, 7]] *= -1
    golden = fingerprint_checkpoint(held(arrays), has_rows=True)
    found = {}
    for what, values in (("some", others), ("order", np.roll(arrays[name], 1, 0))):
        prints = fingerprint_checkpoint(held(arrays | {name: np.ascontiguousarray(values)}), has_rows=True)
        [found[what]] = compare_prints(prints, golden).differing
    fields = found["some"].proof.fields
    assert (fields["first"], fields["last"], fields["count"]) == (3, 7, 2)
    assert found["order"].relation is Relation.ROWS

"""Checkpoints of two frameworks are compared by a plugin's map of names; one framework's names are left alone."""

from types import SimpleNamespace

import numpy as np
import pytest
from checkpoint_bugs import held

from msprobe_core.checkpoint.compare import CheckpointOptions, compare_checkpoints
from msprobe_core.checkpoint.fingerprints import compare_prints, fingerprint_checkpoint
from msprobe_core.checkpoint.structure import Relation
from msprobe_core.plugin import ApiMap, hookimpl
from msprobe_core.plugins import registry
from msprobe_core.plugins.registry import Plugin

WORDS = {
    "weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance",
}  # fmt: skip
MAP = ApiMap(
    name="standin",
    parameters={
        "": {**{own: canonical for canonical, own in WORDS.items()}, "embedding_table": "weight"},
        "PReLU": {"w": "weight"},
    },
    buffers=["running_mean", "running_var", "num_batches_tracked"],
)


@pytest.fixture(autouse=True)
def standin():
    plugins = registry()
    own = hookimpl(lambda: [MAP], specname="msprobe_register_api_maps")
    plugins.add(Plugin("standin", None, "tests"), lambda: SimpleNamespace(msprobe_register_api_maps=own))
    yield
    plugins.manager.unregister(name="standin")
    plugins._plugins.pop("standin", None)


def untrained():
    """Two equal norms as they are before the first step: values tell nothing of them."""
    found = {"embed.weight": np.arange(12, dtype=np.float32).reshape(6, 2)}
    for norm in ("a.bn", "b.bn"):
        for name in WORDS:
            found[f"{norm}.{name}"] = np.full(4, float(name in ("weight", "running_var")), np.float32)
        found[f"{norm}.num_batches_tracked"] = np.array(0)
    return found | {"fc.weight": np.ones((4, 4), np.float32), "fc.bias": np.zeros(4, np.float32)}


def translated(arrays):
    """The same tensors as the other framework names them."""
    found = {}
    for name, values in arrays.items():
        path, _, last = name.rpartition(".")
        if last != "num_batches_tracked":
            found[f"{path}.{WORDS[last] if 'bn' in path else 'embedding_table' if path == 'embed' else last}"] = values
    return found


def by_elements(target, golden):
    return compare_checkpoints(held(target), held(golden))


def by_prints(target, golden):
    return compare_prints(fingerprint_checkpoint(held(target)), fingerprint_checkpoint(held(golden)))


@pytest.fixture(params=[by_elements, by_prints], ids=["elements", "prints"])
def compare(request):
    return request.param


@pytest.mark.parametrize("turns", [False, True])
def test_an_untrained_model_is_the_same_as_its_source(compare, turns):
    sides = untrained(), translated(untrained())
    found = compare(*(sides[::-1] if turns else sides))
    assert found.is_same_model
    assert found.counts == {Relation.EQUAL: 11, Relation.BUFFER: 2}


def test_a_translated_tensor_that_differs_is_named(compare):
    bad = translated(untrained())
    bad["b.bn.moving_variance"] = bad["b.bn.moving_variance"] * 3
    (row,) = compare(bad, untrained()).differing
    assert (row.name, row.golden_name) == ("b.bn.moving_variance", "b.bn.running_var")


def test_a_word_of_one_class_is_translated_among_others(compare):
    own, other = translated(untrained()), untrained()
    assert compare(own | {"act.w": np.ones(1)}, other | {"act.weight": np.ones(1)}).is_same_model


def test_nothing_is_translated_where_both_sides_use_the_words(compare):
    own = {"a.gamma": np.ones(4, np.float32), "b.gamma": np.ones(4, np.float32)}
    other = {"a.weight": np.ones(4, np.float32), "c.gamma": np.ones(4, np.float32)}
    assert {row.relation for row in compare(own, other).rows} == {Relation.ONLY_TARGET, Relation.ONLY_GOLDEN}


def test_nothing_is_translated_to_another_shape_or_to_a_name_with_a_partner(compare):
    own = {"a.gamma": np.ones(4), "b.gamma": np.ones(4), "b.weight": np.ones(4)}
    other = {"a.weight": np.ones(3), "b.weight": np.ones(4)}
    found = compare(own, other)
    assert {row.name or row.golden_name for row in found.differing} == {"a.gamma", "b.gamma", "a.weight"}


def test_a_counter_that_no_translated_norm_has_is_not_excused(compare):
    counter = {"c.num_batches_tracked": np.array(0)}
    found = compare(translated(untrained()), untrained() | counter).differing
    assert [row.golden_name for row in found] == ["c.num_batches_tracked"]
    assert len(compare({}, counter).differing) == 1


@pytest.mark.parametrize("turns", [False, True])
def test_earlier_checkpoints_are_found_by_the_golden_names(turns):
    def side(value, *, is_own):
        return held({"a.gamma" if is_own else "a.weight": np.arange(4, dtype=np.float32) + value})

    options = CheckpointOptions(earlier=[side(0, is_own=not turns)])
    (row,) = compare_checkpoints(side(0, is_own=turns), side(1, is_own=not turns), options).rows
    assert row.relation is Relation.STALE
    prints = [fingerprint_checkpoint(each) for each in (side(0, is_own=turns), side(1, is_own=not turns))]
    (row,) = compare_prints(*prints, [fingerprint_checkpoint(side(0, is_own=not turns))]).rows
    assert row.relation is Relation.STALE

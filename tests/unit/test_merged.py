"""Dumps of several ranks as one: what is known of the whole is what it would be had one process had it."""

import itertools
import json
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from part_dumps import ArrayDump, part, sketch_of

from msprobe_core.compare.pairing_codes import MergedCode
from msprobe_core.compare.shards.assembly import Assembly, CannotMerge, Held, assemble
from msprobe_core.compare.shards.merged import check_replicas, merged
from msprobe_core.findings import Finding
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.place import Place
from msprobe_core.fingerprint.shard_ranges import coordinates_of, held_ranges, local_offset, sizes_of
from msprobe_core.model import Distribution, Placement
from msprobe_core.store import stored_rows
from msprobe_core.store.reading import read_dump
from msprobe_core.store.stored_rows import StoredRows

ENTRY = "Module.fc.Linear.forward.0"


# --- which part a rank holds ----------------------------------------------------------------------------------------

PLACEMENTS = st.one_of(
    st.builds(Placement, st.just("Shard"), st.integers(0, 1)),
    st.builds(Placement, st.just("StridedShard"), st.integers(0, 1), st.none(), st.integers(1, 4)),
    st.just(Placement("Replicate")),
)


def chunks(values, num_parts, dim):
    """Cut as ``torch.chunk`` does, and fill up with empty parts."""
    size = -(-values.shape[dim] // num_parts)
    return [values.take(np.arange(i * size, min((i + 1) * size, values.shape[dim])), dim) for i in range(num_parts)]


def held_by(whole, placements, where, mesh):
    """What a rank holds, by cutting the tensor itself."""
    values = whole
    for placement, index, num_parts in zip(placements, where, mesh, strict=True):
        if placement.kind == "Shard":
            values = chunks(values, num_parts, placement.dim)[index]
        elif placement.kind == "StridedShard":
            pieces = chunks(values, placement.split_factor, placement.dim)
            values = np.concatenate([chunks(p, num_parts, placement.dim)[index] for p in pieces], placement.dim)
    return values


@st.composite
def spreads(draw):
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    placements = tuple(draw(PLACEMENTS) for _ in mesh)
    shape = (draw(st.integers(0, 7)), draw(st.integers(1, 7)))
    return mesh, placements, shape


@given(spreads())
def test_ranges_are_what_cutting_the_tensor_gives(spread):
    mesh, placements, shape = spread
    whole = np.arange(math.prod(shape)).reshape(shape)
    ranks = np.arange(math.prod(mesh)).reshape(mesh).tolist()
    for rank in range(math.prod(mesh)):
        where = coordinates_of(ranks, rank)
        expected = held_by(whole, placements, where, mesh)
        found = held_ranges(Distribution(tuple(ranks), placements, ()), shape, rank)
        indices = [np.concatenate([np.arange(b, e) for b, e in runs] or [np.arange(0)]) for runs in found]
        np.testing.assert_array_equal(whole[np.ix_(*(i.astype(int) for i in indices))], expected)


@pytest.mark.parametrize("rank", range(4))
def test_a_split_factor_that_was_not_recorded_is_that_of_the_other_shards(rank):
    known, unknown = (
        Distribution(((0, 1), (2, 3)), (Placement("StridedShard", 0, None, factor), Placement("Shard", 0)), ())
        for factor in (2, None)
    )
    assert held_ranges(known, (8,), rank) == held_ranges(unknown, (8,), rank)
    # Cut for tensor parallelism first, so that a rank's part is one block.
    assert held_ranges(Distribution(((0, 1), (2, 3)), (Placement("Shard", 0), Placement("Shard", 0)), ()), (8,), 1) == (
        ((2, 4),),
    )


def test_what_says_nothing_of_places_gives_no_ranges():
    masked = Distribution((0, 1), (Placement("MaskPartial", None, "sum"),), (4,))
    assert held_ranges(masked, (4,), 0) is None
    shard = Distribution((0, 1), (Placement("Shard", 0),), (2,))
    assert held_ranges(shard, (4,), 7) is None
    assert local_offset(shard, (4,), 1) == (2,)
    assert local_offset(Distribution((0, 1), shard.placements, (3,)), (4,), 1) is None


# --- whole tensors from recorded placements -------------------------------------------------------------------------


def record_of(whole, mesh, placements, rank, **fields):
    """The record that a rank makes of its part."""
    ranks = np.arange(math.prod(mesh)).reshape(mesh).tolist()
    values = held_by(whole, placements, coordinates_of(ranks, rank), mesh)
    offset = local_offset(Distribution(tuple(ranks), placements, values.shape), whole.shape, rank)
    place = None if offset is None else Place.of_shard(whole.shape, offset)
    described = [
        {
            p.kind: {
                k: v
                for k, v in (("dim", p.dim), ("reduce_op", p.reduce_op), ("split_factor", p.split_factor))
                if v is not None
            }
        }
        for p in placements
    ]
    record = part(values, place, data_name=f"w{rank}.npy", device_mesh=ranks, placements=described)
    record |= {"shape": list(whole.shape), "local_shape": list(values.shape)} | fields
    return (record if offset is None else record | {"local_offset": list(offset)}), values


def dumps_of(whole, mesh, placements):
    made = [record_of(whole, mesh, placements, rank) for rank in range(math.prod(mesh))]
    return [
        ArrayDump(
            {ENTRY: {"parameters": {"weight": record}}},
            {f"w{rank}.npy": values},
            rank,
            summary_mode="hash",
            task="tensor",
        )
        for rank, (record, values) in enumerate(made)
    ]


def row_of(dump):
    (row,) = dump.frame.iter_rows(named=True)
    return row


def read(dump, row, num_elements=5):
    source = dump.open_tensor(row["file_name"])
    return np.concatenate(list(source.chunks(num_elements))).reshape(source.shape)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(spreads(), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e200, float("nan"), float("inf")]))
def test_a_tensor_that_was_cut_is_put_together(spread, seed, special):
    mesh, placements, shape = spread
    whole = np.random.default_rng(seed).normal(size=shape)
    if whole.size:
        whole.flat[seed % whole.size] = special
    dump = merged(dumps_of(whole, mesh, placements))
    row = row_of(dump)
    assert row["shape"] == str(list(shape))
    assert row["numel"] == whole.size
    assert row["distribution"] is None
    assert not dump.replicas
    np.testing.assert_array_equal(read(dump, row), whole)
    if not whole.size:
        assert row["max"] is None
        return
    with np.errstate(all="ignore"):
        expected = [whole.max(), whole.min(), whole.mean(), np.linalg.norm(whole)]
    if special == 1e200:  # whose square is too large
        expected[3] = 1e200
    np.testing.assert_allclose([row[n] for n in ("max", "min", "mean", "norm")], expected, rtol=1e-12, atol=1e-15)
    assert (row["num_nan"], row["num_inf"]) == (np.isnan(whole).sum(), np.isinf(whole).sum())
    is_block = all(local_offset_of(mesh, placements, shape, rank) for rank in range(math.prod(mesh)))
    if is_block:
        assert row["checksum"] == f"0x{int(hash_of(whole)[0]) & (1 << 64) - 1:016x}"
        if special == 1.0:
            found = np.frombuffer(row["sketch"], "<f4")
            np.testing.assert_allclose(found, sketch_of(whole), rtol=1e-4, atol=1e-5 * np.abs(whole).max())


def local_offset_of(mesh, placements, shape, rank):
    ranks = np.arange(math.prod(mesh)).reshape(mesh).tolist()
    held = held_ranges(Distribution(tuple(ranks), placements, ()), shape, rank)
    return not math.prod(sizes_of(held)) or all(len(runs) == 1 for runs in held)


def test_fingerprints_that_count_a_part_from_its_own_beginning_are_not_added_up():
    whole = np.arange(8.0)
    dumps = dumps_of(whole, (2,), (Placement("Shard", 0),))
    for dump in dumps:
        dump.frame = dump.frame.with_columns(
            pl.col("distribution").str.replace(r',"local_offset":\[\d\]', ""),
        )
    row = row_of(merged(dumps))
    assert (row["checksum"], row["sketch"]) == (None, None)
    assert row["max"] == 7.0


@pytest.mark.parametrize(
    ("operation", "expected"), [("sum", 5.0), ("avg", 2.5), ("max", 3.0), ("min", 2.0), ("product", 6.0)]
)
def test_terms_of_a_reduction_are_reduced(operation, expected):
    terms = [np.full(4, 2.0), np.full(4, 3.0)]
    placements = [{"Partial": {"reduce_op": operation}}]
    dumps = [
        ArrayDump(
            {
                ENTRY: {
                    "output": [part(v, device_mesh=[0, 1], placements=placements, local_shape=[4], data_name="y.npy")]
                }
            },
            {"y.npy": v},
            rank,
        )
        for rank, v in enumerate(terms)
    ]
    dump = merged(dumps)
    row = row_of(dump)
    np.testing.assert_array_equal(read(dump, row), np.full(4, expected))
    known = {"sum": "mean", "avg": "mean", "max": "max", "min": "min"}.get(operation)
    for name in ("max", "min", "mean", "norm"):
        assert row[name] == (expected if name == known else None)
    assert row["num_nan"] == 0
    if operation in ("sum", "avg"):
        np.testing.assert_allclose(np.frombuffer(row["sketch"], "<f4"), sketch_of(np.full(4, expected)), rtol=1e-6)
    assert dump.notes[0].code is MergedCode.SUMS


def test_the_mean_of_complex_terms_is_null():
    record = {"type": "t", "dtype": "torch.complex64", "shape": [2], "Max": 1.0, "Min": 1.0, "Mean": 1.0, "Norm": 1.4}
    record |= {"device_mesh": [0, 1], "placements": [{"Partial": {"reduce_op": "sum"}}], "local_shape": [2]}
    row = row_of(merged([ArrayDump({ENTRY: {"output": [record]}}, rank=rank) for rank in range(2)]))
    assert row["mean"] is None


def test_the_sum_is_taken_from_the_communication_that_made_it():
    rng = np.random.default_rng(1)
    terms = [rng.normal(size=6) for _ in range(2)]
    group = {"type": "torch.ProcessGroup", "group_ranks": [0, 1]}
    placements = {"device_mesh": [0, 1], "placements": [{"Partial": {"reduce_op": "sum"}}], "local_shape": [6]}
    dumps = [
        ArrayDump(
            {
                "Functional.linear.0.forward": {"output": [part(v, data_name="y.npy", **placements)]},
                "Distributed.all_reduce.0.forward": {
                    "input_args": [part(v, data_name="a.npy"), {"type": "str", "value": "sum"}, group],
                    "output": [part(sum(terms), data_name="b.npy")],
                },
                "Tensor.add.0.forward": {"input_args": [part(v, data_name="y.npy")]},
            },
            {"y.npy": v, "a.npy": v, "b.npy": sum(terms)},
            rank,
        )
        for rank, v in enumerate(terms)
    ]
    dump = merged(dumps)
    assert dump.frame["key"].to_list() == ["Functional.linear.0.forward.output.0", "Tensor.add.0.forward.input.0"]
    for row in dump.frame.iter_rows(named=True):
        assert row["norm"] == pytest.approx(np.linalg.norm(sum(terms)))
        np.testing.assert_array_equal(read(dump, row), sum(terms))
    assert dump.notes[0] == Finding(MergedCode.LEFT_OUT, fields={"count": 1})


@pytest.mark.parametrize(("operation", "ranks"), [("max", [0, 1]), ("sum", [0, 1, 2]), ("sum", [0])])
def test_other_communication_of_the_same_values_is_no_sum(operation, ranks):
    terms = [np.array([1.0, 2.0]), np.array([3.0, 5.0])]
    group = {"type": "torch.ProcessGroup", "group_ranks": ranks}
    dumps = [
        ArrayDump(
            {
                "Functional.linear.0.forward": {"output": [part(v)]},
                "Distributed.all_reduce.0.forward": {
                    "input_args": [part(v), {"type": "str", "value": operation}, group],
                    "output": [part(np.array([9.0, 9.0]))],
                },
            },
            rank=rank,
        )
        for rank, v in enumerate(terms)
    ]
    row = merged(dumps).frame.row(0, named=True)
    assert "nothing says how these make up the whole" in row["failure"]


def test_incomplete_parts_are_not_merged():
    dumps = dumps_of(np.arange(9.0), (3,), (Placement("Shard", 0),))
    dump = merged(dumps[:2])
    row = row_of(dump)
    assert row["failure"] == "the parts of rank 2 are not there"
    assert (row["kind"], row["max"], row["file_name"]) == ("none", None, None)


@pytest.mark.parametrize(
    ("placements", "reason"),
    [
        (
            [{"MaskPartial": {"reduce_op": "sum"}}],
            "its placement is MaskPartial, from which nothing follows for the whole",
        ),
        ([{"Partial": {"reduce_op": "bxor"}}], "parts of a result that is pending 'bxor' cannot be put together"),
        ([{"Shard": {"dim": 0}}], "rank 0 holds [4] of it, where its placements say [2]"),
        ([{"Shard": {"dim": "x"}}], "its placements are malformed"),
        ([{"Shard": {"dim": 9}}], "its placements do not fit its mesh and its shape"),
        ([{"Shard": 0}], "its placements are malformed"),
        ([{"StridedShard": {"dim": 0, "split_factor": 0}}], "its placements do not fit its mesh and its shape"),
        ([], "its placements do not fit its mesh and its shape"),
    ],
)
def test_what_cannot_be_put_together_says_why(placements, reason):
    record = part(np.arange(4.0), device_mesh=[0, 1], placements=placements, local_shape=[4])
    row = row_of(merged([ArrayDump({ENTRY: {"output": [record]}}, rank=rank) for rank in range(2)]))
    assert row["failure"].startswith(reason)


@pytest.mark.parametrize("mesh", [[], [[0], [1, 2]], [0, "1"], [[0], 1], "01", {"0": 1}, [[[0.5]]]])
def test_a_damaged_mesh_is_no_mesh(mesh):
    record = part(np.arange(4.0), device_mesh=mesh, placements=[{"Shard": {"dim": 0}}], local_shape=[4])
    row = row_of(merged([ArrayDump({ENTRY: {"output": [record]}}, rank=rank) for rank in range(2)]))
    assert "malformed" in row["failure"]


def test_large_integers_stay_exact():
    high = 2**60 + 1
    record = [
        {"type": "t", "dtype": "torch.int64", "shape": [4], "Max": high + r, "Min": r, "Mean": 1.0, "Norm": 1.0}
        for r in (0, 1)
    ]
    spread = {"device_mesh": [0, 1], "placements": [{"Shard": {"dim": 0}}], "local_shape": [2]}
    row = row_of(merged([ArrayDump({ENTRY: {"output": [record[r] | spread]}}, rank=r) for r in (0, 1)]))
    assert row["exact"] == f"{high + 1} and 0"


def test_older_records_without_the_size_of_the_part_are_put_together():
    """As other tools write them."""
    whole = np.arange(5.0)
    dumps = []
    for rank, values in enumerate(np.split(whole, [3])):
        record = part(values, fingerprints=False) | {
            "shape": [5],
            "device_mesh": [0, 1],
            "placements": [{"Shard": {"dim": 0}}],
        }
        dumps.append(ArrayDump({ENTRY: {"output": [record]}}, rank=rank))
    assert row_of(merged(dumps))["mean"] == 2.0


# --- plain tensors --------------------------------------------------------------------------------------------------


def plain(values_by_rank, role="output", **fields):
    return [
        ArrayDump({ENTRY: {role: [part(v, data_name="v.npy", **fields)]}}, {"v.npy": v}, rank)
        for rank, v in enumerate(values_by_rank)
    ]


def test_plain_tensors_are_put_together_as_the_shape_of_the_other_side_says():
    whole = np.random.default_rng(0).normal(size=(3, 8))
    (other,) = plain([whole])
    dump = merged(plain(np.split(whole, 4, axis=1)), like=[other])
    row = row_of(dump)
    np.testing.assert_array_equal(read(dump, row), whole)
    assert row["norm"] == pytest.approx(np.linalg.norm(whole))
    # Nothing counted elements as the whole has them.
    assert row["sketch"] is None


def test_plain_tensors_of_equal_values_are_one():
    dump = merged(plain([np.ones(3)] * 3))
    assert row_of(dump)["sketch"] is not None
    assert not dump.replicas


def test_plain_tensors_of_different_values_are_not_guessed_at():
    dump = merged(plain([np.ones(3), np.zeros(3)]))
    assert "nothing says how these make up the whole" in row_of(dump)["failure"]


def test_calls_that_one_rank_lacks_are_kept_where_they_were_made():
    calls = {f"Functional.relu.{i}.forward": {"output": [part(np.full(2, float(i)))]} for i in range(4)}
    fewer = {name: calls[name] for name in list(calls) if "2" not in name}
    for dumps in ([calls, fewer], [fewer, calls]):
        dump = merged([ArrayDump(data, rank=rank) for rank, data in enumerate(dumps)])
        assert dump.frame["entry"].to_list() == list(calls)
        note = dump.notes[0]
        assert (note.code, note.fields["ranks"], note.fields["count"]) == (MergedCode.NOT_ON_ALL, 2, 1)
        assert note.fields["first"].startswith("Functional.relu.2")


def test_communication_among_the_ranks_is_left_out_and_the_rest_renumbered():
    def call(i, ranks):
        group = {"type": "torch.ProcessGroup", "group_ranks": ranks}
        return {
            f"Distributed.all_gather.{i}.forward": {
                "input_args": [part(np.ones(2)), group],
                "output": [part(np.ones(2))],
            }
        }

    data = call(0, [0, 1]) | call(1, [0, 1, 2, 3]) | {"Functional.relu.0.forward": {"output": [part(np.ones(2))]}}
    dump = merged([ArrayDump(data, rank=rank) for rank in range(2)])
    assert dump.frame["entry"].unique(maintain_order=True).to_list() == [
        "Distributed.all_gather.0.forward",
        "Functional.relu.0.forward",
    ]
    assert dump.frame["text"].drop_nulls().to_list() == ["[0, 1, 2, 3]"]


# --- replicas -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evidence", ["checksum", "sketch", "statistics"])
def test_a_replica_that_differs_is_named_with_its_rank(evidence):
    spread = {"device_mesh": [0, 1, 2], "placements": [{"Replicate": {}}], "local_shape": [4]}
    dumps = []
    for rank in range(3):
        values = np.array([1.0, 2.0, 3.0, 4.0 if rank != 1 else 5.0])
        record = part(values, fingerprints=evidence != "statistics", **spread)
        if evidence == "sketch":
            del record["md5"]
        dumps.append(ArrayDump({ENTRY: {"parameters": {"weight": record}}}, rank=rank))
    (found,) = check_replicas(dumps)
    assert (found.ranks, found.odd_ranks, found.evidence) == ((0, 1, 2), (1,), evidence)
    assert found.name == f"{ENTRY}.parameters.weight"
    assert found.error == pytest.approx(0.2)  # of the maximum
    assert "rank 1 differs from ranks 0, 2" in found.text


def test_equal_replicas_are_not_findings_and_nan_equals_nan():
    values = np.array([1.0, float("nan")])
    spread = {"device_mesh": [0, 1], "placements": [{"Replicate": {}}], "local_shape": [2]}
    dumps = [ArrayDump({ENTRY: {"output": [part(values, fingerprints=False, **spread)]}}, rank=r) for r in range(2)]
    assert check_replicas(dumps) == []
    assert check_replicas(dumps[:1]) == []


def test_replicas_of_a_shard_are_checked():
    mesh = [[0, 1], [2, 3]]
    dumps = []
    for rank in range(4):
        spread = {"device_mesh": mesh, "placements": [{"Replicate": {}}, {"Shard": {"dim": 0}}], "local_shape": [2]}
        values = np.arange(4.0)[2 * (rank % 2) :][:2] + (rank == 3)
        dumps.append(
            ArrayDump({ENTRY: {"output": [part(values, **spread, data_name="x.npy") | {"shape": [4]}]}}, rank=rank)
        )
    (found,) = check_replicas(dumps)
    assert (found.ranks, found.odd_ranks) == ((1, 3), (3,))


def test_parameters_of_data_parallel_ranks_are_checked_and_those_of_cut_layers_are_not():
    def dumps(class_name):
        for rank in range(2):
            wrapper = {"Module.DistributedDataParallel.forward.0": {"output": [part(np.ones(1))]}}
            layer = {
                f"Module.module.fc.{class_name}.forward.0": {"parameters": {"weight": part(np.full(2, float(rank)))}}
            }
            yield ArrayDump(wrapper | layer, rank=rank)

    (found,) = check_replicas(list(dumps("Linear")))
    assert found.odd_ranks == (1,)
    assert check_replicas(list(dumps("ColumnParallelLinear"))) == []


def test_results_that_communication_gives_to_all_are_checked():
    group = {"type": "torch.ProcessGroup", "group_ranks": [0, 1]}
    dumps = [
        ArrayDump(
            {
                "Distributed.all_reduce.0.forward": {
                    "input_args": [part(np.ones(2)), group],
                    "output": [part(np.full(2, 2.0 + rank))],
                }
            },
            rank=rank,
        )
        for rank in range(2)
    ]
    (found,) = check_replicas(dumps)
    assert "communication" in found.reason


def _mixed_ranks(num_ranks=3, num_layers=6):
    """Ranks that should share many values: replicas, terms of sums, results of communication; some differ."""
    ranks = tuple(range(num_ranks))
    group = {"type": "torch.ProcessGroup", "group_ranks": list(ranks)}
    random = np.random.default_rng(0)
    replicated = {"device_mesh": list(ranks), "placements": [{"Replicate": {}}], "local_shape": [4]}
    records = [{"Module.DistributedDataParallel.forward.0": {"output": [part(np.ones(1))]}} for _ in ranks]
    for layer in range(num_layers):
        values = [random.standard_normal(4) for _ in ranks]
        odd = layer % num_ranks
        for rank, record in enumerate(records):
            weight, own = np.full(4, float(layer)), values[rank]
            entry = f"Module.module.{layer}.Linear.forward.0"
            partial = {
                "device_mesh": list(ranks),
                "placements": [{"Partial": {"reduce_op": "sum"}}],
                "local_shape": [4],
            }
            record[entry] = {
                "parameters": {"weight": part(weight + (rank == odd))},
                "output": [part(own, **partial), part(weight * (1 + (rank == odd and layer > 2)), **replicated)],
            }
            if rank == odd:  # a call that the others do not make
                record[f"Tensor.only.{layer}.forward"] = {"output": [part(own)]}
            result = np.sum(values, axis=0) + (rank == odd)
            record[f"Distributed.all_reduce.{layer}.forward"] = {
                "input_args": [part(own), group],
                "output": [part(result)],
            }
    return [ArrayDump(record, rank=rank) for rank, record in enumerate(records)]


@pytest.mark.parametrize("part_rows", [1, 4, 1000])
def test_ranks_are_checked_in_parts_as_they_are_merged(part_rows, monkeypatch):
    monkeypatch.setattr(stored_rows, "PART_ROWS", part_rows)
    dumps = _mixed_ranks()
    expected = merged(dumps).replicas
    assert len(expected) > 12
    assert len({found.reason for found in expected}) == 3
    assert check_replicas(dumps) == expected


def test_ranks_of_long_dumps_are_checked_in_files(monkeypatch, tmp_path):
    for dump in _mixed_ranks(2):
        path = tmp_path / f"rank{dump.rank}"
        path.mkdir()
        document = {"task": "statistics", "level": "mix", "framework": "pytorch", "data": dump.data}
        (path / "dump.json").write_text(json.dumps(document))
    expected = merged([read_dump(tmp_path / rank) for rank in ("rank0", "rank1")]).replicas
    for name in ("PART_ROWS", "LONG_ROWS", "LONG_BYTES"):
        monkeypatch.setattr(stored_rows, name, 10)
    dumps = [read_dump(tmp_path / rank) for rank in ("rank0", "rank1")]
    assert check_replicas(dumps) == expected
    assert len(expected) > 12
    assert all(isinstance(dump.rows, StoredRows) for dump in dumps)


# --- parts ----------------------------------------------------------------------------------------------------------


def test_overlapping_or_incomplete_parts_are_refused():
    whole = Held(0, (((0, 4),),))
    assert isinstance(assemble((4,), [whole, Held(1, (((2, 4),),))]), CannotMerge)
    assert isinstance(assemble((4,), [Held(1, (((2, 4),),))]), CannotMerge)
    made = assemble((4,), [whole, Held(1, (((0, 4),),))])
    assert isinstance(made, Assembly)
    assert made.pieces[0].copies == (1,)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_ranks_may_be_given_in_any_order(order):
    whole = np.random.default_rng(3).normal(size=(7, 2))
    dumps = dumps_of(whole, (3,), (Placement("Shard", 0),))
    dump = merged([dumps[i] for i in order])
    np.testing.assert_array_equal(read(dump, row_of(dump)), whole)


def test_the_wrong_part_is_identified():
    whole = np.random.default_rng(3).normal(size=(6, 4))
    wrong = whole.copy()
    wrong[4, 1] += 1
    dump = merged(dumps_of(wrong, (3,), (Placement("Shard", 0),)))
    name = row_of(dump)["name"]
    (golden,) = plain([whole])
    errors = dump.errors_by_part(name, golden.open_tensor("v.npy"))
    assert errors[:2] == [0.0, 0.0]
    assert errors[2] == pytest.approx(1 / np.linalg.norm(whole[4:]))
    assert [piece.rank for piece in dump.held(name)] == [0, 1, 2]
    assert dump.held(name)[2].where == "4 to 5 of dimension 0"

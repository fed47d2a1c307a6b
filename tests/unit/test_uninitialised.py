"""What memory held before it was written is not judged; what is computed from it is."""

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import compare_dumps
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.judge.noise import NoiseModel
from msprobe_core.locate import LocateOptions, LocateVerdict, locate

X = [[1.0, -2.0], [3.0, 4.0]]
HALF = [[1.0, -2.0]]
LAST = "Functional.relu.0.forward"


def times(factor, values=X):
    return [[factor * value for value in row] for row in values]


def half_written(chance):
    return [*HALF, [chance, chance]]


def _write(name, given, *others, output=None):
    return {f"Tensor.{name}.forward": api(tensor(given), *others, output=output and tensor(output))}


def _allocated(chance):
    return {"Torch.empty.0.forward": api(output=tensor(times(chance)))}


def _filled(chance, name, *others):
    return _write(f"{name}.0", times(chance), *others, output=X)


def _in_pieces(chance, *, has_output):
    outputs = [half_written(chance), X] if has_output else [None, None]
    return {
        **_write("__setitem__.0", times(chance), tensor(HALF), output=outputs[0]),
        **_write("__setitem__.1", half_written(chance), tensor(HALF), output=outputs[1]),
    }


def _gathered(shard, chance):
    """A rank's shard, copied into its place of a buffer, the rest of which a collective fills."""
    buffer = [*shard, [chance, chance]]
    return {
        "fsdp.all_gather_copy_in.0.forward": {
            "input_args": [[tensor(HALF)], tensor(times(chance))], "input_kwargs": {},
            "output": [tensor(shard), tensor(buffer)],
        },
        "Distributed.all_gather_into_tensor.0.forward": api(tensor(buffer), tensor(shard), output=None),
    }  # fmt: skip


HEALTHY = {
    "in pieces": lambda c: {**_allocated(c), **_in_pieces(c, has_output=True)},
    "in pieces, and nothing is returned": lambda c: _in_pieces(c, has_output=False),
    "in pieces, and the allocation is not recorded": lambda c: _in_pieces(c, has_output=True),
    "all of it by index": lambda c: _filled(c, "index_copy_", {"type": "int", "value": 0}, tensor(X)),
    "normal_": lambda c: _filled(c, "normal_"),
    "fill_": lambda c: _filled(c, "fill_"),
    "out": lambda c: {"Torch.mul.0.forward": api(tensor(X), tensor(X), output=tensor(X), out=tensor(times(c)))},
    "views": lambda c: {
        **_allocated(c),
        **_write("narrow.0", times(c), output=times(c, HALF)),
        **_write("copy_.0", times(c, HALF), tensor(HALF), output=HALF),
    },
    "views, and writes are not recorded": lambda c: {
        **_write("narrow.0", times(c), output=times(c, HALF)),
        **_write("narrow.1", half_written(c), output=[[c, c]]),
    },
    "broadcast": lambda c: {"Distributed.broadcast.0.forward": api(tensor(times(c)), output=tensor(X))},
    "a buffer of FSDP2": lambda c: _gathered(HALF, c),
    "all_gather": lambda c: {
        "Distributed.all_gather.0.forward": api([tensor(times(c)), tensor(times(c + 1))], tensor(HALF), output=None)
    },
}  # fmt: skip


@pytest.fixture
def dumps(tmp_path):
    """Write a dump of calls, and of one that reads what they have made."""

    def write(name, data, read):
        return write_dump(tmp_path / name / "rank0", {**data, LAST: api(tensor(read), output=tensor(read))})

    return write


@pytest.mark.parametrize("name", list(HEALTHY))
def test_memory_before_it_is_written_is_not_judged(dumps, name):
    sides = [dumps(side, HEALTHY[name](chance), X) for side, chance in (("target", 700.0), ("golden", 3.0))]
    result = compare_dumps(*sides)
    assert result.agrees, result.units[0].rows.filter(verdict="error")["name_target"].to_list()
    options = LocateOptions(compare=CompareOptions(noise=NoiseModel()))
    assert locate(*sides, options).verdict is LocateVerdict.AGREE


@pytest.mark.parametrize("name", list(HEALTHY))
def test_what_reads_it_is_judged(dumps, name):
    sides = [dumps(*side) for side in (("t", HEALTHY[name](700.0), times(1.1)), ("g", HEALTHY[name](3.0), X))]
    assert compare_dumps(*sides).units[0].first_fault.entry == LAST


@pytest.mark.parametrize("call", ["view", "narrow", "masked_fill_", "__setitem__"])
@pytest.mark.parametrize("is_read", [True, False])
def test_wrong_values_that_a_call_passes_on_are_judged(dumps, call, is_read):
    def side(name, factor):
        data = _write(f"{call}.0", times(factor), output=times(factor + 0.5))
        return dumps(name, data, times(factor + 0.5) if is_read else [1.0, 2.0])

    assert compare_dumps(side("t", 1.1), side("g", 1.0)).units[0].first_fault.entry == f"Tensor.{call}.0.forward"


def test_what_a_rank_sends_in_a_broadcast_is_judged(dumps):
    def side(name, factor):
        sent = tensor(times(factor))
        return dumps(name, {"Distributed.broadcast.0.forward": api(sent, output=sent)}, X)

    assert compare_dumps(side("t", 1.1), side("g", 1.0)).units[0].first_fault.entry == "Distributed.broadcast.0.forward"


def test_the_shards_that_are_copied_into_a_buffer_are_judged(dumps):
    sides = [dumps(*side) for side in (("t", _gathered(times(1.1, HALF), 700.0), X), ("g", _gathered(HALF, 3.0), X))]
    assert compare_dumps(*sides).units[0].first_fault.entry == "fsdp.all_gather_copy_in.0.forward"

"""The contracts of metrics, statistics and executors, as tests that each inherits."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from msprobe_core.compare.extra_statistics import merged_extra
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.guard import missing_members
from msprobe_core.interception.host_reducer import real_vector
from msprobe_core.model import ExecutorOptions
from msprobe_core.protocols.comparison import Executor, Metric
from msprobe_core.protocols.statistics import Statistic
from msprobe_core.store.frame import numbers_of

Array: TypeAlias = NDArray[Any]

_RNG = np.random.default_rng(7)

_ARRAYS: dict[str, Array] = {
    "float32": _RNG.normal(size=(3, 4)).astype(np.float32),
    "float64": _RNG.normal(size=(5,)),
    "complex128": _RNG.normal(size=(2, 2)) + 1j,
    "0-d": np.array(1.5, np.float32),
    "NaN and Inf": np.array([np.nan, np.inf, 0.0], np.float32),
    "zeros": np.zeros((2, 3), np.float32),
}


def _array(case: str) -> Array:
    copy: Any = np.array(_ARRAYS[case])
    return copy


class MetricContract:
    """Inherit this class and define the fixture ``metric``."""

    @pytest.fixture
    def metric(self) -> Metric:
        """Return the offer under test."""
        raise NotImplementedError("a class that inherits MetricContract defines the fixture 'metric'")

    def test_it_is_what_the_core_calls(self, metric: Metric) -> None:
        """It has all members of the protocol, and a title."""
        assert missing_members(metric, Metric) == []
        assert metric.name.strip()

    @pytest.mark.parametrize("case", _ARRAYS)
    def test_a_cell_is_a_number_or_a_text(self, metric: Metric, case: str) -> None:
        """For every kind of values that tensors have."""
        cell = metric.compare(_array(case), _array(case))
        assert isinstance(cell, (str, int, float, np.integer, np.floating)), f"it returned a {type(cell).__name__}"

    @pytest.mark.parametrize("case", _ARRAYS)
    def test_arrays_stay_as_they_are(self, metric: Metric, case: str) -> None:
        """Other metrics get the same arrays."""
        target, golden = _array(case), _array(case)
        metric.compare(target, golden)
        np.testing.assert_array_equal(target, _array(case))
        np.testing.assert_array_equal(golden, _array(case))

    def test_dimensions_of_size_1_may_be_missing(self, metric: Metric) -> None:
        """In either shape."""
        target = _array("float32")
        metric.compare(target[:, None], target)
        metric.compare(target, target[None])

    def test_threads_may_call_it_at_once(self, metric: Metric) -> None:
        """And get what a single one gets."""
        target, golden = _array("float64"), _array("float64")[::-1]
        with ThreadPoolExecutor(4) as pool:
            cells = [pool.submit(metric.compare, target, golden) for _ in range(32)]
        assert {cell.result() for cell in cells} == {metric.compare(target, golden)}


class _OnDevice(np.ndarray[Any, Any]):
    """An array that stands for one on a device: its numbers are not known before the window ends."""


def _wait(*_: object) -> Any:
    raise AssertionError("it waits for the device: it uses the value of a result")


for _name in ("__float__", "__int__", "__bool__", "__index__", "item", "tolist"):
    setattr(_OnDevice, _name, _wait)


class StatisticContract:
    """Inherit this class and define the fixture ``statistic``."""

    @pytest.fixture
    def statistic(self) -> Statistic:
        """Return the offer under test."""
        raise NotImplementedError("a class that inherits StatisticContract defines the fixture 'statistic'")

    def test_it_says_what_it_is(self, statistic: Statistic) -> None:
        """In one line."""
        assert isinstance(statistic, Statistic)
        assert statistic.summary.strip()
        assert "\n" not in statistic.summary

    @pytest.mark.parametrize("case", _ARRAYS)
    def test_it_is_one_number(self, statistic: Statistic, case: str) -> None:
        """For all kinds of values that tensors have; NaN and Inf are numbers too."""
        numbers = NumpyArrays().zeros(1)
        with np.errstate(all="ignore"):
            result = statistic.reduce(real_vector(_array(case)), NumpyArrays())
        assert np.ndim(result) == 0, f"it returned {result!r}"
        assert result is not None
        numbers[0] = result

    @pytest.mark.parametrize("case", _ARRAYS)
    def test_elements_stay_as_they_are(self, statistic: Statistic, case: str) -> None:
        """They may be the memory of the training."""
        values = real_vector(_array(case)).copy()
        before = values.copy()
        with np.errstate(all="ignore"):
            statistic.reduce(values, NumpyArrays())
        np.testing.assert_array_equal(values, before)

    def test_it_waits_for_no_device(self, statistic: Statistic) -> None:
        """No result is used as a number of Python, or decides what is computed."""
        statistic.reduce(real_vector(_array("float32")).view(_OnDevice), NumpyArrays())

    @pytest.mark.parametrize("sizes", [(5, 5), (1, 9), (3, 3, 4)], ids=str)
    def test_parts_give_the_whole(self, statistic: Statistic, sizes: Sequence[int]) -> None:
        """If it declares how they are merged."""
        if statistic.merge is None:
            pytest.skip("it cannot be merged")
        values = np.random.default_rng(3).normal(size=sum(sizes)) * (np.arange(sum(sizes)) % 3 > 0)
        parts = np.split(values, np.cumsum(sizes)[:-1])
        texts = [f'{{"{statistic.name}": {float(statistic.reduce(part, NumpyArrays()))!r}}}' for part in parts]
        whole = merged_extra(texts, sizes, {statistic.name: statistic})
        assert whole is not None
        expected = float(statistic.reduce(values, NumpyArrays()))
        assert numbers_of(whole)[statistic.name] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def _square(number: int) -> int:
    return number * number


class ExecutorContract:
    """Inherit this class and define the fixture ``executor``."""

    @pytest.fixture
    def executor(self) -> Executor:
        """Return the offer under test."""
        raise NotImplementedError("a class that inherits ExecutorContract defines the fixture 'executor'")

    @pytest.fixture
    def options(self) -> ExecutorOptions:
        """Return options with which it can run here."""
        return ExecutorOptions()

    def test_it_is_what_the_core_calls(self, executor: Executor, options: ExecutorOptions) -> None:
        """It has all members of the protocol, and can run here."""
        assert missing_members(executor, Executor) == []
        executor.check(options)

    @pytest.mark.parametrize("tasks", [(), (3,), tuple(range(20))], ids=["none", "one", "twenty"])
    def test_each_task_is_answered_once(
        self, executor: Executor, options: ExecutorOptions, tasks: Sequence[int]
    ) -> None:  # fmt: skip
        """With its number and its result, in any order."""
        answers = list(executor.run(_square, tasks, options))
        assert sorted(answers) == [(place, task * task) for place, task in enumerate(tasks)]

    def test_it_may_be_left_early(self, executor: Executor, options: ExecutorOptions) -> None:
        """Closing the iterator ends what still runs."""
        answers: Iterator[tuple[int, object]] = executor.run(_square, range(8), options)
        next(answers)
        if isinstance(answers, Generator):
            answers.close()

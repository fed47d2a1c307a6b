"""What a plugin promises about replays, as tests that each plugin with a `ReplayingFramework` inherits."""

from __future__ import annotations

import random
from typing import Any, ClassVar, TypeAlias, cast

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from msprobe_core import names
from msprobe_core.errors import ReplayError
from msprobe_core.model import Argument, Phase, ReplayCall, Replayed, ReplayTensor, ReplayValue
from msprobe_core.protocols.capabilities import ReplayingFramework
from msprobe_core.testing.contract_base import RiggedContract, bits_of
from msprobe_core.testing.rig import TrainingRig

Array: TypeAlias = NDArray[Any]

_X: Array = np.random.default_rng(30).standard_normal((3, 4)).astype(np.float32)
_Y: Array = np.random.default_rng(31).standard_normal((4, 5)).astype(np.float32)
_GRADIENT: Array = np.random.default_rng(32).standard_normal((3, 5)).astype(np.float32)

_CLOSE = 1e-14
"""Relative error of a result in float64; one that float32 took part in has 1e-8."""


class ReplayContract(RiggedContract[TrainingRig]):
    """Inherit it, name functions as dumps do, and provide the fixture ``rig``."""

    product: ClassVar[str]
    """A matrix product of two matrices."""

    product_keyword: ClassVar[str]
    """Name of its second parameter."""

    log_softmax: ClassVar[str]
    """Called with a matrix and 1, the dimension."""

    chunk: ClassVar[str]
    """Called with a matrix, 2 parts and 1, the dimension; returns both."""

    tile: ClassVar[str]
    """Called with a matrix and a tuple of two numbers of repetitions."""

    index_select: ClassVar[str]
    """Called with a matrix, 0 and indices of rows."""

    refused: ClassVar[tuple[str, ...]] = (
        "Functional.load",
        "Tensor.tofile",
        "Tensor.__reduce__",
        "Functional.__class__",
    )
    """Names that are no numerical functions."""

    @pytest.fixture
    def framework(self, rig: TrainingRig) -> ReplayingFramework:
        """Return the framework as one that replays."""
        return cast("ReplayingFramework", rig.framework)

    def seed(self, value: int) -> None:
        """Seed the framework's random numbers."""
        raise NotImplementedError

    def draw(self) -> Array:
        """Draw numbers of the framework's."""
        raise NotImplementedError

    # --- results --------------------------------------------------------------------------------------------------

    def test_a_replay_in_float64_is_in_float64(self, framework: ReplayingFramework) -> None:
        """Nothing of it is rounded to float32, neither its result nor what it computes on the way."""
        product = self._replay(framework, self.product, _tensor(_X), _tensor(_Y), is_widened=True)
        _assert_close(product.values["0"], _wide(_X) @ _wide(_Y))
        found = self._replay(framework, self.log_softmax, _tensor(_X), Argument("int", 1), is_widened=True)
        shifted = _wide(_X) - _wide(_X).max(1, keepdims=True)
        _assert_close(found.values["0"], shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))

    def test_a_replay_in_its_own_precision_has_its_dtype(self, framework: ReplayingFramework) -> None:
        """A result in float32 is rounded as float32 is."""
        found = self._replay(framework, self.product, _tensor(_X), _tensor(_Y)).values["0"]
        assert found.dtype == "float32"
        error = np.abs(found.values - _wide(_X) @ _wide(_Y)).max()
        assert 0 < error < 1e-5

    def test_a_replay_is_the_same_each_time(self, framework: ReplayingFramework) -> None:
        """Replays are deterministic."""
        first, second = (self._replay(framework, self.product, _tensor(_X), _tensor(_Y)) for _ in range(2))
        assert first.values["0"].values.tobytes() == second.values["0"].values.tobytes()
        assert not first.is_random

    def test_several_results_have_their_paths(self, framework: ReplayingFramework) -> None:
        """Results are named as a dump names them."""
        found = self._replay(framework, self.chunk, _tensor(_X), Argument("int", 2), Argument("int", 1)).values
        assert {path: each.values.tolist() for path, each in found.items()} == {
            "0": _X[:, :2].tolist(), "1": _X[:, 2:].tolist(),
        }  # fmt: skip

    # --- gradients ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("is_named", [False, True], ids=["positional", "keyword"])
    def test_gradients_of_every_input(self, framework: ReplayingFramework, is_named: bool) -> None:
        """Inputs have their gradients, however they were passed."""
        x, y = _tensor(_X, takes_gradient=True), _tensor(_Y, takes_gradient=True)
        call = self._call(self.product, *([x] if is_named else [x, y]), phase=Phase.BACKWARD, is_widened=True)
        call = _replaced(
            call,
            kwargs={self.product_keyword: _wide_of(y)} if is_named else {},
            gradients={"0": _wide_of(_tensor(_GRADIENT))},
        )
        found = framework.replay(call).values
        second = self.product_keyword if is_named else "1"
        assert set(found) == {"0", second}
        _assert_close(found["0"], _wide(_GRADIENT) @ np.transpose(_wide(_Y)))
        _assert_close(found[second], np.transpose(_wide(_X)) @ _wide(_GRADIENT))

    def test_only_gradients_that_are_asked_for(self, framework: ReplayingFramework) -> None:
        """Inputs without a recorded gradient have none."""
        call = self._call(self.product, _tensor(_X), _tensor(_Y, takes_gradient=True), phase=Phase.BACKWARD)
        assert set(framework.replay(_replaced(call, gradients={"0": _tensor(_GRADIENT)})).values) == {"1"}

    def test_a_tensor_that_is_given_twice_has_its_whole_gradient_in_both_places(
        self, framework: ReplayingFramework
    ) -> None:
        """Both arguments are one leaf."""
        square = _X[:, :3]
        given = [_tensor(square, takes_gradient=True, identity=0) for _ in range(2)]
        call = self._call(self.product, *given, phase=Phase.BACKWARD, is_widened=True)
        gradient = np.eye(3, dtype=np.float32)
        found = framework.replay(_replaced(call, gradients={"0": _wide_of(_tensor(gradient))})).values
        whole: Array = 2 * np.transpose(_wide(square))
        for path in ("0", "1"):
            _assert_close(found[path], whole)

    def test_gradients_of_several_results_add_up(self, framework: ReplayingFramework) -> None:
        """A backward takes the gradients of all results that have one."""
        call = self._call(
            self.chunk, _tensor(_X, takes_gradient=True), Argument("int", 2), Argument("int", 1), phase=Phase.BACKWARD
        )
        parts = {"0": _tensor(_X[:, :2] + 1), "1": _tensor(_X[:, 2:] + 1)}
        assert framework.replay(_replaced(call, gradients=parts)).values["0"].values.tolist() == (_X + 1).tolist()
        one = framework.replay(_replaced(call, gradients={"1": parts["1"]})).values["0"].values
        assert one.tolist() == np.hstack((np.zeros((3, 2)), _X[:, 2:] + 1)).tolist()

    # --- isolation ------------------------------------------------------------------------------------------------

    def test_random_numbers_are_drawn_as_without_the_replay(self, framework: ReplayingFramework) -> None:
        """The states of all generators are as before."""
        drawn: list[list[float]] = []
        for replays in (False, True):
            self.seed(5)
            np.random.seed(5)  # the state that programs share
            random.seed(5)
            if replays:
                for is_widened in (False, True):
                    self._replay(framework, self.product, _tensor(_X), _tensor(_Y), is_widened=is_widened)
            drawn.append([*self.draw().ravel().tolist(), np.random.random(), random.random()])  # noqa: S311
        assert drawn[0] == drawn[1]

    def test_training_is_bitwise_unchanged(self, rig: TrainingRig, framework: ReplayingFramework) -> None:
        """A replay in the training's process changes nothing in it."""
        states: list[dict[str, bytes]] = []
        for replays in (False, True):
            model = rig.make_model(7)
            for step in range(2):
                rig.train_step(model, step)
                if replays:
                    self._replay(framework, self.log_softmax, _tensor(_X), Argument("int", 1), is_widened=True)
                    self.test_only_gradients_that_are_asked_for(framework)
            states.append(bits_of(rig.state_of(model)))
        assert states[0] == states[1]

    def test_arguments_are_unchanged(self, framework: ReplayingFramework) -> None:
        """A replay does not write to the arrays that it is given."""
        x: Array = np.array(_X)
        y: Array = np.array(_Y)
        self._replay(framework, self.product, _tensor(x), _tensor(y))
        assert x.tobytes() == _X.tobytes()
        assert y.tobytes() == _Y.tobytes()

    # --- untrusted dumps ------------------------------------------------------------------------------------------

    def test_unknown_names_are_refused(self, framework: ReplayingFramework) -> None:
        """Names of a dump are only looked up in the plugin's table."""
        for name in self.refused:
            call = self._call(name, _tensor(_X))
            assert framework.why_not_replayed(call.site)
            with pytest.raises(ReplayError):
                framework.replay(call)

    @pytest.mark.parametrize("is_widened", [False, True], ids=["own", "float64"])
    def test_results_of_any_size_are_refused(self, framework: ReplayingFramework, is_widened: bool) -> None:
        """A dump cannot make a replay fill the memory."""
        times: list[ReplayValue] = [Argument("int", 1 << 20), Argument("int", 1 << 20)]
        with pytest.raises(ReplayError):
            self._replay(framework, self.tile, _tensor(_X), times, is_widened=is_widened)
        few: list[ReplayValue] = [Argument("int", 2), Argument("int", 3)]
        found = self._replay(framework, self.tile, _tensor(_X), few, is_widened=is_widened)
        assert found.values["0"].values.shape == (6, 12)
        limited = _replaced(self._call(self.tile, _tensor(_X), few, is_widened=is_widened), max_elements=71)
        with pytest.raises(ReplayError):
            framework.replay(limited)

    @pytest.mark.parametrize("index", [3, 1 << 40, -(1 << 40)])
    @pytest.mark.parametrize("is_widened", [False, True], ids=["own", "float64"])
    def test_indices_out_of_range_are_refused(
        self, framework: ReplayingFramework, is_widened: bool, index: int
    ) -> None:
        """A dump cannot make a kernel read beyond its inputs."""

        def select(*rows: int) -> Replayed:
            indices = ReplayTensor(values=np.array(rows, np.int64), dtype="int64")
            return self._replay(
                framework, self.index_select, _tensor(_X), Argument("int", 0), indices, is_widened=is_widened
            )

        assert select(2, 0).values["0"].values.tolist() == _X[[2, 0]].tolist()
        with pytest.raises(ReplayError):
            select(0, index)

    def test_arguments_that_do_not_fit_are_refused(self, framework: ReplayingFramework) -> None:
        """A failure is a `ReplayError`, whatever the framework raised."""
        for is_widened in (False, True):
            with pytest.raises(ReplayError):
                self._replay(framework, self.product, _tensor(_X), _tensor(_X), is_widened=is_widened)

    # --- calls ----------------------------------------------------------------------------------------------------

    def _replay(
        self, framework: ReplayingFramework, name: str, *args: ReplayValue, is_widened: bool = False
    ) -> Replayed:
        return framework.replay(self._call(name, *args, is_widened=is_widened))

    def _call(
        self, name: str, *args: ReplayValue, phase: Phase = Phase.FORWARD, is_widened: bool = False
    ) -> ReplayCall:
        return ReplayCall(
            site=names.parse_entry(f"{name}.0.{phase.value}"),
            args=[_wide_of(each) if is_widened and isinstance(each, ReplayTensor) else each for each in args],
            kwargs={},
            is_widened=is_widened,
        )


def _replaced(call: ReplayCall, **changes: Any) -> ReplayCall:
    return msgspec.structs.replace(call, **changes)


def _tensor(values: Array, *, takes_gradient: bool = False, identity: int | None = None) -> ReplayTensor:
    return ReplayTensor(values=values, dtype=str(values.dtype), takes_gradient=takes_gradient, identity=identity)


def _wide(values: Array) -> Array:
    return values.astype(np.float64)


def _wide_of(value: ReplayTensor) -> ReplayTensor:
    if value.values.dtype.kind != "f":
        return value
    return ReplayTensor(
        values=_wide(value.values), dtype="float64", takes_gradient=value.takes_gradient, identity=value.identity
    )


def _assert_close(found: ReplayTensor, expected: Array) -> None:
    assert found.dtype == "float64"
    assert found.values.dtype == np.float64
    assert np.abs(found.values - expected).max() <= _CLOSE * np.abs(expected).max()

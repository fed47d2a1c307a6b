"""What a plugin promises to the task ``grad_probe``, as tests that each with an `UpdatingFramework` inherits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from msprobe_core.errors import SessionError
from msprobe_core.protocols.capabilities import UpdatingFramework
from msprobe_core.testing.contract_base import RiggedContract, bits_of
from msprobe_core.testing.rig import MonitoredRig

_NUM_STEPS = 2


class UpdateContract(RiggedContract[MonitoredRig]):
    """Inherit it, and provide the fixture ``rig``, whose framework is an `UpdatingFramework`."""

    def test_an_optimizer_updates_the_parameters_of_its_model(self, rig: MonitoredRig) -> None:
        """Each once, the tensors themselves."""
        model = rig.make_model(3)
        optimizer = rig.make_adam(model)
        found = _framework(rig).updated_by(optimizer)
        rig.train_with(model, optimizer, 0)  # before it there may be no gradients, which are a part of the state
        expected = [value.shape for name, value in rig.state_of(model).items() if not name.endswith(".grad")]
        assert found is not None
        assert sorted(tuple(each.shape) for each in found.values()) == sorted(expected)
        assert len({id(each) for each in found.values()}) == len(found)

    def test_what_is_no_optimizer_updates_nothing(self, rig: MonitoredRig) -> None:
        """A model, and an object of any class."""
        assert _framework(rig).updated_by(rig.make_model(3)) is None
        assert _framework(rig).updated_by(object()) is None

    def test_every_step_of_every_optimizer_is_reported(self, rig: MonitoredRig) -> None:
        """Before and after, with the tensors that are updated; also of optimizers that are made later."""
        seen: list[set[int]] = []
        ended: list[int] = []

        def before(tensors: Sequence[Any]) -> None:
            seen.append({id(each) for each in tensors})

        earlier = rig.make_model(3)
        optimizers = [(earlier, rig.make_adam(earlier))]
        with _watched(rig, before, lambda: ended.append(len(seen))):
            later = rig.make_model(4)
            optimizers.append((later, rig.make_adam(later)))
            for model, optimizer in optimizers:
                for step in range(_NUM_STEPS):
                    rig.train_with(model, optimizer, step)
        expected = [{id(each) for each in (_framework(rig).updated_by(own) or {}).values()} for _, own in optimizers]
        assert seen == [each for each in expected for _ in range(_NUM_STEPS)]
        assert ended == list(range(1, len(seen) + 1))

    def test_nothing_is_reported_or_left_after_the_end(self, rig: MonitoredRig) -> None:
        """Hooks and patches are removed."""
        calls: list[str] = []
        model = rig.make_model(3)
        optimizer = rig.make_adam(model)
        rig.train_with(model, optimizer, 0)
        traces = rig.traces_in(model)
        with _watched(rig, lambda _: calls.append("before"), lambda: calls.append("after")):
            rig.train_with(model, optimizer, 1)
        assert calls == ["before", "after"]
        rig.train_with(model, optimizer, 2)
        assert calls == ["before", "after"]
        assert rig.traces_in(model) == traces

    def test_a_watched_training_is_bitwise_the_same(self, rig: MonitoredRig) -> None:
        """Losses and parameters."""
        with _watched(rig, lambda _: None, lambda: None):
            watched = _train(rig)
        assert watched == _train(rig)


def _framework(rig: MonitoredRig) -> UpdatingFramework:
    framework = rig.framework
    assert isinstance(framework, UpdatingFramework), f"{type(framework).__name__} is no UpdatingFramework"
    return framework


@contextmanager
def _watched(rig: MonitoredRig, before: Callable[[Sequence[Any]], None], after: Callable[[], None]) -> Generator[None]:
    try:
        end = _framework(rig).watch_all_updates(before, after)
    except SessionError as error:
        if "optimizer" not in str(error):
            pytest.fail(f"the message does not say what to give instead of all optimizers: {error}")
        pytest.skip(f"the framework cannot watch all optimizers: {error}")
    try:
        yield
    finally:
        end()


def _train(rig: MonitoredRig) -> tuple[list[str], dict[str, bytes]]:
    model = rig.make_model(3)
    optimizer = rig.make_adam(model)
    losses = [rig.train_with(model, optimizer, step).hex() for step in range(_NUM_STEPS)]
    return losses, bits_of(rig.state_of(model))

"""What a plugin promises to ``free_benchmark bisect``, as tests that each with a `RaisingFramework` inherits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from msprobe_core.capture.window import Model
from msprobe_core.model import OUTSIDE, ReferenceFormat
from msprobe_core.protocols.capabilities import RaisedModules, RaisingFramework
from msprobe_core.testing.contract_base import RiggedContract, bits_of
from msprobe_core.testing.rig import MonitoredRig


class RaisingContract(RiggedContract[MonitoredRig]):
    """Inherit it, and provide the fixture ``rig``, whose framework is a `RaisingFramework` and trains in float32."""

    def test_the_unchanged_step_tells_modules_and_formats(self, rig: MonitoredRig) -> None:
        """Modules in the order of their first call, each once; the formats that they compute in."""
        model = rig.make_model(3)
        raised = _watched(rig, model)
        paths = [each.path for each in raised.modules]
        assert paths[0] == ""
        assert len(paths) > 2
        assert len(set(paths)) == len(paths)
        assert "float32" in raised.formats

    def test_a_step_with_nothing_raised_is_bitwise_the_same(self, rig: MonitoredRig) -> None:
        """Loss, parameters and gradients; also of the unchanged step that is watched."""
        model = rig.make_model(3)
        plain = _trained(rig, model, nullcontext)
        other = rig.make_model(3)
        raised = _framework(rig).raised_modules([Model("", other)])
        assert _trained(rig, other, raised.watched) == plain
        plain = _trained(rig, model, nullcontext, step=1)
        assert _trained(rig, other, lambda: raised.raised((), ReferenceFormat.FP64), step=1) == plain

    def test_a_step_with_everything_raised_rounds_less(self, rig: MonitoredRig) -> None:
        """Nearly the same loss, but another; parameters and gradients keep their formats."""
        model, other = rig.make_model(3), rig.make_model(3)
        raised = _watched(rig, model)
        everything = frozenset({*(each.path for each in raised.modules), OUTSIDE})
        rig.train_with(other, rig.make_adam(other), 0)
        optimizer = rig.make_adam(model)
        with raised.raised(everything, ReferenceFormat.FP64):
            fine = rig.train_with(model, optimizer, 1)
        coarse = rig.train_with(other, rig.make_adam(other), 1)
        assert fine == pytest.approx(coarse, rel=1e-5)
        assert raised.failed is None
        formats = {name: value.dtype for name, value in rig.state_of(model).items()}
        assert formats == {name: value.dtype for name, value in rig.state_of(other).items()}
        assert bits_of(rig.state_of(model)) != bits_of(rig.state_of(other))

    def test_the_module_whose_code_raises_is_named(self, rig: MonitoredRig) -> None:
        """If it is raised; the error is the program's own. Afterwards the model is as before."""
        model = rig.make_model(3)
        raised = _watched(rig, model)
        traces = rig.traces_in(model)
        before = bits_of(rig.state_of(model))
        everything = frozenset(each.path for each in raised.modules)
        for modules, is_blamed in ((everything, True), (frozenset[str](), False)):
            with pytest.raises(ArithmeticError), raised.raised(modules, ReferenceFormat.FP64):
                rig.fail_in_step(model)
            assert (raised.failed in everything and raised.failed != "") is is_blamed
        assert rig.traces_in(model) == traces
        assert bits_of(rig.state_of(model)) == before

    def test_nothing_is_left_after_the_end(self, rig: MonitoredRig) -> None:
        """Hooks and patches are removed."""
        model = rig.make_model(3)
        optimizer = rig.make_adam(model)
        rig.train_with(model, optimizer, 0)
        traces = rig.traces_in(model)
        raised = _framework(rig).raised_modules([Model("", model)])
        with raised.watched():
            rig.train_with(model, optimizer, 1)
        with raised.raised(frozenset(each.path for each in raised.modules), ReferenceFormat.FP64):
            rig.train_with(model, optimizer, 2)
        assert rig.traces_in(model) == traces

    def test_an_optimizer_has_a_state(self, rig: MonitoredRig) -> None:
        """And an object of any class, or a class, has none."""
        framework = _framework(rig)
        assert framework.has_state(rig.make_adam(rig.make_model(3)))
        assert not any(framework.has_state(each) for each in (object(), object, 1, None, pytest))


def _framework(rig: MonitoredRig) -> RaisingFramework:
    framework = rig.framework
    assert isinstance(framework, RaisingFramework), f"{type(framework).__name__} is no RaisingFramework"
    return framework


def _watched(rig: MonitoredRig, model: Any) -> RaisedModules:
    raised = _framework(rig).raised_modules([Model("", model)])
    optimizer = rig.make_adam(model)
    with raised.watched():
        rig.train_with(model, optimizer, 0)
    return raised


def _trained(
    rig: MonitoredRig, model: Any, around: Callable[[], AbstractContextManager[Any]], step: int = 0
) -> tuple[str, dict[str, bytes]]:
    optimizer = rig.make_adam(model)
    with around():
        loss = rig.train_with(model, optimizer, step)
    return loss.hex(), bits_of(rig.state_of(model))

"""The part of a framework's contract about the program: recording changes nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from msprobe_core.capture import Session
from msprobe_core.protocols.capabilities import (
    Fp8Reducer,
)
from msprobe_core.testing.contract_base import (
    LEVELS,
    MODES,
    ContractBase,
    assert_same_state,
)
from msprobe_core.testing.rig import TrainingRig


class NeutralityContract(ContractBase):
    """Training is bitwise unchanged, nothing is left hooked, and errors of the program are its own."""

    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize(("task", "summary_mode"), MODES)
    def test_training_is_bitwise_unchanged(
        self, rig: TrainingRig, open_session: Callable[..., Session], level: str, task: str, summary_mode: str
    ) -> None:
        """Losses, weights and gradients of three steps are the same with and without recording."""
        if summary_mode == "fp8" and not isinstance(rig.framework.reducer(), Fp8Reducer):
            pytest.skip("the framework has no statistics of FP8")
        plain, probed = rig.make_model(3), rig.make_model(3)
        expected = [rig.train_step(plain, step) for step in range(3)]
        session = open_session(level=level, task=task, summary_mode=summary_mode)
        losses: list[float] = []
        for step in range(3):
            session.start([probed])
            losses.append(rig.train_step(probed, step))
            session.stop()
            session.step()
        session.close()
        assert losses == expected
        assert_same_state(rig, plain, probed)

    @pytest.mark.parametrize("level", LEVELS)
    def test_nothing_is_left_behind(self, rig: TrainingRig, open_session: Callable[..., Session], level: str) -> None:
        """Nothing is hooked before start, and nothing after stop, even if a step raised."""
        model = rig.make_model(3)
        untouched = rig.traces_in(model)
        session = open_session(level=level)
        assert rig.traces_in(model) == untouched
        session.start([model])
        rig.train_step(model, 0)
        session.stop()
        assert rig.traces_in(model) == untouched
        session.start([model])
        with pytest.raises(ArithmeticError):
            rig.fail_in_step(model)
        session.stop()
        assert rig.traces_in(model) == untouched
        session.close()

    def test_an_unselected_step_or_rank_is_not_touched(
        self, rig: TrainingRig, open_session: Callable[..., Session], tmp_path: Path
    ) -> None:
        """Nothing is hooked, and nothing is written to disk."""
        model = rig.make_model(3)
        untouched = rig.traces_in(model)
        for settings in ({"step": [5]}, {"rank": [7]}, {"dump_enable": False}):
            session = open_session(level="L0", **settings)
            session.start([model])
            assert rig.traces_in(model) == untouched
            assert not session.is_running
            session.stop()
            session.close()
        assert not (tmp_path / "run").exists()

    def test_a_raising_step_loses_no_record(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Everything recorded before the exception is on disk, and training can continue."""
        model, session = rig.make_model(3), open_session(level="L0")
        session.start([model])
        with pytest.raises(ArithmeticError):
            rig.fail_in_step(model)
        session.stop()
        raised = self._dump(session)
        session.step()
        session.start([model])
        rig.train_step(model, 0)
        session.stop()
        complete = self._dump(session)
        session.close()
        assert raised
        assert len(complete) > len(raised)

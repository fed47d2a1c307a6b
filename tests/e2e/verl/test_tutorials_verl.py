"""The tutorial on training against rollout is what happens."""

import pytest

from msprobe_core.rl import files


@pytest.mark.slow
def test_rollout(faulty_run):
    """The tutorial is followed to make the run; what it shows is compared there."""
    assert files.steps_of(faulty_run.out, "update_weights_recv") == [0, 1, 2]

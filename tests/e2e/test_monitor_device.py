"""Results of a monitored training on a device reach the host without a wait. The device is simulated."""

import monitored_device
import pytest
import simulated_device
from monitored_device import NUM_STEPS

pytestmark = pytest.mark.skipif(
    not simulated_device.has_python_devices(), reason="this PyTorch takes no device that is written in Python"
)


@pytest.fixture(scope="module")
def train():
    with simulated_device.device_process() as run:
        yield lambda *args, **kwargs: run(monitored_device.train_with, args, kwargs)


@pytest.mark.slow
def test_no_step_waits_for_a_device_that_is_late(train, tmp_path):
    seen = train(tmp_path, "npu", lag=2)
    assert seen.waits == [0] * NUM_STEPS
    assert seen.written == [0, 0, 1, 2, 3, 4]  # in their order, each when its event has said so


@pytest.mark.slow
def test_results_that_are_there_are_written_at_once(train, tmp_path):
    seen = train(tmp_path, "npu")
    assert (seen.waits, seen.written) == ([0] * NUM_STEPS, list(range(1, NUM_STEPS + 1)))


@pytest.mark.slow
def test_a_host_that_is_far_ahead_waits_for_the_oldest_step(train, tmp_path):
    seen = train(tmp_path, "npu", lag=1000, most_waiting=2)
    assert seen.waits[:2] == [0, 0]
    assert seen.waits[2] > 0
    assert seen.written == [0, 0, 1, 2, 3, 4]


@pytest.mark.slow
def test_a_device_that_does_not_copy_by_itself_is_waited_for_a_step_later(train, tmp_path):
    seen = train(tmp_path, "npu", has_pinned=False)
    assert seen.waits[0] == 0
    assert seen.waits[1] > 0
    assert seen.written == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_all_values_are_those_of_the_host_and_the_training_is_the_same(train, tmp_path):
    paths = [tmp_path / name for name in ("device", "host", "bare")]
    for path in paths:
        path.mkdir()
    device, host = train(paths[0], "npu", lag=2), train(paths[1], "cpu")
    bare = train(paths[2], "npu", is_monitored=False)
    assert device.weights == bare.weights
    assert len(device.norms) > 100
    assert device.norms == pytest.approx(host.norms, rel=1e-5)

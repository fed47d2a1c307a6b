"""A writer of the monitor in a thread of its own."""

import threading

import pytest

from msprobe_core.errors import StoreError
from msprobe_core.monitor.background_writer import BackgroundWriter


class Slow:
    """Takes steps when it is let, and fails in one of them."""

    def __init__(self, fails_in=None):
        self.seen, self.threads, self.fails_in = [], set(), fails_in
        self.go_on = threading.Event()
        self.is_closed = False

    def add(self, step, values):
        assert self.go_on.wait(20)
        self.threads.add(threading.current_thread().name)
        self.seen.append((step, list(values)))
        if step == self.fails_in:
            raise StoreError("the disk is full")

    def close(self):
        self.is_closed = True


def test_steps_are_written_in_their_order_by_another_thread():
    slow = Slow()
    writer = BackgroundWriter(slow)
    for step in range(5):
        writer.add(step, [])  # does not wait
    assert slow.seen == []
    slow.go_on.set()
    writer.close()
    assert (slow.seen, slow.is_closed) == ([(step, []) for step in range(5)], True)
    assert slow.threads == {"msprobe-monitor-writer"}


def test_what_a_step_raises_is_raised_once_and_the_others_are_written():
    slow = Slow(fails_in=1)
    writer = BackgroundWriter(slow)
    slow.go_on.set()
    for step in range(2):
        writer.add(step, [])
    with pytest.raises(StoreError, match="the disk is full"):
        writer.close()
    assert [step for step, _ in slow.seen] == [0, 1]
    assert slow.is_closed


def test_a_training_that_is_faster_than_its_disk_waits_for_it():
    slow = Slow()
    writer = BackgroundWriter(slow, most_waiting=1)
    training = threading.Thread(target=lambda: [writer.add(step, []) for step in range(4)])
    training.start()
    training.join(0.2)
    assert training.is_alive()
    slow.go_on.set()
    training.join(20)
    assert not training.is_alive()
    writer.close()
    assert len(slow.seen) == 4


def test_a_monitor_without_a_step_ends():
    slow = Slow()
    BackgroundWriter(slow).close()
    assert slow.is_closed

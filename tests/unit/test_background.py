"""The writing thread: order, back-pressure, and errors that reach whoever waits."""

import threading

import pytest

from msprobe_core.store.background import BackgroundQueue


@pytest.fixture
def jobs():
    queue = BackgroundQueue(max_bytes=100)
    yield queue
    queue.close()


def test_jobs_run_in_order_on_one_other_thread(jobs):
    done = []
    for i in range(50):
        jobs.submit(lambda i=i: done.append((i, threading.get_ident())))
    jobs.wait()
    assert [i for i, _ in done] == list(range(50))
    assert len({thread for _, thread in done} | {threading.get_ident()}) == 2


def test_the_caller_is_held_back_while_too_much_waits(jobs):
    may_go, submitted = threading.Event(), threading.Event()
    jobs.submit(may_go.wait, 60)

    def submit_more():
        jobs.submit(lambda: None, 60)
        submitted.set()

    submitter = threading.Thread(target=submit_more)
    submitter.start()
    assert not submitted.wait(0.2)
    may_go.set()
    submitter.join(10)
    assert submitted.is_set()


def test_a_job_larger_than_the_limit_is_taken_when_nothing_else_waits(jobs):
    done = []
    jobs.submit(lambda: done.append(1), 1000)
    jobs.wait()
    assert done == [1]


def test_the_first_error_is_raised_once_and_later_jobs_run(jobs):
    done = []

    def fail():
        raise OSError("disk full")

    may_go = threading.Event()
    jobs.submit(may_go.wait)
    for job in (lambda: done.append("before"), fail, lambda: done.append("after")):
        jobs.submit(job)
    may_go.set()
    with pytest.raises(OSError, match="disk full"):
        jobs.wait()
    assert done == ["before", "after"]
    assert not jobs.has_failed
    jobs.wait()
    jobs.submit(lambda: done.append("again"))
    jobs.wait()
    assert done == ["before", "after", "again"]


def test_close_finishes_what_waits_and_may_be_repeated(jobs):
    done = []
    for i in range(10):
        jobs.submit(lambda i=i: done.append(i))
    jobs.close()
    assert done == list(range(10))
    jobs.close()
    jobs.submit(lambda: done.append("reopened"))
    jobs.wait()
    assert done[-1] == "reopened"

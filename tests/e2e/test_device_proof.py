"""``bench/device/run.sh``: dry runs, on the host and on the simulated device, and what its tables rest on."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import device_runs
import pytest
import simulated_device
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.device.chapters import Book, Case, Chapter, Outcome, Proof, Row
from bench.device.machine import Host, waits_of

ROOT = Path(__file__).parents[2]
needs_device = pytest.mark.skipif(
    not simulated_device.has_python_devices(), reason="this PyTorch takes no device that is written in Python"
)


@pytest.fixture
def proof(tmp_path):
    return Proof(Host(), tmp_path, is_small=True)


def chapter_of(*cases):
    return Chapter("one", "One chapter", ("found",), lambda _: cases)


class TestBook:
    def test_goes_on_after_the_last_whole_row(self, tmp_path, proof):
        ran = []

        def case(name):
            return Case(name, lambda: ran.append(name) or Outcome((f"found {name}",), holds=True))

        chapter = chapter_of(case("a"), case("b"), case("c"))
        Book(tmp_path, 60).write(chapter_of(case("a"), case("b")), proof)
        path = tmp_path / "one.jsonl"
        path.write_text(path.read_text()[:-5])  # a run that was killed while it wrote
        book = Book(tmp_path, 60)
        book.write(chapter, proof)
        assert ran == ["a", "b", "b", "c"]
        assert [row.case for row in book.rows(chapter)] == ["a", "b", "c"]
        assert "| b | found b | yes |" in book.page([chapter], "# Proof")

    def test_an_error_is_a_row_that_is_not_as_promised(self, tmp_path, proof):
        chapter = chapter_of(Case("bad", lambda: torch.ones(2) @ torch.ones(3)), Case("good", lambda: Outcome(("",))))
        book = Book(tmp_path, 60)
        book.write(chapter, proof)
        bad, good = book.rows(chapter)
        assert "RuntimeError" in bad.cells[0]
        assert [bad.holds, good.holds] == [False, None]
        assert book.num_missed([chapter]) == 1

    def test_what_the_time_did_not_allow_is_said(self, tmp_path, proof):
        book = Book(tmp_path, -1)
        chapter = chapter_of(Case("late", lambda: Outcome(())))
        book.write(chapter, proof)
        assert book.left_out == ["one: late"]
        assert "one: late" in book.page([chapter], "# Proof")

    def test_a_chapter_without_rows_is_absent_or_has_not_been_run(self, tmp_path, proof):
        book, chapter = Book(tmp_path, 60), chapter_of()
        assert "It has not been run yet." in book.page([chapter], "# Proof")
        book.write(chapter, proof)
        page = Book(tmp_path, 60).page([chapter], "# Proof")
        assert chapter.absent in page
        assert "It has not been run yet." not in page


def test_waits_are_counted_inside_of_the_step_only():
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        with record_function("cudaStreamSynchronize"):
            torch.ones(2)
        with record_function("step of the proof"), record_function("cudaStreamSynchronize"):
            torch.ones(2)
        with record_function("cudaEventSynchronize"):
            torch.ones(2)
    assert waits_of(profiled.events()) == ["cudaStreamSynchronize"]


@pytest.mark.slow
@needs_device
@pytest.mark.parametrize("dtype", ["float64", "complex64"])  # the device has no float64, and puts conjugation off
def test_reductions_of_the_simulated_device_are_those_of_the_host(dtype):
    with simulated_device.device_process() as run:
        cells, holds = run(device_runs.prove_reductions, dtype)
    assert holds, cells


def run_proof(out, *arguments, **variables):
    command = ["bash", str(ROOT / "bench/device/run.sh"), "--out", str(out), "--small", *arguments]
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    return done, (out / "proof.md").read_text()


@pytest.mark.slow
def test_dry_run_on_the_host(tmp_path):
    done, page = run_proof(tmp_path / "out", "--device", "cpu", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 rows are not as promised; 0 left out" in done.stdout
    assert "| llama, autocast | yes | 2 of 2 | none | yes |" in page
    assert "| acc_check, llama, bfloat16, a wrong kernel | 1 | Checked against float64: 1 wrong, 0 suspect, " in page
    assert "| PyTorch's DebugMode, hashes |" in page


def kill(chapter, case):
    os.kill(os.getpid(), signal.SIGKILL)


def wait(chapter, case):
    time.sleep(60)


def name_of(chapter, case):
    return Row((chapter,), True, case)


@pytest.mark.slow
class TestAtOnce:
    @pytest.fixture
    def jobs(self):
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as jobs:
            yield jobs
            for child in multiprocessing.active_children():
                child.terminate()

    def test_rows_come_from_other_processes(self, tmp_path, proof, jobs):
        book, chapter = Book(tmp_path, 60), chapter_of(Case("a", pytest.fail), Case("b", pytest.fail))
        book.write_at_once([chapter], proof, jobs, name_of)
        book.write_at_once([chapter], proof, jobs, kill)  # nothing is left to do
        assert sorted((row.case, row.cells, row.holds) for row in book.rows(chapter)) == [
            ("a", ("one",), True), ("b", ("one",), True),
        ]  # fmt: skip

    def test_a_process_that_dies_is_a_row_that_is_not_as_promised(self, tmp_path, proof, jobs):
        book, chapter = Book(tmp_path, 60), chapter_of(Case("a", pytest.fail))
        book.write_at_once([chapter], proof, jobs, kill)
        (row,) = book.rows(chapter)
        assert "BrokenProcessPool" in row.cells[0]
        assert row.holds is False

    def test_what_the_time_did_not_allow_is_left_out(self, tmp_path, proof, jobs):
        book, chapter = Book(tmp_path, 0), chapter_of(Case("a", pytest.fail))
        book.write_at_once([chapter], proof, jobs, wait)
        assert book.left_out == ["one: a"]
        assert book.rows(chapter) == []


@pytest.mark.slow
@needs_device
def test_dry_run_on_the_simulated_device(tmp_path):
    done, page = run_proof(tmp_path / "out", "--device", "simulated", "waits", "against_host")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| mix sketch | 1 aten::_local_scalar_dense | 1 aten::_local_scalar_dense |" in page  # the model's own
    assert "| llama, bfloat16, a wrong kernel | fault | Functional.silu.1.forward | silu.1 | yes |" in page


@pytest.mark.slow
def test_dry_run_of_the_kernel(tmp_path):
    pytest.importorskip("triton")
    done, page = run_proof(tmp_path / "out", "--device", "cpu", "kernel", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert page.count("elements | ") == 12

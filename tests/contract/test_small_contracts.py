"""Contracts of writers, metrics, executors, commands and stages: the core's own keep them, mistakes are found."""

import subprocess
import sys
import time
from types import SimpleNamespace

import click
import numpy as np
import pytest

from msprobe_core.errors import BrokenPluginError
from msprobe_core.plugin import DumpError, TrainerStages, registry, tensors_of
from msprobe_core.store.json_writer import JsonWriterFactory
from msprobe_core.testing import (
    CommandContract,
    DumpCheckContract,
    ExecutorContract,
    LiveCheckContract,
    MetricContract,
    StagesContract,
    WriterContract,
)


def reader_called(name):
    return next(reader for reader in registry().readers() if reader.name == name)


class TestJson(WriterContract):
    @pytest.fixture
    def factory(self):
        return registry().writers()["json"]

    @pytest.fixture
    def reader(self):
        return reader_called("json")


class TestArrow(WriterContract):
    @pytest.fixture
    def factory(self):
        return registry().writers()["arrow"]

    @pytest.fixture
    def reader(self):
        return reader_called("arrow")


class TestInline(ExecutorContract):
    @pytest.fixture
    def executor(self):
        return registry().executors()["inline"]


class TestSignChanges(MetricContract):
    @pytest.fixture
    def metric(self):
        def compare(target, golden):
            return int(np.count_nonzero(np.sign(target.reshape(-1)) != np.sign(golden.reshape(-1))))

        return SimpleNamespace(name="SignChanges", compare=compare)


class TestCommand(CommandContract):
    @pytest.fixture
    def command(self):
        return registry().commands()["overflow_check"]


class TestStages(StagesContract):
    @pytest.fixture
    def stages(self):
        return TrainerStages("mine", {"train": "one step", "evaluate": "forward alone"})


# --- what the contracts find ----------------------------------------------------------------------------------------


class OpenToAll(JsonWriterFactory):
    def open(self, directory, header):
        (directory / "notes").touch(mode=0o644)
        return super().open(directory, header)


class Forgetful(JsonWriterFactory):
    def open(self, directory, header):
        writer = super().open(directory, header)
        writer.write = lambda batch: None
        return writer


def test_files_for_everybody_are_found(tmp_path):
    with pytest.raises(AssertionError):
        WriterContract().test_files_are_for_their_owner_only(OpenToAll(), tmp_path)


def test_lost_calls_are_found(tmp_path):
    with pytest.raises((AssertionError, DumpError)):
        WriterContract().test_what_is_written_can_be_read(Forgetful(), reader_called("json"), tmp_path)


def test_a_metric_that_writes_is_found():
    def compare(target, golden):
        target *= 0
        return 1

    with pytest.raises(AssertionError):
        MetricContract().test_arrays_stay_as_they_are(SimpleNamespace(name="x", compare=compare), "float32")


def test_an_executor_that_answers_twice_is_found():
    def run(function, tasks, options):
        for place, task in enumerate(tasks):
            yield from [(place, function(task))] * 2

    executor = SimpleNamespace(name="x", check=print, run=run)
    with pytest.raises(AssertionError):
        ExecutorContract().test_each_task_is_answered_once(executor, None, (1, 2))


@pytest.mark.parametrize("answer", ["one text", [3], None])
def test_a_check_that_answers_something_else_is_found(tmp_path, answer):
    check = SimpleNamespace(name="x", summary="a look", check=lambda given: answer)
    with pytest.raises(BrokenPluginError):
        DumpCheckContract().test_it_finds_texts_and_findings(check, tmp_path)


def test_a_check_of_calls_that_trusts_statistics_is_found():
    def check(entry):
        return ["zero" for _, tensor in tensors_of(entry) if tensor.digest.stats.l2_norm == 0]

    with pytest.raises(BrokenPluginError, match="'NoneType' object has no attribute 'l2_norm'"):
        LiveCheckContract().test_it_finds_texts_and_findings(SimpleNamespace(name="x", check=check), "no statistics")


def test_a_slow_check_of_calls_is_found():
    check = SimpleNamespace(name="x", check=lambda entry: time.sleep(0.002) or [])
    with pytest.raises(AssertionError):
        LiveCheckContract().test_it_is_fast(check)


def test_an_option_without_help_is_found():
    with pytest.raises(AssertionError, match="options without help"):
        CommandContract().test_it_has_help(click.Command("x", params=[click.Option(["--y"])], help="Do."))


def test_a_failure_says_what_was_compared(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom types import SimpleNamespace\nfrom msprobe_core.testing import MetricContract\n"
        "class TestIt(MetricContract):\n    @pytest.fixture\n    def metric(self):\n"
        "        return SimpleNamespace(name='x', compare=None)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "what_the_core", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "assert ['compare'] == []" in done.stdout

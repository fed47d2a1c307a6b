"""Communication in the monitor: what collectives are given and leave, synchronous and not, and who calls them."""

import csv
import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from jobs import run_job
from msprobe.pytorch import PrecisionDebugger, TrainerMon
from torch import nn

from msprobe_core.monitoring.files import read_monitored


def begin(directory, rank, **settings):
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / "out")
    path = directory / f"monitor{rank}.json"
    path.write_text(json.dumps({"ops": ["norm", "mean"], "ndigits": 12, **settings}))
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(path, params_have_main_grad=False)
    monitor.set_monitor(model, optimizer)
    return model, optimizer, monitor


def exchange(model, rank, world, step):
    """Communicate in all ways; return what is made."""
    tensor = torch.arange(5.0) + 10 * rank + step
    dist.all_reduce(tensor)
    gathered = [torch.empty(2) for _ in range(world)]
    dist.all_gather(gathered, torch.full((2,), float(rank)))
    later = torch.full((3,), float(rank + 1))
    work = dist.all_reduce(later, async_op=True)
    model(torch.ones(2, 4)).sum().backward()  # beside it
    work.wait()
    message = torch.full((2,), 7.0 + step)
    if rank == 0:
        dist.send(message, 1)
    elif rank == 1:
        received = torch.empty(2)
        dist.irecv(received, 0).wait()
        message = received
    return [*tensor.tolist(), *(each.tolist() for each in gathered), *later.tolist(), *message.tolist()]


def train(rank, world, directory, settings):
    if settings is None:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer, monitor = torch.optim.SGD(model.parameters(), lr=0.1), None
    else:
        model, optimizer, monitor = begin(directory, rank, **settings)
    seen = []
    for step in range(3):
        seen.append(exchange(model, rank, world, step))
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.close()
    assert "Patch" not in type(dist.all_reduce.__closure__[0].cell_contents).__name__
    return [seen, [parameter.flatten().tolist() for parameter in model.parameters()], torch.get_rng_state().tolist()]


CC = {"cc_distribution": {"enable": True, "cc_pre_hook": True}}


def rows_of(out, rank, step):
    (path,) = out.glob(f"*rank{rank}*/cc_{step}-{step}.csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert all(None not in row and None not in row.values() for row in rows)  # as wide as the header
    return {row["name"]: row for row in rows}


@pytest.mark.slow
def test_values_are_those_that_are_exchanged_and_the_training_is_the_same(tmp_path):
    bare = run_job(train, 2, tmp_path / "bare", None)
    assert run_job(train, 2, tmp_path / "watched", CC) == bare
    out = tmp_path / "watched" / "out"
    rows = rows_of(out, 1, 2)

    def holds(name, place, values):
        row = rows[name]
        assert row["place"] == place
        assert float(row["norm"]) == pytest.approx(np.linalg.norm(values))
        assert float(row["mean"]) == pytest.approx(np.mean(values))
        assert Path(row["caller"].partition("[")[0]).name == Path(__file__).name

    holds("all_reduce.0.input", "pre", np.arange(5.0) + 12)
    holds("all_reduce.0.output", "post", 2 * np.arange(5.0) + 14)
    holds("all_gather.0.input", "pre", [1, 1])
    holds("all_gather.0.output_0", "post", [0, 0])
    holds("all_gather.0.output_1", "post", [1, 1])
    holds("all_reduce.1.input", "pre", [2, 2, 2])  # asynchronous: its result when it has been waited for
    holds("all_reduce.1.output", "post", [3, 3, 3])
    holds("irecv.0.output", "post", [9, 9])
    assert "irecv.0.input" not in rows
    assert rows_of(out, 0, 2)["send.0.input"]["place"] == "pre"
    assert {"all_reduce.2.output", "all_reduce.3.output"} <= set(rows)
    assert "all_reduce.4.output" not in rows
    run = read_monitored(out)
    assert set(run.statistics) == {"norm", "mean"}
    assert run.frame.filter(run.frame["quantity"] == "cc").height == sum(
        len(rows_of(out, rank, step)) for rank in (0, 1) for step in range(3)
    )


def test_callers_select_and_results_alone_are_taken_by_default(tmp_path):
    line = next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text == "    dist.all_reduce(tensor)"
    )
    place = f"{Path(__file__).name}[{line}]"
    run_job(train, 2, tmp_path, {"cc_distribution": {"enable": True, "cc_codeline": [place]}})
    rows = rows_of(tmp_path / "out", 0, 1)
    assert [(name, row["place"]) for name, row in rows.items()] == [("all_reduce.0.output", "post")]
    assert rows["all_reduce.0.output"]["caller"].endswith(place)


@pytest.mark.slow
def test_callers_are_listed_and_the_training_goes_on(tmp_path):
    run_job(train, 2, tmp_path, {"cc_distribution": {"enable": True, "cc_log_only": True}})
    assert not list(tmp_path.glob("out/*/cc_*.csv"))
    (path,) = tmp_path.glob("out/*rank1*/cc_callers.json")
    listed = json.loads(path.read_text())
    counts = {(each["operation"], each["calls"]) for each in listed}
    assert ("irecv", 3) in counts
    assert sum(each["calls"] for each in listed if each["operation"] == "all_reduce") == 12
    assert all(Path(__file__).name in each["callers"][0] for each in listed)


def pending(rank, world, directory):
    """Wait in a later step, or never."""
    model, optimizer, monitor = begin(directory, rank, **CC)
    works, tensors = [], [torch.ones(3) for _ in range(4)]
    for step in range(3):
        works.append(dist.all_reduce(tensors[step], async_op=True))
        if step == 2:
            works[0].wait()
            works[2].wait()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    monitor.close()
    works[1].wait()
    dist.all_reduce(tensors[3])
    return [tensor.tolist() for tensor in tensors]


@pytest.mark.slow
def test_a_result_of_an_earlier_step_is_left_out(tmp_path):
    assert run_job(pending, 2, tmp_path) == [[[2.0] * 3] * 4] * 2
    assert set(rows_of(tmp_path / "out", 0, 0)) == {"all_reduce.0.input"}
    assert set(rows_of(tmp_path / "out", 0, 2)) == {"all_reduce.0.input", "all_reduce.0.output"}


def with_debugger(rank, world, directory):
    """Let the debugger record the same calls."""
    (directory / f"config{rank}.json").write_text(
        json.dumps({"task": "statistics", "dump_path": str(directory / "dump"), "level": "mix"})
    )
    debugger = PrecisionDebugger(config_path=str(directory / f"config{rank}.json"))
    model, optimizer, monitor = begin(directory, rank, **CC)
    for step in range(2):
        debugger.start(model=model)
        exchange(model, rank, world, step)
        debugger.stop()
        debugger.step()
        optimizer.step()
    monitor.close()
    return True


@pytest.mark.slow
def test_the_debugger_and_the_monitor_both_see_it(tmp_path):
    run_job(with_debugger, 2, tmp_path)
    for step in range(2):
        record = json.loads((tmp_path / "dump" / f"step{step}" / "rank0" / "dump.json").read_text())
        names = [name for name in record["data"] if name.startswith("Distributed.all_reduce")]
        assert len(names) == 2
        rows = rows_of(tmp_path / "out", 0, step)
        assert {"all_reduce.0.output", "all_reduce.1.output", "all_gather.0.output_0"} <= set(rows)


def test_nothing_seen_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps(CC))
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(path)
    monitor.set_monitor(model, optimizer)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    with caplog.at_level(logging.WARNING):
        monitor.close()
    assert "saw nothing of cc" in caplog.text

"""What outlives a window does not pile up from window to window."""

import gc
import json
import tracemalloc
import weakref
from itertools import pairwise

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from torch import nn

from msprobe_core.capture import call_tree, step_record

pytestmark = pytest.mark.usefixtures("close_debugger")

get_gradient_edge = getattr(torch.autograd.graph, "get_gradient_edge", None)


@pytest.mark.skipif(get_gradient_edge is None, reason="this PyTorch does not show its nodes")
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_nodes_that_others_keep_have_no_hooks_of_earlier_windows(tmp_path, level):
    model = nn.Linear(3, 3)
    # As DistributedDataParallel and Megatron do.
    kept = [get_gradient_edge(parameter).node for parameter in model.parameters()]
    num_hooks = []
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    for _ in range(3):
        with debugger.start(model):
            loss = model(torch.ones(1, 3)).sum()
        loss.backward()
        num_hooks += [_num_hooks(node) for node in kept]
        debugger.step()
    assert num_hooks[0] > 0
    assert set(num_hooks) == {num_hooks[0]}
    debugger.close()
    assert [_num_hooks(node) for node in kept] == [0, 0]
    assert [node.metadata for node in kept] == [{}, {}]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_what_was_sent_is_not_kept_when_nobody_can_wait_for_it_any_more(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L1")
    try:
        with debugger.start():
            x = torch.ones(3)
            is_alive = weakref.ref(x)
            torch.distributed.all_reduce(x, async_op=True).get_future().wait()
            del x
            gc.collect()
            assert is_alive() is None
    finally:
        debugger.close()
        torch.distributed.destroy_process_group()


class _Activation:
    """Stands for what a forward holds in its variables."""


class _Holding(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        self.held = []

    def forward(self, x):
        held = _Activation()
        self.held.append(weakref.ref(held))
        return torch.tanh(self.inner(x) * 2)


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    gc.freeze()  # what is there takes no part in collections, each of which would look at all of it
    yield  # and stays frozen, as it was before
    gc.enable()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.usefixtures("without_collector")
def test_what_a_forward_holds_goes_with_it_without_the_garbage_collector(tmp_path, level):
    model = _Holding()
    with PrecisionDebugger(dump_path=tmp_path / "run", level=level).start(model):
        loss = model(torch.ones(2, 3)).sum()
        assert [held() for held in model.held] == [None]
        loss.backward()


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.usefixtures("without_collector")
def test_no_call_leaves_anything_to_the_garbage_collector(tmp_path, level):
    model = _Holding()
    optimizer = torch.optim.AdamW(model.parameters())
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    left = {1: [], 5: []}
    for num_passes in (1, 1, 5, 1, 5, 1, 5):
        gc.collect()
        with debugger.start(model):
            for _ in range(num_passes):
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
        debugger.step()
        left[num_passes].append(gc.collect())
    # What is made once, such as a cache that grows, may fall into any window, the first above all; not into all.
    assert min(left[1][1:]) == min(left[5]), "one window leaves some, whatever happens in it"


def _num_hooks(node):
    """Return how many hooks are at a node: a hook of ours is put into the dictionary that holds the others."""
    before, after = node.register_prehook(lambda _: None), node.register_hook(lambda *_: None)
    number = len(before.hooks_dict_ref()) + len(after.hooks_dict_ref()) - 2
    before.remove()
    after.remove()
    return number


def _micro_batch(model):
    model(torch.ones(2, 3)).sum().backward()


def _forward_alone(model):
    model(torch.ones(2, 3))


def _bytes_held(debugger, work, number):
    """Return how many bytes are held once what is complete of ``number`` times ``work`` has been written."""
    for _ in range(number):
        work()
    session = debugger._controller.session
    session._output.write_backlog()
    session._output.queue.wait()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "level", "options"),
    [
        (_micro_batch, "L0", {}),
        (_micro_batch, "mix", {}),
        (_forward_alone, "mix", {}),
        (_micro_batch, "mix", {"list": ["tanh"]}),
    ],
)
@pytest.mark.usefixtures("without_collector")
def test_calls_of_one_window_do_not_pile_up_once_they_are_written(tmp_path, monkeypatch, work, level, options):
    monkeypatch.setattr(step_record, "BACKLOG_ENTRIES", 32)
    monkeypatch.setattr(call_tree, "MAX_PARENTS", 32)
    model = _Holding()
    model.held = _Forgetting()
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"level": level, "dump_path": str(tmp_path / "run"), "statistics": options}))
    debugger = PrecisionDebugger(config)
    with debugger.start(model):
        tracemalloc.start()
        try:
            # Of one line, since each place that calls come from is kept once.
            held = [_bytes_held(debugger, lambda: work(model), 30) for _ in range(7)]
        finally:
            tracemalloc.stop()
    # The names, parents and entries of the calls of each are kilobytes. What is made once falls into one part of them.
    grown = sorted((after - before) / 30 for before, after in pairwise(held))
    assert grown[1] < 300, grown


class _Forgetting:
    def append(self, _):
        pass

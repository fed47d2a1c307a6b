"""Communication in compiled code: what the compiler only tries is no call."""

import logging

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded

pytestmark = [
    pytest.mark.usefixtures("close_debugger"),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_what_the_compiler_tries_is_not_recorded(tmp_path, group, caplog):
    import torch.distributed._functional_collectives as functional

    def function(x):
        return functional.all_reduce(x * 2, "sum", group) + 1

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L1")
    with caplog.at_level(logging.WARNING), debugger.start():
        result = compiled(torch.ones(3))
        functional.all_reduce(torch.ones(3), "sum", group).add(1)
    debugger.close()
    assert result.tolist() == [3.0] * 3
    assert "not recorded, or not wholly" not in caplog.text
    names = [name for name in Recorded(tmp_path / "run").data if name.startswith("Distributed.")]
    # Where the operators are Python's, what the compiled function has sent when it ran is seen as well.
    num_sent = 1 if hasattr(torch.ops._c10d_functional, "all_reduce") else 2
    assert names == [f"Distributed.all_reduce.{i}.forward" for i in range(num_sent)]

"""The template of a plugin for JAX: flax modules, eager and compiled, against PyTorch, and the contract of frameworks.

It needs an environment with JAX: `make slow-jax`.
"""

import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_programs import FlaxNet, FlaxRun, TorchNet, torch_step

from msprobe_core import compare_dumps
from msprobe_core.locate import LocateVerdict, locate
from msprobe_core.testing import FrameworkContract

TEMPLATE = Path(__file__).resolve().parents[3] / "examples" / "jax_plugin"
sys.path.insert(0, str(TEMPLATE))

from msprobe_jax import PrecisionDebugger  # noqa: E402
from msprobe_jax.framework import JaxFramework  # noqa: E402

pytestmark = pytest.mark.slow

NUM_ROWS = 41
"""Values of one step: of the calls of six modules forward and backward, and of seven parameters."""


@pytest.fixture(autouse=True, scope="module")
def installed(tmp_path_factory):
    """Give the template the entry point of its pyproject, and look for plugins again."""
    from msprobe_core.plugins import registry

    info = tmp_path_factory.mktemp("site") / "msprobe_jax-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: msprobe-jax\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[msprobe]\njax = msprobe_jax.hooks\n")
    assert 'jax = "msprobe_jax.hooks"' in (TEMPLATE / "pyproject.toml").read_text()
    sys.path.insert(0, str(info.parent))
    importlib.invalidate_caches()
    registry.cache_clear()
    yield
    sys.path.remove(str(info.parent))
    registry.cache_clear()


def recorded_flax(place, *, num_steps=1, **settings):
    run, losses = FlaxRun(**settings), []
    debugger = PrecisionDebugger(dump_path=place, level="L0", task="tensor")
    for _ in range(num_steps):
        debugger.start(run.model)
        losses.append(run.step())
        debugger.stop()
        debugger.step()
    debugger.close()
    return losses


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    from msprobe.pytorch import PrecisionDebugger as TorchDebugger

    place, model = tmp_path_factory.mktemp("golden"), TorchNet()
    debugger = TorchDebugger(dump_path=place, level="L0", task="tensor")
    debugger.start(model)
    torch_step(model)
    debugger.stop()
    debugger.step()
    debugger.close()
    return place


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_healthy_pair_agrees_without_a_layout_file(tmp_path, golden, compiled):
    recorded_flax(tmp_path / "run", compiled=compiled)
    (unit,) = compare_dumps(tmp_path / "run", golden).units
    assert unit.counts["pass"] == unit.num_rows == NUM_ROWS
    assert locate(tmp_path / "run", golden).verdict is LocateVerdict.AGREE


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_fault_is_located(tmp_path, golden, compiled):
    recorded_flax(tmp_path / "run", scale=1.01, compiled=compiled)
    result = locate(tmp_path / "run", golden)
    assert (result.verdict, result.suspects[0].module) == (LocateVerdict.FAULT, "block")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_training_is_unharmed_and_each_step_is_recorded(tmp_path, compiled):
    bare = [run.step() for run in [FlaxRun(compiled=compiled)] for _ in range(3)]
    assert recorded_flax(tmp_path / "run", num_steps=3, compiled=compiled) == bare
    units = compare_dumps(tmp_path / "run", tmp_path / "run").units
    assert [unit.num_rows for unit in units] == [NUM_ROWS] * 3


# --- the contract ----------------------------------------------------------------------------------------------------


class Rig:
    """See `msprobe_core.testing.TrainingRig`."""

    def __init__(self) -> None:
        self.framework = JaxFramework()
        self.runs: dict[int, FlaxRun] = {}

    def make_tensor(self, values):
        with jax.enable_x64(True):
            return jnp.asarray(values)

    def make_bfloat16(self, values):
        return jnp.asarray(values, jnp.bfloat16)

    def overwrite(self, tensor, value):
        raise NotImplementedError

    def make_model(self, seed: int) -> FlaxNet:
        run = FlaxRun()
        run.model = FlaxNet(1.0 + seed)  # models are values: those of two seeds are two
        self.runs[id(run.model)] = run
        return run.model

    def train_step(self, model: FlaxNet, step: int) -> float:
        run = self.runs[id(model)]
        run.parameters = jax.tree.map(lambda own: own + step / 64, run.parameters)
        return run.step()

    def fail_in_step(self, model: FlaxNet) -> None:
        def fail(call, args, kwargs, context):
            if type(context.module).__name__ == "LayerNorm":
                raise ArithmeticError("planted")
            return call(*args, **kwargs)

        import flax.linen as nn

        with nn.intercept_methods(fail):
            self.runs[id(model)].step()

    def state_of(self, model: FlaxNet):
        run = self.runs[id(model)]
        trees = {"": run.parameters, ".grad": run.gradients}
        return {
            jax.tree_util.keystr(path) + kind: np.array(leaf)
            for kind, tree in trees.items()
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }

    def traces_in(self, model: FlaxNet) -> object:
        import flax.linen as nn

        return nn.Module.apply


class TestJax(FrameworkContract):
    supports_bfloat16 = True
    records_apis = False
    is_immutable = True

    @pytest.fixture
    def rig(self) -> Rig:
        return Rig()

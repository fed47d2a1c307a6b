"""Which modules and parameters a monitor collects."""

import pytest

from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.targets import Targets


@pytest.mark.parametrize(
    ("target", "modules", "parameters"),
    [
        ("layers.0.mlp", {"layers.0.mlp"}, {"layers.0.mlp.up.weight"}),
        ("layers.*.mlp", {"layers.0.mlp", "layers.1.mlp"}, {"layers.0.mlp.up.weight", "layers.1.mlp.up.weight"}),
        ("*.up", {"layers.0.mlp.up"}, {"layers.0.mlp.up.weight", "layers.1.mlp.up.weight"}),
        ("1:layers.1.*", {"layers.1.mlp"}, {"layers.1.mlp.up.weight"}),
        ("0:layers.1.*", set(), set()),
    ],
)
def test_stars_stand_for_any_text(target, modules, parameters):
    targets = Targets(MonitorPlan(targets=(target,)))
    selects = targets.module_selector(1)
    assert {name for name in ("layers.0.mlp", "layers.1.mlp", "layers.0.mlp.up", "head") if selects(name)} == modules
    names = ("layers.0.mlp.up.weight", "layers.1.mlp.up.weight", "head.weight")
    assert {name for name in names if targets.selects_parameter(1, name)} == parameters


def test_names_may_have_wrappers():
    selects = Targets(MonitorPlan(targets=("layers.*.mlp",), squash_name=True)).module_selector(0)
    assert selects("module.layers.0._checkpoint_wrapped_module.mlp")

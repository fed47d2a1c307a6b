"""Contract tests for plugins: inherit the contract of what a plugin offers, give it that, run pytest.

A framework has a `FrameworkContract`, which needs a `TrainingRig`:

::

    class TestMyFramework(FrameworkContract):
        supports_bfloat16 = True

        @pytest.fixture
        def rig(self) -> MyRig:
            return MyRig()

Formats have a `WriterContract`, metrics a `MetricContract`, statistics a `StatisticContract`, executors an
`ExecutorContract`, commands a `CommandContract`, and the stages of a trainer a `StagesContract`; each needs one
fixture, which returns the offer.
Needs pytest (``pip install msprobe-core[testing]``). ``docs/plugins.md`` walks through an example.
"""

# ruff: noqa: E402  # assertions are rewritten before their modules are imported, so that failures say what was compared

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "call_contract", "check_contracts", "command_contract", "comparison_contracts", "contract_base",
            "manifest_contract", "monitor_contract", "neutrality_contract", "raising_contract", "record_contract",
            "replay_contract", "tensor_contract", "update_contract", "writer_contract",
        )
    )
)  # fmt: skip

from msprobe_core.testing.check_contracts import DumpCheckContract, LiveCheckContract
from msprobe_core.testing.command_contract import CommandContract, StagesContract
from msprobe_core.testing.comparison_contracts import ExecutorContract, MetricContract, StatisticContract
from msprobe_core.testing.contract import FrameworkContract
from msprobe_core.testing.manifest_contract import ManifestContract
from msprobe_core.testing.monitor_contract import MonitorContract
from msprobe_core.testing.raising_contract import RaisingContract
from msprobe_core.testing.replay_contract import ReplayContract
from msprobe_core.testing.rig import MonitoredRig, TrainingRig
from msprobe_core.testing.update_contract import UpdateContract
from msprobe_core.testing.writer_contract import WriterContract

__all__ = [
    "CommandContract",
    "DumpCheckContract",
    "ExecutorContract",
    "FrameworkContract",
    "LiveCheckContract",
    "ManifestContract",
    "MetricContract",
    "MonitorContract",
    "MonitoredRig",
    "RaisingContract",
    "ReplayContract",
    "StagesContract",
    "StatisticContract",
    "TrainingRig",
    "UpdateContract",
    "WriterContract",
]

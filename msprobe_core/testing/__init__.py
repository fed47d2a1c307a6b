"""Contract tests for framework plugins: inherit `FrameworkContract`, give it a `TrainingRig`, run pytest.

::

    class TestMyFramework(FrameworkContract):
        supports_bfloat16 = True

        @pytest.fixture
        def rig(self) -> MyRig:
            return MyRig()

Needs pytest (``pip install msprobe-core[testing]``). ``docs/plugins.md`` walks through an example.
"""

from msprobe_core.testing.contract import FrameworkContract
from msprobe_core.testing.manifest_contract import ManifestContract
from msprobe_core.testing.monitor_contract import MonitorContract
from msprobe_core.testing.replay_contract import ReplayContract
from msprobe_core.testing.rig import MonitoredRig, TrainingRig
from msprobe_core.testing.update_contract import UpdateContract

__all__ = [
    "FrameworkContract",
    "ManifestContract",
    "MonitorContract",
    "MonitoredRig",
    "ReplayContract",
    "TrainingRig",
    "UpdateContract",
]

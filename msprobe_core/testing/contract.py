"""The contract of a framework plugin, as tests that each plugin inherits."""

from __future__ import annotations

from msprobe_core.testing.call_contract import CallContract
from msprobe_core.testing.neutrality_contract import NeutralityContract
from msprobe_core.testing.record_contract import RecordContract
from msprobe_core.testing.tensor_contract import TensorContract


# pytest runs the tests of the last base first.
class FrameworkContract(CallContract, RecordContract, NeutralityContract, TensorContract):
    """Inherit this class, set the flags, and define the fixture ``rig``."""

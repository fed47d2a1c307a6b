"""The contract kit against a framework that is nothing but NumPy: the kit itself needs no other."""

import pytest
from numpy_rig import ArrayRig

from msprobe_core.testing import FrameworkContract


class TestNumpy(FrameworkContract):
    @pytest.fixture
    def rig(self) -> ArrayRig:
        return ArrayRig()

"""The contract kit against the MindSpore plugin, dynamic graph."""

import pytest

from msprobe_core.testing import FrameworkContract

pytest.importorskip("mindspore")


class TestMindSpore(FrameworkContract):
    supports_bfloat16 = True

    @pytest.fixture
    def rig(self):
        from mindspore_rig import MindSporeRig

        return MindSporeRig()

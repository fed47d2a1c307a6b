"""The contract kit against the PyTorch plugin."""

import pytest

from msprobe_core.testing import FrameworkContract, MonitorContract

torch = pytest.importorskip("torch")


class TestPyTorch(FrameworkContract):
    supports_bfloat16 = True

    @pytest.fixture
    def rig(self):
        from torch_rig import TorchRig

        return TorchRig()


class TestPyTorchDeferred(FrameworkContract):
    """Tensors on the host treated like those on a device: enqueued, and fetched at the end of the window."""

    supports_bfloat16 = True

    @pytest.fixture
    def rig(self):
        from msprobe.pytorch._reduce import TorchReducer
        from torch_rig import TorchRig

        rig = TorchRig()
        rig.framework.reducer = lambda: TorchReducer(defer_host=True)
        return rig


class TestMonitor(MonitorContract):
    @pytest.fixture
    def rig(self):
        from torch_rig import TorchRig

        return TorchRig()

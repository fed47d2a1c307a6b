"""The contract kit against the PyTorch plugin."""

import pytest

from msprobe_core.testing import (
    FrameworkContract,
    ManifestContract,
    MonitorContract,
    RaisingContract,
    ReplayContract,
    UpdateContract,
)

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


class TestUpdates(UpdateContract):
    @pytest.fixture
    def rig(self):
        from torch_rig import TorchRig

        return TorchRig()


class TestRaising(RaisingContract):
    @pytest.fixture
    def rig(self):
        from torch_rig import TorchRig

        return TorchRig()


class TestReplays(ReplayContract):
    product, product_keyword = "Torch.matmul", "other"
    log_softmax, chunk = "Functional.log_softmax", "Torch.chunk"
    tile, index_select = "Torch.tile", "Torch.index_select"

    @pytest.fixture
    def rig(self):
        from torch_rig import TorchRig

        return TorchRig()

    def seed(self, value):
        import torch

        torch.manual_seed(value)

    def draw(self):
        import torch

        return torch.rand(4).numpy()


class TestManifest(ManifestContract):
    @pytest.fixture
    def rig(self):
        from torch_rig import TorchRig

        return TorchRig()

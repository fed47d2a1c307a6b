"""The contract kit against the MindSpore plugin, dynamic graph."""

import pytest

from msprobe_core.capture import Session
from msprobe_core.config import load_config
from msprobe_core.testing import (
    FrameworkContract,
    ManifestContract,
    MonitorContract,
    RaisingContract,
    ReplayContract,
    UpdateContract,
)
from msprobe_core.testing.contract_base import MODES

pytest.importorskip("mindspore")


class TestMindSpore(FrameworkContract):
    supports_bfloat16 = True

    @pytest.fixture
    def rig(self):
        from mindspore_rig import MindSporeRig

        return MindSporeRig()


class TestMindSporeDeferred(FrameworkContract):
    """Tensors on the host treated like those on a device: enqueued, and fetched at the end of the window."""

    supports_bfloat16 = True

    @pytest.fixture
    def rig(self):
        from mindspore_rig import MindSporeRig

        return MindSporeRig(defers=True)

    @pytest.mark.parametrize("level", ["mix"])
    @pytest.mark.parametrize(("task", "summary_mode"), MODES)
    def test_training_is_bitwise_unchanged(self, rig, open_session, level, task, summary_mode):
        """Level mix hooks all that L0 and L1 do; the reductions of each tensor are the same at every level."""
        super().test_training_is_bitwise_unchanged(rig, open_session, level, task, summary_mode)

    @pytest.mark.parametrize("level", ["L1", "mix"])
    def test_what_reduces_is_not_recorded(self, rig, tmp_path, level):
        """The operators that reduce on a device are the same functions that are recorded when the user calls them."""
        from mindspore_rig import MindSporeRig

        entries = [
            self._entries(MindSporeRig(defers=defers), tmp_path / str(defers), level) for defers in (False, True)
        ]
        assert entries[0] == entries[1]

    def _entries(self, rig, directory, level):
        config = load_config(None, dump_path=str(directory), level=level, task="statistics")
        session = Session(config, rig.framework)
        try:
            return list(self._dump(self._record(rig, session)))
        finally:
            session.close()


class TestMonitor(MonitorContract):
    @pytest.fixture(params=[False, True], ids=["host", "deferred"])
    def rig(self, request):
        from mindspore_rig import MindSporeRig

        return MindSporeRig(defers=request.param)


class TestUpdates(UpdateContract):
    @pytest.fixture
    def rig(self):
        from mindspore_rig import MindSporeRig

        return MindSporeRig(defers=False)


class TestRaising(RaisingContract):
    @pytest.fixture
    def rig(self):
        from mindspore_rig import MindSporeRig

        return MindSporeRig()


class TestReplays(ReplayContract):
    product, product_keyword = "Mint.matmul", "other"
    log_softmax, chunk = "MintFunctional.log_softmax", "Mint.chunk"
    tile, index_select = "Mint.tile", "Mint.index_select"

    @pytest.fixture
    def rig(self):
        from mindspore_rig import MindSporeRig

        return MindSporeRig()

    def seed(self, value):
        import mindspore

        mindspore.manual_seed(value)

    def draw(self):
        import mindspore

        return mindspore.get_rng_state().asnumpy()  # the CPU has no kernel that draws from it


class TestManifest(ManifestContract):
    @pytest.fixture(params=[False, True], ids=["host", "deferred"])
    def rig(self, request):
        from mindspore_rig import MindSporeRig

        return MindSporeRig(defers=request.param)

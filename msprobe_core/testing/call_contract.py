"""The part of a framework's contract about single calls: registered, in a part of a window, watched, replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from msprobe_core import names
from msprobe_core.capture import Session
from msprobe_core.capture.window import Model
from msprobe_core.errors import ConfigError, MsprobeError, ReplayError
from msprobe_core.model import Phase, ReplayCall, Site, SiteKind
from msprobe_core.protocols.capabilities import (
    DeviceReplayingFramework,
    ScriptingFramework,
    WatchingFramework,
)
from msprobe_core.protocols.framework import Framework
from msprobe_core.store.safetensors_writer import ShardWriter
from msprobe_core.store.tensors import open_tensor
from msprobe_core.testing.contract_base import (
    VALUES,
    ContractBase,
    crc32,
)
from msprobe_core.testing.rig import TrainingRig


class CallContract(ContractBase):
    """Functions that users register, single modules and forwards, watched calls, and misuse."""

    def test_registered_functions_are_recorded(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """With arguments and results, the outermost call only, and only between start and stop."""
        if not self.records_apis:
            pytest.skip("this framework records no APIs")
        first, second = (rig.make_tensor(np.full(2, value, np.float32)) for value in (3.0, 5.0))
        own = SimpleNamespace()

        def swap(a: object, b: object) -> tuple[object, object]:
            return b, a

        def twice(a: object, b: object) -> tuple[object, object]:
            return own.swap(*own.swap(a, b))

        own.swap, own.twice = swap, twice
        before = dict(vars(own))
        session = open_session(level="L1")
        for name in before:
            session.custom_apis.register(own, name, "Own")
        assert vars(own) == before
        session.start([])
        assert own.swap(first, b=second) == (second, first)
        assert own.twice(first, second) == (first, second)
        session.custom_apis.restore(own, "swap")
        own.swap(first, second)
        session.stop()
        assert vars(own) == before
        entries = self._dump(session)
        session.close()
        forwards = [name for name in entries if names.parse_entry(name).phase is Phase.FORWARD]
        assert forwards == ["Own.swap.0.forward", "Own.twice.0.forward"]
        record = entries["Own.swap.0.forward"]
        assert record["input_args"][0]["Max"] == record["output"][1]["Max"] == 3.0
        assert record["input_kwargs"]["b"]["Max"] == record["output"][0]["Max"] == 5.0

    def test_a_registered_function_may_raise(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Its exception propagates, and later calls are recorded."""
        if not self.records_apis:
            pytest.skip("this framework records no APIs")

        def fail(_: object) -> None:
            raise ArithmeticError("planted")

        def keep(value: object) -> object:
            return value

        own = SimpleNamespace(fail=fail, keep=keep)
        session, tensor = open_session(level="mix"), rig.make_tensor(np.ones(2, np.float32))
        session.custom_apis.register(own, "fail", "Own")
        session.custom_apis.register(own, "keep", "Own")
        session.start([rig.make_model(0)])
        with pytest.raises(ArithmeticError, match="planted"):
            own.fail(tensor)
        own.keep(tensor)
        session.stop()
        assert own.fail is fail
        entries = self._dump(session)
        session.close()
        assert "Own.keep.0.forward" in entries
        assert "output" not in entries["Own.fail.0.forward"]

    def test_a_range_of_forwards_is_like_a_window_around_them(
        self, rig: TrainingRig, open_session: Callable[..., Session]
    ) -> None:
        """Calls outside of ``token_range`` are not counted either; nothing stays attached."""
        _watching(rig.framework)
        session, model = open_session(level="L0"), rig.make_model(3)
        before = rig.traces_in(model)
        session.start([model], token_range=[1, 2])
        for step in range(4):
            rig.train_step(model, step)
        session.stop()
        assert rig.traces_in(model) == before
        found = self._dump(session)
        session.close()
        session, model = open_session(level="L0"), rig.make_model(3)
        rig.train_step(model, 0)
        session.start([model])
        rig.train_step(model, 1)
        rig.train_step(model, 2)
        session.stop()
        assert found == self._dump(session)
        session.close()

    def test_one_module_alone(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Its calls are recorded under the given name as under their own, and no other call is."""
        session = self._record(rig, open_session(level="L0"))
        root = next(iter(_roots(self._dump(session))))
        expected = [_without_sequence(record) for name, record in self._dump(session).items() if name in _roots([name])]
        session.close()
        session, model = open_session(level="mix"), rig.make_model(3)
        before = rig.traces_in(model)
        session.start([model])
        session.dump_module(model, "alone")
        rig.train_step(model, 0)
        session.end_module_dump()
        rig.train_step(model, 1)
        session.stop()
        assert rig.traces_in(model) == before
        dump = self._dump(session)
        session.close()
        alone = {name: record for name, record in dump.items() if names.parse_entry(name).path.startswith("alone")}
        assert {names.parse_entry(name).path for name in alone} == {"alone"}  # nothing of what is inside
        assert [_without_sequence(record) for record in alone.values()] == expected
        assert names.parse_entry(next(iter(alone))).type_name == names.parse_entry(root).type_name
        assert len(_roots(dump)) == len(expected)  # of the second step, under their own names again
        assert len({names.parse_entry(name).path for name in dump}) > 3

    def test_a_watcher_gets_around_calls_and_can_change_their_arguments(self, rig: TrainingRig) -> None:
        """It is notified of every call that it wants, including one that raises, and of none once it is removed."""
        framework, model = _watching(rig.framework), rig.make_model(3)
        before = rig.traces_in(model)
        watcher = _Watcher()
        attachment = framework.watch([Model("", model)], watcher)
        loss = rig.train_step(model, 0)
        with contextlib.suppress(ArithmeticError):
            rig.fail_in_step(model)
        attachment.detach()
        assert rig.traces_in(model) == before
        rig.train_step(model, 0)
        assert watcher.told == ["begin", "end", "begin", "end"]
        watcher.changes = True
        model = rig.make_model(3)
        attachment = framework.watch([Model("", model)], watcher)
        # Unchanged arguments give the same loss, and no call receives them twice.
        assert rig.train_step(model, 0) == loss
        attachment.detach()

    def test_a_tensor_that_was_saved_can_be_loaded(self, rig: TrainingRig, tmp_path: Path) -> None:
        """Bitwise, as a replacement for another tensor, and with that tensor's ``requires_grad``."""
        framework = _watching(rig.framework)
        values = VALUES["float32"]
        path = tmp_path / f"x{rig.framework.tensor_suffix}"
        rig.framework.save(rig.framework.snapshot(rig.make_tensor(values)), path)
        like = rig.make_tensor(np.zeros_like(values))
        loaded = framework.load(path, like)
        assert rig.framework.describe(loaded) == rig.framework.describe(like)
        assert self._digest(rig, "checksum", loaded).checksum == crc32(values)
        path.write_bytes(path.read_bytes()[:40])
        with pytest.raises(Exception):  # noqa: B017, PT011  # of any kind
            framework.load(path, like)

    @pytest.mark.parametrize("name", [*VALUES, "no elements", "bfloat16"])
    def test_a_tensor_is_rebuilt_from_its_bytes(self, rig: TrainingRig, tmp_path: Path, name: str) -> None:
        """From the bytes in a shard: the same dtype, shape and bits, and the replaced tensor's ``requires_grad``."""
        framework = _watching(rig.framework)
        if name == "bfloat16" and not self.supports_bfloat16:
            pytest.skip("the framework has no bfloat16")
        empty = np.zeros((0, 3), np.float32)
        tensor = (
            rig.make_bfloat16(VALUES["float32"]) if name == "bfloat16"
            else rig.make_tensor(VALUES.get(name, empty))
        )  # fmt: skip
        content = rig.framework.content(rig.framework.snapshot(tensor))
        if content is None:
            pytest.skip("the framework gives no bytes of tensors")
        shards = ShardWriter(tmp_path)
        reference = shards.add("x", content)
        shards.close()
        rebuilt = framework.rebuild(open_tensor(tmp_path / reference).content(), tensor)
        assert rig.framework.describe(rebuilt) == rig.framework.describe(tensor)
        found = rig.framework.content(rig.framework.snapshot(rebuilt))
        assert found is not None
        assert (found.dtype, found.shape, bytes(found.data)) == (content.dtype, content.shape, bytes(content.data))
        like = rig.make_tensor(np.zeros(2, np.float32))
        if VALUES.get(name, empty).dtype.kind == "f":
            assert rig.framework.describe(framework.rebuild(content, like)).requires_grad == (
                rig.framework.describe(like).requires_grad
            )

    @pytest.mark.parametrize("path", ["system", "__import__('os').system", 'relu("")\n'])
    def test_only_functions_that_are_replayed_are_written_in_scripts(self, rig: TrainingRig, path: str) -> None:
        """Names in dumps may be anything."""
        framework = rig.framework
        if not isinstance(framework, ScriptingFramework):
            pytest.skip("this framework does not write scripts of calls")
        for prefix in ("Functional", "Torch", "os"):
            site = Site(kind=SiteKind.API, prefix=prefix, path=path, type_name="", phase=Phase.FORWARD, index=0)
            with pytest.raises(ReplayError):
                framework.script(ReplayCall(site=site, args=[], kwargs={}))

    def test_a_device_that_is_not_there_is_refused(self, rig: TrainingRig) -> None:
        """Before anything is replayed; and each device that is there is named once."""
        framework = rig.framework
        if not isinstance(framework, DeviceReplayingFramework):
            pytest.skip("the framework replays calls on the host only")
        present = framework.replay_devices()
        assert len(set(present)) == len(present)
        call = ReplayCall(site=names.parse_entry("Torch.abs.0.forward"), args=[], kwargs={})
        with pytest.raises(ConfigError, match="no-such-device"):
            framework.replay(call, None, "no-such-device:7")

    def test_a_missing_or_wrong_model_is_a_clear_error(
        self, rig: TrainingRig, open_session: Callable[..., Session]
    ) -> None:
        """The session stays usable."""
        session = open_session(level="L0")
        with pytest.raises(MsprobeError, match="start"):
            session.start([])
        with pytest.raises(MsprobeError, match="not a model"):
            session.start(["model"])
        session.start([rig.make_model(0)])
        session.stop()
        session.close()


class _Watcher:
    """Records the calls of the root."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.changes = False

    def wants(self, path: str, type_name: str) -> bool:  # noqa: ARG002
        return not path

    def before(self, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:  # noqa: ARG002
        self.told.append("begin")
        return (args, kwargs) if self.changes else None

    def after(self, stem: str) -> None:  # noqa: ARG002
        self.told.append("end")


def _watching(framework: Framework) -> WatchingFramework:
    if not isinstance(framework, WatchingFramework):
        pytest.skip("this framework does not offer to watch calls")
    return framework


def _roots(entries: Iterable[str]) -> list[str]:
    return [name for name in entries if not names.parse_entry(name).path]


def _without_sequence(record: dict[str, Any]) -> dict[str, Any]:
    return {part: value for part, value in record.items() if part != "execution"}

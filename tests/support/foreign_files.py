"""Every reader of files that others may have written, by the name that such a file has."""

import contextlib
from pathlib import Path

import pytest


def _tensor(path):
    from msprobe_core.store.tensors import read_tensor

    read_tensor(path)


def _tree(path):
    from msprobe_core.store.pt_trees import open_pt_tree

    for _, tensor in open_pt_tree(path).tensors():
        tensor.read()


def _mindspore_checkpoint(path):
    from msprobe_core.tensor_files.mindspore_checkpoint import open_mindspore_checkpoint

    for value in open_mindspore_checkpoint(path).values:
        if value.source is not None:
            value.source.read()


def _shard(path):
    _tensor(Path(f"{path}#x"))


def _dump(path):
    from msprobe_core.store.json_reader import read_json_dump

    read_json_dump(path)


def _arrow(path):
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    from msprobe_core.store.arrow_reader import read_arrow_dump

    read_arrow_dump(path)


def _kernels(path):
    from msprobe_core.store.kernel_files import read_lines

    read_lines(path, [])


def _struct(path):
    from msprobe_core.store.samples import load_samples

    load_samples(path.parent)


def _config(path):
    from msprobe_core.config import load_config

    load_config(path)


def _edit(path):
    from msprobe_core.config.edit import edit_config

    edit_config(path, {"level": "mix"})


def _apis(path):
    from msprobe_core.config.apis import load_apis

    load_apis(path, "apis")


def _limits(path):
    from msprobe_core.judge.limits import load_limits

    load_limits(path)


def _mapping(path):
    from msprobe_core.compare.mapping_files import read_matching

    read_matching(data_mapping=path)


def _layouts(path):
    from msprobe_core.compare.layouts.rules import load_layouts

    load_layouts(path)


def _profile(path):
    from msprobe_core.judge.noise.profile_file import NoiseProfile

    (path.parent / "step0" / "rank0").mkdir(parents=True, exist_ok=True)
    NoiseProfile(path).unit(path.parent / "step0" / "rank0")


def _merge(path):
    from msprobe_core.compat.merge import read_request

    read_request(path)


def _table(path):
    from msprobe_core.compat.read_table import RankFile, read_table

    read_table(RankFile(path, 0, ""), lambda name: name.is_not_null())


def _location(path):
    from msprobe_core.errors import MsprobeError
    from msprobe_core.locate.explain import read_located
    from msprobe_core.view.suspects import read_location

    with contextlib.suppress(MsprobeError):
        read_located(path)
    read_location(path)


def _request(path):
    from msprobe_core.view.inputs import requested

    requested(path)


def _compare_request(path):
    from msprobe_core.cli.compare import _request

    _request(None, None, path)


def _monitor_plan(path):
    from msprobe_core.monitor.plan_file import load_plan

    return load_plan(path)


def _alarms(path):
    from msprobe_core.monitoring.alarm_files import _read

    return _read(path)


def _second_plan(path):
    from msprobe_core.monitor.plan_file_v2 import load_second_plan

    return load_second_plan(path)


def _trend_names(path):
    from msprobe_core.exports.trend_database import read_mapping

    return read_mapping(path)


def _monitor_layout(path):
    from msprobe_core.monitoring.layout_file import read_layout

    return read_layout(path.parent)


def _coverage(path):
    from msprobe_core.monitor.coverage import read_coverage

    return read_coverage(path.parent)


def _stored_calls(path):
    from msprobe_core.api_check.call_files import CallFiles

    return CallFiles(path.parent).entries


def _check_journal(path):
    from msprobe_core.api_check.journal import Journal

    Journal(path, "digest").close()


def _check_settings(path):
    from msprobe_core.api_check.settings_file import read_settings

    read_settings(path)


def _manifest(path):
    from msprobe_core.store.manifest_file import read_manifest

    return read_manifest(path)


def _data_rows(path):
    from msprobe_core.store.manifest_file import read_data_rows

    return read_data_rows(path.parent)


def _foreign(path):
    from msprobe_core.tensor_files.recognition import open_tensors
    from msprobe_core.tensor_files.unpacking import content_of

    for tensor in open_tensors(path):
        if tensor.source is not None:
            content_of(tensor.source)


def _pack(path):
    from msprobe_core.config_check.pack import read_pack

    return read_pack(path)


def _static_settings(path):
    from msprobe_core.config_check.static_settings import read_settings

    return read_settings([path])


def _verl_log(path):
    from msprobe_core.config_check.trainer_logs import read_verl_log

    return read_verl_log(path)


def _slime_log(path):
    from msprobe_core.config_check.trainer_logs import read_slime_log

    return read_slime_log(path)


def _wanted(path):
    from msprobe_core.config_check.trainer_logs import read_wanted

    return read_wanted(path)


def _checkpoint_index(path):
    from msprobe_core.checkpoint.directory import read_json

    return read_json(path)


def _distributed_metadata(path):
    from msprobe_core.checkpoint.dcp_metadata import read_metadata

    return read_metadata(path)


READERS = {
    "manifest.json": _manifest, "data_rows.json": _data_rows,
    "tensors.bin": _foreign, "tensors.npz": _foreign,
    "state.bin": _tree, "legacy.bin": _tree, "model.ckpt": _mindspore_checkpoint,
    "x.pt": _tensor, "x.npy": _tensor, "shard-0.safetensors": _shard, "dump.json": _dump, "dump.arrow": _arrow,
    "statistic.csv": _kernels, "samples.json": _struct, "config.json": _config, "config.yaml": _config,
    "live.json": _edit, "apis.yaml": _apis, "limits.yaml": _limits, "mapping.yaml": _mapping, "layouts.yaml": _layouts,
    "noise_profile.parquet": _profile, "merge.yaml": _merge, "table.csv": _table, "table.xlsx": _table,
    "monitor.json": _monitor_plan, "layout.json": _monitor_layout, "coverage.json": _coverage,
    "anomaly.json": _alarms, "monitor_v2.json": _second_plan, "names.json": _trend_names,
    "check.journal": _check_journal, "check.yaml": _check_settings,
    "calls.json": _stored_calls, "locate.json": _location, "compare.json": _request, "request.json": _compare_request,
    "pack.zip": _pack, "train.sh": _static_settings, "train.yaml": _static_settings, "wanted.yaml": _wanted,
    "verl.log": _verl_log, "slime.log": _slime_log,
    "model.safetensors.index.json": _checkpoint_index, ".metadata": _distributed_metadata,
}  # fmt: skip

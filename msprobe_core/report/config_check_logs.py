"""Settings of trainers' logs, compared or verified: csv files as `mindstudio-probe` 26.2 writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_core.config_check.trainer_logs import SettingPair
from msprobe_core.console import print_lines
from msprobe_core.report.config_check import write_setting_csv
from msprobe_core.store.atomic_file import write_json
from msprobe_core.store.results import refuse_foreign_json, refuse_foreign_text

if TYPE_CHECKING:
    from rich.console import Console

COMPARE_FILE, VERIFY_FILE = "hyper_params_compare.csv", "hyper_params_verify.csv"
COMPARE_HEADER = ("超参名称", "NPU生效值", "bench生效值", "是否一致")
VERIFY_HEADER = ("关键参数名称", "bench生效值", "target生效值", "是否一致")

_COMMAND = "msprobe config_check"
_YES, _NO = "是", "否"
_MOST_SHOWN = 60


def check_logs_result(directory: Path, *, verifies: bool) -> None:
    """Check that writing will not replace foreign files; to be called before the work begins.

    Raises:
        StoreError: the directory holds a file of a result's name that this command has not written.
    """
    name, header = (VERIFY_FILE, VERIFY_HEADER) if verifies else (COMPARE_FILE, COMPARE_HEADER)
    refuse_foreign_text(directory / name, _COMMAND, ",".join(header).encode())
    for config in ("tgt_config.json",) if verifies else ("NPU_config.json", "bench_config.json"):
        if not (directory / name).exists():
            refuse_foreign_json(directory / config, _COMMAND, ("not written by anything else",))


def write_compared(
    directory: Path, pairs: Sequence[SettingPair], target: Mapping[str, Any], golden: Mapping[str, Any]
) -> list[Path]:
    """Write the comparison and both configurations; return the paths.

    Raises:
        StoreError: one cannot be written.
    """
    paths = [directory / COMPARE_FILE, directory / "NPU_config.json", directory / "bench_config.json"]
    write_setting_csv(paths[0], COMPARE_HEADER, [(e.name, e.target, e.golden, _word(e)) for e in pairs])
    write_json(paths[1], target)
    write_json(paths[2], golden)
    return paths


def write_verified(directory: Path, pairs: Sequence[SettingPair], target: Mapping[str, Any]) -> list[Path]:
    """Write the verification and the configuration; return the paths.

    Raises:
        StoreError: one cannot be written.
    """
    paths = [directory / VERIFY_FILE, directory / "tgt_config.json"]
    write_setting_csv(paths[0], VERIFY_HEADER, [(e.name, e.golden, e.target, _word(e)) for e in pairs])
    write_json(paths[1], target)
    return paths


def _word(pair: SettingPair) -> str:
    return _YES if pair.is_same else _NO


def print_pairs(pairs: Sequence[SettingPair], paths: Sequence[Path], console: Console) -> None:
    """Print the settings that differ, and how many agree."""
    from rich.text import Text

    different = [each for each in pairs if not each.is_same]
    lines: list[str | Text] = [
        Text(f"  {each.name}: {each.target} instead of {each.golden}", style="red") for each in different[:_MOST_SHOWN]
    ]
    if len(different) > _MOST_SHOWN:
        lines.append(f"  … and {len(different) - _MOST_SHOWN:,} more, in the file")
    lines += [f"written: {path}" for path in paths]
    print_lines(console, [*lines, f"{len(different):,} of {len(pairs):,} settings differ."])

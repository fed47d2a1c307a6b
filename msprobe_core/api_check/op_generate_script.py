"""Write a script that measures one call by published standards: it needs neither msprobe nor the dump."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np

from msprobe_core._version import __version__
from msprobe_core.api_check import op_script_parts as parts
from msprobe_core.api_check.call_check import MAX_ELEMENTS
from msprobe_core.api_check.made_inputs import corrected, random_inputs
from msprobe_core.api_check.op_config import InputMode, OpConfig
from msprobe_core.api_check.op_extract import api_of_config, dump_of
from msprobe_core.api_check.published import LARGEST, api_name
from msprobe_core.api_check.reproducer import file_name, scripting_of
from msprobe_core.api_check.script_parts import load_inline, load_stored
from msprobe_core.api_check.script_text import (
    MOST_INLINE,
    comment,
    inline_rows,
    num_bytes,
    script_text,
    stored_rows,
    table,
    write_safetensors,
)
from msprobe_core.api_check.standards import Algorithm, standards
from msprobe_core.errors import ConfigError, ReplayError
from msprobe_core.interception import literal, script_tensors, source_of
from msprobe_core.interception.scripting import RECORDED_PREFIX
from msprobe_core.model import CallScript, ReplayCall, ReplayTensor
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.recorded import RecordedCall, RecordedCalls
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.dtype_values import FORMS
from msprobe_core.store.layout import make_directory
from msprobe_core.store.reading import read_dump

MOST_LINES = 120
"""Limit of the number of lines of a script; its tables are in one line each if it would be longer. A script that draws
inputs again and again may have ten more."""


def write_op_script(config: OpConfig, directory: Path, *, command: str) -> Path:
    """Write the script of a configuration, and return its path.

    Args:
        config: What of.
        directory: Directory of the script, and of the file of its tensors if they are large.
        command: The command that writes it.

    Raises:
        ConfigError: there is no such call, or the configuration asks for what its dump does not have.
        ReplayError: the call cannot be replayed or written.
        PluginError: the plugin of the framework does not write scripts.
        StoreError: the files cannot be written.
    """
    calls = RecordedCalls(read_dump(dump_of(config)), MAX_ELEMENTS)
    entry = f"{api_of_config(config, calls.entries)}.{config.propagation.value}"
    if entry not in calls.entries:
        raise ConfigError(f"'propagation' is {config.propagation.value!r}, and the dump has no {entry}")
    framework = replaying_framework(calls.dump.header.framework)
    scripting = scripting_of(framework)
    call = _call(calls, entry, config)
    base = ReplayCall(
        site=call.site, args=call.args, kwargs=call.kwargs, gradients=call.gradients, max_elements=MAX_ELEMENTS
    )
    script, own = scripting.script(base), framework.replay(base).values
    results = {path: value.dtype for path, value in (call.outputs or own).items() if path in own}
    if not results:
        raise ReplayError(f"{entry} has no tensor among its results")
    return _write(call, config, script, results, script_tensors(base), directory, command)


def _call(calls: RecordedCalls, entry: str, config: OpConfig) -> RecordedCall:
    """Return the call with its inputs."""
    if config.data_mode is InputMode.REAL:
        call, hint = calls.read(entry), "set 'data_mode' to 'random_data'"
    else:
        call, hint = calls.read(entry, random_inputs(config.random_seed)), "choose another call"
        if call.missing is None:
            call = corrected(call)
    if call.missing is not None:
        raise ConfigError(f"{entry}: {call.missing.text}; {hint}")
    return call


def _write(
    call: RecordedCall, config: OpConfig, script: CallScript, results: Mapping[str, str],
    given: Mapping[str, ReplayTensor], directory: Path, command: str,
) -> Path:  # fmt: skip
    name = file_name(call)
    make_directory(directory)
    path = directory / f"{name}.py"
    outputs = {each: call.outputs[each] for each in results if each in call.outputs}
    recorded_names = {f"{RECORDED_PREFIX}{each}": value for each, value in outputs.items()}
    tensors = dict(given) | recorded_names
    if len(tensors) < len(given) + len(outputs):
        raise ReplayError("one of its arguments has the name of a result in the script")
    dtypes = script.dtypes
    if config.iter_times > 1:
        load, inputs, recorded = parts.load_drawn, _drawn_rows(given, dtypes), []
    elif num_bytes(tensors) <= MOST_INLINE:
        load, inputs, recorded = load_inline, inline_rows(given, dtypes), inline_rows(outputs, {})
    else:
        offsets = write_safetensors(path.with_suffix(".safetensors"), tensors)
        of_results = {each: offsets[f"{RECORDED_PREFIX}{each}"] for each in outputs}
        load, inputs = load_stored, stored_rows(given, dtypes, offsets)
        recorded = stored_rows(outputs, {}, of_results)
    steps = f"SEED, STEP, STEPS = {config.random_seed}, [0], {config.iter_times}"
    functions = [source_of(load, "load"), *map(source_of, (parts.measure, parts.verdicts, parts.report))]
    text = ""
    for is_packed in (False, True):
        constants, allowed = _standards_of(call, results, is_packed=is_packed)
        limits = table("ALLOWED", allowed, is_packed=is_packed)
        tables = (table("INPUTS", inputs, is_packed=is_packed), table("RECORDED", recorded, is_packed=is_packed))
        end = "\n".join((*tables, *([] if is_packed else [""]), _RUNNING.replace("DEVICE", script.device)))
        text = script_text(
            _title(name, call, config, script, command), [*constants, limits, steps], script, functions, end,
            is_packed=is_packed,
        )  # fmt: skip
        if text.count("\n") <= MOST_LINES + script.formula.count("\n"):
            break
    with whole_file(path) as file:
        file.write(text.encode())
    return path


_RUNNING = """\
parser = argparse.ArgumentParser(description="What do published standards say of this call?")
parser.add_argument("--device", default=DEVICE, help="where to compute it: cpu, cuda or npu")
device, status = parser.parse_args().device, 0
try:
    for STEP[0] in range(STEPS):
        exact, own = run("cpu", is_wide=True), run("cpu", is_wide=False)
        fresh = own if device == "cpu" else run(device, is_wide=False)
        for side, results in (("recorded", {name: load(*RECORDED[name]) for name in RECORDED}), (device, fresh)):
            for name in [name for name in ALLOWED if name in results]:
                is_wrong, text = report(results[name], exact[name], own[name], ALLOWED[name])
                print(f"--- {side} {name}{f', iteration {STEP[0]}' if STEPS > 1 else ''}\\n{text}")
                status |= is_wrong
except Exception as error:
    print(f"could not run: {type(error).__name__}: {error}", file=sys.stderr)
    status = status or 2
sys.exit(int(status))"""


def _drawn_rows(tensors: Mapping[str, ReplayTensor], dtypes: Mapping[str, str]) -> list[str]:
    """Return rows of a table with what each tensor is drawn from: the extremes of its first values that are finite."""
    rows: list[str] = []
    for number, (name, value) in enumerate(tensors.items()):
        array: Any = np.asarray(value.values)
        sizes: Any = np.abs(array) if array.dtype.kind == "c" else array
        sizes = sizes[np.isfinite(sizes)] if sizes.dtype.kind == "f" else sizes
        low, high = (sizes.min().item(), sizes.max().item()) if sizes.size else (0, 0)
        form = FORMS.get(value.dtype)
        digits, least = (0, 0) if form is None or form.held_in == value.dtype else (form.precision, form.least_exponent)
        kind, shape = array.dtype.newbyteorder("<").str, tuple(map(int, array.shape))
        values = ", ".join(map(literal, (kind, shape, number, int(low) if kind[1] == "b" else low,
                                         int(high) if kind[1] == "b" else high, digits, least)))  # fmt: skip
        rows.append(f"{literal(name)}: ({dtypes.get(value.dtype) or literal(value.dtype)}, {values}),")
    return rows


# --- standards ----------------------------------------------------------------------------------------------------

_ROUNDED = {"float16": "f2", "float32": "f4", "bfloat16": "f4", "complex64": "f4"}
"""NumPy dtype that golden values are rounded to, by dtype of the result; of other dtypes they are not."""


def _standards_of(call: RecordedCall, results: Mapping[str, str], *, is_packed: bool) -> tuple[list[str], list[str]]:
    """Return assignments of the constants of each dtype, and rows of a table with that of each result."""
    inputs = frozenset(value.dtype for value in call.tensors.values())
    constants: list[str] = []
    for dtype in dict.fromkeys(results.values()):
        rows = [f'"{key}": {_text(value)},' for key, value in _standard(dtype, inputs, call.site.path).items()]
        if not is_packed:
            rows = textwrap.wrap(" ".join(rows), 116, break_long_words=False)
        constants.append(table(_constant(dtype), rows, is_packed=is_packed))
    return constants, [f"{literal(path)}: {_constant(dtype)}," for path, dtype in results.items()]


def _constant(dtype: str) -> str:
    return f"OF_{''.join(each if each.isalnum() else '_' for each in dtype).upper()}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        pairs = cast("dict[str, float]", value).items()
        return "{" + ", ".join(f'"{key}": {literal(number)}' for key, number in pairs) + "}"
    return literal(value)


def _standard(dtype: str, inputs: frozenset[str], path: str) -> dict[str, Any]:
    """Return the standard of a result, with its numbers.

    Complex numbers, which no published standard is for but that of equal bits, have the benchmark standard in their
    real and imaginary parts.
    """
    every = standards()
    is_complex = dtype.startswith("complex")
    standard = Algorithm.BENCHMARK if is_complex else every.algorithm(dtype, inputs)
    is_number = is_complex or dtype in every.float_dtypes | every.float8_dtypes or dtype in FORMS
    if not is_number:
        standard = Algorithm.BINARY
    elif standard is Algorithm.BINARY:  # a float8 that the standards do not name
        standard = Algorithm.BENCHMARK
    found: dict[str, Any] = {"dtype": dtype, "standard": standard.value}
    if standard is Algorithm.BINARY:
        return found | {"most": {"Error Rate": 0.0}, "ratios": {}}
    own = every.constants(dtype)
    largest = LARGEST.get(dtype, float(np.finfo(np.float64).max))
    found |= {"rounded": _ROUNDED.get(dtype, "f8"), "largest": largest}
    names = ("golden_eps", "rtol", "small_value", "absolute_atol", "benchmark_atol", "minimum_error")
    found |= {name: getattr(own, name) for name in names}
    if (form := every.ulp_formats.get(dtype)) is not None:
        found |= {
            "mantissa_bits": form.mantissa_bits, "min_exponent": form.min_exponent, "threshold": form.threshold,
        }  # fmt: skip
    _, limits = every.class_of(api_name(path))
    most: dict[str, float] = {"Inf/NaN Error Ratio": 0.0}
    ratios: dict[str, float] = {}
    if standard is Algorithm.ULP and form is not None:
        most["ULP Error Proportion"] = every.ulp_limits[dtype].share
    elif standard is Algorithm.ABSOLUTE_THRESHOLD:
        most |= {"Relative Error Ratio": 0.0, "Absolute Error Ratio": 0.0}
    else:
        found["standard"] = Algorithm.BENCHMARK.value
        ratios = {
            "Small Value Error Proportion": every.small_value_ratio,
            "Maximum Relative Error": limits.max_relative,
            "Mean Relative Error": limits.mean_relative,
            "Root Mean Squared Error": limits.rmse,
        }
    return found | {"most": most, "ratios": ratios}


# --- title --------------------------------------------------------------------------------------------------------


def _title(name: str, call: RecordedCall, config: OpConfig, script: CallScript, command: str) -> list[str]:
    dtypes = ", ".join(dict.fromkeys(value.dtype for value in call.tensors.values())) or "no tensors"
    is_real = config.data_mode is InputMode.REAL
    made = "as recorded" if is_real else f"random, seed {config.random_seed}, iterations {config.iter_times}"
    used = f"NumPy {metadata.version('numpy')}, Python {platform.python_version()}"
    lines = {
        "Run it": f"python {name}.py [--device cpu|cuda|npu]; exit status 0: no error, 1: an error, 2: could not run",
        "Call": f"{dtypes}; inputs {made}",
        "Made by": command,
        "Versions": f"msprobe {__version__}, {script.version}, {used}",
        "Ratios": "metric over that of this call on the CPU; at most 1: pass, at most the limit: warning, above: error",
    }
    question = f"# {name}: what do published standards say of {script.function} for these inputs?"
    return [question, *(f"# {label:8} {comment(text)}" for label, text in lines.items())]

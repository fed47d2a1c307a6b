"""Every reader of files that others may have written, with sound files for it to be damaged."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import foreign_dumps
import numpy as np
from dumps import api, tensor, write_dump
from foreign_files import READERS

from fuzz.damage import damage_file

TESTS = Path(__file__).parents[1]
PAGES = TESTS.parent / "docs"


@dataclass(frozen=True)
class Target:
    """What is damaged and read.

    Attributes:
        modules: Those that open such files.
        make: Writes what is sound into a directory that is there.
        use: Reads what is in a directory; a sentence is raised as a `MsprobeError`.
        files: Which of the files there are damaged.
        damages: Damages them in another way than a file as a whole.
    """

    modules: Sequence[str]
    make: Callable[[Path], object]
    use: Callable[[Path], object]
    files: str = "**/*"
    damages: Callable[[random.Random, Path], None] | None = None

    def damage(self, rng: random.Random, directory: Path) -> None:
        """Damage one file."""
        if self.damages is not None:
            self.damages(rng, directory)
            return
        damage_file(rng, rng.choice(sorted(path for path in directory.glob(self.files) if path.is_file())))


def command(*arguments: str) -> Callable[[Path], None]:
    """Return what runs a command line, in which ``{}`` is the directory; whatever is no sentence is raised."""

    def use(directory: Path) -> None:
        words = [argument.replace("{}", str(directory)) for argument in arguments]
        text = _said_by(["--debug", *words])
        if "internal error" in text or text.startswith("Usage:"):
            raise AssertionError(text[text.find("Traceback") :][-3000:])
        text = re.sub(r"(?s)Traceback .*\n(?=msprobe: error)", "", text)  # which --debug asks for
        if odd := {c for c in text if c != "\n" and not c.isprintable()}:
            raise AssertionError(f"said to the terminal: {odd!r} in {text[:300]!r}")

    return use


def _said_by(words: Sequence[str]) -> str:
    from msprobe_core.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        main(list(words))
    return said.getvalue()


def one(name: str) -> Callable[[Path], object]:
    """Return what reads the one file of that name as everybody does."""
    return lambda directory: READERS[name](directory / name)


def written(name: str, *texts: str) -> Callable[[Path], object]:
    """Return what writes a file: the texts one after the other."""
    return lambda directory: (directory / name).write_text("\n".join(texts))


def example(begins: str, page: str = "compare.md") -> str:
    """Return the example of a page that begins so: what is documented is what users write."""
    found = re.findall(r"```(?:yaml|json)\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    return next(text for text in found if text.startswith(begins))


def _tensor(directory: Path) -> None:
    np.save(directory / "x.npy", np.arange(12, dtype=np.float32).reshape(3, 4))


def _pt(directory: Path) -> None:
    import pt_writer

    pt_writer.write_pt(directory / "x.pt", pt_writer.tensor(), {"0": np.arange(6, dtype=np.float32).tobytes()})


def _pt_tree(directory: Path) -> None:
    import pt_writer

    state = {"model": {"w": pt_writer.tensor()}, "state": {0: [1, 2.5, "x", None]}, "key": {(1, "a"): b"x"}}
    pt_writer.write_pt(directory / "state.bin", state, {"0": np.arange(6, dtype=np.float32).tobytes()})


def _legacy_tree(directory: Path) -> None:
    import pt_writer

    state = {"model": {"w": pt_writer.tensor()}, "step": 3}
    pt_writer.write_legacy(directory / "legacy.bin", state, {"0": np.arange(6, dtype=np.float32)})


def _mindspore_checkpoint(directory: Path) -> None:
    from mindspore_files import write_checkpoint

    write_checkpoint(directory / "model.ckpt", {"w": np.ones((2, 3), np.float32), "b": np.arange(3)}, text="x")


def _shard(directory: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    (directory / "shard-0.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))


def _pair(directory: Path) -> None:
    for side, factor in (("target", 1.5), ("golden", 1.0)):
        for rank in range(2):
            record = {"Torch.f.0.forward": api(tensor([1.0, 2.0]), output=tensor([factor, 2.0]))}
            write_dump(directory / side / "step0" / f"rank{rank}", record, parents={}, stacks={})


def _foreign_settings(directory: Path) -> None:
    for name, content in {
        "config.json": '{"task": "tensor", "rank": [0], "seed": 1, "tensor": {"list": ["relu"], "file_format": "npy"}}',
        "monitor.json": '{"targets": {}, "wg_distribution": true, "ops": ["norm", "x"], "format": "api"}',
        "compare.json": '{"npu_path": "a", "bench_path": "b"}',
        "cells.yaml": "fc1.Dense: fc1.Linear\n",
        "apis.yaml": "- {ms_api: Functional.a, pt_api: NPU.b, ms_args: [0], pt_args: [0]}\n",
        "rows.yaml": "Tensor.mul.2.forward.input.0: Tensor.mul.1.forward.input.0\n",
        "layers.yaml": "TopLayer: {network: module}\n",
    }.items():
        (directory / name).write_text(content)


def _configured(directory: Path) -> None:
    import manifests

    _pair(directory)
    for side, lr in (("target", 0.1), ("golden", 0.2)):
        model = manifests.model_of(("head", "torch.nn.Linear", {"bias": True, "p": lr}), rope_theta=10000.0)
        for rank in range(2):
            content = manifests.manifest((model,), lr=lr, environment={"NCCL_ALGO": "Ring"}, tf32=False)
            manifests.write_beside(directory / side / "step0" / f"rank{rank}", content)


def _use_configured(directory: Path) -> None:
    command("locate", "{}/target", "{}/golden", "-o", "{}/out", "--overwrite")(directory)
    command("view", "{}/out", "-o", "{}/out/x.html")(directory)
    command("view", "{}/target", "-o", "{}/out/y.html")(directory)


def _results(directory: Path) -> None:
    _pair(directory)
    target, golden = str(directory / "target"), str(directory / "golden")
    command("compare", "-tp", target, "-gp", golden, "-o", "{}/result")(directory)
    command("compare", "-tp", target, "-gp", golden, "-o", "{}/sheets", "--format", "xlsx")(directory)
    command("locate", target, golden, "-o", "{}/result")(directory)
    (directory / "asked").mkdir()
    (directory / "asked" / "merge.yaml").write_text("api: [Torch.f]\ncompare_index: [target_norm]\n")
    request = {"npu_path": target, "bench_path": golden, "stack_path": None, "rank_id": [0], "step_id": [0]}
    (directory / "asked" / "compare.json").write_text(json.dumps(request))


def _use_results(directory: Path) -> None:
    shutil.rmtree(directory / "out", ignore_errors=True)
    for tables in ("result", "sheets"):
        command("merge_result", "-i", f"{{}}/{tables}", "-o", "{}/out", "-config", "{}/asked/merge.yaml")(directory)
    command("view", "{}/result", "-o", "{}/out/x.html")(directory)
    one("locate.json")(directory / "result")
    command("compare", "-i", "{}/asked/compare.json", "-o", "{}/out")(directory)
    command("compare", "-tp", "{}/target", "-gp", "{}/golden", "-o", "{}/result", "--resume")(directory)


def _noise(directory: Path) -> None:
    write_dump(
        directory / "golden" / "step0" / "rank0", {"Torch.f.0.forward": api(tensor(), output=tensor([1.0, 2.0]))}
    )
    for run in (1, 2):
        record = api(tensor(), output=tensor([1.0 + run * 1e-7, 2.0]))
        write_dump(
            directory / "golden" / "calibration" / f"run{run}" / "step0" / "rank0", {"Torch.f.0.forward": record}
        )
    target = api(tensor(), output=tensor([1.0, 2.5]))
    write_dump(directory / "target" / "step0" / "rank0", {"Torch.f.0.forward": target})
    command("calibrate", "{}/golden")(directory)
    assert (directory / "golden" / "noise_profile.parquet").is_file()


def _use_noise(directory: Path) -> None:
    command("compare", "-tp", "{}/target", "-gp", "{}/golden", "-o", "{}/out", "--noise", "measured")(directory)
    command("locate", "{}/target", "{}/golden", "-o", "{}/out", "--noise", "measured")(directory)


def _checks(directory: Path) -> None:
    from checked_calls import some_calls

    from msprobe_core.report.api_check_files import write_checks

    write_checks(some_calls(), directory / "checks", dump=directory / "dump")


def _check_journal(directory: Path) -> None:
    from checked_calls import some_calls

    from msprobe_core.api_check.journal import Journal

    journal = Journal(directory / "check.journal", "digest")
    for call in some_calls():
        journal.append(call)
    journal.close()


def _bisect_journal(directory: Path) -> None:
    (directory / "training.log").write_text("step 1\nstep 2\n")
    _use_bisect_journal(directory)


def _use_bisect_journal(directory: Path) -> None:
    from msprobe_core.bisect_steps.journal import Journal
    from msprobe_core.bisect_steps.replays import last_line

    journal = Journal(directory, {"steps": 4}, overwrites=False)
    assert type(journal.once(["distance", 3], lambda: 0.5, float)) is float
    assert journal.once(["window", "target", 2], lambda: 2, int) is not None
    assert last_line(directory / "training.log").isprintable()


def _use_check_journal(directory: Path) -> None:
    from checked_calls import some_calls

    from msprobe_core.api_check.journal import Journal
    from msprobe_core.report.api_check_files import check_content, check_table

    journal = Journal(directory / "check.journal", "digest")
    known = list(journal.verdicts.values())
    journal.append(some_calls()[0])
    journal.close()
    json.dumps(check_content(known, directory), allow_nan=False)
    check_table(known)
    Journal(directory / "check.journal", "digest").close()


def _check_settings(directory: Path) -> None:
    (directory / "check.yaml").write_text(
        "white_list: [linear, gelu]\nblack_list: []\nerror_data_path: /tmp/x\nprecision: 6\n"
        "quantization_api_list: [npu_quant]\n"
    )
    config = {"task": "acc_check", "acc_check": {"white_list": ["linear"], "budget": 0.1, "sample": 4}}
    (directory / "config.json").write_text(json.dumps(config))


def _use_check_settings(directory: Path) -> None:
    from msprobe_core.errors import MsprobeError

    for name in ("check.yaml", "config.json"):
        with contextlib.suppress(MsprobeError):
            READERS["check.yaml"](directory / name)


def _use_checks(directory: Path) -> None:
    from msprobe_core.report.api_check import check_lines
    from msprobe_core.report.api_check_files import check_content, read_checks
    from msprobe_core.report.api_check_summary import CheckSummary

    verdicts = read_checks(directory / "checks" / "acc_check.json").verdicts
    list(check_lines(CheckSummary.of(verdicts), dump=directory))
    json.dumps(check_content(verdicts, directory), allow_nan=False)
    command("view", "{}/checks", "-o", "{}/x.html")(directory)


def _kernels(directory: Path) -> None:
    head = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,Avg Value"
    rows = [f'MatMul,net-op{i},0,0,{100 + i},output,0,24,float32,"(2,3)",2.0,1.0,nan,inf' for i in range(3)]
    (directory / "statistic.csv").write_text("\n".join([f"{head},L2Norm Value", *rows, ""]))


def _monitors(directory: Path) -> None:
    source = TESTS / "data" / "monitor"
    for name in ("actv_0-1.csv", "exp_avg_0-1.csv"):
        for side in ("target", "golden"):
            place = next((source / side).glob("*rank0*"))
            (directory / side / place.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(place / name, directory / side / place.name)


def _beside_monitors(directory: Path) -> None:
    from monitored_runs import Training, alarm, write_alarms

    Training(ranks=1, layers=1, steps=1).write(directory)
    write_alarms(directory, 0, alarm(0, "grad_reduced", "head.weight", 0, 2.5), alarm(0, "actv", "x", 0, "nan"))


def _use_beside(directory: Path) -> None:
    from msprobe_core.errors import DumpError
    from msprobe_core.view.trends_beside import beside

    found = beside(directory, directory)
    if found.notes:  # a page is made without these files, and says so
        raise DumpError(found.notes[0].text)


def _alarms(directory: Path) -> None:
    for rank in range(2):
        names = {"tag_name": f"0:fc1.output:0/rank{rank}/actv", "message": "Rule AnomalyNan reports anomaly signal"}
        numbers = dict.fromkeys(("step", "micro_step", "pp_stage", "vpp_stage", "call_id"), 3)
        (directory / f"rank{rank}").mkdir(exist_ok=True)
        record = {"rank": rank, **numbers, **names, "group_mates": [0, 1]}
        (directory / f"rank{rank}" / "anomaly.json").write_text(json.dumps({"key": record}))


def _use_switch(directory: Path) -> None:
    from msprobe_core.monitor.plan import MonitorPlan
    from msprobe_core.monitor.plan_switch import Switch

    switch = Switch(MonitorPlan(source=directory / "switched.json", dynamic_on=True), 0)
    for _ in range(5):
        switch.poll(is_done=True)


def _monitor_table(directory: Path) -> None:
    from msprobe_core.plugins import registry
    from msprobe_core.protocols.monitoring import MonitoredValue

    place = directory / "Nov21_05-57-08-rank0-95f81c46"
    writer = registry().monitor_writers()["arrow"].open(place, 0, steps_per_file=2, ndigits=6)
    for step in range(5):
        told = {"name": "up.weight", "micro_step": None, "numbers": {"norm": 1.5, "nans": 0}, "dtype": "torch.float32"}
        writer.add(step, [MonitoredValue(step=step, quantity="grad_reduced", stage=0, shape=(2, 3), **told)])
    writer.close()


def _monitor_layout(directory: Path) -> None:
    part = {"whole": [16], "offset": [0], "shape": [8]}
    for rank in (0, 1):
        place = directory / f"Nov21_05-57-08-rank{rank}-95f81c46"
        place.mkdir()
        (place / "grad_reduced_0-0.csv").write_text("vpp_stage,name,step,norm,shape,dtype\n0,up,0,1.5,[8],float32\n")
        layout = {
            "rank": rank,
            "trainers": ["fsdp1"],
            "groups": {"tp": {"ranks": [0, 1], "index": rank}},
            "parts": {"0:up": {"value": part, "update": {**part, "offset": [8 * rank]}, "is_tensor_parallel": True}},
        }
        (place / "layout.json").write_text(json.dumps(layout))


def _sketches(directory: Path) -> None:
    import msgspec

    from msprobe_core.monitoring.quantities import Quantity
    from msprobe_core.monitoring.sketch_files import SketchedTensor, SketchFile

    numbers = np.random.default_rng(0).normal(size=64).astype("<f4")
    quantities = (Quantity.GRADIENT_UNREDUCED, Quantity.GRADIENT_REDUCED)
    for rank in range(2):
        content = SketchFile(
            rank=rank,
            tensors=[SketchedTensor(quantity, 0, "up.weight", "torch.float32", 64, None) for quantity in quantities],
            steps=[0, 0, 1, 1],
            places=[0, 1, 0, 1],
            norms=[1.0] * 4,
            sketches=numbers.tobytes() * 4,
        )
        place = directory / f"Nov21_05-57-08-rank{rank}-95f81c46"
        place.mkdir()
        (place / "grad_sketches_0-1.msgpack").write_bytes(msgspec.msgpack.encode(content))


def _verl(directory: Path) -> None:
    from rl_runs import Recipe, write_run

    write_run(directory / "run", Recipe(steps=1))
    from msprobe_core.rl import RLStage, RoutedTokens, RunWriter

    writer, ids = RunWriter(directory / "run"), np.arange(12).reshape(2, 6)
    tensors = {"prompts": ids[:, :3], "responses": ids[:, 3:], "attention_mask": np.ones((2, 6))}
    scores = np.random.default_rng(0).random((2, 6, 2, 4), np.float32)
    routed = RoutedTokens(experts=np.argsort(-scores)[..., :2], scores=scores)
    for stage in (RLStage.ROLLOUT, RLStage.ACTOR_LOG_PROB):
        writer.routing(1, stage, routed, tensors)


def _use_verl(directory: Path) -> None:
    for what in ("logprob", "weights", "layers", "routing"):
        command("verl", "compare", what, "{}/run", "-o", "{}/out")(directory)
    shutil.rmtree(directory / "out", ignore_errors=True)


def _post_processing(directory: Path) -> None:
    np.save(directory / "rotation.npy", np.eye(4, dtype=np.float32))
    (directory / "post.yaml").write_text(
        "mode: left_right_matmul\nleft_target_tensor_map: {rotation.npy: [a.npy, b.pt]}\n"
        "right_golden_tensor_map:\n  rotation.npy: c.npy\n"
    )


def _use_post_processing(directory: Path) -> None:
    from msprobe_core.compare.post_processing import load_post_processing

    load_post_processing(directory / "post.yaml")


def _mappings(directory: Path) -> None:
    for number, begin in enumerate(("Functional.flash", "fc1.Dense", "Functional.dense", "- ms_api", "TopLayer")):
        (directory / f"{number}.yaml").write_text(example(begin))


def _use_mappings(directory: Path) -> None:
    from msprobe_core.compare.mapping_files import read_matching
    from msprobe_core.errors import MsprobeError

    options = ("data_mapping", "cell_mapping", "api_mapping", "api_mapping", "layer_mapping")
    for number, option in enumerate(options):
        with contextlib.suppress(MsprobeError):
            read_matching(**{option: directory / f"{number}.yaml"})


def _use_api_maps(directory: Path) -> None:
    from msprobe_core.compare.map_files import load_api_map

    load_api_map("maps", directory)


def _api_maps(directory: Path) -> None:
    source = TESTS.parent / "plugins" / "mindspore" / "msprobe" / "mindspore" / "maps"
    for path in source.glob("*.yaml"):
        shutil.copy(path, directory)


def _control(directory: Path) -> None:
    (directory / "live.json").write_text('{"dump_enable": true, "level": "mix", "tensor": {"list": ["relu"]}}')
    (directory / "live.yaml").write_text("dump_enable: true\nlevel: mix  # both\nstep: [1, 2]\nrank: [0]\n")


def _use_control(directory: Path) -> None:
    for name in ("live.json", "live.yaml"):
        for action in (["status"], ["set", "level=L1", "rank=[0]", 'tensor.list=["conv"]'], ["off"], ["on"]):
            command("control", f"{{}}/{name}", *action)(directory)


def _updates(directory: Path) -> None:
    from msprobe_core.store.training_metrics import StageUpdates, Update, save_updates

    save_updates(directory, StageUpdates(updates=(Update(mini=0, grad_norm=1.0),)))


def _use_updates(directory: Path) -> None:
    from msprobe_core.store.training_metrics import load_updates

    load_updates(directory)


def _reactions(place: Path) -> None:
    output = {"path": "0", "reason": "noisy", "times": 3.5, "amplification": "Infinity"}
    line = {"step": 0, "call": "Functional.f.0.forward", "verdict": "wrong", "tensors": "f32[2]", "outputs": [output]}
    directory = place / "run" / "step0" / "rank0"
    directory.mkdir(parents=True)
    (directory / "free_benchmark.jsonl").write_text(f"{json.dumps(line)}\n" * 3)


def _use_reactions(place: Path) -> None:
    from msprobe_core.free_benchmark.ranking import read_ranking

    read_ranking(place / "run")


def _bisection(directory: Path) -> None:
    from bisect_results import result

    from msprobe_core.free_benchmark.bisect_files import write_bisect

    write_bisect(result(), directory / "found")


def _use_bisection(directory: Path) -> None:
    from msprobe_core.free_benchmark.bisect_files import read_bisect

    read_bisect(directory / "found" / "bisect.json")


def _stored_calls(directory: Path) -> None:
    from msprobe_core import names
    from msprobe_core.api_check.call_records import Header
    from msprobe_core.api_check.call_writer import CallWriter
    from msprobe_core.api_check.three_way import FreshResults
    from msprobe_core.model import Argument, ReplayTensor
    from msprobe_core.replay.recorded import RecordedCall

    header = Header(framework="numpy", dump="0" * 64, devices=("npu:0",))
    writer = CallWriter(directory / "calls", header, part_calls=2)
    x = ReplayTensor(values=np.arange(6, dtype=np.float32).reshape(2, 3), dtype="float32")
    half = ReplayTensor(values=x.values, dtype="bfloat16")
    numbers = ReplayTensor(values=np.array([1 + 2j]), dtype="complex128")
    for number, function in enumerate(("exp", "exp", "argmax")):
        entry = f"Torch.{function}.{number}.forward"
        result = ReplayTensor(values=np.array(5), dtype="int64") if function == "argmax" else x
        call = RecordedCall(
            entry=entry, site=names.parse_entry(entry), args=[half if number else x], outputs={"0": result},
            kwargs={"more": [Argument("int", "1"), {"a": numbers}, None]}, scalars={"0": "float32 [2, 3]"},
        )  # fmt: skip
        writer.add(call, number, [FreshResults(device="npu:0", results={"0": result})])
    writer.close()


def _use_stored_calls(directory: Path) -> None:
    from numpy_replays import NumPyReplays

    from msprobe_core.api_check.call_check import CallChecker
    from msprobe_core.api_check.call_files import CallFiles
    from msprobe_core.api_check.three_way import check_on

    entries = READERS["calls.json"](directory / "calls" / "calls.json")
    files, checker = CallFiles(directory / "calls", max_elements=1 << 20), CallChecker(framework=NumPyReplays())
    for entry in entries:
        computed = files.read(entry)
        found = check_on(checker, computed.call, stored=computed.fresh)
        assert found.outputs or found.reason
        assert all(note.text for note in found.notes)


def _op_config(directory: Path) -> None:
    write_dump(directory / "rank0", {"Torch.f.0.forward": api(tensor(), output=tensor([1.0]))}, parents={}, stacks={})
    fields = {"extract_api_path": "{}/api.json", "dump_json_path": "{}/rank0", "api_name": "Torch.f.0"}
    fields |= {"propagation": "forward", "data_mode": "real_data", "random_seed": 1, "iter_times": 1}
    (directory / "config_op.json").write_text(json.dumps(fields))


def _use_op_config(directory: Path) -> None:
    from msgspec.structs import replace

    from msprobe_core.api_check.op_config import read_op_config
    from msprobe_core.api_check.op_extract import dump_of

    config = read_op_config(directory / "config_op.json")
    if config.dump_json_path:  # a damaged path must not lead out of the directory
        place = {"extract_api_path": str(directory / "api.json"), "dump_json_path": str(directory / "rank0")}
        dump_of(replace(config, **place))


def _locks(directory: Path) -> None:
    fields = {"job": "pid:1", "host": "a", "process": 1, "started": 2.0}
    (directory / ".rank0.lock").write_text(json.dumps(fields))


def _use_locks(directory: Path) -> None:
    from msprobe_core.capture.run_directory import RunPlace

    place = RunPlace(directory)
    place.directory(0)
    place.close()


_CONFIG = {
    "task": "tensor", "dump_path": "/tmp/x", "rank": [0, "1-3"], "step": [1], "level": "mix", "seed": 1,
    "tensor": {"scope": [], "list": ["relu"], "data_mode": ["all"]}, "statistics": {"summary_mode": "md5"},
}  # fmt: skip


def _standards(directory: Path) -> None:
    shutil.copy(TESTS.parent / "msprobe_core" / "api_check" / "standards.yaml", directory / "standards.yaml")


def _use_standards(directory: Path) -> None:
    from msprobe_core.api_check.standards import load_standards

    load_standards(directory / "standards.yaml")


def _accuracy_tables(directory: Path) -> None:
    for name in ("target", "golden"):
        lines = (TESTS / "data" / "api_precision_compare" / f"{name}.csv").read_bytes().splitlines(keepends=True)
        (directory / f"{name}.csv").write_bytes(b"".join(lines[:12]))


def _manifests(directory: Path) -> None:
    from msprobe_core.manifest.facts import (
        DataRows,
        Device,
        Generator,
        Library,
        Manifest,
        Model,
        Module,
        Optimizer,
        Parameter,
        ParameterGroup,
        RunFacts,
    )
    from msprobe_core.store.manifest_file import write_data_rows, write_manifest

    parameter = Parameter(name="weight", shape=(2, 3), dtype="float32", tied_to="embed.weight")
    module = Module(
        path="fc", type="torch.nn.Linear", settings={"bias": True, "p": 0.5}, hooks={"forward": ("f",)},
        parameters=(parameter,),
    )  # fmt: skip
    run = RunFacts(
        framework=Library(name="torch", version="2.13.0"), device=Device(kind="cpu"), switches={"tf32": False},
        generators=(Generator(name="python", state="0" * 16, seed=3),), models=(Model(modules=(module,)),),
        optimizers=(Optimizer(type="Adam", groups=(ParameterGroup(settings={"lr": 0.1}, parameters=("fc.weight",)),)),),
    )  # fmt: skip
    rows = DataRows(step=0, name="args.0", count=2, ordered="1" * 16, unordered="2" * 16, rows=("3" * 16, "4" * 16))
    for step in (0, 1):
        (directory / f"step{step}" / "rank0").mkdir(parents=True)
    write_manifest(directory / "step0" / "rank0", Manifest(created="2026-01-01T00:00:00+00:00", run=run, data=(rows,)))
    write_data_rows(directory / "step1" / "rank0", [rows])


def _use_manifests(directory: Path) -> None:
    from msprobe_core.store.manifest_file import read_data_rows, read_manifest

    read_manifest(directory / "step0" / "rank0" / "manifest.json")
    read_data_rows(directory / "step0" / "rank0")
    read_data_rows(directory / "step1" / "rank0" / "data_rows.json")


def _atb(directory: Path) -> None:
    content = foreign_dumps.elements("float16", (2, 3))
    (directory / "tensors.bin").write_bytes(foreign_dumps.atb(content, 1, (2, 3)))


def _cann_dump(directory: Path) -> None:
    content = foreign_dumps.elements("float32", (2, 3))
    blocks = foreign_dumps.to_nz(np.arange(12, dtype=np.float16).reshape(3, 4))
    inputs = [(content, 1, (2, 3)), (blocks.tobytes(), 2, blocks.shape, 29, (3, 4))]
    (directory / "MatMul.x.1.2.1700000000").write_bytes(
        foreign_dumps.cann_dump(inputs, inputs[:1], [b"abc"], space=b"12")
    )


def _archives(directory: Path) -> None:
    members = {"a": np.arange(60.0).reshape(3, 20), "b": np.asfortranarray(np.zeros((3, 4), np.int8))}
    (directory / "tensors.npz").write_bytes(foreign_dumps.npz(members))
    (directory / "y.npz").write_bytes(foreign_dumps.npz(members, compresses=True))


def _runtime_dumps(directory: Path) -> None:
    shutil.copytree(TESTS / "data" / "foreign_dumps", directory, dirs_exist_ok=True)


def _use_foreign(directory: Path) -> None:
    command("identify", "{}")(directory)
    with tempfile.TemporaryDirectory() as other:
        command("parse", "-d", "{}", "-t", "npy", "-o", f"{other}/npy")(directory)
        command("convert", "--from", "auto", "{}", f"{other}/dump")(directory)


def _checkpoint_names(directory: Path) -> None:
    np.savez(directory / "a.npz", **{"layers.0.weight": np.ones((2, 3), np.float32)})
    (directory / "names.yaml").write_text("layers.0.weight: layers.0.weight\nlayers.1.weight: layers.2.weight\n")


def _use_checkpoint_names(directory: Path) -> None:
    path = "{}/a.npz"
    command("checkpoint", "compare", path, path, "--map", "{}/names.yaml", "-o", "{}/result")(directory)


def _checkpoint_fingerprint(directory: Path) -> None:
    from checkpoint_bugs import held, llama

    from msprobe_core.checkpoint.fingerprints import fingerprint_checkpoint, write_fingerprint

    found = fingerprint_checkpoint(held(llama(num_layers=1)))
    write_fingerprint(found, directory / "a.fingerprint.arrow")


def _use_checkpoint_fingerprint(directory: Path) -> None:
    path = "{}/a.fingerprint.arrow"
    command("checkpoint", "compare", path, path)(directory)


def _checkpoint(kind: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        from checkpoint_files import WRITERS

        WRITERS[kind](directory / "damaged")
        WRITERS[kind](directory / "sound")

    return make


def _use_checkpoint(directory: Path) -> None:
    from msprobe_core.checkpoint.boxes import read_tensor
    from msprobe_core.checkpoint.opening import open_checkpoint
    from msprobe_core.errors import MsprobeError

    command("checkpoint", "inspect", "{}/damaged")(directory)
    command("checkpoint", "compare", "{}/damaged", "{}/sound", "--optimizer", "-o", "{}/out", "--overwrite")(directory)
    command("checkpoint", "resume", "{}/damaged", "{}/sound")(directory)
    command("checkpoint", "resume", "{}/sound", "{}/damaged")(directory)
    shutil.rmtree(directory / "out", ignore_errors=True)
    for held in open_checkpoint(directory / "damaged").tensors.values():
        if held.damage is None:
            with contextlib.suppress(MsprobeError):
                read_tensor(held)


def _checkpoint_index(directory: Path) -> None:
    table = {"metadata": {"total_size": 3}, "weight_map": {"a": "x-00001.safetensors", "b": "y.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(table))


def _dcp_metadata(directory: Path) -> None:
    from checkpoint_files import write_dcp

    write_dcp(directory / "whole")
    (directory / "whole" / ".metadata").rename(directory / ".metadata")
    shutil.rmtree(directory / "whole")


def _packs(directory: Path) -> None:
    import manifests

    from msprobe_core.config_check.pack import DYNAMIC, STATIC, Pack, RandomSite, Summary, write_pack

    for name, factor in (("pack", 1.0), ("other", 2.0)):
        summaries = {"args.0": Summary(max=factor, min=-1.0, mean=0.5, norm=2.0)}
        pack = Pack(
            environment={"NCCL_ALGO": "Ring"}, libraries={"torch": "2.13.0", "numpy": "2.3.0"},
            settings={STATIC: {"lr": 0.1 * factor}, DYNAMIC: {"hidden_size": 64}},
            dataset={(step, 0): summaries for step in (0, 1)}, weights={(0, 0): {"fc.weight": Summary(max=factor)}},
            random={0: {"torch.rand": [RandomSite(3, ["a.py:3"])]}},
            manifests={0: manifests.manifest((), lr=0.1 * factor)},
        )  # fmt: skip
        write_pack(directory / f"{name}.zip", pack)
    with zipfile.ZipFile(directory / "pack.zip") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(directory / "pack.zip", "w") as archive:  # not compressed, so that damage reaches the texts
        for name, content in members.items():
            archive.writestr(name, content)


def _damaged_pack(rng: random.Random, directory: Path) -> None:
    """Damage the zip, or a member of it."""
    path = directory / "pack.zip"
    if rng.random() < 0.4:
        damage_file(rng, path)
        return
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = rng.choice(sorted(members))
    scratch = directory / ("member.json" if chosen != "pip" else "member")
    scratch.write_bytes(members[chosen])
    damage_file(rng, scratch)
    members[chosen] = scratch.read_bytes()
    scratch.unlink()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _use_packs(directory: Path) -> None:
    command("config_check", "-c", "{}/pack.zip", "{}/other.zip", "-o", "{}/out", "--overwrite")(directory)
    shutil.rmtree(directory / "out", ignore_errors=True)
    READERS["pack.zip"](directory / "pack.zip")


_SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
LR=1e-4
MODEL_ARGS="
  --num-layers ${LAYERS:-24} --hidden-size 1024 --lr $LR --bf16
"
MODEL_ARGS+=" --seq-length 4096"  # more
DATA=(--data-path /a/b 'c d')
torchrun --nproc_per_node 8 pretrain.py $MODEL_ARGS "${DATA[@]}" \\
    --split 949,50,1 model.path=/x 2>&1 | tee out.log
"""

_VERL_LOG = """(TaskRunner pid=31) {'actor_rollout_ref': {'actor': {'optim': {'lr': 1e-06, 'betas': [0.9, 0.999]},
(TaskRunner pid=31)                              'path': PosixPath('/a'), 'ppo_epochs': 1},
(TaskRunner pid=31)                    'rollout': {'name': 'vllm', 'n': 5, 'seed': None, 'env_vars': {'A': '1'}}},
(TaskRunner pid=31)  'data': {'seed': -1, 'shuffle': True}}
(TaskRunner pid=31) step:1
"""

_SLIME_LOG = """------------------------ arguments ------------------------
  lr .............................................. 1e-06
  betas ........................................... [0.9, 0.98]
  save ............................................ None
  path ............................................ /a/b
-------------------- end of arguments ---------------------
"""


def _settings(directory: Path) -> None:
    (directory / "train.sh").write_text(_SCRIPT)
    (directory / "train.yaml").write_text("model: {hidden_size: 1024, layers: [1, 2]}\nlr: 1.0e-4\napi_key: abc\n")


def _use_settings(directory: Path) -> None:
    from msprobe_core.errors import MsprobeError

    for name in ("train.sh", "train.yaml"):
        with contextlib.suppress(MsprobeError):
            READERS[name](directory / name)
    files = ("{}/train.sh", "{}/train.yaml")
    command("config_check", "-d", *files, "-o", "{}/pack.zip", "--overwrite")(directory)
    (directory / "pack.zip").unlink(missing_ok=True)


def _logs(directory: Path) -> None:
    (directory / "verl.log").write_text(_VERL_LOG)
    (directory / "slime.log").write_text(_SLIME_LOG)
    (directory / "wanted.yaml").write_text("actor_rollout_ref: {actor: {ppo_epochs: 1}}\nA: '1'\n")


def _use_logs(directory: Path) -> None:
    from msprobe_core.errors import MsprobeError

    for name in ("verl.log", "slime.log", "wanted.yaml"):
        with contextlib.suppress(MsprobeError):
            READERS[name](directory / name)
    with tempfile.TemporaryDirectory() as other:
        for name, text in (("verl.log", _VERL_LOG), ("slime.log", _SLIME_LOG)):
            (Path(other) / name).write_text(text)
        for mode, files in {
            "-vc": ("{}/verl.log", f"{other}/verl.log"), "-sc": ("{}/slime.log", f"{other}/slime.log"),
            "-vv": ("{}/wanted.yaml", "{}/verl.log"),
        }.items():  # fmt: skip
            command("config_check", mode, *files, "-o", f"{other}/out{mode}")(directory)


def _signs(directory: Path) -> None:
    from msprobe_core.gradients.probe_layout import counted_file, sign_file, summary_file

    rng = np.random.default_rng(0)
    for side in ("target", "golden"):
        rank = directory / side / "rank0"
        for step in (0, 1):
            for name in ("fc.weight", "fc.bias"):
                for path in (sign_file(rank, step, name), counted_file(rank, step, name)):
                    path.parent.mkdir(parents=True, exist_ok=True)
                np.save(sign_file(rank, step, name), rng.random((3, 4)) > 0.5)
                np.save(counted_file(rank, step, name), np.packbits(rng.random(12) > 0.2))
            rows = 'param_name,max,min,norm,shape\nfc.weight,1.0,-1.0,2.0,"[3, 4]"\nfc.bias,1.0,-1.0,2.0,[12]\n'
            summary_file(rank, step).write_text(rows)


def _use_signs(directory: Path) -> None:
    from msprobe_core.gradients.norms import compare_norms
    from msprobe_core.gradients.signs import compare_signs

    command("gradients", "compare", "{}/target", "{}/golden", "-o", "{}/out", "--overwrite")(directory)
    shutil.rmtree(directory / "out", ignore_errors=True)
    compare_signs(directory / "target", directory / "golden")
    compare_norms(directory / "target", directory / "golden")


_TOKENIZER = (
    '{"model": {"vocab": {"a": 0, "\\u0120b": 1}}, "added_tokens": [{"id": 2, "content": "<s>"}], '
    '"decoder": {"type": "ByteLevel"}}'
)


def _use_tokenizer(directory: Path) -> None:
    from msprobe_core.rl.token_texts import TokenTexts

    assert len(TokenTexts(directory).texts([0, 1, 2, 3])) == 4


TARGETS = {
    "tensor": Target(["store/tensors", "store/tensor_source"], _tensor, one("x.npy")),
    "pt": Target(["store/pt_files", "store/tensor_source"], _pt, one("x.pt")),
    "pt tree": Target(["store/pt_trees", "store/pt_files"], _pt_tree, one("state.bin")),
    "legacy pt tree": Target(["store/pt_trees"], _legacy_tree, one("legacy.bin")),
    "mindspore checkpoint": Target(
        ["tensor_files/mindspore_checkpoint", "untrusted/protobuf_wire"], _mindspore_checkpoint, one("model.ckpt")
    ),
    "shard": Target(["store/tensors"], _shard, one("shard-0.safetensors")),
    "migrated": Target(["migrate/files"], _foreign_settings, command("migrate", "{}"), "*.*"),
    "config": Target(["config/load", "config/text"], written("config.json", json.dumps(_CONFIG)), one("config.json")),
    "config yaml": Target(
        ["config/load"],
        written("config.yaml", "level: mix\nrank: [0]\nstatistics:\n  scope: [Torch.f.0.forward, Torch.f.1.forward]\n"),
        one("config.yaml"),
    ),
    "control": Target(["config/edit"], _control, _use_control, "live.*"),
    "apis": Target(["config/apis"], written("apis.yaml", "my.module: [f, g]\ntorch: [relu]\n"), one("apis.yaml")),
    "monitor plan": Target(
        ["monitor/plan_file"],
        written(
            "monitor.json",
            '{"targets": {"up": {}}, "ops": ["norm", "nans"], "wg_distribution": true, "eps": 1e-8, "ndigits": 6,',
            '"alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 5}}], "dump": true}}',
        ),
        one("monitor.json"),
    ),
    "monitor alarms": Target(
        ["monitoring/alarm_files"], _alarms, command("monitor", "alarms", "-d", "{}", "-o", "{}/out"), "rank*/*.json"
    ),
    "monitor plan v2": Target(
        ["monitor/plan_file_v2"],
        written(
            "monitor_v2.json",
            '{"framework": "pt", "output_dir": "out", "rank": [0], "start_step": 1, "stop_step": 9, "monitors":',
            '{"module": {"targets": ["up"], "ops": ["norm", "max"]}, "weight_grad": {"monitor_mbs_grad": true},',
            '"optimizer": {"mv_distribution": true}, "cc": {"cc_codeline": ["a.py[3]"]}}}',
        ),
        one("monitor_v2.json"),
    ),
    "monitor switch": Target(
        ["monitor/plan_switch"],
        written("switched.json", '{"wg_distribution": true, "collect_times": 1,', '"dynamic_on": true}'),
        _use_switch,
    ),
    "trend names": Target(
        ["exports/trend_database"], written("names.json", '{"module.": "", "layers": "blocks"}'), one("names.json")
    ),
    "limits": Target(["judge/limits"], written("limits.yaml", example("relative:")), one("limits.yaml")),
    "mappings": Target(["compare/mapping_files"], _mappings, _use_mappings),
    "api maps": Target(["compare/map_files"], _api_maps, _use_api_maps),
    "layouts": Target(
        ["compare/layouts/rules"],
        written("layouts.yaml", example("tensors:"), example("parallel:")),
        one("layouts.yaml"),
    ),
    "post processing": Target(["compare/post_processing"], _post_processing, _use_post_processing, "*.yaml"),
    "twin": Target(
        ["store/following"],
        _configured,
        command("twin", "watch", "{}/target", "{}/golden", "--wait", "0", "-o", "{}/out", "--overwrite"),
        "*/step0/*/dump.json",
    ),
    "configurations": Target(["store/manifest_file"], _configured, _use_configured, "*/step0/*/manifest.json"),
    "noise": Target(
        ["judge/noise/profile_file"],
        _noise,
        _use_noise,
        "golden/noise_profile.parquet",
    ),
    "results": Target(
        [
            "compat/read_table",
            "compat/merge",
            "compat/first_differences",
            "execute/kept",
            "report/summary",
            "view/inputs",
            "view/suspects",
            "locate/explain",
            "store/results",
            "cli/compare",
        ],
        _results,
        _use_results,
        "[!tg]*/**/*",
    ),
    "standards": Target(["api_check/standards"], _standards, _use_standards),
    "accuracy tables": Target(
        ["compat/published_tables"],
        _accuracy_tables,
        command("api_precision_compare", "-npu", "{}/target.csv", "-gpu", "{}/golden.csv", "-o", "{}/out"),
        "*.csv",
    ),
    "bisection": Target(["free_benchmark/bisect_files"], _bisection, _use_bisection, "found/*.json"),
    "checks": Target(["report/api_check_files"], _checks, _use_checks, "checks/*.json"),
    "journal of a bisection": Target(
        ["bisect_steps/journal", "bisect_steps/replays"], _bisect_journal, _use_bisect_journal
    ),
    "check journal": Target(["api_check/journal"], _check_journal, _use_check_journal),
    "checkpoint names": Target(["cli/checkpoint"], _checkpoint_names, _use_checkpoint_names, "names.yaml"),
    "checkpoint fingerprint": Target(
        ["checkpoint/fingerprints"], _checkpoint_fingerprint, _use_checkpoint_fingerprint, "*.arrow"
    ),
    **{
        f"checkpoint {kind}": Target(
            [f"checkpoint/{each}" for each in modules], _checkpoint(kind), _use_checkpoint, "damaged/**/*"
        )
        for kind, modules in {
            "hf": ("opening", "directory", "safetensors_files"),
            "bin": ("opening", "pt_states"),
            "megatron": ("opening", "megatron"),
            "deepspeed": ("opening", "deepspeed"),
            "dcp": ("dcp", "dcp_metadata"),
        }.items()
    },
    "checkpoint index": Target(["checkpoint/directory"], _checkpoint_index, one("model.safetensors.index.json")),
    "checkpoint .metadata": Target(["checkpoint/dcp_metadata"], _dcp_metadata, one(".metadata"), ".metadata"),
    "packs": Target(["config_check/pack"], _packs, _use_packs, damages=_damaged_pack),
    "launch settings": Target(["config_check/static_settings"], _settings, _use_settings),
    "logs of trainers": Target(["config_check/trainer_logs"], _logs, _use_logs),
    "signs of gradients": Target(["gradients/signs", "gradients/norms"], _signs, _use_signs, "target/**/*"),
    "check settings": Target(["api_check/settings_file"], _check_settings, _use_check_settings),
    "atb": Target(["tensor_files/atb", "tensor_files/opening"], _atb, _use_foreign),
    "dumps of CANN": Target(["tensor_files/cann_dumps"], _cann_dump, _use_foreign),
    "archives of NumPy": Target(
        ["tensor_files/archives", "tensor_files/recognition", "untrusted/zip_members"], _archives, _use_foreign
    ),
    "sglang and flashinfer": Target(["tensor_files/recognition"], _runtime_dumps, _use_foreign),
    "kernels": Target(["store/kernel_files"], _kernels, one("statistic.csv")),
    "monitors": Target(
        ["monitoring/files"], _monitors, command("view", "{}/target", "{}/golden", "-o", "{}/x.html"), "*/*/*.csv"
    ),
    "beside monitors": Target(["view/trends_beside"], _beside_monitors, _use_beside, "**/*.json"),
    "monitor table": Target(
        ["monitoring/arrow_files"],
        _monitor_table,
        command("monitor", "analyze", "{}"),
        "*/values_0.arrow",
    ),
    "manifest": Target(["store/manifest_file"], _manifests, _use_manifests, "step*/rank0/*.json"),
    "monitor coverage": Target(
        ["monitor/coverage"],
        written(
            "coverage.json",
            '{"grad_reduced": {"expected": 2, "seen": 1, "finite": 1, "first_step": 3, "missing": ["0:up"],',
            '"always": 1, "by_class": {"dense": {"expected": 2, "seen": 1, "always": 1, "finite": 1}}}}',
        ),
        one("coverage.json"),
    ),
    "monitor layout": Target(
        ["monitoring/layout_file"],
        _monitor_layout,
        command("monitor", "norms", "{}", "-o", "{}/out"),
        "*/layout.json",
    ),
    "gradient sketches": Target(
        ["monitoring/sketch_files"], _sketches, command("monitor", "reduction-check", "{}"), "*/*.msgpack"
    ),
    "answers": Target(
        ["rl/responses"],
        written("answers.jsonl", '{"tokens": [1, 2, 3], "logprobs": [-1.0, NaN, null], "step": 3}'),
        command("responses", "{}/answers.jsonl", "-o", "{}/out"),
    ),
    "tokenizer": Target(["rl/token_texts"], written("tokenizer.json", _TOKENIZER), _use_tokenizer),
    "verl": Target(["rl/files", "rl/routing_files", "store/struct_files", "store/samples"], _verl, _use_verl),
    "updates": Target(["store/training_metrics"], _updates, _use_updates),
    "reactions": Target(["free_benchmark/ranking"], _reactions, _use_reactions, "**/*.jsonl"),
    "stored calls": Target(["api_check/call_files"], _stored_calls, _use_stored_calls, "calls/*"),
    "op_generate": Target(["api_check/op_config", "api_check/op_extract"], _op_config, _use_op_config),
    "locks": Target(["capture/run_directory"], _locks, _use_locks, ".rank0.lock"),
}
"""By what they read; whole dumps have a fuzzer of their own, `fuzz.dumps`."""

IN_DUMPS = (
    "store/stored_dump", "store/runs", "store/convert", "store/json_reader", "store/json_pieces", "store/arrow_reader",
)  # fmt: skip
"""Modules whose files are damaged by `fuzz.dumps`."""

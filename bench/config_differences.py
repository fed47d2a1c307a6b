"""Whether config_check names a planted difference first: real architectures, one difference of their configuration.

    python bench/config_differences.py [NAME ...]

Each pair is recorded by the debugger, one step of each side, and compared as ``msprobe config_check`` does. A job of
three ranks is recorded rank by rank, with PyTorch's process group that sends nothing. Prints for each planted
difference at how many architectures it is the first of all differences, how many others can change results, and each
pair where it is not first or has others. Of nothing, and of other places, ports and output paths, nothing may count.
"""

import json
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from msprobe.pytorch import PrecisionDebugger
from torch.testing._internal.distributed.fake_pg import FakeStore

from msprobe_core.config_check.differences import Difference, Severity
from msprobe_core.config_check.rank_agreement import check_ranks
from msprobe_core.config_check.runs import compare_runs, read_run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from architectures import ARCHITECTURES, Architecture

NUM_RANKS = 3
WITHOUT_SDPA = frozenset(
    {
        "MambaForCausalLM",
        "ConvNextForImageClassification",
        "ResNetForImageClassification",
        "Gemma2ForCausalLM",
        "DebertaV2ForMaskedLM",
    }
)  # fmt: skip
STALE = 1


def loss_of(model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Return the loss that a model of transformers computes."""
    return model(**batch).loss


ADAM_W = partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One difference of the target.

    Attributes:
        expected: Pattern of the path of the difference, in front of which its section stands; ``None`` if none counts.
        config: Changes of settings of the model's configuration by dotted name; the first one that it has is changed.
        change: Changes the model before the training.
        attention: Implementation of attention.
        seed: Of the training, after weights were made.
        rows: Order of the samples of the batch.
        lr: Learning rate of the second group.
        weight_decay: That of the second group.
        around: A context around the recording, given a new directory.
        both: A context around the steps of both sides.
        is_stale: Whether only one rank of a job has the difference.
        batch: Changes the batch.
        optimizer: Makes the optimizer of parameter groups.
        train: Computes the loss.
    """

    expected: str | None
    config: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    change: Callable[[torch.nn.Module], object] = torch.nn.Module.train
    attention: str = "sdpa"
    seed: int = 1
    rows: Sequence[int] = (0, 1)
    lr: float = 0.01
    weight_decay: float = 0.1
    around: Callable[[Path], AbstractContextManager[object]] = nullcontext
    both: Callable[[], AbstractContextManager[object]] = nullcontext
    is_stale: bool = False
    batch: Callable[[dict[str, Any]], dict[str, Any]] = dict
    optimizer: Callable[..., torch.optim.Optimizer] = ADAM_W
    train: Callable[[torch.nn.Module, dict[str, Any]], torch.Tensor] = loss_of


# --- what is planted -------------------------------------------------------------------------------------------------


def norms_of(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str]]:
    """Return the modules that normalise, and how each calls its epsilon."""
    names = ("variance_epsilon", "eps", "epsilon")
    found = [(each, next((name for name in names if hasattr(each, name)), None)) for each in model.modules()]
    return [(module, name) for module, name in found if name is not None]


def linear_of(model: torch.nn.Module) -> torch.nn.Module:
    """Return a linear layer in the middle, whose weight is its own."""
    found = [each for name, each in model.named_modules() if isinstance(each, torch.nn.Linear) and name != "lm_head"]
    return (found or [model.transformer.h[1].mlp.c_fc])[len(found) // 2]


def epsilon_of_all(model: torch.nn.Module) -> None:
    for module, name in norms_of(model):
        setattr(module, name, 1e-3)


def epsilon_of_one(model: torch.nn.Module) -> None:
    module, name = norms_of(model)[-1]
    setattr(module, name, 1e-3)


def doubled(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def precision_of_products(precision: str) -> Callable[[Path], AbstractContextManager[object]]:
    @contextmanager
    def around(_directory: Path) -> Iterator[None]:
        before = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
        torch.set_float32_matmul_precision(precision)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision("highest")
            torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before

    return around


@contextmanager
def other_library(directory: Path) -> Iterator[None]:
    """Have another release of a library in front of the installed ones."""
    (directory / "tokenizers-0.1.0.dist-info").mkdir(parents=True)
    with mock.patch.object(sys, "path", [str(directory), *sys.path]):
        yield


def variables(**given: str) -> Callable[[Path], AbstractContextManager[object]]:
    return lambda _directory: mock.patch.dict(os.environ, given)


@contextmanager
def other_places(directory: Path) -> Iterator[None]:
    """Have another host, port, cache, device and other outputs."""
    environment = {
        "MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "29501", "CUDA_VISIBLE_DEVICES": "4", "HF_HOME": str(directory),
        "TRITON_CACHE_DIR": str(directory), "TORCHINDUCTOR_CACHE_DIR": str(directory), "NCCL_SOCKET_IFNAME": "eth1",
        "NCCL_DEBUG": "INFO", "TORCH_NCCL_TRACE_BUFFER_SIZE": "100", "OMP_DISPLAY_ENV": "FALSE",
    }  # fmt: skip
    with mock.patch.dict(os.environ, environment), mock.patch.object(sys, "argv", arguments(str(directory), "b")):
        yield


def arguments(place: str, name: str) -> list[str]:
    """Return the arguments of a training whose outputs have a place and a name."""
    options = (
        "output_dir", "output-dir", "out", "output", "save", "save-dir", "save-path", "save_to", "work-dir", "workdir",
        "log-dir", "logging_dir", "tensorboard-dir", "result", "results", "results-dir", "report", "dump-path", "o",
        "checkpoint-dir", "export", "export-dir", "trace-file", "plot", "metrics-file", "wandb-name", "run-name",
        "exp-name", "experiment", "tag",
    )  # fmt: skip
    given = [f"{'-' if len(each) == 1 else '--'}{each}={place}/{name}" for each in options]
    return ["train.py", f"{place}/config-{name}.yaml", f"{place}/{name}", *given, "--lr=0.01", "--bf16"]


ACTIVATION = Planted(
    expected=r"model: .*act",
    config=dict.fromkeys(
        ("hidden_act", "activation_function", "dense_act_fn", "text_config.hidden_act"),
        lambda value: "relu" if value.startswith("gelu") else "gelu",
    ),
)
PLANTED = {
    "nothing": Planted(expected=None),
    "other places": Planted(expected=None, around=other_places),
    "the default precision": Planted(expected=None, around=precision_of_products("highest")),
    "dtype of one layer": Planted(
        expected=r"parameters: .*weight\.dtype$",
        change=lambda model: linear_of(model).bfloat16(),
        both=lambda: torch.autocast("cpu", torch.bfloat16),
    ),
    "epsilon of all norms": Planted(expected=r"model: .*eps(ilon)?$", change=epsilon_of_all),
    "epsilon of one norm": Planted(expected=r"model: .*eps(ilon)?$", change=epsilon_of_one),
    "dropout": Planted(
        expected=r"model: .*(drop|\.p$)",
        config=dict.fromkeys(
            (
                "attn_pdrop",
                "attention_probs_dropout_prob",
                "dropout_rate",
                "attention_dropout",
                "text_config.attention_dropout",
            ),
            lambda value: value + 0.1,
        ),
    ),
    "rope base": Planted(
        expected=r"model: .*rope_theta", config={"rope_parameters": lambda given: {**given, "rope_theta": 5e5}}
    ),
    "activation": ACTIVATION,
    "attention implementation": Planted(expected=r"model: .*attn_implementation$", attention="eager"),
    "precision of products": Planted(
        expected=r"switches: .*(matmul|fp32|tf32)", around=precision_of_products("medium")
    ),
    "seed": Planted(expected=r"random: ", seed=2),
    "swapped samples": Planted(expected=r"data: ", rows=(1, 0)),
    "a repeated sample": Planted(expected=r"data: ", rows=(0, 0)),
    "learning rate of one group": Planted(expected=r"optimizer: groups\.1\.lr$", lr=0.02),
    "weight decay of one group": Planted(expected=r"optimizer: groups\.1\.weight_decay$", weight_decay=0.01),
    "a user's hook": Planted(
        expected=r"model: .*forward", change=lambda model: linear_of(model).register_forward_hook(doubled)
    ),
    "evaluation mode of one layer": Planted(expected=r"model: ", change=lambda model: norms_of(model)[-1][0].eval()),
    "a frozen parameter": Planted(
        expected=r"parameters: .*takes_gradient$", change=lambda model: linear_of(model).weight.requires_grad_(False)
    ),
    "one rank's library": Planted(expected=r"libraries: tokenizers$", around=other_library, is_stale=True),
    "one rank's variable": Planted(
        expected=r"environment: NCCL_ALGO$", around=variables(NCCL_ALGO="Tree"), is_stale=True
    ),
    "one rank's epsilon": Planted(expected=r"model: .*eps(ilon)?$", change=epsilon_of_one, is_stale=True),
    "one rank's activation": replace(ACTIVATION, is_stale=True),
    "one rank's learning rate": Planted(expected=r"optimizer: .*groups\.1\.lr$", lr=0.02, is_stale=True),
    "one rank's seed": Planted(expected=r"random: ", seed=2, is_stale=True),
}
HEALTHY = PLANTED["nothing"]


# --- recording -------------------------------------------------------------------------------------------------------


def built(architecture: Architecture, planted: Planted) -> torch.nn.Module | None:
    """Return a model with a planted difference; ``None`` if it has nothing of the kind."""
    config = architecture.make_config()
    if planted.config:
        for path, change in planted.config.items():
            holder, _, key = path.rpartition(".")
            owner = getattr(config, holder, None) if holder else config
            if getattr(owner, key, None) is not None:
                try:
                    setattr(owner, key, change(getattr(owner, key)))
                except LookupError:
                    return None
                break
        else:
            return None
    torch.manual_seed(0)
    if planted.attention != "sdpa" and architecture.model == "MambaForCausalLM":
        return None
    implementation = None if architecture.model in WITHOUT_SDPA else planted.attention
    kind = getattr(transformers, architecture.model)
    try:
        model = kind._from_config(config, attn_implementation=implementation).train()
        planted.change(model)
    except LookupError:
        return None
    return model


def record(
    run: Path, architecture: Architecture, planted: Planted, both: Callable[[], AbstractContextManager[object]]
) -> bool:
    """Train and record one step; return whether the planted difference can be had."""
    model = built(architecture, planted)
    if model is None:
        return False
    weights = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim < 2]
    groups = [{"params": weights}, {"params": others, "lr": planted.lr, "weight_decay": planted.weight_decay}]
    optimizer = planted.optimizer(groups)
    batch = architecture.batch()
    batch = {key: each[list(planted.rows)] if torch.is_tensor(each) else each for key, each in batch.items()}
    try:
        batch = planted.batch(batch)
    except LookupError:
        return False
    config = Path(f"{run}.json")
    config.write_text(json.dumps({"task": "structure", "level": "L0", "dump_path": str(run)}))
    torch.manual_seed(planted.seed)
    random.seed(planted.seed)
    np.random.seed(planted.seed)  # the generator that programs seed
    with planted.around(run.with_name(f"{run.name}.around")):
        debugger = PrecisionDebugger(str(config))
        with both():
            debugger.start(model)
            loss = planted.train(model, batch)
        loss.backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
        debugger.close()
    return True


def record_job(run: Path, architecture: Architecture, planted: Planted | None, golden: Path | None) -> bool:
    """Record the ranks of a job in turn, those that are not stale from a golden run; return whether that can be had."""
    for rank in range(NUM_RANKS):
        if golden is not None and rank != STALE:
            shutil.copytree(golden / "step0" / f"rank{rank}", run / "step0" / f"rank{rank}")
            continue
        torch.distributed.init_process_group("fake", rank=rank, world_size=NUM_RANKS, store=FakeStore())
        try:
            part = run.with_name(f"{run.name}.{rank}")
            if not record(part, architecture, planted or HEALTHY, nullcontext):
                return False
        finally:
            torch.distributed.destroy_process_group()
        shutil.copytree(part / "step0", run / "step0", dirs_exist_ok=True)
    return True


# --- counting --------------------------------------------------------------------------------------------------------


@dataclass
class Count:
    """Pairs of one planted difference.

    Attributes:
        pairs: Number of pairs.
        first: Those at which it is the first difference, or at which nothing counts if nothing was planted.
        others: Other differences above info, of all pairs.
    """

    pairs: int = 0
    first: int = 0
    others: int = 0

    def add(self, name: str, planted: str, pattern: str | None, differences: Sequence[Difference]) -> None:
        counting = [each for each in differences if each.severity is not Severity.INFO]
        paths = [f"{each.section.value}: {each.path}" for each in counting]
        is_first = not paths if pattern is None else bool(paths) and re.match(pattern, paths[0]) is not None
        is_there = pattern is not None and any(re.match(pattern, path) for path in paths)
        self.pairs += 1
        self.first += is_first
        self.others += len(paths) - is_there
        if not is_first or len(paths) > is_there:
            print(f"<!-- {planted}, {name}: {'; '.join(paths) or 'nothing'} -->", flush=True)


def of_one(
    name: str, architecture: Architecture, every: Mapping[str, Planted], counts: dict[str, Count], root: Path
) -> None:
    """Record and compare the pairs of one architecture."""
    goldens: dict[Any, Path] = {}
    with (
        mock.patch.object(sys, "argv", arguments("/runs", "a")),
        variables(MASTER_PORT="29500", OMP_NUM_THREADS="1")(root),
    ):
        for number, (title, planted) in enumerate(every.items()):
            key = planted.is_stale, planted.both
            if key not in goldens:
                goldens[key] = root / f"golden{len(goldens)}"
                if planted.is_stale:
                    record_job(goldens[key], architecture, None, None)
                else:
                    record(goldens[key], architecture, HEALTHY, planted.both)
            target = root / f"target{number}"
            if planted.is_stale:
                if not record_job(target, architecture, planted, goldens[key]):
                    continue
                differences = check_ranks(read_run(target)).differences
                counts[f"{title} (--ranks)"].add(name, title, planted.expected, differences)
            elif not record(target, architecture, planted, planted.both):
                continue
            counts[title].add(name, title, planted.expected, compare_runs(target, goldens[key]).differences)
            shutil.rmtree(target)


def run(every: Mapping[str, Planted], architectures: Mapping[str, Architecture]) -> None:
    """Plant every difference into every architecture, and print the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    titles = [
        each for title, planted in every.items() for each in (title, f"{title} (--ranks)")[: 1 + planted.is_stale]
    ]
    counts = {title: Count() for title in titles}
    for name, architecture in architectures.items():
        with tempfile.TemporaryDirectory() as directory:
            of_one(name, architecture, every, counts, Path(directory))
    print("| planted | pairs | first | others above info |\n|---|---|---|---|")
    for title, count in counts.items():
        print(f"| {title} | {count.pairs} | {count.first} | {count.others} |")
    planted = [count for title, count in counts.items() if every[title.removesuffix(" (--ranks)")].expected]
    pairs, first, others = (sum(getattr(each, key) for each in planted) for key in ("pairs", "first", "others"))
    print(f"| all planted | {pairs} | {first} ({first / pairs:.1%}) | {others} |")


if __name__ == "__main__":
    run(PLANTED, {name: ARCHITECTURES[name] for name in sys.argv[1:] or ARCHITECTURES})

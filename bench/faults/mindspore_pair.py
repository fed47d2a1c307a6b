"""The pair of small Llamas: a target in MindSpore with a fault, and golden runs in either framework.

``python bench/faults/mindspore_pair.py JOBS.json`` records in the environment of MindSpore, which has no
``transformers``; `record` starts it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.faults.truth import Kind, Phase, Registry, Truth

ROOT = Path(__file__).parents[2]
SPLIT = "report"
GOLDENS = {"mindspore": "mindspore", "mindspore-torch": "torch"}
"""Programs, and the framework of their golden run."""
MINDSPORE_FAULTS = Registry()
STEPS = 2


@dataclass
class MindSporeTraining:
    """The parts of a training that a fault may change.

    Attributes:
        model: The model.
        loss: Called with logits and labels.
        batch: Called with the number of a step; returns tokens and labels as arrays.
        parameters: Parameters that the optimizer updates.
        learning_rate: Learning rate of the optimizer.
    """

    model: Any
    loss: Callable[[Any, Any], Any]
    batch: Callable[[int], tuple[Any, Any]]
    parameters: list[Any]
    learning_rate: float

    def module(self, path: str) -> Any:
        cell = self.model
        for name in path.split("."):
            cell = cell[int(name)] if name.isdigit() else getattr(cell, name)
        return cell


def _at(path: str) -> Truth:
    return Truth(modules=(path,), directions=("forward",), steps=(0,))


def _add(name: str, phase: Phase, *kinds: Kind):
    return MINDSPORE_FAULTS.add(name, phase, *kinds, only=tuple(GOLDENS))


@_add("epsilon of a norm 1e-2", Phase.CONFIGURATION, Kind.EPSILON, Kind.ARGUMENT)
def _(training: MindSporeTraining) -> Truth:
    training.module("layers.1.post_attention_layernorm").eps = 1e-2
    return _at("layers.1.post_attention_layernorm")


@_add("attention scale x 1.05", Phase.CONFIGURATION, Kind.SCALE, Kind.ARGUMENT)
def _(training: MindSporeTraining) -> Truth:
    training.module("layers.0.self_attn").scale *= 1.05
    return _at("layers.0.self_attn")


@_add("sines of the wrong sign", Phase.FORWARD, Kind.EXTRA_CALL, Kind.SCALE, Kind.ARGUMENT, Kind.COMPUTATION)
def _(training: MindSporeTraining) -> Truth:
    training.module("layers.1.self_attn").sine_sign = -1.0
    return _at("layers.1.self_attn")


@_add("causal mask off by one", Phase.CONFIGURATION, Kind.MASK, Kind.ARGUMENT, Kind.INPUT_DATA, Kind.OUTSIDE)
def _(training: MindSporeTraining) -> Truth:
    import mindspore as ms
    import numpy as np

    training.model.mask = ms.Tensor(np.triu(np.full((12, 12), -1e9, np.float32), 2))
    # Every layer passes it on unchanged.
    return Truth(modules=("", "layers.0", "layers.0.self_attn"), directions=("forward",), steps=(0,))


def _change(training: MindSporeTraining, path: str, change: Callable[[Any], Any]) -> None:
    import mindspore as ms

    weight = training.module(path).weight
    weight.set_data(ms.Tensor(change(weight.asnumpy().copy())))


@_add("weight x 1.01", Phase.CONFIGURATION, Kind.PARAMETER)
def _(training: MindSporeTraining) -> Truth:
    _change(training, "layers.1.self_attn.q_proj", lambda array: array * 1.01)
    return _at("layers.1.self_attn.q_proj")


@_add("one element of a weight off", Phase.CONFIGURATION, Kind.PARAMETER)
def _(training: MindSporeTraining) -> Truth:
    def change(array: Any) -> Any:
        array[0, 0] += 0.5
        return array

    _change(training, "layers.0.mlp.up_proj", change)
    return _at("layers.0.mlp.up_proj")


@_add("weights of two layers swapped", Phase.CONFIGURATION, Kind.PARAMETER)
def _(training: MindSporeTraining) -> Truth:
    paths = ("layers.0.mlp.down_proj", "layers.1.mlp.down_proj")
    arrays = [training.module(path).weight.asnumpy().copy() for path in paths]
    for path, array in zip(paths, reversed(arrays), strict=True):
        _change(training, path, lambda _, array=array: array)
    return Truth(modules=paths, directions=("forward",), steps=(0,))


@_add("gelu for silu", Phase.CONFIGURATION, Kind.EXTRA_CALL, Kind.MISSING_CALL, Kind.COMPUTATION, Kind.ARGUMENT)
def _(training: MindSporeTraining) -> Truth:
    from mindspore import ops

    mlp = training.module("layers.1.mlp")
    mlp.construct = lambda x: mlp.down_proj(ops.gelu(mlp.gate_proj(x)) * mlp.up_proj(x))
    return _at("layers.1.mlp")


@_add("residual missing", Phase.FORWARD, Kind.MISSING_CALL, Kind.COMPUTATION)
def _(training: MindSporeTraining) -> Truth:
    layer = training.module("layers.0")

    def construct(x: Any, cos: Any, sin: Any, mask: Any = None) -> Any:
        attended, _ = layer.self_attn(layer.input_layernorm(x), cos, sin, mask=mask)
        return layer.mlp(layer.post_attention_layernorm(x + attended))

    layer.construct = construct
    return _at("layers.0")


@_add("extra scale in the program", Phase.FORWARD, Kind.EXTRA_CALL, Kind.SCALE)
def _(training: MindSporeTraining) -> Truth:
    mlp = training.module("layers.1.mlp")
    own = mlp.construct
    mlp.construct = lambda x: own(x) * 1.05
    return _at("layers.1.mlp")


@_add("one token of one sample wrong", Phase.CONFIGURATION, Kind.INPUT_DATA)
def _(training: MindSporeTraining) -> Truth:
    own = training.batch

    def batch(step: int) -> tuple[Any, Any]:
        tokens, labels = own(step)
        tokens = tokens.copy()
        tokens[1, 3] = (tokens[1, 3] + 1) % 97
        return tokens, labels

    training.batch = batch
    return Truth(modules=("", "embed_tokens"), directions=("forward",), steps=(0,))


@_add("loss summed, not averaged", Phase.CONFIGURATION, Kind.ARGUMENT, Kind.SCALE, Kind.COMPUTATION)
def _(training: MindSporeTraining) -> Truth:
    from mindspore import ops

    training.loss = lambda logits, labels: ops.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="sum"
    )
    return Truth(calls=("Functional.cross_entropy", "Functional.nll_loss", "Mint.", "Primitive."), steps=(0,))


@_add("learning rate x 1.1", Phase.OPTIMIZER, Kind.OPTIMIZER, Kind.ARGUMENT)
def _(training: MindSporeTraining) -> Truth:
    training.learning_rate *= 1.1
    modules = ("embed_tokens", "layers.0.input_layernorm")  # if the optimizer makes no calls: the first modules to run
    return Truth(modules=modules, groups=("optimizer",))


@_add("one parameter not updated", Phase.OPTIMIZER, Kind.OPTIMIZER, Kind.PARAMETER, Kind.MISSING_CALL)
def _(training: MindSporeTraining) -> Truth:
    training.parameters = [p for p in training.parameters if p.name != "layers.1.mlp.up_proj.weight"]
    return Truth(modules=("layers.1.mlp.up_proj",), groups=("optimizer",))


@dataclass(frozen=True)
class Job:
    """One recording.

    Attributes:
        framework: ``mindspore`` or ``torch``.
        place: Directory of the recording.
        mode: Configuration of the recording.
        fault: Name of the fault; empty for none.
        seed: Seed of a perturbation of the embeddings' last digits; 0 for none.
    """

    framework: str
    place: str
    mode: dict[str, Any]
    fault: str = ""
    seed: int = 0


def record(jobs: Sequence[Job], scratch: Path) -> None:
    """Record in the environment of MindSpore; notes with truth and fingerprint are written next to the dumps."""
    scratch.mkdir(parents=True, exist_ok=True)
    listing = scratch / "mindspore_jobs.json"
    listing.write_text(json.dumps([asdict(job) for job in jobs]))
    command = [str(interpreter()), str(Path(__file__)), str(listing)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=scratch)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])


def interpreter() -> Path:
    """Return the path of Python in MindSpore's environment; it may not exist."""
    return ROOT / ".venv-mindspore" / "bin" / "python"


def note_of(place: Path) -> tuple[str, Truth | None]:
    """Return a recording's fingerprint, and the location of its fault."""
    note = json.loads(place.with_name(f"{place.name}.note.json").read_text())
    return note["fingerprint"], None if note["truth"] is None else Truth(**note["truth"])


def _run_mindspore(job: Job) -> None:
    import hashlib

    import llama_config
    import mindspore as ms
    import mindspore_llama
    import numpy as np
    from mindspore import ops

    mindspore_llama.set_mode("pynative")
    digests: list[str] = []
    truth: Truth | None = None
    for is_recorded in (False, True):
        config = llama_config.LlamaConfig()
        model = mindspore_llama.build(config)
        training = MindSporeTraining(
            model,
            lambda logits, labels: ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)),
            lambda step, config=config: llama_config.batch(config, step),
            list(model.trainable_params()),
            0.1,
        )
        if job.fault:
            truth = MINDSPORE_FAULTS.faults[job.fault].plant(training)
        if job.seed:
            signs = np.random.RandomState(job.seed).choice([-1, 1], model.embed_tokens.embedding_table.shape)
            table = model.embed_tokens.embedding_table
            table.set_data(ms.Tensor((table.asnumpy() * (1 + signs * 2.0**-23)).astype(np.float32)))
        optimizer = ms.nn.SGD(training.parameters, learning_rate=training.learning_rate)
        whole = _with_loss(training)
        gradients_of = ms.value_and_grad(whole, None, training.parameters)
        digest = hashlib.sha256()
        with _recording(job, is_recorded, "mindspore") as debugger:
            for step in range(STEPS):
                tokens, labels = (ms.Tensor(array) for array in training.batch(step))
                if debugger is not None:
                    debugger.start(model)
                loss, gradients = gradients_of(tokens, labels)
                optimizer(gradients)
                if debugger is not None:
                    debugger.stop()
                    debugger.step()
                for value in (loss, *gradients, *model.trainable_params()):
                    digest.update(value.asnumpy().tobytes())
        digests.append(digest.hexdigest())
    _note(job, digests[0], truth)


def _with_loss(training: MindSporeTraining) -> Any:
    from mindspore import nn

    class WithLoss(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.model = training.model

        def construct(self, tokens: Any, labels: Any) -> Any:
            return training.loss(self.model(tokens), labels)

    return WithLoss()


def _run_torch(job: Job) -> None:
    import llama_config
    import torch
    import torch_llama

    torch.set_num_threads(1)
    config = llama_config.LlamaConfig()
    model = torch_llama.build(config)
    if job.seed:
        from bench.faults.planting import inside, last_digits

        inside(model.embed_tokens, last_digits(torch.float32, job.seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _recording(job, True, "pytorch") as debugger:
        for step in range(STEPS):
            tokens, labels = (torch.from_numpy(array).long() for array in llama_config.batch(config, step))
            debugger.start(model)
            torch_llama.loss_function(model(tokens), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            debugger.stop()
            debugger.step()
    _note(job, "", None)


class _recording:  # noqa: N801 (used like a function)
    def __init__(self, job: Job, is_recorded: bool, framework: str) -> None:
        self.debugger: Any = None
        if is_recorded:
            import importlib

            place = Path(job.place)
            place.mkdir(parents=True)
            config = place.with_name(f"{place.name}.config.json")
            config.write_text(json.dumps({"level": "mix", "dump_path": str(place), **job.mode}))
            self.debugger = importlib.import_module(f"msprobe.{framework}").PrecisionDebugger(str(config))

    def __enter__(self) -> Any:
        return self.debugger

    def __exit__(self, *_: object) -> None:
        if self.debugger is not None:
            self.debugger.close()


def _note(job: Job, fingerprint: str, truth: Truth | None) -> None:
    place = Path(job.place)
    note = {"fingerprint": fingerprint, "truth": None if truth is None else vars(truth)}
    place.with_name(f"{place.name}.note.json").write_text(json.dumps(note))


def main() -> None:
    """Execute the jobs in the file that the command line names."""
    sys.path.insert(0, str(ROOT / "examples" / "llama_pair"))
    for given in json.loads(Path(sys.argv[1]).read_text()):
        job = Job(**given)
        (_run_mindspore if job.framework == "mindspore" else _run_torch)(job)


if __name__ == "__main__":
    main()

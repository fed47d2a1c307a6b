"""Result of compare on healthy pairs and on planted faults, on real architectures with random weights.

    python bench/healthy_pairs.py [healthy] [faults]

A healthy pair is the same model on the same data, once in float32 and once in bfloat16 (``pure``: weights and data
converted; ``autocast``: under autocast). Neither has a fault, so every flagged row is a false alarm. Prints a Markdown
table: errors of all rows, and the largest relative error of each direction.

A planted fault is in one place of the target, which otherwise is the same program as the golden run, in float32 like
the golden run or under autocast. Prints whether it was found, and whether the first fault is in the right place: in the
call or module of the fault, or in a module around it that is no wider than its block.
"""

import itertools
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch
import transformers
from msprobe.pytorch import PrecisionDebugger

from msprobe_core.compare import compare_dumps

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from architectures import ARCHITECTURES, Architecture  # the models that the tests train
from in_kernel import InKernel

MODES = {
    "statistics": {"task": "statistics"},
    "sketches": {"task": "statistics", "statistics": {"summary_mode": "sketch"}},
    "tensors": {"task": "tensor"},
}

EIGHT_LAYERS = Architecture(
    lambda: transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=344, num_hidden_layers=8, num_attention_heads=8
    ),
    "LlamaForCausalLM",
    lambda: {"input_ids": (ids := torch.randint(2, 256, (2, 48))), "labels": ids},
)


def debugger_for(directory: str, mode: str) -> PrecisionDebugger:
    """Return a debugger with the settings of ``mode``."""
    config = Path(f"{directory}.json")
    config.write_text(json.dumps({"level": "mix", "dump_path": directory, **MODES[mode]}))
    return PrecisionDebugger(str(config))


def record(directory: str, mode: str, model: torch.nn.Module, batch: dict, *, autocast: bool = False) -> Path:
    """Record one forward and backward."""
    debugger = debugger_for(directory, mode)
    with debugger.start(model):
        with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext():
            loss = model(**batch).loss
        loss.backward()
    debugger.close()
    return Path(directory) / "step0"


def healthy() -> None:
    """Count flagged rows of healthy pairs."""
    print("| model | pair | statistics | sketches | tensors | largest error forward | backward |")
    print("|---|---|---|---|---|---|---|")
    for name, architecture in {**ARCHITECTURES, "llama, 8 layers": EIGHT_LAYERS}.items():
        batch = architecture.batch()
        halved = {k: v.bfloat16() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in batch.items()}
        for pair in ("pure", "autocast"):
            cells = []
            for mode in MODES:
                with tempfile.TemporaryDirectory() as root:
                    golden = record(f"{root}/golden", mode, architecture.build().eval(), batch)
                    model = architecture.build().eval()
                    if pair == "pure":
                        target = record(f"{root}/target", mode, model.bfloat16(), halved)
                    else:
                        target = record(f"{root}/target", mode, model, batch, autocast=True)
                    unit = compare_dumps(target, golden).units[0]
                cells.append(f"{unit.counts['error']} of {unit.rows.height}")
            judged = unit.rows.filter((pl.col("limit") > 0) & pl.col("judged_error").is_finite())
            for is_forward in (True, False):
                rows = judged.filter((pl.col("phase") == "forward") == is_forward)
                cells.append(f"{rows['judged_error'].max():.1e}")
            print(f"| {name} | {pair} | {' | '.join(cells)} |", flush=True)


@dataclass(frozen=True)
class Fault:
    """A fault to plant.

    Attributes:
        name: Name in the table.
        place: Part of the name of the right answer, or of a call around it.
        plant: Applies it to a model.
        model: Name of the architecture.
        direction: Direction of the right answer, forward or backward.
    """

    name: str
    place: str
    plant: Callable[[torch.nn.Module], None]
    model: str = "llama, 4 layers"
    direction: str = "forward"

    @property
    def is_later(self) -> bool:
        """Whether it has an effect in the second step only."""
        return self.name.startswith("optimizer")


FOUR_LAYERS = Architecture(
    lambda: transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=8
    ),
    "LlamaForCausalLM",
    EIGHT_LAYERS.make_batch,
)
GPT2 = Architecture(
    lambda: transformers.GPT2Config(vocab_size=256, n_embd=128, n_layer=4, n_head=8, n_positions=64),
    "GPT2LMHeadModel",
    EIGHT_LAYERS.make_batch,
)
PLANTED_IN = {"llama, 4 layers": FOUR_LAYERS, "gpt2, 4 layers": GPT2, "opt": ARCHITECTURES["opt"]}


BARE = torch._C.TensorBase
"""Has the methods of tensors, without being recorded."""


def same(value: torch.Tensor) -> torch.Tensor:
    """Return a separate tensor with the same values."""
    return BARE.clone(value)


def after(module: torch.nn.Module, forward: Callable = same, backward: Callable = same) -> None:
    """Change the result of ``module``, from inside."""
    own = module.forward
    module.forward = lambda *args, **kwargs: InKernel.apply(own(*args, **kwargs), forward, backward)


def scaled_by(factor: float) -> Callable:
    return lambda value: BARE.mul(value, factor)


def rounded(value: torch.Tensor) -> torch.Tensor:
    return BARE.to(BARE.to(value, torch.bfloat16), value.dtype)


def set_value(path: str, value: object) -> Callable[[torch.nn.Module], None]:
    """Return a function that sets the attribute at ``path``."""
    owner, _, name = path.rpartition(".")
    return lambda model: setattr(model.get_submodule(owner), name, value)


def change(path: str, do: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.nn.Module], None]:
    """Return a function that changes the parameter at ``path``."""

    def plant(model: torch.nn.Module) -> None:
        with torch.no_grad():
            parameter = model.get_parameter(path)
            parameter.copy_(do(parameter.clone()))

    return plant


def drop_residual(model: torch.nn.Module) -> None:
    layer = model.model.layers[2]
    kept = {}
    layer.post_attention_layernorm.register_forward_pre_hook(lambda _, args: kept.update(residual=args[0]))
    own = layer.forward
    layer.forward = lambda *a, **k: InKernel.apply(own(*a, **k), lambda v: BARE.sub(v, kept["residual"]), same)


def heads_swapped(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight with the rows of heads 0 and 1 exchanged."""
    heads = weight.reshape(8, 16, -1)
    return heads[[1, 0, *range(2, 8)]].reshape(weight.shape)


LAYER = "model.layers.2"
DOWN = f"{LAYER}.mlp.down_proj"


def reversed_along(dim: int) -> Callable:
    return lambda value: BARE.flip(value, [dim])


def inside(path: str, forward: Callable = same, backward: Callable = same) -> Callable[[torch.nn.Module], None]:
    """Return a function that plants a change of the result of the module at ``path``."""
    return lambda model: after(model.get_submodule(path), forward, backward)


def one_element_off(weight: torch.Tensor) -> torch.Tensor:
    weight[7, 7] += 5
    return weight


GPT2_ACT = "transformer.h.2.mlp.act"
OPT_QUERY = "model.decoder.layers.0.self_attn.q_proj"
FAULTS = [
    Fault("epsilon 1e-2 for 1e-6", "post_attention_layernorm",
          set_value(f"{LAYER}.post_attention_layernorm.variance_epsilon", 1e-2)),
    Fault("attention scale x 1.05", "layers.2.self_attn", set_value(f"{LAYER}.self_attn.scaling", 1.05 / 4)),
    Fault("mask missing", "layers.2.self_attn", set_value(f"{LAYER}.self_attn.is_causal", False)),
    Fault("weight x 1.01", "q_proj", change(f"{LAYER}.self_attn.q_proj.weight", lambda w: w * 1.01)),
    Fault("weight x 2", "q_proj", change(f"{LAYER}.self_attn.q_proj.weight", lambda w: w * 2)),
    Fault("one element of a weight", "down_proj", change(f"{DOWN}.weight", one_element_off)),
    Fault("heads of a weight swapped", "v_proj", change(f"{LAYER}.self_attn.v_proj.weight", heads_swapped)),
    Fault("cast to bfloat16", "mlp.down_proj", inside(DOWN, rounded)),
    Fault("output x 1.05", "mlp.down_proj", inside(DOWN, scaled_by(1.05))),
    Fault("output x 1.2", "mlp.down_proj", inside(DOWN, scaled_by(1.2))),
    Fault("elements reversed", "gate_proj", inside(f"{LAYER}.mlp.gate_proj", reversed_along(-1), reversed_along(-1))),
    Fault("sequence reversed", "mlp.down_proj", inside(DOWN, reversed_along(1), reversed_along(1))),
    Fault("residual dropped", "layers.2.LlamaDecoderLayer", drop_residual),
    Fault("gelu by erf for tanh", "h.2.mlp.act", set_value(GPT2_ACT, transformers.activations.GELUActivation()),
          "gpt2, 4 layers"),
    Fault("relu for gelu", "h.2.mlp.act", set_value(GPT2_ACT, torch.nn.ReLU()), "gpt2, 4 layers"),
    Fault("gradient x 1.05", "mlp.down_proj", inside(DOWN, same, scaled_by(1.05)), direction="backward"),
    Fault("gradient x 1.2", "mlp.down_proj", inside(DOWN, same, scaled_by(1.2)), direction="backward"),
    Fault("gradient x -1", "mlp.down_proj", inside(DOWN, same, scaled_by(-1)), direction="backward"),
    # After the rectifiers of both layers, where the limit is higher.
    Fault("gradient x 1.2, after relu", "q_proj", inside(OPT_QUERY, same, scaled_by(1.2)), "opt", "backward"),
    Fault("gradient x 1.5, after relu", "q_proj", inside(OPT_QUERY, same, scaled_by(1.5)), "opt", "backward"),
    Fault("gradient x -1, after relu", "q_proj", inside(OPT_QUERY, same, scaled_by(-1)), "opt", "backward"),
    Fault("optimizer: rate x 1.2", "embed_tokens", lambda model: setattr(model, "rate", 1.2 * RATE)),
    Fault("optimizer: one weight left out", "q_proj",
          lambda model: setattr(model, "left_out", f"{LAYER}.self_attn.q_proj.weight")),
]  # fmt: skip

RATE = 1.0
"""Learning rate of the step before the recorded one; large, because one step must have a visible effect."""


def plant_and_record(directory: str, mode: str, fault: Fault, *, is_target: bool, autocast: bool) -> Path:
    """Record a step of training: the first one, or the second if the fault is in the optimizer."""
    architecture = PLANTED_IN[fault.model]
    model, batch = architecture.build().eval(), architecture.batch()
    if fault.model == "gpt2, 4 layers":
        model.transformer.h[2].mlp.act = transformers.activations.NewGELUActivation()
    if is_target:
        fault.plant(model)
    if fault.is_later:
        model(**batch).loss.backward()
        left_out = getattr(model, "left_out", None)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name != left_out:
                    parameter.sub_(getattr(model, "rate", RATE) * parameter.grad)
        model.zero_grad()
    return record(directory, mode, model, batch, autocast=autocast)


def outcome(fault: Fault, target: Path, golden: Path) -> str:
    """Return the result of compare for a planted fault."""
    unit = compare_dumps(target, golden).units[0]
    found = unit.first_fault
    if found is None:
        is_mentioned = unit.first_difference is not None and fault.place in unit.first_difference
        return "mentioned" if is_mentioned else "not seen"
    side = golden if found.only_on == "golden" else target
    parents = json.loads(next(side.glob("*/construct.json")).read_text())
    own: list[str] = []
    entry: str | None = found.entry
    while entry is not None and BLOCK not in entry:
        own.append(entry)
        entry = parents.get(entry)
    own += [entry] if entry is not None and fault.place in BLOCK else []
    is_there = any(fault.place in name for name in own)
    is_forward = ".forward" in found.entry
    if is_there and found.is_culprit and is_forward == (fault.direction == "forward"):
        return "**named**"
    return f"at {found.entry}"


BLOCK = ".layers.2.LlamaDecoderLayer"


def faults() -> None:
    """Count the planted faults that are found, and those that are named."""
    columns = list(itertools.product(("float32", "autocast"), MODES))
    print(f"| fault | {' | '.join(f'{pair}, {mode}' for pair, mode in columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    named = dict.fromkeys(columns, 0)
    with tempfile.TemporaryDirectory() as kept:
        for i, fault in enumerate(FAULTS):
            cells = []
            for pair, mode in columns:
                golden = Path(f"{kept}/{fault.model} {mode} {fault.is_later}")
                if not golden.exists():
                    plant_and_record(str(golden), mode, fault, is_target=False, autocast=False)
                with tempfile.TemporaryDirectory() as root:
                    is_half = pair == "autocast"
                    target = plant_and_record(f"{root}/{i}", mode, fault, is_target=True, autocast=is_half)
                    cells.append(outcome(fault, target, golden / "step0"))
                named[pair, mode] += cells[-1] == "**named**"
            print(f"| {fault.name} | {' | '.join(cells)} |", flush=True)
    print(f"| named | {' | '.join(f'{number} of {len(FAULTS)}' for number in named.values())} |")


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    parts = {"healthy": healthy, "faults": faults}
    for name in sys.argv[1:] or parts:
        parts[name]()
        print()


if __name__ == "__main__":
    main()

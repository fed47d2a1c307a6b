"""What the training monitor finds: faults planted in real trainings of a small GPT, and trainings without a fault.

    python bench/monitor_faults.py faults [--seeds 0 1 2] [--cases NAME ...]
    python bench/monitor_faults.py healthy [--seeds 100-149]

Every training has 200 steps and monitors all quantities. A fault is planted at step 150, or from the beginning, in one
process or on one of several gloo ranks under ``DistributedDataParallel``. It is found if the first finding of a command
names its rank, layer, quantity and step. `COMMANDS` lists the commands that are judged.

Trainings without a fault differ in seed, width, optimizer, schedule, dropout, clipping, micro-batches and number of
ranks (`Setup.of_seed`); any finding is a false alarm.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from msprobe_core.monitoring.anomalies import Anomaly, find_anomalies
from msprobe_core.monitoring.departure import Departure, compare_monitored
from msprobe_core.monitoring.files import read_monitored

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from jobs import run_job

STEPS, AT = 200, 150
VOCABULARY, LENGTH, BATCH = 32, 16, 8
LAYER, WEIGHT = "blocks.1.mlp", "blocks.1.mlp.up.weight"
RANK = 2
"""On which a fault of one rank is planted, of four."""

_PLAN = {
    "targets": {}, "ops": ["norm", "max", "min", "mean", "nans"], "ndigits": 10, "step_count_per_record": 50,
    "squash_name": True, "xy_distribution": True, "wg_distribution": True, "mv_distribution": True,
    "param_distribution": True,
}  # fmt: skip


# --- the training -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a training is made.

    Attributes:
        seed: Of weights and data.
        width: Of the model.
        optimizer: ``adamw`` or ``sgd``.
        schedule: ``constant``, or ``cosine`` after 20 steps of warm-up.
        dropout: Probability.
        clip: Largest norm of all gradients; ``None`` for any.
        micro_batches: Of a step.
        world: Ranks.
        repetition: Number of a repetition, whose initial weights differ by a millionth, as if by rounding; 0 for none.
    """

    seed: int
    width: int = 32
    optimizer: str = "adamw"
    schedule: str = "constant"
    dropout: float = 0.0
    clip: float | None = None
    micro_batches: int = 1
    world: int = 1
    repetition: int = 0

    @staticmethod
    def of_seed(seed: int) -> Setup:
        """Return a setup that differs from that of neighbouring seeds."""
        return Setup(
            seed=seed,
            width=(16, 32, 48)[seed % 3],
            optimizer=("adamw", "sgd")[seed % 2],
            schedule=("constant", "cosine")[seed // 2 % 2],
            dropout=(0.0, 0.1)[seed // 3 % 2],
            clip=(None, 1.0)[seed // 5 % 2],
            micro_batches=(1, 2)[seed // 7 % 2],
            world=4 if seed % 10 == 9 else 2 if seed % 10 == 4 else 1,
        )


class Attention(nn.Module):
    """Causal attention with four heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class Block(nn.Module):
    """A layer."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.ln1, self.attn, self.ln2, self.mlp = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width), Mlp(width)
        self.drop1, self.drop2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop1(self.attn(self.ln1(x)))
        return x + self.drop2(self.mlp(self.ln2(x)))


class Gpt(nn.Module):
    """Two layers."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(2))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


class Data:
    """Sequences of a Markov chain; ranks draw from it independently."""

    def __init__(self, seed: int) -> None:
        logits = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        self._chances, self._seed = (2 * logits).softmax(1), seed

    def batch(self, step: int, micro_batch: int, rank: int) -> Tensor:
        """Return token ids."""
        draw = torch.Generator().manual_seed(self._seed + 1000 * (step + 1000 * (micro_batch + 10 * rank)))
        tokens = [torch.randint(0, VOCABULARY, (BATCH,), generator=draw)]
        for _ in range(LENGTH):
            tokens.append(torch.multinomial(self._chances[tokens[-1]], 1, generator=draw)[:, 0])
        return torch.stack(tokens, 1)


@dataclass
class Job:
    """A training that runs, as a fault sees it.

    Attributes:
        setup: How it was made.
        rank: Of this process.
        model: Without its wrapper.
        optimizer: Of its parameters.
        clip: Largest norm of all gradients.
        step: The current one.
        micro_batch: The current one.
        source: Says of which step and rank the data of the current step are.
        after_backward: Called when all gradients are there, before they are clipped.
        before_update: Called before the optimizer's step, after clipping.
        after_update: Called after it.
    """

    setup: Setup
    rank: int
    model: Gpt
    optimizer: torch.optim.Optimizer
    clip: float | None
    step: int = 0
    micro_batch: int = 0
    source: Callable[[int, int], tuple[int, int]] = lambda step, rank: (step, rank)
    after_backward: list[Callable[[], None]] = field(default_factory=list)
    before_update: list[Callable[[], None]] = field(default_factory=list)
    after_update: list[Callable[[], None]] = field(default_factory=list)

    @property
    def weight(self) -> nn.Parameter:
        """The parameter in which faults of one parameter are planted."""
        return self.model.get_parameter(WEIGHT)

    @property
    def is_here(self) -> bool:
        """Whether a fault of one rank is on this one."""
        return self.rank == RANK


def rate_of(setup: Setup, step: int) -> float:
    """Return the learning rate of a step."""
    base = 1e-3 if setup.optimizer == "adamw" else 0.03
    if setup.schedule == "constant":
        return base
    warm = min(1.0, (step + 1) / 20)
    return base * warm * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * step / STEPS)).item())


def make_optimizer(setup: Setup, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a setup."""
    if setup.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=rate_of(setup, 0))
    return torch.optim.SGD(model.parameters(), lr=rate_of(setup, 0), momentum=0.9)


def train(rank: int, world: int, directory: Path, setup: Setup, case: str | None) -> None:
    """Train on one rank, monitored, with the fault of a case."""
    from msprobe.pytorch import TrainerMon

    torch.set_num_threads(1)
    torch.manual_seed(setup.seed)
    model = Gpt(setup.width, setup.dropout).train()
    with torch.no_grad():
        draw = torch.Generator().manual_seed(setup.repetition)
        for parameter in model.parameters() if setup.repetition else ():
            parameter.mul_(1 + 1e-6 * torch.randn(parameter.shape, generator=draw))
    torch.manual_seed(setup.seed + 7919 * (rank + 1))  # dropout differs between ranks
    optimizer = make_optimizer(setup, model)
    job = Job(setup, rank, model, optimizer, setup.clip)
    data = Data(setup.seed)
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / "monitor_output")
    plan = directory / f"monitor{rank}.json"
    plan.write_text(json.dumps(_PLAN))
    if case is not None:
        CASES[case].plant(job)
    wrapped = DistributedDataParallel(model) if world > 1 else model
    monitor = TrainerMon(plan, params_have_main_grad=False)
    monitor.set_monitor(wrapped, optimizer, grad_acc_steps=setup.micro_batches)
    for job.step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(setup, job.step)
        for job.micro_batch in range(setup.micro_batches):
            is_last = job.micro_batch == setup.micro_batches - 1
            if world > 1:
                wrapped.require_backward_grad_sync = is_last
            source_step, source_rank = job.source(job.step, rank)
            tokens = data.batch(source_step, job.micro_batch, source_rank)
            logits = wrapped(tokens[:, :-1])
            nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        for act in job.after_backward:
            act()
        if job.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        for act in job.before_update:
            act()
        optimizer.step()
        for act in job.after_update:
            act()
        optimizer.zero_grad()
    monitor.close()


def run(setup: Setup, directory: Path, case: str | None = None) -> Path:
    """Train, and return the directory that the monitor wrote."""
    directory.mkdir(parents=True, exist_ok=True)
    if setup.world > 1:
        run_job(train, setup.world, directory, setup, case)
    else:
        train(0, 1, directory, setup, case)
    return directory / "monitor_output"


# --- faults -------------------------------------------------------------------------------------------------------


def _scaled(factor: float, begin: int) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        job.weight.register_hook(lambda grad: grad * factor if job.is_here and job.step >= begin else grad)

    return plant


def _unreduced(begin: int) -> Callable[[Job], None]:
    """Every rank keeps its own gradient of one parameter."""

    def plant(job: Job) -> None:
        own: list[Tensor] = []
        job.weight.register_post_accumulate_grad_hook(lambda p: own.append(p.grad.clone()))

        def put_back() -> None:
            if job.step >= begin:
                job.weight.grad.copy_(own[-1])
            own.clear()

        job.after_backward.append(put_back)

    return plant


def _reduced_twice(begin: int) -> Callable[[Job], None]:
    """The gradient of one parameter is summed over ranks after it has been averaged."""

    def plant(job: Job) -> None:
        def again() -> None:
            if job.step >= begin:
                torch.distributed.all_reduce(job.weight.grad)

        job.after_backward.append(again)

    return plant


def _stale(job: Job) -> None:
    """The update of one step leaves both moments of one parameter as they were."""
    kept: dict[str, Tensor] = {}

    def keep() -> None:
        if job.step == AT:
            kept.update({k: v.clone() for k, v in job.optimizer.state[job.weight].items() if torch.is_tensor(v)})

    def put_back() -> None:
        if job.step == AT:
            for name, value in kept.items():
                job.optimizer.state[job.weight][name].copy_(value)

    job.before_update.append(keep)
    job.after_update.append(put_back)


def _reset(job: Job) -> None:
    def reset() -> None:
        if job.step == AT - 1:
            job.optimizer.state[job.weight]["exp_avg"].zero_()

    job.after_update.append(reset)


def _not_updated(job: Job) -> None:
    def plant_before() -> None:
        if job.step == AT:
            job.kept = job.weight.detach().clone()

    def put_back() -> None:
        if job.step == AT:
            with torch.no_grad():
                job.weight.copy_(job.kept)

    # The monitor reads parameters in a hook of the optimizer's step, so the value must be put back within it.
    job.optimizer.register_step_pre_hook(lambda *_: plant_before())
    job.optimizer.register_step_post_hook(lambda *_: put_back())


def _clipped_wrongly(job: Job) -> None:
    """Every rank clips to a tenth of the norm from a step on."""

    def change() -> None:
        if job.step == AT:
            job.clip = 0.05

    job.after_backward.append(change)


def _clipped_by_own_norm(job: Job) -> None:
    """One rank clips with another norm than the others."""

    def scale() -> None:
        if job.step >= AT and job.is_here:
            for parameter in job.model.parameters():
                parameter.grad.mul_(0.97)

    job.before_update.append(scale)


def _nan(job: Job) -> None:
    def poison(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        if job.step == AT and job.micro_batch == 1 and job.rank == job.setup.world // 2:
            output = output.clone()
            output[0, 0, 0] = float("nan")
        return output

    job.model.get_submodule(f"{LAYER}.up").register_forward_hook(poison)


def _rate(job: Job) -> None:
    def raise_rate() -> None:
        if job.step == AT:
            for group in job.optimizer.param_groups:
                group["lr"] *= 30

    job.before_update.append(raise_rate)


def _dead(begin: int) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        layer = job.model.get_submodule(f"{LAYER}.up")
        own = layer.forward
        layer.forward = lambda x: own(x) * (0.0 if job.step >= begin else 1.0)

    return plant


def _data_of_other_rank(begin: int) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        job.source = lambda step, rank: (step, rank - 1 if rank == RANK and step >= begin else rank)

    return plant


def _data_of_last_step(job: Job) -> None:
    job.source = lambda step, rank: (step - 1 if step == AT else step, rank)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A planted fault, and the right answer.

    Attributes:
        plant: Plants it.
        setup: What the training needs, without its seed.
        quantity: That shows it first.
        name: The beginning of the layer's name; empty if it is in all.
        step: In which it shows first.
        ranks: On one of which it is; empty for any.
        within: Steps that the answer of `analyze` may be away from ``step``.
    """

    plant: Callable[[Job], None]
    setup: Setup
    quantity: str
    name: str = WEIGHT
    step: int = AT
    ranks: Sequence[int] = (0,)
    within: int = 0


ONE, MICRO, FOUR = Setup(seed=0), Setup(seed=0, micro_batches=2), Setup(seed=0, world=4)

CASES = {
    "gradient x 3, one rank": Case(
        plant=_scaled(3, AT), setup=FOUR, quantity="grad_unreduced", ranks=[RANK]),
    "gradient x 1.1, one rank": Case(
        plant=_scaled(1.1, AT), setup=FOUR, quantity="grad_unreduced", ranks=[RANK], within=20),
    "gradient x 1.1, one rank, from step 0": Case(
        plant=_scaled(1.1, 0), setup=FOUR, quantity="grad_unreduced", ranks=[RANK], step=0, within=20),
    "unreduced parameter": Case(plant=_unreduced(AT), setup=FOUR, quantity="grad_reduced", ranks=()),
    "unreduced parameter, from step 0": Case(
        plant=_unreduced(0), setup=FOUR, quantity="grad_reduced", ranks=(), step=0),
    "reduced twice": Case(plant=_reduced_twice(AT), setup=FOUR, quantity="grad_reduced", ranks=()),
    "reduced twice, from step 0": Case(
        plant=_reduced_twice(0), setup=FOUR, quantity="grad_reduced", ranks=(), step=0),
    "moment not updated": Case(plant=_stale, setup=ONE, quantity="exp_avg", step=AT + 1),
    "moment reset": Case(plant=_reset, setup=ONE, quantity="exp_avg"),
    "parameter not updated": Case(plant=_not_updated, setup=ONE, quantity="param_updated"),
    "wrong clip": Case(plant=_clipped_wrongly, setup=replace(ONE, clip=1.0), quantity="grad_reduced", name=""),
    "wrong clip, one rank": Case(
        plant=_clipped_by_own_norm, setup=FOUR, quantity="grad_reduced", name="", ranks=[RANK]),
    "NaN in a micro-batch": Case(plant=_nan, setup=MICRO, quantity="actv", name=f"{LAYER}.up.output"),
    "NaN in a micro-batch, one rank": Case(
        plant=_nan, setup=replace(FOUR, micro_batches=2), quantity="actv", name=f"{LAYER}.up.output", ranks=[RANK]),
    "learning rate x 30 for a step": Case(plant=_rate, setup=ONE, quantity="param_updated", name=""),
    "dead layer": Case(plant=_dead(AT), setup=ONE, quantity="actv", name=f"{LAYER}.up.output"),
    "dead layer, from step 0": Case(
        plant=_dead(0), setup=ONE, quantity="actv", name=f"{LAYER}.up.output", step=0),
    "data of another rank": Case(
        plant=_data_of_other_rank(AT), setup=FOUR, quantity="actv", name="", ranks=[RANK - 1, RANK]),
    "data of another rank, from step 0": Case(
        plant=_data_of_other_rank(0), setup=FOUR, quantity="actv", name="", ranks=[RANK - 1, RANK], step=0),
    "data of the step before": Case(plant=_data_of_last_step, setup=ONE, quantity="actv", name=""),
}  # fmt: skip


# --- commands that are judged -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """The first finding of a command."""

    step: int
    rank: int
    quantity: str
    name: str
    said: str = ""

    def is_right(self, case: Case, within: int) -> bool:
        """Whether it is the planted fault."""
        return (
            self.quantity == case.quantity
            and self.name.startswith(case.name)
            and (not case.ranks or self.rank in case.ranks)
            and abs(self.step - case.step) <= within
        )

    def __str__(self) -> str:
        return f"step {self.step}, rank {self.rank}: {self.quantity} of {self.name}"


class Trainings:
    """Healthy trainings, each of which is made once."""

    def __init__(self, root: Path) -> None:
        """Keep them in a directory."""
        self._root = root

    def of(self, setup: Setup) -> Path:
        """Return the directory that the monitor wrote."""
        root = self._root / str(abs(hash(setup)))
        return root / "monitor_output" if root.exists() else run(setup, root)


def analyze(output: Path, setup: Setup, trainings: Trainings) -> Answer | None:
    """Answer of ``msprobe monitor analyze``."""
    del setup, trainings
    found = find_anomalies(read_monitored(output)).found
    return _answer(found[0]) if found else None


def compare(output: Path, setup: Setup, trainings: Trainings) -> Answer | None:
    """Answer of ``msprobe monitor compare`` with a golden run that differs by rounding."""
    golden = read_monitored(trainings.of(replace(setup, repetition=1)))
    found = compare_monitored(read_monitored(output), golden).departures
    return _answer(found[0]) if found else None


def compare_with_noise(output: Path, setup: Setup, trainings: Trainings) -> Answer | None:
    """The same with two repetitions of the golden run."""
    golden, *noise = (read_monitored(trainings.of(replace(setup, repetition=i))) for i in (1, 2, 3))
    found = compare_monitored(read_monitored(output), golden, noise).departures
    return _answer(found[0]) if found else None


def _answer(found: Anomaly | Departure) -> Answer:
    place = found.place
    return Answer(found.step, found.rank, place.quantity, place.name, found.finding.text)


COMMANDS: dict[str, Callable[[Path, Setup, Trainings], Answer | None]] = {
    "analyze": analyze,
    "compare": compare,
    "compare --noise": compare_with_noise,
}
"""Commands, by name: each is given the files of a training, its setup, and healthy trainings to compare it with."""


def faults(seeds: Sequence[int], cases: Sequence[str], commands: Sequence[str], keep: Path | None) -> None:
    """Print how many planted faults each command names."""
    named = dict.fromkeys(commands, 0)
    print(f"| planted fault | {' | '.join(commands)} | otherwise first |\n|---|{'---|' * (len(commands) + 1)}")
    with tempfile.TemporaryDirectory() as healthy_ones:
        trainings = Trainings(Path(healthy_ones))
        for name in cases:
            case, right, wrong = CASES[name], dict.fromkeys(commands, 0), list[str]()
            for seed in seeds:
                setup, root = replace(case.setup, seed=seed), Path(tempfile.mkdtemp())
                output = run(setup, root, name)
                for command in commands:
                    answer = COMMANDS[command](output, setup, trainings)
                    if answer is not None and answer.is_right(case, case.within if command == "analyze" else 0):
                        right[command] += 1
                    else:
                        wrong.append(f"{command}: {answer or 'nothing'}")
                _discard(root, keep, f"{name} {seed}")
            for command, count in right.items():
                named[command] += count
            cells = [f"{count} of {len(seeds)}" for count in right.values()]
            print(f"| {name} | {' | '.join(cells)} | {'; '.join(dict.fromkeys(wrong))} |", flush=True)
    total = len(cases) * len(seeds)
    print(f"| all | {' | '.join(f'{count} of {total}' for count in named.values())} | |")


def healthy(seeds: Sequence[int], commands: Sequence[str], keep: Path | None) -> None:
    """Print of how many trainings without a fault each command finds anything."""
    alarmed = dict.fromkeys(commands, 0)
    for seed in seeds:
        setup, begin, root = Setup.of_seed(seed), time.perf_counter(), Path(tempfile.mkdtemp())
        trainings = Trainings(root / "others")
        output = run(setup, root)
        said: list[str] = []
        for command in commands:
            answer = COMMANDS[command](output, setup, trainings)
            if answer is not None:
                alarmed[command] += 1
                said.append(f"{command}: {answer}: {answer.said}")
        print(f"{seed}: {time.perf_counter() - begin:.0f} s, {'; '.join(said) or 'nothing'}  {setup}", flush=True)
        _discard(root, keep, f"healthy {seed}")
    for command, count in alarmed.items():
        print(f"{command}: {count} of {len(seeds)} healthy trainings have a finding")


def _discard(root: Path, keep: Path | None, name: str) -> None:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        shutil.move(root / "monitor_output", keep / name)
    shutil.rmtree(root)


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["faults", "healthy"])
    parser.add_argument("--seeds", nargs="+", type=_seeds, default=None)
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="NAME")
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), metavar="NAME")
    parser.add_argument("--keep", type=Path, help="directory to keep the monitors' files in")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    given = options.seeds or [[0, 1, 2] if options.part == "faults" else list(range(100, 150))]
    seeds = [seed for each in given for seed in each]
    if options.part == "faults":
        faults(seeds, options.cases, options.commands, options.keep)
    else:
        healthy(seeds, options.commands, options.keep)


if __name__ == "__main__":
    main()

"""Recorded RL runs of a tiny policy in NumPy: rollout by one engine, training by another, weights sent in between."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from dumps import tensor, write_dump

from msprobe_core.fingerprint import NumpyArrays, Sketcher, hash_of
from msprobe_core.recording import ModelSizes, other_dtypes, parts_of
from msprobe_core.rl.files import (
    BatchFile,
    BatchRow,
    Reward,
    RewardWriter,
    RunInfo,
    Sampling,
    Weight,
    WeightsFile,
    rank_directory,
    save_batch,
    save_run,
    save_weights,
    trainer_directory,
)
from msprobe_core.store import BatchLayout, CallPhase, MicroBatch, Row, StageSamples, sample_id, save_samples

WORDS, HIDDEN, LAYERS, EXPERTS = 24, 8, 2, 4
PROMPTS, SAMPLES = 3, 2

INPUT_OF = "input of "

Weights = dict[str, np.ndarray]


def make_weights(seed: int = 0) -> Weights:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    found = {"model.embed_tokens.weight": normal(WORDS, HIDDEN) * 3}
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        for name in (*(f"self_attn.{part}_proj" for part in "qkvo"), "mlp.up_proj", "mlp.down_proj"):
            found[f"{layer}.{name}.weight"] = normal(HIDDEN, HIDDEN)
        found[f"{layer}.mlp.gate.weight"] = normal(EXPERTS, HIDDEN)
    return found | {"lm_head.weight": normal(WORDS, HIDDEN)}


def updated(weights: Weights, seed: int, rate: float = 0.2) -> Weights:
    random = np.random.default_rng(seed)
    return {
        name: (value + rate * random.standard_normal(value.shape) / np.sqrt(value.shape[-1])).astype(np.float32)
        for name, value in weights.items()
    }


def forward(
    weights: Weights,
    tokens: np.ndarray,
    noise: Callable[[np.ndarray], np.ndarray],
    given: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Return the outputs ``[positions, …]`` of all modules, in the order in which they end; the path with its class.

    Those of linear modules are given, under their names, what ``given`` is filled with.
    """
    out: dict[str, np.ndarray] = {}
    given = {} if given is None else given

    def keep(name: str, value: np.ndarray) -> np.ndarray:
        out[name] = noise(value.astype(np.float32))
        return out[name]

    def linear(path: str, value: np.ndarray) -> np.ndarray:
        given[f"{path}.Linear"] = value.astype(np.float32)
        return keep(f"{path}.Linear", value @ weights[f"{path}.weight"].T)

    hidden = keep("model.embed_tokens.Embedding", weights["model.embed_tokens.weight"][tokens])
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        query, key, value = (linear(f"{layer}.self_attn.{name}_proj", hidden) for name in "qkv")
        scores = query @ key.T / np.sqrt(HIDDEN)
        scores = np.where(np.tril(np.ones(scores.shape, bool)), scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (share / share.sum(-1, keepdims=True)) @ value
        attended = keep(f"{layer}.self_attn.Attention", linear(f"{layer}.self_attn.o_proj", mixed))
        hidden = hidden + attended
        linear(f"{layer}.mlp.gate", hidden)
        made = linear(f"{layer}.mlp.down_proj", np.tanh(linear(f"{layer}.mlp.up_proj", hidden)))
        hidden = keep(f"{layer}.DecoderLayer", hidden + keep(f"{layer}.mlp.MLP", made))
    linear("lm_head", hidden)
    return out


def with_inputs(
    weights: Weights, tokens: np.ndarray, noise: Callable[[np.ndarray], np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the outputs, and what linear modules were given, with `INPUT_OF` before their names."""
    given: dict[str, np.ndarray] = {}
    outputs = forward(weights, tokens, noise, given)
    return outputs | {f"{INPUT_OF}{name}": value for name, value in given.items()}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@dataclass
class Sample:
    prompt: np.ndarray
    response: np.ndarray
    rollout_log_probs: np.ndarray
    uid: str

    @property
    def tokens(self) -> np.ndarray:
        return np.concatenate([self.prompt, self.response])

    @property
    def id(self) -> str:
        return sample_id(self.tokens)

    def row(self, **where: int) -> Row:
        return Row(
            id=self.id, prompt_id=sample_id(self.prompt), uid=self.uid, prompt_length=self.prompt.size,
            total_length=self.tokens.size, **where,
        )  # fmt: skip


@dataclass
class Recipe:
    """What is recorded, and which fault is planted.

    Attributes:
        seed: Of weights, prompts and draws.
        steps: How many steps, from 1.
        layout: How the trainer holds its samples.
        order: Seed of the order in which the trainer takes its samples.
        is_cut_alike: Whether it takes them in one order in all stages.
        micro: Samples of a micro-batch.
        noise: Relative rounding of the engine.
        unsent: Parameters that the engine never receives.
        dtype: Of the engine's weights.
        shift: By how many positions the engine's log-probs are off.
        retokenise: Whether the trainer sees another first token of the response in the first sample.
        reward: What the rule gives every sample besides.
        temperature: Of the sampling, recorded.
        engine_temperature: Of the log-probs that the engine returns; that of the sampling if not given.
        masked: How many words at the end the engine never draws, and leaves out of its log-probs.
        is_flat: Whether the engine's outputs, and those of routers everywhere, have one dimension for all positions.
        fuses: Whether the engine has query, key and value in one module.
        task: ``tensor`` or ``statistics``.
        has_checksums: Whether it is checksums that are kept as statistics.
        trained: What training does to the new weights, for a fault of the trainer.
        replay: Samples of another run, by step, instead of own ones.
        keeps_log_probs: Whether a replay has the log-probs of the engine that drew, and no engine of its own.
        weights: Those at the start; made from the seed if not given.
        ref_weights: Those of the reference policy.
        follows_actor: Whether the reference has the actor's weights in every step.
    """

    seed: int = 0
    steps: int = 2
    layout: BatchLayout = BatchLayout.PACKED
    order: int = 7
    is_cut_alike: bool = False
    micro: int = 4
    noise: float = 1e-7
    unsent: tuple[str, ...] = ()
    dtype: str = "float32"
    shift: int = 0
    retokenise: bool = False
    reward: float = 0.0
    temperature: float = 1.0
    engine_temperature: float | None = None
    masked: int = 0
    is_flat: bool = False
    fuses: bool = False
    task: str = "tensor"
    has_checksums: bool = False
    trained: Callable[[Weights], Weights] = lambda weights: weights
    replay: Mapping[int, list[Sample]] | None = None
    keeps_log_probs: bool = False
    weights: Weights | None = None
    ref_weights: Weights | None = None
    follows_actor: bool = False
    recorded: dict[int, list[Sample]] = field(default_factory=dict)


def cast(weights: Weights, dtype: str) -> Weights:
    if dtype != "bfloat16":
        return dict(weights)
    return {
        name: ((value.view(np.uint32) + 0x7FFF + ((value.view(np.uint32) >> 16) & 1)) & np.uint32(0xFFFF0000)).view(
            np.float32
        )
        for name, value in weights.items()
    }


def write_run(root: Path, recipe: Recipe | None = None) -> Path:
    """Record a run, and return its directory."""
    recipe = recipe or Recipe()
    weights = make_weights(recipe.seed) if recipe.weights is None else dict(recipe.weights)
    ref = recipe.ref_weights or dict(weights)
    engine = cast(weights, recipe.dtype)
    sampling = Sampling(temperature=recipe.temperature, top_p=1.0, top_k=-1, do_sample=True)
    save_run(root, RunInfo(versions={"verl": "0.9.1"}, config={"trainer": {"n": 1}}, sampling=sampling))
    write_weights(root, "update_weights_send", 0, weights, "float32")
    write_weights(root, "update_weights_recv", 0, engine, recipe.dtype)
    for step in range(1, recipe.steps + 1):
        samples = recipe.replay[step] if recipe.replay else draw(root, recipe, engine, step)
        recipe.recorded[step] = samples
        if recipe.replay and not recipe.keeps_log_probs:
            record_rollout(root, recipe, engine, step, samples)
        seen = with_other_token(samples) if recipe.retokenise else samples
        old = train_stage(root, recipe, "actor_compute_log_prob", step, weights, seen)
        ref_log_probs = train_stage(
            root, recipe, "ref_compute_log_prob", step, weights if recipe.follows_actor else ref, seen
        )
        train_stage(root, recipe, "actor_update", step, weights, seen)
        write_batch(root, recipe, step, seen, old, ref_log_probs)
        weights = recipe.trained(updated(weights, 100 * recipe.seed + step))
        write_weights(root, "update_weights_send", step, weights, "float32")
        engine |= {n: v for n, v in cast(weights, recipe.dtype).items() if n not in recipe.unsent}
        write_weights(root, "update_weights_recv", step, engine, recipe.dtype)
    return root


def with_other_token(samples: list[Sample]) -> list[Sample]:
    first = samples[0]
    other = np.concatenate([[(first.response[0] + 1) % WORDS], first.response[1:]])
    return [Sample(first.prompt, other, first.rollout_log_probs, first.uid), *samples[1:]]


def words_of(value: np.ndarray, dtype: str) -> np.ndarray:
    """Return the bits of values rounded to a dtype."""
    if dtype == "bfloat16":
        bits = value.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return value.astype(dtype)


def digest_of(name: str, key: str, value: np.ndarray, dtype: str, *, is_sender: bool) -> Weight:
    """Return what is recorded of a parameter whose values fit a dtype."""

    def hashed(values: np.ndarray) -> str:
        return f"0x{int(hash_of(np.ascontiguousarray(values))[0]) % (1 << 64):016x}"

    wide = value.astype(np.float64)
    sketch = Sketcher(NumpyArrays()).sketch(value.astype(np.float32))
    dtypes = [dtype, *other_dtypes(dtype)] if is_sender else []
    return Weight(
        name=name, key=key, shape=value.shape, dtype=dtype, hash=hashed(words_of(value, dtype)),
        casts={other: hashed(words_of(value, other)) for other in dtypes[1:]},
        turned={other: hashed(words_of(value.T, other)) for other in dtypes if value.ndim == 2},
        sketch=sketch.astype("<f4").tobytes(),
        l2=float(np.linalg.norm(wide)), mean=float(wide.mean()), min=float(wide.min()), max=float(wide.max()),
    )  # fmt: skip


def write_weights(
    root: Path, stage: str, step: int, weights: Weights, dtype: str, sizes: ModelSizes | None = None, replica: int = 0
) -> None:
    is_sender = stage == "update_weights_send"
    parameters = tuple(
        digest_of(part.name, part.key, part.values, dtype, is_sender=is_sender)
        for name, value in weights.items()
        for part in parts_of(name, value, value.shape, sizes or ModelSizes())
    )
    file = WeightsFile(version=1, step=step, rank=replica, policy_version=step, parameters=parameters)
    save_weights(rank_directory(root, stage, step, replica), file)


def engine_noise(recipe: Recipe, *seeds: int) -> Callable[[np.ndarray], np.ndarray]:
    random = np.random.default_rng((recipe.seed, *seeds))
    return lambda value: (value * (1 + recipe.noise * random.standard_normal(value.shape))).astype(np.float32)


def exact(value: np.ndarray) -> np.ndarray:
    return value


def draw(root: Path, recipe: Recipe, engine: Weights, step: int) -> list[Sample]:
    """Draw responses, and record the forward passes of the engine: a prompt each, then a token each."""
    random = np.random.default_rng((recipe.seed, step))
    samples: list[Sample] = []
    for number in range(PROMPTS * SAMPLES):
        of_prompt = np.random.default_rng((recipe.seed, step, number // SAMPLES))
        prompt = of_prompt.integers(0, WORDS, of_prompt.integers(3, 6))
        response: list[int] = []
        for _ in range(int(random.integers(4, 7))):
            logits = forward(engine, np.concatenate([prompt, response]).astype(int), exact)["lm_head.Linear"][-1]
            logits[WORDS - recipe.masked :] = -np.inf
            response.append(int((logits / recipe.temperature + random.gumbel(size=WORDS)).argmax()))
        samples.append(Sample(prompt, np.array(response), np.empty(0), f"prompt{number // SAMPLES}"))
    record_rollout(root, recipe, engine, step, samples)
    return samples


def record_rollout(root: Path, recipe: Recipe, engine: Weights, step: int, samples: list[Sample]) -> None:
    """Record the forward passes of the engine: of the prompt, and of each further token by itself."""
    calls: list[tuple[MicroBatch, dict[str, np.ndarray]]] = []
    for sample in samples:
        noise = engine_noise(recipe, step, len(calls))
        outputs = with_inputs(engine, sample.tokens[:-1], noise)
        logits = outputs["lm_head.Linear"][:, : WORDS - recipe.masked]
        log_probs = log_softmax(logits / (recipe.engine_temperature or recipe.temperature))
        answered = log_probs[sample.prompt.size - 1 :]
        own = np.take_along_axis(answered, sample.response[:, None], -1)[:, 0]
        sample.rollout_log_probs = np.roll(own, recipe.shift)
        spans = [(0, sample.prompt.size), *((i, i + 1) for i in range(sample.prompt.size, sample.tokens.size - 1))]
        for begin, end in spans:
            row = sample.row(row=0, offset=0, length=end - begin, start=begin)
            phase = CallPhase.DECODE if begin else CallPhase.PREFILL
            micro = MicroBatch(
                call=len(calls), mini=0, micro=len(calls), layout=BatchLayout.REQUEST, phase=phase, rows=(row,)
            )
            shown = fused(outputs) if recipe.fuses else outputs
            parts = {name: value[begin:end] for name, value in shown.items()}
            calls.append((micro, parts if recipe.is_flat else {name: value[None] for name, value in parts.items()}))
    write_calls(root, recipe, "rollout_generate", step, calls)


def fused(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, value in outputs.items():
        part = name.split(".")[-2]
        if part in ("q_proj", "k_proj"):
            continue
        if part == "v_proj" and not name.startswith(INPUT_OF):
            parts = [outputs[name.replace("v_proj", f"{one}_proj")] for one in "qkv"]
            found[name.replace("v_proj.Linear", "qkv_proj.QKVParallelLinear")] = np.concatenate(parts, -1)
        elif part != "v_proj":
            found[name] = value
    return found


def train_stage(
    root: Path, recipe: Recipe, stage: str, step: int, weights: Weights, samples: list[Sample]
) -> dict[str, np.ndarray]:
    """Record the forward passes of the trainer; return the log-probs of the responses by id."""
    seed = 0 if recipe.is_cut_alike else zlib.crc32(stage.encode())
    order = np.random.default_rng((recipe.order, step, seed)).permutation(len(samples))
    calls: list[tuple[MicroBatch, dict[str, np.ndarray]]] = []
    found: dict[str, np.ndarray] = {}
    for begin in range(0, len(samples), recipe.micro):
        chosen = [samples[i] for i in order[begin : begin + recipe.micro]]
        parts = [with_inputs(weights, sample.tokens, exact) for sample in chosen]
        for sample, outputs in zip(chosen, parts, strict=True):
            log_probs = log_softmax(outputs["lm_head.Linear"] / recipe.temperature)
            own = np.take_along_axis(log_probs[:-1], sample.tokens[1:, None], -1)[:, 0]
            found[sample.id] = own[sample.prompt.size - 1 :]
        whole, rows = laid_out(recipe.layout, chosen, parts)
        if recipe.is_flat:
            whole |= {name: part.reshape(-1, EXPERTS) for name, part in whole.items() if name.endswith("gate.Linear")
                      and not name.startswith(INPUT_OF)}  # fmt: skip
        number = len(calls)
        micro = MicroBatch(
            call=number, mini=number // 2, micro=number % 2, layout=recipe.layout, phase=CallPhase.TRAIN,
            rows=tuple(rows),
        )  # fmt: skip
        calls.append((micro, whole))
    write_calls(root, recipe, stage, step, calls)
    return found


def laid_out(
    layout: BatchLayout, samples: list[Sample], parts: list[dict[str, np.ndarray]]
) -> tuple[dict[str, np.ndarray], list[Row]]:
    names = list(parts[0])
    if layout is BatchLayout.PACKED:
        offsets = np.cumsum([0, *(sample.tokens.size for sample in samples)])
        rows = [s.row(offset=int(o), length=s.tokens.size) for s, o in zip(samples, offsets, strict=False)]
        return {name: np.concatenate([part[name] for part in parts])[None] for name in names}, rows
    length = max(sample.tokens.size for sample in samples) + 2
    left = [length - sample.tokens.size - 1 for sample in samples]
    rows = [s.row(row=i, offset=left[i], length=s.tokens.size) for i, s in enumerate(samples)]
    padded = {
        name: np.stack([
            np.pad(part[name], ((left[i], 1), (0, 0)), constant_values=9.0) for i, part in enumerate(parts)
        ])
        for name in names
    }  # fmt: skip
    return padded, rows


def write_calls(
    root: Path, recipe: Recipe, stage: str, step: int, calls: list[tuple[MicroBatch, dict[str, np.ndarray]]]
) -> None:
    directory = rank_directory(root, stage, step, 0)
    data = dict(_records(directory, recipe, calls))
    write_dump(directory, data, task=recipe.task, level="L0", parents=dict.fromkeys(data))
    micro_batches = tuple(micro for micro, _ in calls)
    save_samples(
        directory, StageSamples(version=1, stage=stage, step=step, rank=0, policy_version=step - 1,
                                micro_batches=micro_batches)
    )  # fmt: skip


def _records(
    directory: Path, recipe: Recipe, calls: list[tuple[MicroBatch, dict[str, np.ndarray]]]
) -> Iterator[tuple[str, dict]]:
    for micro, outputs in calls:
        for name, value in outputs.items():
            if name.startswith(INPUT_OF):
                continue
            entry = f"Module.{name}.forward.{micro.call}"
            given = outputs.get(f"{INPUT_OF}{name}")
            yield (
                entry,
                {
                    "input_args": [] if given is None else [_stored(directory, recipe, f"{entry}.input.0", given)],
                    "input_kwargs": {},
                    "output": [_stored(directory, recipe, f"{entry}.output.0", value)],
                },
            )


def _stored(directory: Path, recipe: Recipe, name: str, value: np.ndarray) -> dict:
    record = tensor(value)
    if recipe.has_checksums:
        sizes = ("Max", "Min", "Mean", "Norm")
        record = {key: part for key, part in record.items() if key not in sizes}
        record["md5"] = f"{zlib.crc32(value.tobytes()):08x}"
    if recipe.task != "tensor":
        return record
    tensors = directory / "dump_tensor_data"
    tensors.mkdir(parents=True, exist_ok=True)
    np.save(tensors / f"{name}.npy", value)
    return record | {"data_name": f"{name}.npy"}


def write_batch(
    root: Path, recipe: Recipe, step: int, samples: list[Sample], old: Mapping[str, np.ndarray],
    ref: Mapping[str, np.ndarray],
) -> None:  # fmt: skip
    prompts = max(sample.prompt.size for sample in samples)
    responses = max(sample.response.size for sample in samples)

    def right(values: list[np.ndarray], dtype: str = "f4") -> np.ndarray:
        return np.stack([np.pad(value, (0, responses - value.size)) for value in values]).astype(dtype)

    mask = right([np.ones(sample.response.size) for sample in samples], "i8")
    rewards = right([(sample.response % 3 == 0) * 1.0 for sample in samples])
    tensors = {
        "prompts": np.stack([np.pad(sample.prompt, (prompts - sample.prompt.size, 0)) for sample in samples]),
        "responses": right([sample.response for sample in samples], "i8"),
        "response_mask": mask,
        "rollout_log_probs": right([sample.rollout_log_probs for sample in samples]),
        "old_log_probs": right([old[sample.id] for sample in samples]),
        "ref_log_prob": right([ref[sample.id] for sample in samples]),
        "token_level_scores": rewards,
        "advantages": (rewards - rewards.mean()) * mask.astype("f4"),
    }
    rows = tuple(
        BatchRow(
            id=sample.id, prompt_id=sample_id(sample.prompt), uid=sample.uid, prompt_length=sample.prompt.size,
            total_length=sample.tokens.size,
        )
        for sample in samples
    )  # fmt: skip
    writer = RewardWriter(root, step, "worker")
    for sample, own in zip(samples, rewards, strict=True):
        score = float(own.sum()) + recipe.reward
        writer.add(Reward(id=sample.id, prompt_id=sample_id(sample.prompt), uid=sample.uid, score=score))
    batch = BatchFile(
        version=1, step=step, rows=len(samples), samples=rows, metrics={"actor/pg_loss": float(rewards.mean())},
        sampling=Sampling(temperature=recipe.temperature, top_p=1.0, top_k=-1, do_sample=True),
    )  # fmt: skip
    save_batch(trainer_directory(root, step), batch, tensors)

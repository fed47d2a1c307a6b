"""``msprobe compare --consistent_check``: a dump of training against that of a serving engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dumps import tensor, write_dump

from msprobe_core.cli import main
from msprobe_core.compare.layouts.serving import served_path
from msprobe_core.plugins import registry

TOKENS, HIDDEN = 5, 8
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


class Side:
    """A dump of tensors, module by module."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data: dict[str, dict] = {}
        (directory / "dump_tensor_data").mkdir(parents=True)

    def add(self, name: str, value: np.ndarray, weight: np.ndarray | None = None) -> None:
        entry = f"Module.{name}.forward.0"
        record = {"input_args": [], "input_kwargs": {}, "output": [self._stored(f"{entry}.output.0", value)]}
        if weight is not None:
            record["parameters"] = {"weight": self._stored(f"{entry}.parameters.weight", weight)}
        self.data[entry] = record

    def _stored(self, name: str, value: np.ndarray) -> dict:
        np.save(self.directory / "dump_tensor_data" / f"{name}.npy", value)
        return tensor(value) | {"data_name": f"{name}.npy"}

    def write(self) -> Path:
        return write_dump(self.directory, self.data, task="tensor", level="L0")


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    side = Side(tmp_path / "engine")
    side.add("model.embed_tokens.VocabParallelEmbedding", values(1, TOKENS, HIDDEN))
    side.add("model.layers.0.self_attn.qkv_proj.QKVParallelLinear", values(2, TOKENS, 12), values(3, 12, HIDDEN))
    side.add("model.layers.0.self_attn.attn.Attention", values(4, TOKENS, HIDDEN))
    side.add("model.layers.0.self_attn.o_proj.RowParallelLinear", values(5, TOKENS, HIDDEN), values(6, HIDDEN, HIDDEN))
    side.add("model.layers.0.mlp.gate_up_proj.MergedColumnParallelLinear", values(7, TOKENS, 8), values(8, 8, HIDDEN))
    side.add("model.layers.0.mlp.down_proj.RowParallelLinear", values(9, TOKENS, HIDDEN), values(10, HIDDEN, 4))
    return side.write()


def fsdp(directory: Path, *, fault: float = 1.0) -> Path:
    side = Side(directory)
    layer = "_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module"
    side.add("_fsdp_wrapped_module.model.embed_tokens.Embedding", values(1, TOKENS, HIDDEN)[None])
    output, weight = values(2, TOKENS, 12), values(3, 12, HIDDEN)
    for name, begin, end in (("q_proj", 0, 6), ("k_proj", 6, 9), ("v_proj", 9, 12)):
        factor = np.float32(fault if name == "k_proj" else 1.0)
        side.add(f"{layer}.self_attn.{name}.Linear", output[None, :, begin:end] * factor, weight[begin:end])
    side.add(f"{layer}.self_attn.o_proj.Linear", values(5, TOKENS, HIDDEN)[None], values(6, HIDDEN, HIDDEN))
    output, weight = values(7, TOKENS, 8), values(8, 8, HIDDEN)
    for name, begin, end in (("gate_proj", 0, 4), ("up_proj", 4, 8)):
        side.add(f"{layer}.mlp.{name}.Linear", output[None, :, begin:end], weight[begin:end])
    side.add(f"{layer}.mlp.act_fn.SiLU", values(11, 1, TOKENS, 4))
    side.add(f"{layer}.mlp.down_proj.Linear", values(9, TOKENS, HIDDEN)[None], values(10, HIDDEN, 4))
    return side.write()


def megatron(directory: Path, *, fault: float = 1.0) -> Path:
    side = Side(directory)
    layer = "module.module.decoder.layers.0"
    side.add("module.module.embedding.word_embeddings.VocabParallelEmbedding", values(1, TOKENS, HIDDEN)[:, None])
    order = np.random.default_rng(0).permutation(12)  # group by group
    side.add(
        f"{layer}.self_attention.linear_qkv.ColumnParallelLinear",
        values(2, TOKENS, 12)[:, None, order],
        values(3, 12, HIDDEN)[order],
    )
    side.add(f"{layer}.self_attention.core_attention.DotProductAttention", values(4, TOKENS, 2, HIDDEN // 2))
    output = values(5, TOKENS, HIDDEN)[:, None] * np.float32(fault)
    side.add(f"{layer}.self_attention.linear_proj.RowParallelLinear", output, values(6, HIDDEN, HIDDEN))
    side.add(f"{layer}.mlp.linear_fc1.ColumnParallelLinear", values(7, TOKENS, 8)[:, None], values(8, 8, HIDDEN))
    side.add(f"{layer}.mlp.linear_fc2.RowParallelLinear", values(9, TOKENS, HIDDEN)[:, None], values(10, HIDDEN, 4))
    return side.write()


TRAINED = {"fsdp": (fsdp, "layers.0.self_attn.qkv_proj"), "megatron": (megatron, "layers.0.self_attn.o_proj")}


@pytest.mark.parametrize("backend", sorted(TRAINED))
@pytest.mark.parametrize("is_target", [True, False], ids=["training first", "engine first"])
class TestBackends:
    def test_the_same_values_agree(self, run: Run, tmp_path: Path, engine: Path, backend: str, is_target: bool) -> None:
        pair = [TRAINED[backend][0](tmp_path / "training"), engine]
        target, golden = pair if is_target else pair[::-1]
        code, out, _ = run(
            "compare", "-tp", target, "-gp", golden, "--consistent_check", "--backend", backend, "-o", tmp_path / "out"
        )
        assert code == 0, out
        (unit,) = json.loads((tmp_path / "out" / "summary.json").read_bytes())["units"]
        assert unit["mode"] == "tensor"
        # Embedding, two fused or renamed projections and two more with their weights; Megatron's attention besides.
        assert unit["rows"]["pass"] == (9 if backend == "fsdp" else 10)

    def test_a_fault_is_named_as_the_engine_calls_it(
        self, run: Run, tmp_path: Path, engine: Path, backend: str, is_target: bool
    ) -> None:
        make, module = TRAINED[backend]
        pair = [make(tmp_path / "training", fault=1.5), engine]
        target, golden = pair if is_target else pair[::-1]
        code, out, _ = run(
            "compare", "-tp", target, "-gp", golden, "--consistent_check", "--backend", backend, "-o", tmp_path / "out"
        )
        assert code == 1
        assert out.splitlines()[-1].startswith(f"DIFFERENT: first at Module.{module}.")


def test_a_value_of_one_side_only_is_a_note(run: Run, tmp_path: Path, engine: Path) -> None:
    _, out, _ = run(
        "compare", "-tp", fsdp(tmp_path / "t"), "-gp", engine, "--consistent_check", "--backend", "fsdp",
        "-o", tmp_path / "out",
    )  # fmt: skip
    assert "that the other side has not: 1, such as layers.0.mlp.act_fn" in out
    assert "that the other side has not: 1, such as layers.0.self_attn.attn" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--consistent_check",), "--consistent_check needs --backend; known are fsdp, megatron"),
        (("--consistent_check", "--backend", "xla"), "does not know the backend 'xla'; known are fsdp, megatron"),
        (("--backend", "fsdp"), "--backend goes with --consistent_check"),
    ],
)
def test_options_that_do_not_fit(run: Run, tmp_path: Path, engine: Path, options: tuple, message: str) -> None:
    code, _, err = run("compare", "-tp", engine, "-gp", engine, *options, "-o", tmp_path / "out")
    assert code == 2
    assert message in " ".join(err.split())


def test_dumps_without_a_common_module_are_refused(run: Run, tmp_path: Path, engine: Path) -> None:
    other = Side(tmp_path / "other")
    other.add("encoder.Conv2d", values(1, 2, 2))
    code, _, err = run(
        "compare",
        "-tp",
        other.write(),
        "-gp",
        engine,
        "--consistent_check",
        "--backend",
        "fsdp",
        "-o",
        tmp_path / "out",
    )
    assert code == 2
    assert "have no module in common" in err


def test_paths_begin_with_the_layers() -> None:
    maps = registry().module_maps()
    assert served_path("module.decoder.layers.3.self_attention.linear_qkv", maps["megatron"]) == (
        "layers.3.self_attn.qkv_proj"
    )
    assert served_path("base_model.model.model.layers.3._fsdp_wrapped_module.mlp", maps["fsdp"]) == "layers.3.mlp"
    assert served_path("model.embedding.word_embeddings", maps["megatron"]) == "embed_tokens"
    assert served_path("", maps["fsdp"]) == ""

"""Dumps with tokens at other positions: padded on the other side, packed, split differently, prefilled in chunks."""

import json

import numpy as np
import pytest
from dumps import tensor, write_dump

from msprobe_core.cli.main import main
from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.errors import CompareError

SEQUENCES = [[5, 6, 7, 8, 9], [10, 11, 12], [13, 14, 15, 16]]
PADDING = 0
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((20, 4)).astype(np.float32)
EMBEDDING, LAYER = "Module.embed.Embedding.forward", "Module.layer.Layer.forward"


def padded(sequences, *, left, mask=True):
    """Return one batch of sequences that are padded to seven tokens."""
    empty = [[PADDING] * (7 - len(each)) for each in sequences]
    ids = np.array([pad + own if left else own + pad for pad, own in zip(empty, sequences, strict=True)])
    return {"ids": ids} | ({"attention_mask": (ids != PADDING).astype(np.int64)} if mask else {})


def packed(sequences, told):
    ids = np.concatenate(sequences)[None]
    positions = np.concatenate([np.arange(len(each)) for each in sequences])[None]
    bounds = np.cumsum([0, *map(len, sequences)])
    return {"ids": ids} | {"positions": {"position_ids": positions}, "bounds": {"cu_seqlens": bounds}, "": {}}[told]


def alone(sequence, begin=0, end=None):
    return {"ids": np.array([sequence[begin:end]]), "position_ids": np.arange(len(sequence))[None, begin:end]}


def values_of(batch, fault):
    """Return what a layer makes of the tokens: it depends on the token and its position in its sequence only."""
    ids = batch["ids"]
    made = TABLE[ids] * 2
    made[ids == PADDING] = RNG.standard_normal()
    made[ids == fault] += 1
    return TABLE[ids], made


def dump(directory, *batches, fault=-1, made_shape=None, embedded_shape=None, names=("ids", "layer")):
    """Write what a model of an embedding and a layer has recorded of some batches."""
    folder = directory / "dump_tensor_data"
    folder.mkdir(parents=True)
    data = {}

    def saved(name, values):
        np.save(folder / f"{name}.npy", values)
        dtype = {"f": "torch.float32", "i": "torch.int64", "b": "torch.bool"}[values.dtype.kind]
        return tensor(values, dtype=dtype, data_name=f"{name}.npy")

    for i, batch in enumerate(batches):
        embedded, made = values_of(batch, fault)
        made = made if made_shape is None else made.reshape(made_shape)
        embedded = embedded if embedded_shape is None else embedded.reshape(embedded_shape)
        given = {key: saved(f"{LAYER}.{i}.kwargs.{key}", values) for key, values in batch.items() if key != "ids"}
        flag = {"type": "int", "value": i}
        if "ids" in names:
            data[f"{EMBEDDING}.{i}"] = {
                "input_args": [saved(f"{EMBEDDING}.{i}.input.0", batch["ids"])], "input_kwargs": {},
                "output": [saved(f"{EMBEDDING}.{i}.output.0", embedded)],
            }  # fmt: skip
        data[f"{LAYER}.{i}"] = {
            "input_args": [], "input_kwargs": given | {"flag": flag},
            "parameters": {"weight": saved(f"{LAYER}.{i}.parameters.weight", TABLE)},
            "output": [saved(f"{LAYER}.{i}.output.0", made)],
        }  # fmt: skip
    return write_dump(directory, data, task="tensor", level="L0")


CASES = {
    "the other side": [padded(SEQUENCES, left=True)],
    "packed by positions": [packed(SEQUENCES[::-1], "positions")],
    "packed by bounds": [packed(SEQUENCES, "bounds")],
    "one by one, in another order": [alone(each) for each in reversed(SEQUENCES)],
    "two micro-batches": [padded(SEQUENCES[1:], left=True), padded(SEQUENCES[:1], left=True)],
    "in chunks": [
        alone(SEQUENCES[0], 0, 2),
        alone(SEQUENCES[0], 2, 4),
        alone(SEQUENCES[0], 4),
        *map(alone, SEQUENCES[1:]),
    ],
}


def compared(target, golden):
    return compare_dumps(target, golden, options=CompareOptions(aligns_tokens=True)).units[0]


@pytest.mark.parametrize("is_target", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_tokens_are_paired_wherever_they_stand(tmp_path, case, is_target):
    other, right = dump(tmp_path / "other", *CASES[case]), dump(tmp_path / "right", padded(SEQUENCES, left=False))
    sides = (other, right) if is_target else (right, other)
    unit = compared(*sides)
    assert unit.agrees, unit.fault
    rows = {name: (shape, error) for name, shape, error in unit.rows.select("key", "shape_golden", "error").rows()}
    assert rows[f"{LAYER}.0.output.0"] == ("[12, 4]", 0)
    assert rows[f"{EMBEDDING}.0.input.0"] == ("[12]", 0)
    assert rows[f"{LAYER}.0.parameters.weight"] == ("[20, 4]", 0)
    assert unit.notes[0] == "tokens paired by their ids: 12 of 3 sequences; padding is left out"
    assert not compare_dumps(*sides).agrees  # without the option


@pytest.mark.parametrize("case", CASES)
def test_a_fault_of_one_token_is_found(tmp_path, case):
    target = dump(tmp_path / "other", *CASES[case], fault=SEQUENCES[1][1])
    unit = compared(target, dump(tmp_path / "right", padded(SEQUENCES, left=False)))
    assert unit.fault.entry == f"{LAYER}.0"
    assert unit.fault.worst_tensor.tokens.positions == ["6"]  # five tokens of the first sequence, and one


def test_arguments_and_values_without_a_row_per_token_are_reported(tmp_path):
    target, golden = (dump(tmp_path / str(left), padded(SEQUENCES, left=left)) for left in (True, False))
    assert compared(target, golden).notes[1] == (
        f"values without a row per token, which were not compared: 1, such as {LAYER}.0.input.flag"
    )


def test_equal_sequences_are_paired_in_their_order(tmp_path):
    twice = [SEQUENCES[1], SEQUENCES[0], SEQUENCES[1]]
    target = dump(tmp_path / "target", *[alone(each) for each in twice])
    unit = compared(target, dump(tmp_path / "golden", padded(twice, left=True)))
    assert unit.agrees
    assert "11 of 3 sequences" in unit.notes[0]


def run(target, golden, directory, capsys):
    arguments = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(directory), "--align-tokens"]
    with pytest.raises(SystemExit) as done:
        main(arguments)
    captured = capsys.readouterr()
    return done.value.code, captured.out + captured.err


def test_a_sequence_of_one_side_leaves_it_undecided(tmp_path, capsys):
    target = dump(tmp_path / "target", padded(SEQUENCES, left=True))
    golden = dump(tmp_path / "golden", padded(SEQUENCES[:2], left=False))
    code, text = run(target, golden, tmp_path / "out", capsys)
    assert code == 2, text
    assert f"sequences of token ids that only {target} has: 1" in " ".join(text.split())
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    assert summary["incomplete"] == [f"sequences of token ids that only {target} has: 1"]


def test_without_token_ids_there_is_a_sentence_with_what_to_record(tmp_path, capsys):
    target = dump(tmp_path / "target", padded(SEQUENCES, left=True), names=("layer",))
    code, text = run(target, dump(tmp_path / "golden", padded(SEQUENCES, left=False)), tmp_path / "out", capsys)
    assert code == 2
    assert "has no saved token ids" in text
    assert "record the model's input_ids" in " ".join(text.split())
    assert "Traceback" not in text


@pytest.mark.parametrize("batch", [padded(SEQUENCES, left=True, mask=False), packed(SEQUENCES, "")])
def test_without_a_mask_or_positions_there_is_a_sentence_with_what_to_record(tmp_path, batch):
    target, golden = dump(tmp_path / "target", batch), dump(tmp_path / "golden", padded(SEQUENCES[:2], left=False))
    with pytest.raises(CompareError, match="in common; where rows are padded, record the model's attention_mask, and"):
        compared(target, golden)


def test_outputs_with_other_leading_dimensions_are_left_out_and_reported(tmp_path):
    target, golden = (
        dump(tmp_path / str(left), padded(SEQUENCES, left=left), made_shape=(7, 3, 4)) for left in (True, False)
    )
    unit = compared(target, golden)
    assert f"{LAYER}.0.output.0" not in unit.rows["key"].to_list()
    assert "not compared: 2" in unit.notes[1]


def test_without_any_output_of_tokens_nothing_agrees(tmp_path):
    target, golden = (
        dump(tmp_path / str(left), padded(SEQUENCES, left=left), made_shape=(7, 3, 4), embedded_shape=(7, 3, 4))
        for left in (True, False)
    )
    with pytest.raises(CompareError, match=r"no output with a row per token: .* token ids, \[3, 7\] and \[3, 7\]"):
        compared(target, golden)


def test_several_embeddings_of_an_api_are_ambiguous(tmp_path):
    folder = tmp_path / "dump_tensor_data"
    folder.mkdir()
    np.save(folder / "ids.npy", np.array([[1, 2]]))
    given = tensor([[1, 2]], dtype="torch.int64", data_name="ids.npy")
    record = {"input_args": [given], "input_kwargs": {}, "output": [tensor([[1.0], [2.0]])]}
    data = {f"Functional.embedding.{i}.forward": record for i in range(2)}
    path = write_dump(tmp_path, data, task="tensor")
    with pytest.raises(CompareError, match="has 2 calls of embedding, of which nothing says whose ids are tokens"):
        compared(path, path)

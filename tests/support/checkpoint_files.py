"""Writes small checkpoints as Hugging Face, Megatron-LM, DeepSpeed and DCP lay them out, without PyTorch."""

import io
import json
from collections import OrderedDict

import numpy as np
from pt_writer import FLOAT, V2, Call, Global, Made, Pickler, Storage, write_pt

HIDDEN, INNER, ROWS = 8, 6, 16


def tensors():
    """Return the tensors of a small model by name."""
    rng = np.random.default_rng(0)
    shapes = {
        "model.embed_tokens.weight": (ROWS, HIDDEN), "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
        "model.layers.0.input_layernorm.weight": (HIDDEN,), "lm_head.weight": (ROWS, HIDDEN),
    }  # fmt: skip
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


class _Saved:
    """Arrays that become tensors of one file."""

    def __init__(self):
        self.storages = {}

    def __call__(self, array):
        key = str(len(self.storages))
        self.storages[key] = np.ascontiguousarray(array).tobytes()
        strides = tuple(each // array.itemsize for each in np.ascontiguousarray(array).strides)
        return Call(V2, Storage(FLOAT, key, array.size), 0, array.shape, strides, False, OrderedDict())


def write_safetensors(path, arrays, metadata=None):
    """Write arrays in float32 by name."""
    header, content = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, array in arrays.items():
        end = len(content) + array.nbytes
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(content), end]}
        content += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)


def write_hugging_face(directory, ending="safetensors"):
    """Write two files, an index, a configuration and the state of the trainer; ``ending`` may be ``bin``."""
    directory.mkdir(parents=True)
    stem, places = "model" if ending == "safetensors" else "pytorch_model", {}
    names = sorted(arrays := tensors())
    for number, own in enumerate((names[:2], names[2:]), 1):
        file = f"{stem}-{number:05d}-of-00002.{ending}"
        places |= dict.fromkeys(own, file)
        if ending == "safetensors":
            write_safetensors(directory / file, {name: arrays[name] for name in own}, {"format": "pt"})
        else:
            saved = _Saved()
            write_pt(directory / file, OrderedDict((name, saved(arrays[name])) for name in own), saved.storages)
    size = sum(each.nbytes for each in arrays.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (directory / f"{stem}.{ending}.index.json").write_text(json.dumps(index))
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "num_attention_heads": 2}
    (directory / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": 500, "log_history": []}))


def write_megatron(directory, tp=2):
    """Write an iteration with the file that names it: weights, moments, arguments and state of the schedule."""
    arrays = tensors()
    whole = {
        "embedding.word_embeddings.weight": arrays["model.embed_tokens.weight"],
        "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight": arrays["model.layers.0.input_layernorm.weight"],
        "decoder.layers.0.mlp.linear_fc1.weight": arrays["model.layers.0.mlp.up_proj.weight"],
        "output_layer.weight": arrays["lm_head.weight"],
    }
    state = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": 1, "num_layers": 1, "swiglu": False}
    state |= {"num_attention_heads": 2, "hidden_size": HIDDEN, "untie_embeddings_and_output_weights": True}
    for rank in range(tp):
        own = {name: np.split(array, tp)[rank] if array.ndim > 1 else array for name, array in whole.items()}
        saved, moments = _Saved(), {}
        model = OrderedDict((name, saved(array)) for name, array in own.items())
        for number, array in enumerate(own.values()):
            moments[number] = {"exp_avg": saved(array), "exp_avg_sq": saved(array**2)}
        groups = [{"lr": 1e-3, "step": 10, "params": list(range(len(own)))}]
        content = {
            "checkpoint_version": 3.0, "iteration": 10, "args": Made(Global("argparse", "Namespace"), (), state),
            "model": model, "optimizer": {"optimizer": {"state": moments, "param_groups": groups}},
            "opt_param_scheduler": {"max_lr": 1e-3, "num_steps": 80},
        }  # fmt: skip
        place = directory / "iter_0000010" / f"mp_rank_{rank:02d}"
        place.mkdir(parents=True)
        write_pt(place / "model_optim_rng.pt", content, saved.storages)
    (directory / "latest_checkpointed_iteration.txt").write_text("10")


def write_deepspeed(directory, num_ranks=2):
    """Write a step of ZeRO stage 2 with the file that names it."""
    place = directory / "global_step10"
    place.mkdir(parents=True)
    arrays, saved = tensors(), _Saved()
    shapes = OrderedDict((name, Call(Global("torch", "Size"), array.shape)) for name, array in arrays.items())
    module = OrderedDict((name, saved(array)) for name, array in arrays.items())
    content = {"module": module, "param_shapes": [shapes], "global_steps": 10, "ds_config": {"train_batch_size": 4}}
    write_pt(place / "mp_rank_00_model_states.pt", content, saved.storages)
    flat = np.concatenate([array.ravel() for array in arrays.values()])
    for rank, part in enumerate(np.array_split(flat, num_ranks)):
        saved = _Saved()
        base = {"state": {0: {"step": 10, "exp_avg": saved(part), "exp_avg_sq": saved(part**2)}}, "param_groups": []}
        own = {"zero_stage": 2, "partition_count": num_ranks, "single_partition_of_fp32_groups": [saved(part)]}
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        write_pt(place / name, {"optimizer_state_dict": {**own, "base_optimizer_state": base}}, saved.storages)
    (directory / "latest").write_text("global_step10")


def write_dcp(directory):
    """Write a distributed checkpoint of PyTorch: each matrix in two chunks, a file of each rank, and the step."""
    directory.mkdir(parents=True)
    contents, described, places = [b"", b""], {}, []
    for name, array in tensors().items():
        chunks, begin = [], 0
        for rank, part in enumerate(np.array_split(array, 2)):
            saved = _Saved()
            begins, begin = (begin, *[0] * (array.ndim - 1)), begin + len(part)
            chunks.append(_made("ChunkStorageMetadata", offsets=_size(begins), sizes=_size(part.shape)))
            index = _made("MetadataIndex", fqn=f"model.{name}", offset=_size(begins), index=rank)
            places.append((index, _stored(directory, contents, rank, saved(part), saved.storages)))
        strided = Call(Global("torch.serialization", "_get_layout"), "torch.strided")
        properties = _object("TensorProperties", (Global("torch", "float32"), strided, False, None, False))
        described[f"model.{name}"] = _made(
            "TensorStorageMetadata", properties=properties, size=_size(array.shape), chunks=chunks
        )
    described["step"] = _made("BytesStorageMetadata")
    index = _made("MetadataIndex", fqn="step", offset=None, index=None)
    places.append((index, _stored(directory, contents, 0, 10, {})))
    paths = {key: tuple(key.split(".", 1)) for key in described}
    metadata = _made("Metadata", state_dict_metadata=described, planner_data=paths, storage_data=dict(places))
    for rank, content in enumerate(contents):
        (directory / f"__{rank}_0.distcp").write_bytes(content)
    (directory / ".metadata").write_bytes(pickled(metadata))


def pickled(value):
    """Return a pickle of protocol 2."""
    buffer = io.BytesIO()
    Pickler(buffer, 2).dump(value)
    return buffer.getvalue()


def _stored(directory, contents, rank, value, storages):
    scratch = write_pt(directory / "scratch", value, storages)
    content = scratch.read_bytes()
    scratch.unlink()
    begin = len(contents[rank])
    contents[rank] += content
    module = "torch.distributed.checkpoint.filesystem"
    state = {"relative_path": f"__{rank}_0.distcp", "offset": begin, "length": len(content)}
    return Made(Global(module, "_StorageInfo"), (), state)


def _made(kind, **state):
    return _object(kind, state)


def _object(kind, state):
    return Made(Global("torch.distributed.checkpoint.metadata", kind), (), state)


def _size(numbers):
    return Call(Global("torch", "Size"), tuple(numbers))


WRITERS = {
    "hf": write_hugging_face,
    "bin": lambda directory: write_hugging_face(directory, "bin"),
    "megatron": write_megatron,
    "deepspeed": write_deepspeed,
    "dcp": write_dcp,
}

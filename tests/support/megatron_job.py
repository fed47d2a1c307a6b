"""Load files of ranks into models of Megatron-Core, on CPUs, and have Megatron save them as ``torch_dist``.

Run with: torchrun megatron_job.py FILES DIRECTORY; each process loads the file of its tensor parallel rank.
"""

import atexit
import os
import sys
from pathlib import Path


def main():
    # Not above: Megatron starts processes to write files, which import this module again.
    import torch
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    files, directory = map(Path, sys.argv[1:])
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
    content = torch.load(files / f"mp_rank_{rank:02d}" / "model_optim_rng.pt", weights_only=False)
    given, state = content["args"], content["model"]
    config = TransformerConfig(
        tensor_model_parallel_size=world, use_cpu_initialization=True, num_layers=given.num_layers,
        hidden_size=given.hidden_size, ffn_hidden_size=world * state["decoder.layers.0.mlp.linear_fc2.weight"].shape[1],
        num_attention_heads=given.num_attention_heads, num_query_groups=given.num_query_groups,
        kv_channels=given.kv_channels, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, normalization="RMSNorm",
    )  # fmt: skip
    model = GPTModel(
        config, get_gpt_layer_local_spec(normalization="RMSNorm"), given.padded_vocab_size, 32,
        position_embedding_type="rope", share_embeddings_and_output_weights=False,
    )  # fmt: skip
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert all(name.endswith("_extra_state") for name in missing), missing
    if rank == 0:
        directory.mkdir()
    torch.distributed.barrier()
    # Megatron waits for the GPU before it writes, and then exchanges failures on it.
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
    dist_checkpointing.save(model.sharded_state_dict(), str(directory))
    torch.distributed.barrier()
    atexit._run_exitfuncs()  # the processes that wrote files
    os._exit(0)  # when Python ends, gloo's threads sometimes abort the process


if __name__ == "__main__":
    main()

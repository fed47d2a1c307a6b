"""Environment variables that can change what a training computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msprobe_core.manifest.facts import Scalar, Variable
from msprobe_core.manifest.secrets import cleaned, is_secret, is_secret_name

PREFIXES = (
    "ACCELERATE_", "ACL_", "ASCEND_", "ASCENDC_", "ASDOPS_", "ATB_", "BLIS_", "CUBLAS", "CUDA_", "CUDNN_", "DEEPSPEED_",
    "DS_", "FLASH_ATTENTION_", "FLASH_ATTN_", "FSDP_", "GOMP_", "HCCL_", "HIP_", "HIPBLAS", "HSA_", "KMP_", "LCCL_",
    "MEGATRON_", "MINDSPEED_", "MINDSPORE_", "MIOPEN_", "MKL_", "MSPROBE_", "MS_", "NCCL_", "NVIDIA_TF32_", "NVTE_",
    "NUMEXPR_", "OMP_", "OPENBLAS_", "PYTORCH_", "ROCBLAS_", "SGLANG_", "SGL_", "TE_", "TENSORRT_", "TF32_",
    "TORCH", "TRANSFORMERS_", "TRITON_", "UNSLOTH_", "VECLIB_", "VERL_", "VLLM_", "XFORMERS_", "XLA_",
)  # fmt: skip
"""Beginnings of the names of variables whose values are kept."""

_NAMES = """
    CLOSE_MATMUL_K_SHIFT COMBINED_ENABLE CPU_AFFINITY_CONF DIFFUSERS_ATTN_BACKEND GROUP_RANK GROUP_WORLD_SIZE
    HF_ATTN_IMPLEMENTATION HF_DATASETS_IN_MEMORY_MAX_SIZE HF_HUB_OFFLINE INF_NAN_MODE_ENABLE INF_NAN_MODE_FORCE_DISABLE
    LD_PRELOAD LOCAL_RANK LOCAL_WORLD_SIZE MALLOC_CONF MULTI_STREAM_MEMORY_REUSE NODE_RANK NPROC_PER_NODE
    NVIDIA_VISIBLE_DEVICES OPTIMIZE PYTHONHASHSEED PYTHONOPTIMIZE RANK RANK_ID RANK_SIZE ROLE_RANK
    ROLE_WORLD_SIZE TASK_QUEUE_ENABLE TOKENIZERS_PARALLELISM USE_FLASH_ATTENTION WORLD_SIZE
    """
NAMES = frozenset(_NAMES.split())
"""Names of others whose values are kept."""


def kept_variables(environment: Mapping[str, str]) -> tuple[Variable, ...]:
    """Return the variables that can change results, by name.

    A variable that is not on the list is left out. Of one that looks like a secret only the name is kept.
    """
    return tuple(
        Variable(name=name, value=None if is_secret_name(name) or is_secret(name, value) else value)
        for name, value in sorted(environment.items())
        if name in NAMES or name.startswith(PREFIXES)
    )


def arguments_of(command: Sequence[str]) -> dict[str, Scalar]:
    """Return the arguments of a program as settings: options by name, others by position from 0.

    An option takes the next argument as its value unless that is an option too; several values are one text.
    """
    found: dict[str, Scalar] = {}
    option: str | None = None
    position = 0
    for argument in command:
        is_option = argument.startswith("-") and not is_number(argument) and argument.strip("-") != ""
        if is_option:
            option, is_given, value = argument.lstrip("-").partition("=")
            found[option] = value if is_given else True
            if is_given:
                option = None
        elif option is not None:
            before = found[option]
            found[option] = argument if before is True else f"{before} {argument}"
        else:
            found[str(position)] = argument
            position += 1
    return {name: cleaned(name, value) for name, value in found.items()}


def is_number(text: str) -> bool:
    """Whether a word of a command is a number, and so no option even if it begins with a minus."""
    try:
        float(text)
    except ValueError:
        return False
    return True

"""Bugs of vision models in releases of `timm`; both sides run the code that was released."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from bench.bugs.bug import Bug, Catalogue, Kind, Side
from bench.bugs.catalogue import in_layers
from bench.bugs.program import Program, classifier, images, settled
from bench.bugs.releases import timm
from bench.faults.truth import Truth


def _load_timm() -> None:
    """Import `timm` without the compiled kernels of `torchvision`, which need a GPU, and which no model here uses."""
    own = torch.library.register_fake

    def without_kernels(name: Any, *args: Any, **options: Any) -> Callable[..., Any]:
        return (lambda given: given) if str(name).startswith("torchvision::") else own(name, *args, **options)

    torch.library.register_fake = without_kernels
    try:
        import timm  # noqa: F401  # pyright: ignore[reportMissingImports]
    finally:
        torch.library.register_fake = own


def _vision_transformer(_: Side) -> Program:
    _load_timm()
    from timm.layers import RmsNorm  # pyright: ignore[reportMissingImports]
    from timm.models.vision_transformer import VisionTransformer  # pyright: ignore[reportMissingImports]

    model = VisionTransformer(
        img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=10,
        norm_layer=partial(RmsNorm, eps=1e-6),
    )  # fmt: skip
    return classifier(settled(model))


class _Pooled(nn.Module):
    """Classifies images by one layer of a library between two of its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.stem, self.layer, self.head = nn.Conv2d(3, 16, 4, stride=4), layer, nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.stem(x)).mean((2, 3)))


def _multi_query(_: Side) -> Program:
    _load_timm()
    from timm.layers.attention2d import MultiQueryAttentionV2  # pyright: ignore[reportMissingImports]

    return classifier(settled(_Pooled(MultiQueryAttentionV2(16, num_heads=4, key_dim=8, value_dim=8))))


def _attention_2d(_: Side) -> Program:
    _load_timm()
    from timm.layers.attention2d import Attention2d  # pyright: ignore[reportMissingImports]

    layer = Attention2d(16, num_heads=2)
    layer.fused_attn = False
    return classifier(settled(_Pooled(layer)))


def _masked_eva(_: Side) -> Program:
    _load_timm()
    from timm.models.eva import EvaAttention  # pyright: ignore[reportMissingImports]

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.attn, self.head = nn.Linear(48, 32), EvaAttention(32, num_heads=4), nn.Linear(32, 10)
            self.attn.fused_attn = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            patches = nn.functional.unfold(x, 4, stride=4).transpose(1, 2)
            mask = torch.ones(patches.shape[:2], dtype=torch.bool)
            mask[:, -6:] = False
            # Infinities, which the defect puts into weights, would be seen at once; users saw them in padded rows only.
            return self.head(torch.nan_to_num(self.attn(self.stem(patches), attn_mask=mask)).mean(1))

    return classifier(settled(Masked()))


def _distilled(_: Side) -> Program:
    _load_timm()
    from timm.models.pit import PoolingVisionTransformer  # pyright: ignore[reportMissingImports]

    model: Any = PoolingVisionTransformer(
        img_size=16, patch_size=4, stride=2, stem_type="overlap", base_dims=(8, 8, 8), depth=(1, 1, 1),
        heads=(2, 2, 2), mlp_ratio=2, num_classes=10, distilled=True, drop_rate=0.1,
    )  # fmt: skip
    model.set_distilled_training()

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        own, distilled = model(batch["images"])
        entropy = nn.functional.cross_entropy
        return entropy(own, batch["labels"]) + entropy(distilled, batch["labels"])

    return Program(settled(model), loss, images)


def _rotary(_: Side) -> Program:
    _load_timm()
    from timm.models.eva import Eva  # pyright: ignore[reportMissingImports]

    model = Eva(
        img_size=(16, 32), patch_size=4, embed_dim=32, depth=2, num_heads=2, num_classes=10, use_rot_pos_emb=True,
        rope_grid_indexing="xy",
    )  # fmt: skip
    return classifier(settled(model), batches=partial(images, width=32))


def _normed_mlp(_: Side) -> Program:
    _load_timm()
    from timm.layers import Mlp  # pyright: ignore[reportMissingImports]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.mlp = nn.Linear(48, 32), Mlp(32, 64, norm_layer=nn.LayerNorm)
            self.head = nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            patches = nn.functional.unfold(x, 4, stride=4).transpose(1, 2)
            return self.head(self.mlp(self.stem(patches)).mean(1))

    return classifier(settled(Block()))


def add_to(catalogue: Catalogue) -> None:
    """Add the bugs."""
    repository = "huggingface/pytorch-image-models"
    catalogue.add(
        Bug(
            "RMSNorm divides by the standard deviation",
            Kind.NORM,
            report=f"{repository}#2380",
            fix=f"{repository}#2380",
            symptom="results differ from those of torch.nn.RMSNorm",
            place="timm.layers: rms_norm",
            truth=Truth(modules=(*in_layers("blocks.{}.norm1", "blocks.{}.norm2"), "norm"), directions=("forward",)),
            make=_vision_transformer,
            defective=timm("1.0.12"),
            fixed=timm("1.0.13"),
        )
    )
    catalogue.add(
        Bug(
            "multi-query attention without its scale",
            Kind.ATTENTION,
            report=f"{repository}#2388",
            fix=f"{repository}#2388",
            symptom="attention is too sharp, and outputs are not in the places of their pixels",
            place="timm.layers: MultiQueryAttentionV2.forward",
            truth=Truth(modules=("layer",), directions=("forward",)),
            make=_multi_query,
            defective=timm("1.0.12"),
            fixed=timm("1.0.13"),
        )
    )
    catalogue.add(
        Bug(
            "unfused attention scales by the number of heads",
            Kind.ATTENTION,
            report=f"{repository}@2d734d90",
            fix=f"{repository}@2d734d90",
            symptom="fused and unfused attention have different outputs",
            place="timm.layers: Attention2d.forward",
            truth=Truth(modules=("layer",), directions=("forward",)),
            make=_attention_2d,
            defective=timm("1.0.12"),
            fixed=timm("1.0.13"),
        )
    )
    catalogue.add(
        Bug(
            "mask applied after the softmax",
            Kind.MASK,
            report=f"{repository}#2236",
            fix=f"{repository}#2236",
            symptom="attention with a mask returns infinities or attends to what is masked",
            place="timm.models.eva: EvaAttention.forward",
            truth=Truth(modules=("attn",), directions=("forward",)),
            make=_masked_eva,
            defective=timm("1.0.7"),
            fixed=timm("1.0.8"),
        )
    )
    catalogue.add(
        Bug(
            "distilled head gets the class token",
            Kind.DROPOUT,
            report=f"{repository}#2649",
            fix=f"{repository}#2649",
            symptom="the token for distillation is never used, and its gradient is zero",
            place="timm.models.pit: PoolingVisionTransformer.forward_head",
            truth=Truth(modules=("", "head_drop"), directions=("forward",)),
            make=_distilled,
            defective=timm("1.0.24"),
            fixed=timm("1.0.25"),
        )
    )
    catalogue.add(
        Bug(
            "rotary grid with height for width",
            Kind.ROTARY,
            report=f"{repository}@33791c8f",
            fix=f"{repository}@33791c8f",
            symptom="positions are wrong for images that are not square",
            place="timm.layers: build_fourier_pos_embed",
            # The grid is computed once, outside of a recorded step: its first use is the nearest recorded place.
            truth=Truth(modules=("", "rope", *in_layers("blocks.{}", "blocks.{}.attn")), directions=("forward",)),
            make=_rotary,
            defective=timm("1.0.16"),
            fixed=timm("1.0.17"),
        )
    )
    catalogue.add(
        Bug(
            "norm of an MLP never called",
            Kind.NORM,
            report=f"{repository}#1851",
            fix=f"{repository}@76d16698",
            symptom="a norm that is asked for has no effect, and its weights no gradients",
            place="timm.layers: Mlp.forward",
            truth=Truth(modules=("mlp", "mlp.norm"), directions=("forward",)),
            make=_normed_mlp,
            defective=timm("0.9.2"),
            fixed=timm("0.9.5"),
        )
    )

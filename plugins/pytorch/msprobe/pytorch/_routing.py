"""Takes from a model which experts its routers choose, while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from msprobe.pytorch._gradients import is_in_backward
from msprobe_core.plugin import PluginError
from msprobe_core.rl import RoutedTokens

if TYPE_CHECKING:
    from typing_extensions import Self

_EXPERTS = "experts"
_ROUTERS = ("gate", "router")


class RoutingRecorder:
    """Records the experts of each token while the model runs inside of it.

    ::

        with RoutingRecorder(model) as recorder:
            model(input_ids=ids, attention_mask=mask)
        run.routing(step, RLStage.ACTOR_LOG_PROB, recorder.take(), {"prompts": …, "responses": …, …})

    A layer with experts is a module with children ``experts`` and ``gate`` or ``router``, as in transformers 5. What is
    recorded is what ``experts`` are called with, so that replayed choices are those that were used. Tensors are copied
    on their device; the host waits in `take` only, once each for experts, weights and scores. Forwards that activation
    checkpointing repeats are left out.
    """

    def __init__(self, model: nn.Module) -> None:
        """Find the layers.

        Args:
            model: The model, whose first argument is ``input_ids`` ``[rows, positions]``.

        Raises:
            PluginError: it has no such layer.
        """
        self._model = model
        self._layers = dict(_layers_of(model))
        if not self._layers:
            raise PluginError(
                f"{type(model).__name__} has no module with the children 'experts' and 'gate' or 'router'; give what "
                "its routers choose to RunWriter.routing as RoutedTokens"
            )
        self._handles: list[RemovableHandle] = []
        self._shapes: list[tuple[int, int]] = []
        self._parts: dict[str, list[dict[str, Tensor]]] = {name: [] for name in self._layers}
        self._pending: dict[str, Tensor] = {}
        self._dtype: str | None = None
        self._scores_dtype: str | None = None

    def __enter__(self) -> Self:
        self._handles.append(self._model.register_forward_pre_hook(self._on_model, with_kwargs=True))
        for name, (router, experts) in self._layers.items():
            self._handles.append(router.register_forward_hook(self._on_router(name)))
            self._handles.append(experts.register_forward_pre_hook(self._on_experts(name), with_kwargs=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def take(self) -> RoutedTokens:
        """Return what was recorded, ``[rows, positions, layers, …]``, and forget it.

        Forwards with a cache are put together along the positions, as in generation.

        Raises:
            PluginError: nothing was recorded, or the forwards had different numbers of rows.
        """
        if not self._shapes or any(len(parts) != len(self._shapes) for parts in self._parts.values()):
            counts = ", ".join(f"{name}: {len(parts)}" for name, parts in self._parts.items())
            raise PluginError(f"{len(self._shapes)} forwards of the model gave routings ({counts}); one each is needed")
        if len({rows for rows, _ in self._shapes}) > 1:
            raise PluginError("forwards with different numbers of rows; call take after each of them")
        layers = [self._of_layer(parts) for parts in self._parts.values()]
        names = [name for name in layers[0] if all(name in layer for layer in layers)]
        # Stacked on the device, so that the host waits once for each name instead of once for each layer.
        arrays = {name: torch.stack([layer[name] for layer in layers], dim=2).cpu().numpy() for name in names}
        found = RoutedTokens(
            experts=arrays["experts"], weights=arrays.get("weights"), scores=arrays.get("scores"),
            layers=tuple(self._layers), dtype=self._dtype, scores_dtype=self._scores_dtype,
        )  # fmt: skip
        self._shapes.clear()
        self._parts = {name: [] for name in self._layers}
        return found

    def _of_layer(self, parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        names = [name for name in parts[0] if all(name in part for part in parts)]
        return {
            name: torch.cat(
                [part[name].reshape(*shape, -1) for part, shape in zip(parts, self._shapes, strict=True)], dim=1
            )
            for name in names
        }  # fmt: skip

    def _on_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        del module
        given = kwargs.get("input_ids", args[0] if args else None)
        given = kwargs.get("inputs_embeds") if given is None else given
        if isinstance(given, Tensor) and not is_in_backward():
            self._shapes.append((int(given.shape[0]), int(given.shape[1])))

    def _on_router(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
            del module, args
            found = output if isinstance(output, tuple) else (output,)
            scores = next((each for each in found if isinstance(each, Tensor) and each.is_floating_point()), None)
            if scores is not None and not is_in_backward():
                self._pending[name] = scores.detach()

        return hook

    def _on_experts(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if is_in_backward():
                return
            del module
            given = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
            chosen = next((each for each in given if not each.is_floating_point() and each.ndim == 2), None)
            if chosen is None:
                return
            own = {"experts": chosen.detach().to(torch.int32, copy=True)}
            hidden = given[0]
            weights = next(
                (each for each in given[1:] if each.is_floating_point() and each.shape == chosen.shape), None
            )
            if weights is not None:
                own["weights"] = weights.detach().to(torch.float32, copy=True)
            scores = self._pending.pop(name, None)
            if scores is not None:
                self._scores_dtype = str(scores.dtype).removeprefix("torch.")
                own["scores"] = scores.to(torch.float32, copy=True)
            self._dtype = str(hidden.dtype).removeprefix("torch.")
            self._parts[name].append(own)

        return hook


def _layers_of(model: nn.Module) -> Iterator[tuple[str, tuple[nn.Module, nn.Module]]]:
    for name, module in model.named_modules():
        children = dict(module.named_children())
        router = next((children[each] for each in _ROUTERS if each in children), None)
        if router is not None and _EXPERTS in children and not isinstance(children[_EXPERTS], nn.ModuleList):
            yield name, (router, children[_EXPERTS])

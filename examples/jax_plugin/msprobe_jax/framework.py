"""What msprobe asks of a framework, for arrays of JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from msprobe_core.interception import HostReducer, HostValues
from msprobe_core.plugin import Argument, AttachOptions, CallRecorder, NamedModel, TensorContent, TensorMeta
from msprobe_jax.modules import FlaxAttachment


def host_values(array: Any) -> HostValues:
    """Return the elements of an array; NumPy has no bfloat16, so its bits are kept."""
    values = np.asarray(array)
    return HostValues(values.view(np.uint16), "bfloat16") if values.dtype == jnp.bfloat16 else HostValues(values)


class JaxFramework:
    """JAX as msprobe sees it; docs/plugins.md describes every member."""

    name = "jax"
    tensor_suffix = ".npy"
    hidden_frames = tuple(str(Path(str(file)).parent) for file in (__file__, jax.__file__, flax.__file__))

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, jax.Array)

    def is_model(self, value: object) -> bool:
        return isinstance(value, nn.Module)

    def rank(self) -> int | None:
        return jax.process_index() if jax.process_count() > 1 else None

    def describe(self, tensor: Any) -> TensorMeta:
        return TensorMeta("jax.Array", str(tensor.dtype), tuple(tensor.shape), self.takes_gradient(tensor))

    def takes_gradient(self, tensor: Any) -> bool:
        return bool(jnp.issubdtype(tensor.dtype, jnp.inexact))  # whether there is one shows in the backward pass

    def describe_argument(self, value: Any) -> Argument | None:
        return Argument("jax.dtype", str(value)) if isinstance(value, np.dtype) else None

    def reducer(self) -> HostReducer:
        return HostReducer(host_values)

    def narrow(self, tensor: Any, ranges: Mapping[int, tuple[int, int]]) -> Any:
        return tensor[tuple(slice(*ranges.get(dim, (None, None))) for dim in range(tensor.ndim))]

    def snapshot(self, tensor: Any) -> HostValues:
        return host_values(tensor).copy()

    def content(self, snapshot: HostValues) -> TensorContent:
        return snapshot.content()

    def save(self, snapshot: HostValues, path: Path) -> None:
        snapshot.save(path)

    @contextmanager
    def quiet(self, on_failure: Callable[[str, Exception], None]) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  # nothing of the recording may reach the training
            on_failure("a call", error)

    def watch_gradient(self, tensor: Any, on_gradient: Callable[[Any], None]) -> None:  # noqa: ARG002
        return None  # arrays have no hooks

    def attach(self, models: Sequence[NamedModel], options: AttachOptions, recorder: CallRecorder) -> FlaxAttachment:
        return FlaxAttachment(models, options, recorder)

"""Shapes of convolutions' tensors: what shares errors in them, and in all others of these shapes."""

import polars as pl
import pytest

from msprobe_core.judge.limits import Precision
from msprobe_core.judge.noise.channel_shapes import ChannelShapes, channel_shapes
from msprobe_core.judge.noise.rounding import with_sizes

IMAGES, WEIGHT, SCORES = "[4, 512, 4, 4]", "[512, 256, 3, 3]", "[4, 8, 16, 16]"
OF_CONVOLUTIONS = ChannelShapes(frozenset({IMAGES}), frozenset({WEIGHT}))


def rows(shapes, precision=Precision.BFLOAT16, norm=1.0, dtype="torch.bfloat16"):
    """Return rows, by their keys, of these shapes; all elements have the same size."""
    phases = ["backward" if "backward" in key or "grad" in key else "forward" for key in shapes]
    numbers = [[int(text) for text in shape.strip("[]").split(", ")] for shape in shapes.values()]
    sizes = pl.Series("numel_golden", [0] * len(shapes))
    for row, each in enumerate(numbers):
        sizes[row] = int(pl.Series(each).product())
    columns = {"key": list(shapes), "shape_golden": list(shapes.values()), "numel_golden": sizes, "phase": phases}
    frame = pl.DataFrame(columns).with_columns(pl.lit(dtype).alias(f"dtype_{side}") for side in ("target", "golden"))
    size = norm / pl.col("numel_golden").sqrt()
    return frame.with_columns(
        entry=pl.col("key").str.replace(r"\.(?:input|output|parameters|\w+)\.?[\w]*$", ""),
        precision=pl.lit(int(precision)),
        norm_golden=pl.lit(norm),
        max_golden=size,
        min_golden=-size,
    )


def call(prefix, *, is_module=False):
    if is_module:
        forward = f"{prefix}.forward.0"
        return {f"{forward}.input.0": IMAGES, f"{forward}.parameters.weight": WEIGHT,
                f"{forward}.parameters.bias": "[512]", f"{prefix}.parameters_grad.0.weight": WEIGHT}  # fmt: skip
    return {f"{prefix}.0.forward.input.0": IMAGES, f"{prefix}.0.forward.input.weight": WEIGHT,
            f"{prefix}.0.backward.output.1": WEIGHT, f"{prefix}.0.backward.output.0": IMAGES}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        call("Functional.conv2d"), call("Torch.conv_transpose3d"), call("Mint.nn.functional.conv1d"),
        call("Aten.convolution"), call("Module.model.conv.Conv2d", is_module=True),
        call("Cell.network.up.Conv2dTranspose", is_module=True), call("Module.model.conv.FSDPConv2d", is_module=True),
    ],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_convolutions_show_which_shapes_have_channels(given):
    assert channel_shapes(rows(given)) == OF_CONVOLUTIONS


@pytest.mark.parametrize("prefix", ["Functional.linear", "Torch.convert2d", "Tensor.conv2d_like"])
def test_other_calls_show_none(prefix):
    assert channel_shapes(rows(call(prefix))) == ChannelShapes(frozenset(), frozenset())


def test_rows_of_these_shapes_are_independent_over_positions_or_channels_wherever_they_appear():
    given = {"Functional.relu.0.backward.output.0": IMAGES, "Functional.relu.0.forward.output.0": IMAGES,
             "AtenBackward.convolution_backward.0.forward.output.0": IMAGES,
             "Tensor.addcdiv_.7.forward.input.0": WEIGHT, "Torch.matmul.0.backward.output.0": SCORES}  # fmt: skip
    frame = rows(given)
    last = [4 * 512 * 4, 4 * 512 * 4, 4 * 512 * 4, 512 * 256 * 3, 4 * 8 * 16]
    assert with_sizes(frame)["num_rows"].to_list() == last
    positions = 4 * 4 * 4
    assert with_sizes(frame, OF_CONVOLUTIONS)["num_rows"].to_list() == [positions, last[1], positions, 512, last[4]]


def test_positions_of_a_single_channel_are_independent():
    shapes = ChannelShapes(frozenset({"[4, 1, 28, 28]"}))
    frame = rows({"Functional.conv2d.0.backward.output.0": "[4, 1, 28, 28]"})
    assert with_sizes(frame, shapes)["num_rows"].to_list() == [4 * 28 * 28]


@pytest.mark.parametrize(
    ("size", "roundoff"), [(1.0, 2.0**-11), (2.0**-13, 2.0**-11), (2.0**-20, 2.0**-5), (2.0**-30, 1.0), (0.0, 2.0**-11)]
)
@pytest.mark.parametrize("dtype", ["torch.float16", "Float16"])
def test_subnormal_elements_are_rounded_by_more(size, roundoff, dtype):
    """The smallest number in float16 is 2**-24; half of it is the largest error of a rounding among subnormal ones."""
    frame = rows({"Functional.linear.0.backward.output.0": "[16, 16]"}, Precision.FLOAT16, 16 * size, dtype)
    assert with_sizes(frame)["roundoff"].item() == roundoff


def test_what_is_computed_from_float16_has_numbers_of_its_own_format():
    """As what Adam keeps of gradients in float16."""
    frame = rows({"Tensor.addcmul_.0.forward.output.0": "[16, 16]"}, Precision.FLOAT16, 2.0**-26, "torch.float32")
    assert with_sizes(frame)["roundoff"].item() == 2.0**-11

"""One model written twice, with tensors in two layouts: a declared layout makes the two comparable."""

import pytest
import torch
from layout_jobs import recording
from layout_pairs import declared, parts_of, verdicts
from torch import nn

from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.unit import CompareOptions, compare_unit

WIDTH, HEADS, GROUPS, BATCH, LENGTH, VOCABULARY = 12, 6, 2, 3, 5, 7
SHARE = HEADS // GROUPS * 2  # of the queries in one group; keys and values have 2 each


class Dense(nn.Module):
    """Has its weight as [in, out]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().T.clone())
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        return x @ self.weight + self.bias


def weights():
    torch.manual_seed(3)
    return {
        "embed": nn.Embedding(VOCABULARY, WIDTH),
        "q": nn.Linear(WIDTH, WIDTH),
        "k": nn.Linear(WIDTH, 4),
        "v": nn.Linear(WIDTH, 4),
        "out": nn.Linear(WIDTH, WIDTH),
    }


class Split(nn.Module):
    """Batch first, with projections of their own."""

    def __init__(self) -> None:
        super().__init__()
        for name, module in weights().items():
            setattr(self, name, module)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.out(q * torch.cat([k, v, k.tanh()], -1))


class Fused(nn.Module):
    """Sequence first, one projection in groups, a padded vocabulary, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        made = weights()
        self.embed = nn.Embedding(VOCABULARY + 4, WIDTH)
        self.qkv = nn.Linear(WIDTH, WIDTH + 8)
        self.out = Dense(made["out"])
        with torch.no_grad():
            self.embed.weight.zero_()[:VOCABULARY] = made["embed"].weight
            for name in ("weight", "bias"):
                parts = [getattr(made[part], name).chunk(GROUPS) for part in "qkv"]
                groups = [part for group in zip(*parts, strict=True) for part in group]
                getattr(self.qkv, name).copy_(torch.cat(groups))

    def forward(self, tokens):
        x = self.embed(tokens.T)
        groups = self.qkv(x).chunk(GROUPS, -1)
        q, k, v = (torch.cat(parts, -1) for parts in zip(*(g.split([SHARE, 2, 2], -1) for g in groups), strict=True))
        return self.out(q * torch.cat([k, v, k.tanh()], -1))


LAYOUT = f"""
tensors:
  - {{match: "Split", values: output, side: target, transpose: [0, 1]}}
  - {{match: "embed", values: [input, output], side: target, transpose: [0, 1]}}
  - {{match: "out", values: [input, output], side: target, transpose: [0, 1]}}
  - {{match: "q", values: [input, output], side: target, transpose: [0, 1]}}
  - {{match: "k", values: [input, output], side: target, transpose: [0, 1]}}
  - {{match: "v", values: [input, output], side: target, transpose: [0, 1]}}
  - {{match: "out.Dense", values: weight, side: golden, transpose: true}}
  - {{match: "embed", values: weight, side: golden, unpad: {{dim: 0, size: {VOCABULARY}}}}}
fused:
  - {{parts: [q, k, v], whole: qkv, side: target, groups: {GROUPS}}}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    for mode in ("statistics", "tensor", "sketch"):
        for name, model in (("split", Split()), ("fused", Fused())):
            torch.manual_seed(4)
            tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
            weight = torch.randn(BATCH, LENGTH, WIDTH)
            with recording(directory / mode / name, model, mode, level="L0"):
                y = model(tokens)
                (y * (weight.transpose(0, 1) if name == "fused" else weight)).sum().backward()
    return directory


def compare(runs, mode, layouts):
    target, golden = (parts_of(runs / mode / name)[0] for name in ("split", "fused"))
    return compare_unit(UnitPair("", 0, None, target, golden), CompareOptions(layouts=layouts))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["statistics", "sketch", "tensor"])
def test_what_is_declared_is_compared(runs, tmp_path, mode):
    result = compare(runs, mode, declared(tmp_path, LAYOUT))
    assert verdicts(result) == {"pass": 24}


@pytest.mark.slow
def test_without_the_declaration_it_is_not(runs):
    result = compare(runs, "statistics", None)
    assert verdicts(result) == {"pass": 5, "error": 11, "unmatched": 32, "only target": 24, "only golden": 8}


@pytest.mark.slow
def test_a_wrong_element_in_a_part_is_found(runs, tmp_path):
    model, directory = Split(), runs / "wrong"
    with torch.no_grad():
        model.k.weight[1, 1] += 0.5
    torch.manual_seed(4)
    with recording(directory, model, "tensor", level="L0"):
        model(torch.randint(0, VOCABULARY, (BATCH, LENGTH)))
    pair = UnitPair("", 0, None, parts_of(directory)[0], parts_of(runs / "tensor" / "fused")[0])
    result = compare_unit(pair, CompareOptions(layouts=declared(tmp_path, LAYOUT)))
    assert result.fault is not None
    assert result.fault.entry == "Module.qkv.Linear.forward.0"
    assert result.fault.parts == ["parameters", "outputs"]

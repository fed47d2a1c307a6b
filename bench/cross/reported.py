"""Pairs for reported results: they were not used to derive the closed form for two frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.cross.pairs import (
    Arrays,
    Family,
    attention,
    causal,
    images,
    per_sample,
    per_token,
    random_of,
    rms_norm,
    series,
    square,
    tokens,
)
from bench.cross.words import Words

_gpt = Family("GPT")


def _build_gpt(w: Words, dim: int, layers: int, length: int, vocabulary: int = 67, dropout: float = 0.0) -> Any:
    class Layer(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.ln1 = w.layer_norm(dim)
            self.attn = attention(w, dim, 4)
            self.ln2 = w.layer_norm(dim)
            self.fc = w.linear(dim, 4 * dim)
            self.act = w.activation("gelu_tanh")
            self.proj = w.linear(4 * dim, dim)
            self.drop = w.dropout(dropout)

        def run(self, x: Any, mask: Any) -> Any:
            given = self.ln1(x)
            x = x + self.attn(given, given, mask)
            return x + self.drop(self.proj(self.act(self.fc(self.ln2(x)))))

    class Gpt(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.wte = w.embedding(vocabulary, dim)
            self.wpe = w.embedding(length, dim)
            self.h = w.blocks([Layer() for _ in range(layers)])
            self.ln_f = w.layer_norm(dim)
            self.lm_head = w.linear(dim, vocabulary, bias=False)

        def run(self, x: Any) -> Any:
            mask = causal(w, length)
            hidden = self.wte(x) + self.wpe(w.tensor(np.arange(length, dtype=np.int32)))
            for layer in self.h:
                hidden = layer(hidden, mask)
            return self.lm_head(self.ln_f(hidden))

    return Gpt()


_gpt.add("2 layers", lambda w: _build_gpt(w, 32, 2, 12), tokens(3, 12, 67), per_token)
_gpt.add("4 layers", lambda w: _build_gpt(w, 48, 4, 16), tokens(2, 16, 67), per_token)
_gpt.add("Adam", lambda w: _build_gpt(w, 32, 3, 12), tokens(3, 12, 67), per_token, "Adam")


_vit = Family("ViT")


def _build_vit(w: Words, dim: int, layers: int, size: int, patch: int) -> Any:
    number = (size // patch) ** 2

    class Layer(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = w.layer_norm(dim, eps=1e-6)
            self.attn = attention(w, dim, 4)
            self.norm2 = w.layer_norm(dim, eps=1e-6)
            self.fc1 = w.linear(dim, 2 * dim)
            self.act = w.activation("gelu")
            self.fc2 = w.linear(2 * dim, dim)

        def run(self, x: Any) -> Any:
            given = self.norm1(x)
            x = x + self.attn(given, given)
            return x + self.fc2(self.act(self.fc1(self.norm2(x))))

    class Vit(w.Block):
        def __init__(self) -> None:
            super().__init__()
            random = np.random.RandomState(5)
            self.patch_embed = w.conv2d(3, dim, patch, stride=patch)
            self.cls = w.parameter(random.randn(1, 1, dim) * 0.1, "cls")
            self.positions = w.parameter(random.randn(1, number + 1, dim) * 0.1, "positions")
            self.layers = w.blocks([Layer() for _ in range(layers)])
            self.norm = w.layer_norm(dim, eps=1e-6)
            self.head = w.linear(dim, 10)

        def run(self, x: Any) -> Any:
            patches = w.transpose(self.patch_embed(x).reshape(x.shape[0], dim, number), 0, 2, 1)
            hidden = w.cat([self.cls + patches[:, :1] * 0.0, patches], 1) + self.positions
            for layer in self.layers:
                hidden = layer(hidden)
            return self.head(self.norm(hidden)[:, 0])

    return Vit()


_vit.add("2 layers", lambda w: _build_vit(w, 32, 2, 16, 4), images(3, 3, 16, 10), per_sample)
_vit.add("3 layers", lambda w: _build_vit(w, 48, 3, 24, 8), images(4, 3, 24, 10), per_sample)
_vit.add("Adam", lambda w: _build_vit(w, 32, 2, 16, 4), images(4, 3, 16, 10), per_sample, "Adam")


_unet = Family("UNet")


def _build_unet(w: Words, width: int) -> Any:
    class Stage(w.Block):
        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            self.norm1 = w.group_norm(2, before)
            self.act = w.activation("silu")
            self.conv1 = w.conv2d(before, after, 3, padding=1)
            self.norm2 = w.group_norm(4, after)
            self.conv2 = w.conv2d(after, after, 3, padding=1)
            self.skip = w.conv2d(before, after, 1)

        def run(self, x: Any) -> Any:
            y = self.conv1(self.act(self.norm1(x)))
            return self.skip(x) + self.conv2(self.act(self.norm2(y)))

    class Unet(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.stem = w.conv2d(2, width, 3, padding=1)
            self.down1 = Stage(width, width)
            self.down2 = Stage(width, 2 * width)
            self.middle = Stage(2 * width, 2 * width)
            self.up2 = Stage(4 * width, width)
            self.up1 = Stage(2 * width, width)
            self.pool = w.avg_pool2d(2, 2)
            self.out = w.conv2d(width, 2, 3, padding=1)

        def run(self, x: Any) -> Any:
            first = self.down1(self.stem(x))
            second = self.down2(self.pool(first))
            middle = self.middle(self.pool(second))
            size = tuple(second.shape[-2:])
            up = self.up2(w.cat([w.upsample(middle, size), second], 1))
            up = self.up1(w.cat([w.upsample(up, tuple(first.shape[-2:])), first], 1))
            return self.out(up)

    return Unet()


def _noisy_images(batch: int, size: int) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        random = random_of(seed)
        clean = random.randn(batch, 2, size, size).astype(np.float32)
        return {"x": clean + 0.3 * random.randn(*clean.shape).astype(np.float32), "labels": clean}

    return make


_unet.add("8", lambda w: _build_unet(w, 8), _noisy_images(2, 16), square)
_unet.add("12", lambda w: _build_unet(w, 12), _noisy_images(3, 12), square)


_lstm = Family("LSTM tagger")


def _build_tagger(w: Words, dim: int, layers: int, *, both: bool, cell: str = "LSTM") -> Any:
    class Tagger(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words = w.embedding(47, dim)
            self.rnn = w.recurrent(cell, dim, dim, layers=layers, both=both)
            self.hidden = w.linear(dim * (1 + both), dim)
            self.tags = w.linear(dim, 47)

        def run(self, x: Any) -> Any:
            states, _ = self.rnn(self.words(x))
            return self.tags(w.unary("tanh", self.hidden(states)))

    return Tagger()


_lstm.add("2 layers both ways", lambda w: _build_tagger(w, 20, 2, both=True), tokens(3, 9, 47), per_token)
_lstm.add("1 layer", lambda w: _build_tagger(w, 32, 1, both=False), tokens(5, 12, 47), per_token)
_lstm.add("RNN", lambda w: _build_tagger(w, 24, 1, both=False, cell="RNN"), tokens(4, 10, 47), per_token)


_mixer = Family("MLP-Mixer")


def _build_mixer(w: Words, dim: int, layers: int, length: int) -> Any:
    class Mlp(w.Block):
        def __init__(self, size: int, hidden: int) -> None:
            super().__init__()
            self.fc1 = w.linear(size, hidden)
            self.act = w.activation("gelu")
            self.fc2 = w.linear(hidden, size)

        def run(self, x: Any) -> Any:
            return self.fc2(self.act(self.fc1(x)))

    class Layer(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = w.layer_norm(dim)
            self.tokens = Mlp(length, 2 * length)
            self.norm2 = w.layer_norm(dim)
            self.channels = Mlp(dim, 2 * dim)

        def run(self, x: Any) -> Any:
            x = x + w.transpose(self.tokens(w.transpose(self.norm1(x), 0, 2, 1)), 0, 2, 1)
            return x + self.channels(self.norm2(x))

    class Mixer(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.stem = w.linear(12, dim)
            self.layers = w.blocks([Layer() for _ in range(layers)])
            self.norm = w.layer_norm(dim)
            self.head = w.linear(dim, 5)

        def run(self, x: Any) -> Any:
            hidden = self.stem(x)
            for layer in self.layers:
                hidden = layer(hidden)
            return self.head(w.mean(self.norm(hidden), 1))

    return Mixer()


_mixer.add("2 layers", lambda w: _build_mixer(w, 24, 2, 10), series(4, 10, 12, 5), per_sample)
_mixer.add("5 layers", lambda w: _build_mixer(w, 32, 5, 16), series(3, 16, 12, 5), per_sample)


_tcn = Family("WaveNet")


def _build_wavenet(w: Words, channels: int, layers: int) -> Any:
    class Layer(w.Block):
        def __init__(self, dilation: int) -> None:
            super().__init__()
            self.dilation = dilation
            self.filter = w.conv1d(channels, channels, 2, dilation=dilation)
            self.gate = w.conv1d(channels, channels, 2, dilation=dilation)
            self.mix = w.conv1d(channels, channels, 1)

        def run(self, x: Any) -> Any:
            padded = w.pad_left(x, self.dilation)
            made = w.unary("tanh", self.filter(padded)) * w.unary("sigmoid", self.gate(padded))
            return x + self.mix(made), made

    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words = w.embedding(31, channels)
            self.layers = w.blocks([Layer(2**number) for number in range(layers)])
            self.head = w.conv1d(channels, 31, 1)

        def run(self, x: Any) -> Any:
            hidden = w.transpose(self.words(x), 0, 2, 1)
            total = 0.0
            for layer in self.layers:
                hidden, made = layer(hidden)
                total = made + total
            return w.transpose(self.head(w.unary("relu", total)), 0, 2, 1)

    return Net()


_tcn.add("3 layers", lambda w: _build_wavenet(w, 16, 3), tokens(3, 14, 31), per_token)
_tcn.add("4 layers", lambda w: _build_wavenet(w, 24, 4), tokens(2, 20, 31), per_token)


_gnn = Family("graph net")


def _build_gnn(w: Words, dim: int, layers: int, nodes: int, edges: int) -> Any:
    random = np.random.RandomState(8)
    ends = random.randint(0, nodes, (2, edges)).astype(np.int32)

    class Layer(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.message = w.linear(2 * dim, dim)
            self.update = w.linear(2 * dim, dim)
            self.norm = w.layer_norm(dim)

        def run(self, x: Any) -> Any:
            sources, targets = w.tensor(ends[0]), w.tensor(ends[1])
            both = w.cat([w.take(x, sources, 0), w.take(x, targets, 0)], 1)
            gathered = w.index_add(nodes, targets, w.unary("relu", self.message(both)))
            return self.norm(x + self.update(w.cat([x, gathered], 1)))

    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.stem = w.linear(6, dim)
            self.layers = w.blocks([Layer() for _ in range(layers)])
            self.head = w.linear(dim, 4)

        def run(self, x: Any) -> Any:
            hidden = self.stem(x)
            for layer in self.layers:
                hidden = layer(hidden)
            return self.head(hidden)

    return Net()


def _nodes(number: int) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        random = random_of(seed)
        x = random.randn(number, 6).astype(np.float32)
        return {"x": x, "labels": random.randint(0, 4, number).astype(np.int32)}

    return make


_gnn.add("2 layers", lambda w: _build_gnn(w, 16, 2, 20, 60), _nodes(20), per_sample)
_gnn.add("3 layers", lambda w: _build_gnn(w, 24, 3, 40, 150), _nodes(40), per_sample)


_t5 = Family("T5")


def _build_t5(w: Words, dim: int, layers: int, length: int) -> Any:
    bias = np.random.RandomState(2).randn(1, 4, length, length).astype(np.float32)

    class Layer(w.Block):
        def __init__(self, *, is_decoder: bool) -> None:
            super().__init__()
            self.norm1 = rms_norm(w, dim)
            self.attention = attention(w, dim, 4)
            self.is_decoder = is_decoder
            if is_decoder:
                self.norm2 = rms_norm(w, dim)
                self.cross = attention(w, dim, 4)
            self.norm3 = rms_norm(w, dim)
            self.wi = w.linear(dim, 3 * dim, bias=False)
            self.wo = w.linear(3 * dim, dim, bias=False)

        def run(self, x: Any, memory: Any, mask: Any) -> Any:
            given = self.norm1(x)
            x = x + self.attention(given, given, mask)
            if self.is_decoder:
                x = x + self.cross(self.norm2(x), memory)
            return x + self.wo(w.unary("relu", self.wi(self.norm3(x))))

    class T5(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.shared = w.embedding(43, dim)
            self.relative = w.parameter(bias, "relative")
            self.encoder = w.blocks([Layer(is_decoder=False) for _ in range(layers)])
            self.decoder = w.blocks([Layer(is_decoder=True) for _ in range(layers)])
            self.norm = rms_norm(w, dim)
            self.head = w.linear(dim, 43, bias=False)

        def run(self, x: Any) -> Any:
            memory = self.shared(x)
            for layer in self.encoder:
                memory = layer(memory, None, self.relative)
            hidden = self.shared(x)
            for layer in self.decoder:
                hidden = layer(hidden, memory, self.relative + causal(w, length))
            return self.head(self.norm(hidden))

    return T5()


_t5.add("1 layer", lambda w: _build_t5(w, 24, 1, 9), tokens(3, 9, 43), per_token)
_t5.add("2 layers", lambda w: _build_t5(w, 32, 2, 10), tokens(2, 10, 43), per_token)


_gan = Family("DCGAN")


def _build_gan(w: Words, width: int) -> Any:
    class Generator(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.stem = w.linear(10, 4 * width * 16)
            self.bn1 = w.batch_norm2d(4 * width)
            self.up1 = w.conv2d_transpose(4 * width, 2 * width, 4, 2, 1)
            self.bn2 = w.batch_norm2d(2 * width)
            self.up2 = w.conv2d_transpose(2 * width, 3, 4, 2, 1)
            self.relu = w.activation("relu")
            self.tanh = w.activation("tanh")

        def run(self, z: Any) -> Any:
            x = self.relu(self.bn1(self.stem(z).reshape(-1, 4 * width, 4, 4)))
            return self.tanh(self.up2(self.relu(self.bn2(self.up1(x)))))

    class Critic(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = w.conv2d(3, width, 4, stride=2, padding=1)
            self.conv2 = w.conv2d(width, 2 * width, 4, stride=2, padding=1)
            self.bn = w.batch_norm2d(2 * width)
            self.act = w.activation("leaky_relu")
            self.head = w.linear(2 * width * 16, 1)

        def run(self, x: Any) -> Any:
            x = self.act(self.bn(self.conv2(self.act(self.conv1(x)))))
            return self.head(x.reshape(x.shape[0], -1))

    class Gan(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.generator = Generator()
            self.critic = Critic()

        def run(self, x: Any) -> Any:
            return self.critic(self.generator(x))

    return Gan()


def _codes(batch: int) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        return {"x": random_of(seed).randn(batch, 10).astype(np.float32), "labels": np.ones((batch, 1), np.float32)}

    return make


def _is_real(w: Words, logits: Any, labels: Any) -> Any:
    return w.binary_cross_entropy(logits, labels)


_gan.add("4", lambda w: _build_gan(w, 4), _codes(4), _is_real)
_gan.add("8 Adam", lambda w: _build_gan(w, 8), _codes(6), _is_real, "Adam")


_ssm = Family("state space")


def _build_ssm(w: Words, dim: int, states: int, layers: int, length: int) -> Any:
    class Layer(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm = rms_norm(w, dim)
            self.inside = w.linear(dim, 2 * dim)
            self.step = w.linear(dim, dim)
            self.b = w.linear(dim, states)
            self.c = w.linear(dim, states)
            self.log_rate = w.parameter(np.log(np.tile(np.arange(1.0, states + 1), (dim, 1))), "log_rate")
            self.out = w.linear(dim, dim)

        def run(self, x: Any) -> Any:
            both = self.inside(self.norm(x))
            given, gate = both[:, :, :dim], both[:, :, dim:]
            given = w.unary("silu", given)
            step = w.unary("softplus", self.step(given))
            rate = w.unary("exp", self.log_rate) * -1.0
            b, c = self.b(given), self.c(given)
            state, outputs = 0.0, []
            for t in range(length):
                width = step[:, t].reshape(-1, dim, 1)
                kept = w.unary("exp", width * rate)
                new = width * b[:, t].reshape(-1, 1, states) * given[:, t].reshape(-1, dim, 1)
                state = new + kept * state
                outputs.append(w.sum(state * c[:, t].reshape(-1, 1, states), -1))
            return x + self.out(w.stack(outputs, 1) * w.unary("silu", gate))

    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words = w.embedding(37, dim)
            self.layers = w.blocks([Layer() for _ in range(layers)])
            self.norm = rms_norm(w, dim)
            self.head = w.linear(dim, 37)

        def run(self, x: Any) -> Any:
            hidden = self.words(x)
            for layer in self.layers:
                hidden = layer(hidden)
            return self.head(self.norm(hidden))

    return Net()


_ssm.add("1 layer", lambda w: _build_ssm(w, 16, 4, 1, 7), tokens(3, 7, 37), per_token)
_ssm.add("2 layers", lambda w: _build_ssm(w, 20, 3, 2, 8), tokens(2, 8, 37), per_token)


_clip = Family("CLIP")


def _build_clip(w: Words, dim: int, size: int, length: int) -> Any:
    class Clip(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = w.conv2d(3, dim, 3, stride=2, padding=1)
            self.conv2 = w.conv2d(dim, dim, 3, stride=2, padding=1)
            self.act = w.activation("gelu")
            self.image = w.linear(dim, dim, bias=False)
            self.words = w.embedding(41, dim)
            self.norm = w.layer_norm(dim)
            self.attention = attention(w, dim, 2)
            self.text = w.linear(dim, dim, bias=False)
            self.log_scale = w.parameter(np.full((1,), 2.0), "log_scale")

        def run(self, x: Any, tokens: Any) -> Any:
            image = w.mean(self.act(self.conv2(self.act(self.conv1(x)))), (2, 3))
            image = w.l2_normalize(self.image(image))
            hidden = self.norm(self.words(tokens))
            text = w.l2_normalize(self.text(w.mean(hidden + self.attention(hidden, hidden), 1)))
            return w.matmul(image, w.transpose(text, 1, 0)) * w.unary("exp", self.log_scale)

    del size, length
    return Clip()


def _captioned(batch: int, size: int, length: int) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        random = random_of(seed)
        return {
            "x": random.randn(batch, 3, size, size).astype(np.float32),
            "tokens": random.randint(0, 41, (batch, length)).astype(np.int32),
            "labels": np.arange(batch, dtype=np.int32),
        }

    return make


def _contrastive(w: Words, logits: Any, labels: Any) -> Any:
    return (w.cross_entropy(logits, labels) + w.cross_entropy(w.transpose(logits, 1, 0), labels)) * 0.5


_clip.add("16", lambda w: _build_clip(w, 16, 12, 7), _captioned(5, 12, 7), _contrastive)
_clip.add("24", lambda w: _build_clip(w, 24, 16, 9), _captioned(8, 16, 9), _contrastive)


_mobile = Family("MobileNet")


def _build_mobile(w: Words, width: int) -> Any:
    class Inverted(w.Block):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            inner = 3 * before
            self.expand = w.conv2d(before, inner, 1, bias=False)
            self.bn1 = w.batch_norm2d(inner)
            self.depthwise = w.conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner, bias=False)
            self.bn2 = w.batch_norm2d(inner)
            self.squeeze = w.linear(inner, before)
            self.excite = w.linear(before, inner)
            self.project = w.conv2d(inner, after, 1, bias=False)
            self.bn3 = w.batch_norm2d(after)
            self.act = w.activation("hardswish")
            self.has_residual = stride == 1 and before == after

        def run(self, x: Any) -> Any:
            y = self.act(self.bn2(self.depthwise(self.act(self.bn1(self.expand(x))))))
            gate = w.unary("sigmoid", self.excite(w.unary("relu", self.squeeze(w.mean(y, (2, 3))))))
            y = self.bn3(self.project(y * gate.reshape(*gate.shape, 1, 1)))
            return x + y if self.has_residual else y

    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.stem = w.conv2d(3, width, 3, stride=2, padding=1, bias=False)
            self.bn = w.batch_norm2d(width)
            self.act = w.activation("relu6")
            self.blocks = w.sequential(Inverted(width, width, 1), Inverted(width, 2 * width, 2))
            self.head = w.linear(2 * width, 6)

        def run(self, x: Any) -> Any:
            return self.head(w.mean(self.blocks(self.act(self.bn(self.stem(x)))), (2, 3)))

    return Net()


_mobile.add("8", lambda w: _build_mobile(w, 8), images(4, 3, 20, 6), per_sample)
_mobile.add("12", lambda w: _build_mobile(w, 12), images(6, 3, 16, 6), per_sample)


_dlrm = Family("recommender")


def _build_dlrm(w: Words, dim: int, tables: int) -> Any:
    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.tables = w.blocks([w.embedding(19, dim) for _ in range(tables)])
            self.bottom1 = w.linear(7, 2 * dim)
            self.bottom2 = w.linear(2 * dim, dim)
            self.top1 = w.linear((tables + 1) ** 2 + dim, 16)
            self.top2 = w.linear(16, 1)

        def run(self, x: Any, categories: Any) -> Any:
            dense = w.unary("relu", self.bottom2(w.unary("relu", self.bottom1(x))))
            parts = [dense, *[table(categories[:, number]) for number, table in enumerate(self.tables)]]
            stacked = w.stack(parts, 1)
            products = w.matmul(stacked, w.transpose(stacked, 0, 2, 1)).reshape(x.shape[0], -1)
            return self.top2(w.unary("relu", self.top1(w.cat([dense, products], 1))))

    return Net()


def _clicks(batch: int, tables: int) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        random = random_of(seed)
        return {
            "x": random.rand(batch, 7).astype(np.float32),
            "categories": random.randint(0, 19, (batch, tables)).astype(np.int32),
            "labels": random.randint(0, 2, (batch, 1)).astype(np.float32),
        }

    return make


_dlrm.add("3 tables", lambda w: _build_dlrm(w, 8, 3), _clicks(12, 3), _is_real)
_dlrm.add("5 tables", lambda w: _build_dlrm(w, 12, 5), _clicks(24, 5), _is_real)

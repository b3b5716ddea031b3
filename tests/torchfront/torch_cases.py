"""Everyday operators of torch, as functions of a quantized layer's result and as small modules."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A module and what it is called with.

    Attributes:
        name: For the test's name.
        make: Returns the module.
        example: Returns the arguments.
    """

    name: str
    make: Callable[[], nn.Module]
    example: Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Group:
    """Functions of one layer's result.

    Attributes:
        name: For the test's name.
        layer: Returns the layer.
        functions: By name.
        example: Returns the arguments of the layer.
    """

    name: str
    layer: Callable[[], nn.Module]
    functions: dict[str, Function]
    example: Callable[[], tuple[Any, ...]]


def _initialized(module: nn.Module, example: tuple[Any, ...]) -> nn.Module:
    with torch.no_grad():
        module(*example)
    return module.eval()


def _vectors() -> tuple[Tensor, ...]:
    return (torch.randn(2, 6, 8),)


def _images() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 6, 6),)


def _assigned(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, 1:3, :4] = y[:, 2:4, 4:8] * 2
    y[:, 0] = 0.5
    return y


def _put(y: Tensor) -> Tensor:
    return y.index_put((torch.tensor([0, 1]), torch.tensor([2, 3])), torch.ones(24))


def _attention(y: Tensor, **options: Any) -> Tensor:
    q, k, v = y.reshape(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    return functional.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).reshape(-1, 6, 8)


def _rotary(y: Tensor) -> Tensor:
    angle = torch.outer(torch.arange(6.0), 1.0 / 100 ** (torch.arange(0, 24, 2) / 24))
    even, odd = y[..., ::2], y[..., 1::2]
    return torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1).flatten(-2)


def _windows(y: Tensor) -> Tensor:
    y = torch.roll(y.permute(0, 2, 3, 1), (-1, -1), (1, 2))
    n, h, w, c = y.shape
    parts = y.view(n, h // 3, 3, w // 3, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 9, c)
    parts = parts + parts.mean(1, keepdim=True)
    back = parts.view(n, h // 3, w // 3, 3, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
    return back.permute(0, 3, 1, 2)


def _grid(y: Tensor, mode: str = "bilinear", padding: str = "zeros", *, corners: bool = False) -> Tensor:
    theta = torch.tensor([[[0.8, 0.1, 0.1], [-0.1, 0.9, 0.0]]]).expand(y.shape[0], 2, 3)
    grid = functional.affine_grid(theta, [y.shape[0], 8, 5, 7], align_corners=corners)
    return functional.grid_sample(y, grid, mode, padding, align_corners=corners)


def _anchors(y: Tensor) -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(6.0), torch.arange(6.0), indexing="ij")
    grid = torch.stack([columns, rows], -1).reshape(1, 36, 2)
    boxes = y.flatten(2).transpose(1, 2)
    centers = (boxes[..., :2] + grid) * 8.0
    sizes = boxes[..., 2:4].clamp(max=4.0).exp() * 8.0
    return torch.cat([centers - sizes / 2, centers + sizes / 2, boxes[..., 4:].sigmoid()], -1).transpose(1, 2)[
        ..., None
    ]


def _distribution(y: Tensor) -> Tensor:
    weights = y.flatten(2).view(-1, 2, 4, 36).transpose(1, 2).softmax(1)
    return functional.conv2d(weights, torch.arange(4.0).view(1, 4, 1, 1))


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.cell, self.head = nn.Linear(8, 8), kind(8, 5, batch_first=True, **options), nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(self.body(x))[0])


def _recurrent(name: str, kind: type[nn.RNNBase], **options: Any) -> Case:
    return Case(name, lambda: _initialized(_Recurrent(kind, **options), _vectors()), _vectors)


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class _Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class _Choice(nn.Module):
    """Control flow that torch.export accepts."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return torch.cond(y.sum() > 0, lambda z: self.up(z).relu(), lambda z: self.down(z) * 2, (y,))


class _Normed(nn.Module):
    def __init__(self, norm: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.body, self.head = norm(nn.Conv2d(3, 8, 3)), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


class _Standardized(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.flatten(1)
        weight = functional.batch_norm(flat[None], None, None, training=True).view_as(self.weight)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class _Embedded(nn.Module):
    """Tied embeddings, positions from arange, and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(20, 8), nn.Embedding(6, 8)
        self.mix, self.norm = nn.Linear(8, 24), nn.LayerNorm(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)).bool())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(-2, -1) / 8**0.5).masked_fill(~self.mask, float("-inf"))
        return self.head(x + scores.softmax(-1) @ v)


def _pick(y: Tensor) -> Tensor:
    scores, order = y.mean(-1).topk(3)
    return y.gather(1, order[..., None].expand(-1, -1, y.shape[-1])) * scores[..., None]


_TOKENS: dict[str, Function] = {
    "unbind": lambda y: sum(y.reshape(-1, 6, 3, 8).permute(2, 0, 1, 3).unbind(0)),
    "split": lambda y: sum(y.split(8, -1)),
    "split_sizes": lambda y: y.split([4, 12, 8], -1)[1],
    "chunk": lambda y: sum(y.chunk(3, -1)),
    "arange": lambda y: y[..., :8] + torch.arange(6.0)[None, :, None],
    "new_ones": lambda y: y[..., :8] * y.new_ones(6, 8),
    "zeros_full_eye": lambda y: y[..., :8] @ torch.eye(8) + torch.zeros(6, 8) + torch.full((8,), 0.5),
    "linspace": lambda y: y * torch.linspace(0, 1, 24),
    "index_list": lambda y: y[:, [0, 2, 4, 1, 3, 5], :8],
    "index_two": lambda y: y[:, [0, 2], [1, 3]],
    "index_last": lambda y: y[:, -1],
    "index_select": lambda y: y.index_select(1, torch.tensor([4, 0, 2])),
    "index_assign": _assigned,
    "index_put": _put,
    "index_add": lambda y: y.index_add(1, torch.tensor([0, 4]), torch.ones(1, 2, 24).expand(y.shape[0], 2, 24)),
    "mask_select": lambda y: torch.where(y > 0, y, y * 0.1),
    "roll": lambda y: y.roll(1, 1)[..., :8],
    "flip": lambda y: y.flip(1),
    "einsum": lambda y: torch.einsum("bnc,bmc->bnm", y[..., :8], y[..., 8:16]) @ y[..., 16:],
    "mT": lambda y: (y[..., :8] @ y[..., 8:16].mT) @ y[..., 16:],
    "bmm": lambda y: torch.bmm(torch.bmm(y[..., :8], y[..., 8:16].transpose(1, 2)), y[..., 16:]),
    "baddbmm": lambda y: torch.baddbmm(y[..., :6], y[..., :8], y[..., 8:16].transpose(1, 2), alpha=0.5),
    "matvec": lambda y: (y @ torch.ones(24))[..., None],
    "normalize": lambda y: functional.normalize(y[..., :8], dim=-1),
    "cosine": lambda y: functional.cosine_similarity(y[:, :, None], y[:, None], dim=-1),
    "rms_norm": lambda y: functional.rms_norm(y, (24,))[..., :8],
    "cumsum": lambda y: y.cumsum(1)[..., :8],
    "amax": lambda y: y.amax(1, keepdim=True) + y.amin(1, keepdim=True),
    "max_dim": lambda y: y.max(1).values + y.min(1).values,
    "argmax_gather": lambda y: y.gather(1, y.argmax(1, keepdim=True)),
    "sort": lambda y: y.sort(-1).values,
    "topk": lambda y: y.topk(8, -1).values,
    "topk_gather": _pick,
    "scatter": lambda y: y.new_zeros(y.shape[0], 6, 30).scatter(2, torch.arange(24).expand(y.shape), y),
    "scatter_add": lambda y: y.new_zeros(y.shape[0], 6, 9).scatter_add(2, (torch.arange(24) // 3).expand(y.shape), y),
    "masked_fill": lambda y: y.masked_fill(y > 1, 0.0),
    "one_hot": lambda y: functional.one_hot(y[..., :6].argmax(-1), 6).float() @ y,
    "expand_as": lambda y: y[:, :1].expand_as(y),
    "repeat": lambda y: y.repeat(1, 2, 1)[:, :6],
    "repeat_interleave": lambda y: y.repeat_interleave(2, 1),
    "tile_stack": lambda y: torch.stack([y, y.tile(1, 1, 1)], 1).sum(1),
    "std_var": lambda y: (y - y.mean(-1, keepdim=True)) / y.std(-1, keepdim=True) + y.var(1, keepdim=True),
    "norm": lambda y: y / y.norm(dim=-1, keepdim=True) + torch.linalg.vector_norm(y, 1, -1, keepdim=True),
    "logsumexp": lambda y: y - y.logsumexp(-1, keepdim=True),
    "addcmul": lambda y: torch.addcmul(y, y, y, value=0.5) + torch.addcdiv(y, y, y.abs() + 1),
    "lerp_clamp": lambda y: torch.lerp(y, y.clamp(-0.5, 0.5), 0.3),
    "triu_tril": lambda y: y[..., :6].triu() + y[..., :6].tril(-1),
    "sin_cos": lambda y: y.sin() + y.cos() + y.tan() + y.atan(),
    "powers": lambda y: y.abs().pow(1.5) + y.square() + y.abs().add(1).rsqrt() + (y.abs() + 1).log2(),
    "exponentials": lambda y: y.exp() + y.expm1() + y.abs().log1p() + y.sinh(),
    "rounding": lambda y: y + y.floor() + y.round() + y.trunc() + y.frac(),
    "remainders": lambda y: y.remainder(0.7) + y.fmod(0.3) + y.floor_divide(0.4),
    "compare": lambda y: y * ((y > 0) & (y < 1) | (y.abs() >= 2)).float(),
    "rotary": _rotary,
    "attention": _attention,
    "attention_causal": lambda y: _attention(y, is_causal=True),
    "attention_mask": lambda y: _attention(y, attn_mask=torch.ones(6, 6).tril().bool()),
    "attention_3d": lambda y: functional.scaled_dot_product_attention(y[..., :8], y[..., 8:16], y[..., 16:]),
    "attention_scale": lambda y: _attention(y, attn_mask=torch.linspace(0, 1, 36).view(6, 6), scale=0.3),
    "unfold_axis": lambda y: y.unfold(1, 3, 1).mean(-1),
    "diagonal": lambda y: y[..., :6].diagonal(dim1=1, dim2=2),
    "swap_move": lambda y: y.movedim(1, 2).swapaxes(1, 2).contiguous().view(-1, 24),
    "unflatten": lambda y: y.unflatten(-1, (3, 8)).flatten(1, 2),
    "activations": lambda y: functional.gelu(y, approximate="tanh") + functional.elu(y) + functional.selu(y),
    "activations_2": lambda y: functional.celu(y, 0.5) + functional.softplus(y, 2.0) + functional.mish(y),
    "activations_3": lambda y: functional.hardtanh(y) + functional.relu6(y) + functional.logsigmoid(y),
    "activations_4": lambda y: functional.softsign(y) + functional.tanhshrink(y) + functional.hardshrink(y),
    "short_time_fourier": lambda y: torch.stft(
        y.flatten(1), 16, 8, window=torch.hann_window(16), return_complex=True
    ).abs(),
    "fourier": lambda y: torch.fft.irfft(torch.fft.rfft(y) * 0.5, n=24) + torch.fft.fft(y, dim=1).real,
    "shift_bits": lambda y: y * (y.argmax(-1, keepdim=True) << 1).float(),
    "addmm_matrix": lambda y: (
        torch.addmm(torch.linspace(-1, 1, 48).view(6, 8), y[0], torch.full((24, 8), 0.1))[None] + 0 * y[..., :8]
    ),
    "glu": lambda y: functional.glu(y, -1) + functional.threshold(y[..., :12], 0.1, 0.0),
}

_PIXELS: dict[str, Function] = {
    "bicubic": lambda y: functional.interpolate(y, scale_factor=2, mode="bicubic"),
    "bicubic_size": lambda y: functional.interpolate(y, size=(9, 5), mode="bicubic", align_corners=True),
    "antialias": lambda y: functional.interpolate(y, size=(3, 4), mode="bilinear", antialias=True),
    "bicubic_antialias": lambda y: functional.interpolate(y, size=(4, 3), mode="bicubic", antialias=True),
    "bilinear": lambda y: functional.interpolate(y, scale_factor=1.5, mode="bilinear"),
    "bilinear_corners": lambda y: functional.interpolate(y, size=11, mode="bilinear", align_corners=True),
    "nearest": lambda y: functional.interpolate(y, size=(9, 15)),
    "nearest_exact": lambda y: functional.interpolate(y, size=(9, 4), mode="nearest-exact"),
    "pad_reflect": lambda y: functional.pad(y, (2, 1, 1, 2), mode="reflect"),
    "pad_replicate": lambda y: functional.pad(y, (2, 1, 1, 2), mode="replicate"),
    "pad_circular": lambda y: functional.pad(y, (2, 1, 1, 2), mode="circular"),
    "pad_constant": lambda y: functional.pad(y, (-1, 1, 1, 2), value=0.3),
    "grid_sample": _grid,
    "grid_sample_border": lambda y: _grid(y, padding="border", corners=True),
    "grid_sample_nearest": lambda y: _grid(y, "nearest", "reflection"),
    "windows": _windows,
    "anchors": _anchors,
    "distribution": _distribution,
    "adaptive_avg": lambda y: functional.adaptive_avg_pool2d(y, (3, 2)),
    "adaptive_avg_uneven": lambda y: functional.adaptive_avg_pool2d(y, 4),
    "adaptive_max": lambda y: functional.adaptive_max_pool2d(y, (3, 2)),
    "max_pool": lambda y: functional.max_pool2d(y, 3, 2, 1, ceil_mode=True),
    "avg_pool": lambda y: functional.avg_pool2d(y, 3, 2, 1, count_include_pad=False),
    "lp_pool": lambda y: functional.lp_pool2d(y, 2, 2),
    "unfold": lambda y: functional.unfold(y, 3, padding=1)[..., None],
    "fold": lambda y: functional.fold(functional.unfold(y, 2, stride=2), (6, 6), 2, stride=2),
    "pixel_shuffle": lambda y: functional.pixel_shuffle(y, 2),
    "pixel_unshuffle": lambda y: functional.pixel_unshuffle(y, 2),
    "channel_shuffle": lambda y: functional.channel_shuffle(y, 2),
    "instance_norm": functional.instance_norm,
    "group_norm": lambda y: functional.group_norm(y, 4),
    "local_response": lambda y: functional.local_response_norm(y, 3),
    "space_mean": lambda y: y * y.mean((2, 3), keepdim=True).sigmoid(),
}


def _parts(functions: dict[str, Function], size: int) -> list[dict[str, Function]]:
    names = list(functions)
    return [{name: functions[name] for name in names[start : start + size]} for start in range(0, len(names), size)]


GROUPS = (
    *(
        Group(f"tokens_{number}", lambda: nn.Linear(8, 24), part, _vectors)
        for number, part in enumerate(_parts(_TOKENS, 24))
    ),
    *(
        Group(f"pixels_{number}", lambda: nn.Conv2d(3, 8, 3, padding=1), part, _images)
        for number, part in enumerate(_parts(_PIXELS, 18))
    ),
)

CASES: tuple[Case, ...] = (
    _recurrent("lstm", nn.LSTM),
    _recurrent("lstm_two", nn.LSTM, num_layers=2, bidirectional=True),
    _recurrent("gru", nn.GRU),
    _recurrent("rnn", nn.RNN),
    Case("encoder", lambda: _Encoder().eval(), _vectors),
    Case("multihead", lambda: _Attend().eval(), _vectors),
    Case("cond", lambda: _Choice().eval(), _vectors),
    Case("weight_norm", lambda: _Normed(nn.utils.parametrizations.weight_norm).eval(), _images),
    Case("spectral_norm", lambda: _Normed(nn.utils.parametrizations.spectral_norm).eval(), _images),
    Case("standardized", lambda: nn.Sequential(_Standardized(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)), _images),
    Case("embedded", lambda: _Embedded().eval(), lambda: (torch.randint(20, (2, 6)),)),
)

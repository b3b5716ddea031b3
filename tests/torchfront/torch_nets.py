"""Small torch models for the tests of the torch front end."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups, bias=groups > 1)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class SmallNet(nn.Module):
    """Convolutions with batch normalization, one of them depthwise, Add, Concat, pooling and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = Block(3, 8)
        self.deep = Block(8, 8, groups=8)
        self.head = nn.Linear(16, 5)
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                nn.init.uniform_(part.weight, 0.5, 1.5)
                nn.init.normal_(part.bias, std=0.2)
                nn.init.normal_(part.running_mean, std=0.2)
                nn.init.uniform_(part.running_var, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        a = functional.relu(self.stem(x))
        b = functional.silu(self.deep(a)) + a
        c = torch.cat([a, functional.max_pool2d(b, 3, 1, 1)], 1)
        return self.head(functional.adaptive_avg_pool2d(c, 1).flatten(1))


class Detector(nn.Module):
    """A float model that contains a quantized one."""

    def __init__(self, base_model: nn.Module) -> None:
        super().__init__()
        self.base_model = base_model
        self.offset = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.base_model(x / 2)
        return scores.sigmoid() + self.offset, x.mean((2, 3))


def batches(count: int = 4, size: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(size, 3, 12, 12, generator=generator) for _ in range(count)]

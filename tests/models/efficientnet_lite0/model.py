"""EfficientNet-Lite0: EfficientNet-B0 without squeeze-and-excitation, with ReLU6 (arXiv 1905.11946)."""

from pathlib import Path

import torch
from torch import Tensor, nn

STAGES = (
    # repeats, kernel, stride, expansion, channels in, channels out
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow's "same" for sizes that the stride divides: the odd pixel at the end."""

    def forward(self, x: Tensor) -> Tensor:
        total = self.kernel_size[0] - self.stride[0]
        before, after = total // 2, total - total // 2
        filtered: Tensor = super().forward(nn.functional.pad(x, (before, after, before, after)))
        return filtered


class Block(nn.Module):
    """Widen, filter each channel, narrow; added to the input where the shape stays."""

    def __init__(self, kernel: int, stride: int, expansion: int, inputs: int, outputs: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.skips = stride == 1 and inputs == outputs
        if expansion > 1:
            self.expand_conv = nn.Conv2d(inputs, inner, 1, bias=False)
            self.bn0 = norm(inner)
        self.depthwise_conv = SameConv(inner, inner, kernel, stride, groups=inner, bias=False)
        self.bn1 = norm(inner)
        self.project_conv = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn2 = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        inner = x
        if hasattr(self, "expand_conv"):
            inner = nn.functional.relu6(self.bn0(self.expand_conv(inner)))
        inner = nn.functional.relu6(self.bn1(self.depthwise_conv(inner)))
        inner = self.bn2(self.project_conv(inner))
        result: Tensor = x + inner if self.skips else inner
        return result


class EfficientNetLite0(nn.Module):
    """`[n, 3, 224, 224]`, pixels in about [-1, 1], to `[n, 1000]` logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = SameConv(3, 32, 3, 2, bias=False)
        self.bn0 = norm(32)
        self.blocks = nn.ModuleList(
            Block(kernel, stride if i == 0 else 1, expansion, inputs if i == 0 else outputs, outputs)
            for repeats, kernel, stride, expansion, inputs, outputs in STAGES
            for i in range(repeats)
        )
        self.conv_head = nn.Conv2d(320, 1280, 1, bias=False)
        self.bn1 = norm(1280)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(1280, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = nn.functional.relu6(self.bn0(self.conv_stem(image)))
        for block in self.blocks:
            x = block(x)
        x = nn.functional.relu6(self.bn1(self.conv_head(x)))
        logits: Tensor = self.fc(self.dropout(x.mean(dim=(2, 3))))
        return logits


def load() -> EfficientNetLite0:
    """The network with its published weights, whose names begin with `_` in every part."""
    weights = torch.load(Path(__file__).with_name("efficientnet-lite0.pth"), weights_only=True)
    model = EfficientNetLite0()
    model.load_state_dict({name.removeprefix("_").replace("._", "."): value for name, value in weights.items()})
    return model

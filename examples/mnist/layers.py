"""The block that the network repeats."""

from torch import Tensor, nn


class ConvBlock(nn.Module):
    """3x3 convolution, batch normalisation, ReLU: `[n, inputs, h, w]` to `[n, outputs, h, w]`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.norm(self.conv(x)))

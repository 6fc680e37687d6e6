"""A small convolutional network for 28 x 28 digits."""

from pathlib import Path

import torch
from layers import ConvBlock
from torch import Tensor, nn


class DigitNet(nn.Module):
    """`[n, 1, 28, 28]`, pixels in [0, 1], to `[n, 10]` logits."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = ConvBlock(1, 16)
        self.block2 = ConvBlock(16, 32)
        self.block3 = ConvBlock(32, 64)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(0.3)
        self.hidden = nn.Linear(64 * 7 * 7, 64)
        self.logits = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.pool(self.block1(image))
        x = self.pool(self.block2(x))
        x = self.block3(x)
        x = self.dropout(x.flatten(1))
        x = nn.functional.relu(self.hidden(x))
        logits: Tensor = self.logits(self.dropout(x))
        return logits


def load() -> DigitNet:
    """The network with the weights that `train.py` wrote."""
    model = DigitNet()
    model.load_state_dict(torch.load(Path(__file__).with_name("weights.pt"), weights_only=True))
    return model

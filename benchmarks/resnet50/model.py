"""ResNet-50 as transformers builds it, as a module from pixels to logits."""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification


class Logits(nn.Module):
    """`[n, 3, 224, 224]` to `[n, 1000]`: the logits alone, where transformers returns a named structure."""

    def __init__(self) -> None:
        super().__init__()
        config = ResNetConfig()  # ResNet-50's shape by default, except that it has two labels
        config.num_labels = 1000
        self.resnet = ResNetForImageClassification(config)

    def forward(self, pixel_values: Tensor) -> Tensor:
        logits: Tensor = self.resnet(pixel_values, return_dict=False)[0]
        return logits


def load() -> Logits:
    """The network with the weights that `make_weights.py` wrote."""
    model = Logits()
    model.load_state_dict(torch.load(Path(__file__).with_name("weights.pt"), weights_only=True))
    return model.eval()

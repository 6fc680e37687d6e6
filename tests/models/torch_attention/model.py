"""A transformer's encoder over tokens, with a mask: two inputs, two outputs."""

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """Token ids and their mask, each `[batch, sequence]`, to states `[batch, sequence, 32]` and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        weights = mask.unsqueeze(-1).to(torch.float32)
        states = self.layers(self.table(ids) * weights)
        return {"states": states, "mean": (states * weights).mean(dim=1)}


def load() -> nn.Module:
    torch.manual_seed(4)
    return Encoder()

"""The speaker encoder of Resemblyzer (generalised end-to-end loss, arXiv 1710.10467)."""

from pathlib import Path

import torch
from torch import Tensor, nn


class SpeakerEncoder(nn.Module):
    """Mel energies `[batch, frames, 40]` to `[batch, 256]` vectors of length 1, none negative."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, num_layers=3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(mels)
        raw = nn.functional.relu(self.linear(hidden[-1]))
        embedding: Tensor = raw / torch.linalg.vector_norm(raw, dim=1, keepdim=True)
        return embedding


def load() -> SpeakerEncoder:
    """The encoder with its published weights; two more in the file are of the training loss."""
    checkpoint = torch.load(Path(__file__).with_name("pretrained.pt"), map_location="cpu", weights_only=True)
    weights = checkpoint["model_state"]
    model = SpeakerEncoder()
    model.load_state_dict({name: value for name, value in weights.items() if not name.startswith("similarity_")})
    return model

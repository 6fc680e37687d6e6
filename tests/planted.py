"""Spec folders that tests convert: one with a planted fault, one tiny and sound."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor, nn

MNIST = Path(__file__).resolve().parent.parent / "examples" / "mnist"
GAIN = 1000.0

TINY_PARTS = '''\
"""The layers before the last one."""

from torch import nn


def features() -> nn.Sequential:
    """`[n, 1, 8, 8]` to `[n, 256]`."""
    return nn.Sequential(nn.Conv2d(1, 4, kernel_size=3, padding=1), nn.ReLU(), nn.Flatten())
'''

TINY_MODEL = '''\
"""A tiny network: `[n, 1, 8, 8]` to `[n, 4]` logits."""

from pathlib import Path

import torch
from parts import features
from torch import Tensor, nn


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = features()
        self.logits = nn.Linear(256, 4)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.logits(self.features(image))
        return logits


def load() -> Tiny:
    model = Tiny()
    model.load_state_dict(torch.load(Path(__file__).with_name("weights.pt"), weights_only=True))
    return model
'''

TINY_DATA = '''\
"""Noisy bars; the labels are the network's own, so its accuracy is 1."""

from pathlib import Path

import numpy as np

SAMPLES = Path(__file__).with_name("samples.npz")


def calibration():
    with np.load(SAMPLES) as samples:
        for image in samples["calibration"]:
            yield {"image": image[np.newaxis]}


def evaluation():
    with np.load(SAMPLES) as samples:
        for image, label in zip(samples["evaluation"], samples["labels"], strict=True):
            yield {"image": image[np.newaxis]}, int(label)


def correct(outputs, label):
    return float(outputs["logits"].argmax() == label)
'''


def write_planted(
    folder: Path, trained: Path, *, variants: Sequence[str] = ("int8-static",), require: Sequence[str] = ()
) -> Path:
    """The mnist example with one channel out of all proportion; returns the path of its spec.

    `trained` holds the `weights.pt` and `digits.csv.gz` that the example's `train.py` wrote. A channel leaves
    the second block `GAIN` times as large, and the third block's weights for it are `GAIN` times as small.
    ReLU, pooling and dropout (off) between the two pass a positive factor on, so the float network is the
    same. An int8 activation has one scale for all channels: the others fall below one step of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model.py", "layers.py", "data.py"):
        shutil.copy(MNIST / name, folder)
    shutil.copy(trained / "digits.csv.gz", folder)
    state: dict[str, Tensor] = torch.load(trained / "weights.pt", weights_only=True)
    # The factor enters at the norm's own affine step, which is after its division by the channel's deviation.
    channel = int(state["block2.norm.weight"].abs().argmax())
    state["block2.norm.weight"][channel] *= GAIN
    state["block2.norm.bias"][channel] *= GAIN
    state["block3.conv.weight"][:, channel] /= GAIN
    torch.save(state, folder / "weights.pt")

    spec = yaml.safe_load((MNIST / "spec.yaml").read_text(encoding="utf-8"))
    spec["source"]["files"] = ["weights.pt"]
    spec["data"]["files"] = ["digits.csv.gz"]
    spec["promote"]["register_as"] = "mnist-planted-onnx"
    spec |= {"name": "mnist-planted", "variants": [*variants], "require": [*require]}
    return _write_spec(folder, spec)


def write_tiny(folder: Path, *, variants: Sequence[str] = ("fp32", "int8-static"), require: Sequence[str] = ()) -> Path:
    """A sound network of 1,068 parameters with 64 calibration and 200 evaluation samples; returns its spec.

    Each image shows one of four bars in noise; the last layer finds the nearest bar in feature space.
    Needs no training; the same files on every call.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(17)
    conv = nn.Conv2d(1, 4, kernel_size=3, padding=1)
    features = nn.Sequential(conv, nn.ReLU(), nn.Flatten())
    bars = torch.zeros(4, 1, 8, 8)
    for i in range(4):
        bars[i, :, 2 * i : 2 * i + 2] = 1.0
    logits = nn.Linear(256, 4)
    with torch.no_grad():
        centres = features(bars)
        logits.weight.copy_(centres)
        # argmax of c·x - |c|²/2 is the centre c nearest to x.
        logits.bias.copy_(-centres.square().sum(dim=1) / 2)
        shown = bars[torch.arange(264) % 4]
        images = shown + 0.1 * torch.randn(shown.shape)
        labels = logits(features(images[64:])).argmax(dim=1)
    state = {f"features.0.{name}": value for name, value in conv.state_dict().items()}
    state |= {f"logits.{name}": value for name, value in logits.state_dict().items()}
    torch.save(state, folder / "weights.pt")
    arrays = {"calibration": images[:64].numpy(), "evaluation": images[64:].numpy(), "labels": labels.numpy()}
    np.savez(folder / "samples.npz", allow_pickle=False, **arrays)
    for name, text in {"parts.py": TINY_PARTS, "model.py": TINY_MODEL, "data.py": TINY_DATA}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return _write_spec(
        folder,
        {
            "version": 1,
            "name": "tiny",
            "source": {"framework": "torch", "loader": "model.py:load", "files": ["weights.pt"]},
            "inputs": {"image": {"dtype": "float32", "shape": ["batch", 1, 8, 8]}},
            "outputs": {"logits": {"dtype": "float32", "shape": ["batch", 4]}},
            "dims": {"batch": [1, 3]},
            "opset": 18,
            "data": {
                "calibration": "data.py:calibration",
                "evaluation": "data.py:evaluation",
                "files": ["samples.npz"],
                "samples": 64,
            },
            "metric": {"fn": "data.py:correct", "max_drop": 0.02, "min": 0.95},
            "variants": [*variants],
            "require": [*require],
            "promote": {"objective": "latency", "target": "cpu", "register_as": "tiny-onnx"},
        },
    )


def _write_spec(folder: Path, spec: Mapping[str, object]) -> Path:
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(dict(spec), sort_keys=False), encoding="utf-8")
    return path

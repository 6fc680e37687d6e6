"""Writes seeded weights for ResNet-50 to `$ONNXMILL_HOME/benchmarks/resnet50/weights.pt`.

No trained weights are to be had offline, and random ones as they come let activations shrink or grow from
layer to layer until any comparison passes or fails for no reason. So each convolution is drawn as He et al.
(2015) say, each batch normalisation measures real photos, and each block's last one starts small, so that the
shortcut carries most of the signal (Goyal et al., 2017, start it at zero): activations keep a natural range.
The speed of such a network is a trained one's; its predictions mean nothing.
"""

import tempfile
from pathlib import Path

import torch
from data import crops
from model import Logits
from torch import nn
from transformers.models.resnet.modeling_resnet import ResNetBottleNeckLayer

from onnxmill.tasks.spec import home


def initialise(model: Logits) -> None:
    """Draws every weight anew, then sets the statistics of each BatchNorm from 32 crops."""
    torch.manual_seed(17)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            nn.init.zeros_(module.bias)
    for norm in norms:
        nn.init.ones_(norm.weight)
        nn.init.zeros_(norm.bias)
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over all batches, not a moving one
    for module in model.modules():
        if isinstance(module, ResNetBottleNeckLayer):
            nn.init.constant_(module.get_parameter("layer.2.normalization.weight"), 0.2)
    model.train()
    with torch.inference_mode():
        for batch in torch.from_numpy(crops(32, seed=17)).reshape(2, 16, 3, 224, 224):
            model(batch)
    model.eval()


def main() -> None:
    weights = home() / "benchmarks" / "resnet50" / "weights.pt"
    if weights.exists():
        print(f"nothing to do: {weights} is there")
        return
    weights.parent.mkdir(parents=True, exist_ok=True)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums are added in an order that depends on the number of threads
    model = Logits()
    initialise(model)
    # torch.save puts the file's name into its bytes: the same name, in a folder of its own, then one rename.
    with tempfile.TemporaryDirectory(dir=weights.parent) as own:
        torch.save(model.state_dict(), Path(own, weights.name))
        Path(own, weights.name).replace(weights)
    print(f"wrote {weights}")


if __name__ == "__main__":
    main()

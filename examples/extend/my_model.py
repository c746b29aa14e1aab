"""A model of your own class, by name: files that it is saved in then load without `model=`, also on the command line.

Run it: python examples/extend/my_model.py
Then: pocketbayes --import examples/extend/my_model.py evaluate own.pocket
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import pocketbayes as pb


@pb.models.register("two-scales")
class TwoScales(nn.Module):
    """Two convolutions of different size, side by side; arguments must be numbers, strings or lists of them."""

    def __init__(self, classes: int = 10, width: int = 8) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(1, width, 5, padding=2)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one logit per class."""
        maps = torch.cat([self.fine(images), self.coarse(images)], 1).relu()
        return self.head(maps.amax((2, 3)))


def main() -> None:
    train, test = pb.data.load("digits", "train"), pb.data.load("digits", "test")
    model = pb.models.build("two-scales", width=16)  # `TwoScales(width=16)` has no name in its file
    net = pb.fit(pb.MeanFieldVI(beta=0.1), model, train, epochs=5, lr=1e-2, progress=False)
    print(pb.save(net, "own.pocket"), "bytes; accuracy", round(pb.evaluate(pb.load("own.pocket"), test)["accuracy"], 3))


if __name__ == "__main__":
    main()

"""Five networks in fewer bytes than one: train, code, ask only as many as an answer needs.

python examples/ensemble/five_in_one.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import pocketbayes as pb


def main(members: int = 5, epochs: int = 30) -> None:
    torch.set_num_threads(1)
    train, val, test = (pb.data.load("digits", split) for split in ("train", "val", "test"))
    model = pb.models.build("mlp", in_features=64, out_features=10, hidden=[64])
    net = pb.fit(pb.Ensemble(members=members), model, train, epochs=epochs, lr=3e-3, schedule="cosine", progress=False)

    one = 4 * sum(parameter.numel() for parameter in model.parameters())
    found = pb.compress(net, train, val, max_bytes=one, count=members, progress=False)
    pb.fit_stopping(found.net, val, max_rise=0.05)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "five.pocket"
        size = pb.save(found.net, path, precision="bfloat16")
        small = pb.load(path)

    measures = pb.evaluate(small, test, adaptive=True)
    print(f"one network in float32: {one} bytes; {members} networks, coded: {size} bytes")
    print(f"accuracy {measures['accuracy']:.3f}, NLL {measures['nll']:.3f}, {measures['passes']:.2f} passes per image")


if __name__ == "__main__":
    main()

"""Trains a weight-shared network on embedded digits and exports it in every mode: python make.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import pocketbayes as pb
from pocketbayes.export import Mode

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
train = pb.data.load("digits", "train")
model = pb.models.build("mlp", in_features=64, hidden=[100], out_features=10)
net = pb.fit(pb.WeightSharing(k=32), model, train, epochs=10)
print(f"{pb.save(net, folder / 'digits.pocket'):8,} bytes  digits.pocket")
for mode in get_args(Mode):
    print(f"{pb.export_onnx(net, folder / f'digits-{mode}.onnx', mode):8,} bytes  digits-{mode}.onnx")

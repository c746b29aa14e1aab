"""`pocketbayes corruptions`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from pocketbayes.base.errors import UserError
from pocketbayes.cli.options import DataDir, Json, Seed
from pocketbayes.cli.output import note, show_json
from pocketbayes.data.dataset import Pictures
from pocketbayes.data.folders import read_image
from pocketbayes.data.shift import CORRUPTIONS, SEVERITIES, corrupt
from pocketbayes.reporting.figures.corruptions import contact_sheet
from pocketbayes.reporting.figures.style import save

MOST_PIXELS = 224
"""Largest shorter side, to which larger images are scaled down: the parameters end there."""
MOST_ELONGATED = 8
"""Largest ratio of the sides, since the sheet shows an image 95 times."""


def corruptions(
    image: Annotated[
        Path | None, typer.Argument(metavar="[IMAGE]", help="An image file; by default an image of a data set.")
    ] = None,
    data: Annotated[str, typer.Option("--data", help="The data set to take a test image from.")] = "cifar10",
    index: Annotated[int, typer.Option("--index", min=0, help="Index of the test image.")] = 0,
    seed: Seed = 0,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option("--out", help="The figure to write: .png, .svg or .pdf.")] = Path(
        "corruptions.png"
    ),
    json: Json = False,
) -> None:
    """Draw the 19 corruptions of `evaluate --shift corruptions` at 5 severities for one image.

    Examples:
      pocketbayes corruptions photo.jpg
      pocketbayes corruptions --data mnist --index 7 --out mnist.pdf
    """
    picture = _from_data(data, index, data_dir) if image is None else _from_file(image)
    pictures = {name: [corrupt(picture, name, severity, seed) for severity in SEVERITIES] for name in CORRUPTIONS}
    save(contact_sheet(pictures, picture), out)
    if json:
        show_json({"sheet": str(out), "corruptions": list(CORRUPTIONS), "size": list(picture.shape[:2])})
    else:
        note(f"saved {out}")


def _from_file(path: Path) -> NDArray[np.uint8]:
    if not path.is_file():
        raise UserError(f"no file {path}")
    picture: Any = read_image(path)
    if min(picture.size) < 2 or max(picture.size) > MOST_ELONGATED * min(picture.size):
        raise UserError(
            f"{path}: {picture.width} x {picture.height} pixels: sides must be at least 2 pixels long and differ by a "
            f"factor of at most {MOST_ELONGATED}; crop the image"
        )
    picture.thumbnail(tuple(round(side * MOST_PIXELS / min(picture.size)) for side in picture.size))
    return np.asarray(picture, dtype=np.uint8)


def _from_data(name: str, index: int, data_dir: Path | None) -> NDArray[np.uint8]:
    from pocketbayes.recipes import check_data

    dataset = check_data(name).load("test", data_dir)
    if not isinstance(dataset, Pictures):
        raise UserError(f"data set {name!r} has no images as bytes")
    if index >= len(dataset):
        raise UserError(f"data set {name!r} has {len(dataset)} test images: there is no --index {index}")
    return np.ascontiguousarray(dataset.pixels([index])[0][0].permute(1, 2, 0).numpy())

"""The 19 corruptions of CIFAR-C and ImageNet-C (Hendrycks & Dietterich 2019) on batches of images.

Each of `FUNCTIONS` takes images (n, h, w, c) in [0, 1], a generator per image, and the severity's `parameters`; what it
returns is clipped to [0, 1] by the caller. All randomness of an image comes from its own generator, so an image is
corrupted the same way alone and in any batch.

The parameters are those published (`parameters.py`). Differences from the published generators:

- frost: the original blends in crops of six photographs; `frost.py` paints frost instead.
- glass blur moves all pixels at once where the original moves one after the other; the same thing at 32 pixels.
- spatter finds the outlines of drops by erosion where the original uses a Canny filter.
- values are rounded to whole numbers where the original cuts them off.
- gray images: noise is drawn for the one channel, and what has a colour (frost, spatter, saturate) acts by its luma.
  Saturation then does nothing to a gray image except to darken it a little at severities 4 and 5.
"""

from pocketbayes.data.corruptions.functions import FUNCTIONS
from pocketbayes.data.corruptions.parameters import parameters

__all__ = ["FUNCTIONS", "parameters"]

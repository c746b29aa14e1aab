"""The 19 corruptions of CIFAR-C and ImageNet-C (Hendrycks & Dietterich 2019) on batches of images.

Each of the `functions` takes images (n, h, w, c) in [0, 1], a generator per image, and the severity's `parameters`; the
caller clips the result to [0, 1]. Each image has its own generator, so its corruption is independent of the batch.

The parameters are those published (`severities.py`). Differences from the published generators:

- frost: the original blends in crops of six photographs; we paint frost instead.
- glass blur moves all pixels at once, the original one after the other; the result is the same at 32 pixels.
- spatter finds the outlines of drops by erosion, the original by a Canny filter.
- values are rounded, in the original truncated.
- gray images: noise is drawn for the single channel, and colours (frost, spatter, saturate) are replaced by their luma.
  Saturation then only darkens a gray image a little at severities 4 and 5.
"""

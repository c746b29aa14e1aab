"""Corruptions: parameters, seeds, shapes, hashes, and comparison with reference implementations."""

from __future__ import annotations

import colorsys
import hashlib
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from pocketbayes.base.errors import UserError
from pocketbayes.data import shift
from pocketbayes.data.corruptions import functions, imaging
from pocketbayes.data.corruptions.severities import parameters

# First 12 digits of SHA-256 over the five severities of `pattern(2, 32, 32, 3)`, seed 0. A change here is a change of
# everybody's results: never update one without saying so in the changelog. (JPEG's depends on libjpeg as well.)
HASHES = {
    "gaussian_noise": "20fec16fb9e0",
    "shot_noise": "7bdfb733fe9a",
    "impulse_noise": "37f13763c322",
    "defocus_blur": "e75c8c022553",
    "glass_blur": "ff87f03b948d",
    "motion_blur": "a9191f0da863",
    "zoom_blur": "225cc4c4a272",
    "snow": "efdbe9392a83",
    "frost": "2df751ed84c3",
    "fog": "7daa2bd560f6",
    "brightness": "557b5f20e228",
    "contrast": "3d9b7c4d3a45",
    "elastic_transform": "b411ba91aec4",
    "pixelate": "b4a53428db58",
    "jpeg_compression": "ad1b6bf03a23",
    "speckle_noise": "a92f9b266509",
    "gaussian_blur": "fb74fc218356",
    "spatter": "f025fa26e3fc",
    "saturate": "6ea58b67062b",
}
GRAY_HASHES = {
    "gaussian_noise": "993d3e47d73a",
    "shot_noise": "f7a9a8f9e83a",
    "impulse_noise": "9216c8a622e0",
    "defocus_blur": "237c8787478d",
    "glass_blur": "a2495ade2c31",
    "motion_blur": "6824da3eb1fd",
    "zoom_blur": "e3ac150b9dec",
    "snow": "cf3e04b2bfde",
    "frost": "9e1d3f3a94b5",
    "fog": "1d9fcb5af781",
    "brightness": "df13f3d06193",
    "contrast": "385006257961",
    "elastic_transform": "c712b3e3e0ee",
    "pixelate": "079a99574ea3",
    "jpeg_compression": "578feb25b097",
    "speckle_noise": "ffc5a195e3af",
    "gaussian_blur": "d273cc931b67",
    "spatter": "29ea42a279df",
    "saturate": "12ba1049e3b4",
}


def pattern(*shape: int) -> np.ndarray:
    """Return images with edges, flat areas and texture, computed with integers only."""
    n, h, w, c = np.indices(shape)
    waves = (h * (3 + n) * 256 // shape[1] + w * (2 + c) * 256 // shape[2]) % 256
    square = (abs(h - shape[1] // 2) < shape[1] // 4) & (abs(w - shape[2] // 2) < shape[2] // 4)
    return np.where(square, 60 + 50 * c + 20 * n, waves // 2 + (h * w) % 7).astype(np.uint8)


def digest(images: np.ndarray, name: str) -> str:
    five = [shift.corrupt(images, name, severity) for severity in shift.SEVERITIES]
    return hashlib.sha256(np.concatenate(five).tobytes()).hexdigest()[:12]


def distance(images: np.ndarray, name: str, severity: int) -> float:
    return float(np.abs(shift.corrupt(images, name, severity).astype(float) - images).mean())


def test_corruption_sets_are_complete():
    assert len(shift.CORRUPTIONS) == len(set(shift.CORRUPTIONS)) == 19
    assert set(shift.CORRUPTIONS) - set(shift.ORIGINAL_15) == {"speckle_noise", "gaussian_blur", "spatter", "saturate"}
    assert len(shift.ORIGINAL_15) == 15


@pytest.mark.parametrize("name", shift.CORRUPTIONS)
class TestEvery:
    def test_corruptions_are_unchanged_over_time(self, name):
        assert digest(pattern(2, 32, 32, 3), name) == HASHES[name]

    def test_corruptions_are_unchanged_over_time_in_gray(self, name):
        assert digest(pattern(1, 28, 28, 1), name) == GRAY_HASHES[name]

    @pytest.mark.parametrize(
        "shape", [(2, 28, 28, 1), (28, 28, 1), (28, 28), (2, 32, 32, 3), (32, 32, 3), (64, 64, 3), (30, 45, 3), (8, 8)]
    )
    def test_corruptions_keep_shape_and_type(self, name, shape):
        images = pattern(*{2: (1, *shape, 1), 3: (1, *shape), 4: shape}[len(shape)]).reshape(shape)
        before = images.copy()
        for severity in (1, 5):
            corrupted = shift.corrupt(images, name, severity)
            assert corrupted.shape == shape
            assert corrupted.dtype == np.uint8
        assert (images == before).all()

    def test_corruptions_take_large_images(self, name):
        image = pattern(1, 224, 224, 3)[0]
        corrupted = shift.corrupt(image, name, 3)
        assert corrupted.shape == image.shape
        assert (corrupted != image).mean() > 0.01

    def test_corruptions_take_black_and_white_images(self, name):
        flat = np.stack([np.full((32, 32, 3), value, np.uint8) for value in (0, 255)])
        with np.errstate(all="raise", under="ignore"):
            shift.corrupt(flat, name, 5)

    def test_corruptions_seed_each_image_separately(self, name, monkeypatch):
        images = pattern(5, 32, 32, 3)
        whole = shift.corrupt(images, name, 4, seed=7)
        alone = shift.corrupt(images[3:4], name, 4, seed=7, first_index=3)
        assert (whole[3:4] == alone).all()
        monkeypatch.setattr(shift, "_VALUES_AT_ONCE", 2 * images[0].size)
        assert (shift.corrupt(images, name, 4, seed=7) == whole).all()

    def test_corruptions_depend_on_the_seed_where_random(self, name):
        image = pattern(1, 32, 32, 3)
        same = (shift.corrupt(image, name, 5, seed=0) == shift.corrupt(image, name, 5, seed=1)).all()
        certain = {"defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "pixelate"}
        assert same == (name in certain | {"jpeg_compression", "saturate"})
        twins = shift.corrupt(np.repeat(image, 2, axis=0), name, 5)
        assert (twins[0] == twins[1]).all() == same

    def test_corruption_parameters_interpolate_the_published_ones(self, name):
        for severity in shift.SEVERITIES:
            at = {side: np.array(parameters(name, severity, side)) for side in (8, 32, 45, 64, 128, 224, 300)}
            assert (at[8] == at[32]).all()
            assert (at[300] == at[224]).all()
            for low, between, high in ((32, 45, 64), (64, 128, 224)):
                smaller, larger = np.minimum(at[low], at[high]), np.maximum(at[low], at[high])
                assert (smaller <= at[between]).all()
                assert (at[between] <= larger).all()


def test_corruptions_have_published_parameters():
    """Some of each set, from the published lists."""
    assert parameters("gaussian_noise", 5, 32) == (0.10,)
    assert parameters("gaussian_noise", 5, 224) == (0.38,)
    assert parameters("shot_noise", 2, 64) == (100,)
    assert parameters("motion_blur", 4, 32) == (8, 2)
    assert parameters("snow", 5, 224) == (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55)
    assert parameters("spatter", 4, 32) == (0.65, 0.1, 0.7, 0.69, 0.6, 1)
    assert parameters("elastic_transform", 3, 32) == (0.08, 0.06, 0.06)
    assert np.multiply(parameters("elastic_transform", 5, 224), 224) == pytest.approx(
        np.multiply((0.12, 0.01, 0.02), 244)
    )


def test_corruption_severity_grows_on_average():
    images = np.tile(pattern(4, 32, 32, 3), (16, 1, 1, 1))
    distances = np.array([[distance(images, name, s) for s in shift.SEVERITIES] for name in shift.CORRUPTIONS])
    assert (np.diff(distances.mean(0)) > 0).all()
    wavering = {"glass_blur", "elastic_transform", "spatter", "saturate", "frost"}  # as published
    for name, row in zip(shift.CORRUPTIONS, distances, strict=True):
        if name not in wavering:
            assert (row[1:] > 0.9 * row[:-1]).all(), (name, row)
            assert row[4] > 1.3 * row[0], (name, row)


class TestNoise:
    flat = np.full((4, 64, 64, 3), 128, np.uint8)

    @pytest.mark.parametrize("name", ["gaussian_noise", "speckle_noise"])
    def test_gaussian_noise_has_its_std(self, name):
        (std,) = parameters(name, 2, 64)
        deviation = shift.corrupt(self.flat, name, 2) / 255.0 - 128 / 255
        expected = std if name == "gaussian_noise" else std * 128 / 255
        assert deviation.std() == pytest.approx(expected, rel=0.03)
        assert abs(deviation.mean()) < 0.003

    def test_shot_noise_is_poisson(self):
        (photons,) = parameters("shot_noise", 2, 64)
        noisy = shift.corrupt(self.flat, "shot_noise", 2) / 255.0
        assert noisy.mean() == pytest.approx(128 / 255, rel=0.01)
        assert noisy.var() == pytest.approx(128 / 255 / photons, rel=0.05)

    def test_impulse_noise_is_half_black_half_white(self):
        noisy = shift.corrupt(self.flat, "impulse_noise", 5)
        (amount,) = parameters("impulse_noise", 5, 64)
        assert (noisy == 0).mean() == pytest.approx(amount / 2, rel=0.1)
        assert (noisy == 255).mean() == pytest.approx(amount / 2, rel=0.1)
        assert ((noisy == 128) | (noisy == 0) | (noisy == 255)).all()


class TestColour:
    pixels = np.concatenate([np.random.default_rng(0).random((1, 40, 4, 3)), np.full((1, 40, 1, 3), 0.3)], axis=2)

    @pytest.mark.parametrize(
        ("name", "change"), [("brightness", (0.2,)), ("saturate", (2.0, 0.1)), ("saturate", (0.3, 0.0))]
    )
    def test_saturate_agrees_with_hsv(self, name, change):
        ours = getattr(functions, name)(self.pixels, [], *change)
        for before, after in zip(self.pixels.reshape(-1, 3), ours.reshape(-1, 3), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*before)
            if name == "brightness":
                value = min(value + change[0], 1)
            else:
                saturation = min(max(saturation * change[0] + change[1], 0), 1)
            assert after == pytest.approx(colorsys.hsv_to_rgb(hue, saturation, value), abs=1e-12)

    def test_contrast_keeps_the_mean_colour(self):
        ours = functions.contrast(self.pixels, [], 0.25)
        assert ours.mean((1, 2)) == pytest.approx(self.pixels.mean((1, 2)))
        assert ours.std((1, 2)) == pytest.approx(0.25 * self.pixels.std((1, 2)))

    def test_gray_conversion_uses_luma(self):
        gray = pattern(1, 32, 32, 1)
        colour = np.repeat(gray, 3, axis=-1)
        for name in ("frost", "fog", "snow", "spatter", "saturate", "brightness", "contrast", "motion_blur"):
            luma = shift.corrupt(colour, name, 5) @ np.array([0.299, 0.587, 0.114])
            ours = shift.corrupt(gray, name, 5)[..., 0]
            inside = (luma > 1) & (luma < 235)  # clipped channels distort the luma
            assert np.abs(ours - luma)[inside].max() < 1.01, name


class TestParts:
    images = np.random.default_rng(1).random((2, 20, 27, 3))

    @pytest.mark.parametrize("factor", [1.0, 1.07, 1.75, 2.25, 3.0])
    def test_zoom_agrees_with_scipy(self, factor):
        h, w = self.images.shape[1:3]
        crop_h, crop_w = int(np.ceil(h / factor)), int(np.ceil(w / factor))
        top, left = (h - crop_h) // 2, (w - crop_w) // 2
        crop = self.images[:, top : top + crop_h, left : left + crop_w]
        whole = ndimage.zoom(crop, (1, factor, factor, 1), order=1)
        top, left = (whole.shape[1] - h) // 2, (whole.shape[2] - w) // 2
        assert imaging.zoom(self.images, factor) == pytest.approx(whole[:, top : top + h, left : left + w])

    def test_sampling_agrees_with_scipy(self):
        rows, columns = np.random.default_rng(2).uniform(-30, 60, (2, 2, 20, 27))
        ours = imaging.sample(self.images, rows, columns)
        for n in range(2):
            for c in range(3):
                theirs = ndimage.map_coordinates(self.images[n, ..., c], [rows[n], columns[n]], order=1, mode="mirror")
                assert ours[n, ..., c] == pytest.approx(theirs)

    def test_shifted_sum_agrees_with_scipy(self):
        kernel = np.random.default_rng(3).random((5, 5))
        rows, columns = np.indices((5, 5)).reshape(2, -1) - 2
        ours = imaging.shifted_sum(self.images, rows, columns, kernel.ravel(), "reflect")
        theirs = ndimage.correlate(self.images, kernel[None, :, :, None] / kernel.sum(), mode="mirror")
        assert ours == pytest.approx(theirs)

    def test_motion_blur_smears_along_the_angle(self):
        point = np.zeros((1, 21, 21, 1))
        point[0, 10, 10] = 1
        smeared = imaging.smear(point, 4, 2.0, [0.0])[0, ..., 0]
        taps = np.exp(-(np.arange(9) ** 2) / 8)
        assert smeared[10, 2:11][::-1] == pytest.approx(taps / taps.sum())
        assert smeared.sum() == pytest.approx(1)
        upright = imaging.smear(point, 4, 2.0, [90.0])[0, ..., 0]
        assert upright == pytest.approx(smeared.T)

    def test_plasma_agrees_with_a_loop(self):
        noise = np.random.default_rng(4).uniform(-1, 1, (1, 8, 8))
        field, step, amplitude = np.zeros((8, 8)), 8, 1.0
        while step > 1:
            half = step // 2
            for r, c in np.ndindex(8 // step, 8 // step):
                r, c = step * r + half, step * c + half
                near = [field[(r + a) % 8, (c + b) % 8] for a in (-half, half) for b in (-half, half)]
                field[r, c] = np.mean(near) + amplitude * noise[0, r, c]
            centres = field.copy()
            for r, c in np.ndindex(8 // half, 8 // half):
                if (r + c) % 2:
                    r, c = half * r, half * c
                    near = [
                        centres[(r + a) % 8, (c + b) % 8] for a, b in ((half, 0), (-half, 0), (0, half), (0, -half))
                    ]
                    field[r, c] = np.mean(near) + amplitude * noise[0, r, c]
            step, amplitude = half, amplitude / 1.5**2
        field = (field - field.min()) / (field.max() - field.min())
        assert imaging.plasma(noise, 1.5)[0] == pytest.approx(field)

    def test_glass_blur_is_the_published_loop_at_32(self):
        image = np.random.default_rng(5).random((1, 32, 32, 3))
        ours = functions.glass_blur(image, [np.random.default_rng(6)], 0.05, 1, 2)
        rng, theirs = np.random.default_rng(6), image[0].copy()
        for _ in range(2):
            moves = rng.integers(-1, 1, size=(2, 32, 32))
            for r in range(31, 1, -1):
                for c in range(31, 1, -1):
                    theirs[r, c] = theirs[r + moves[0, r, c], c + moves[1, r, c]]
        assert (ours[0] == theirs).all()

    def test_elastic_transform_without_strength_changes_nothing(self):
        rngs = [np.random.default_rng(n) for n in range(2)]
        assert functions.elastic_transform(self.images, rngs, 0, 0, 0) == pytest.approx(self.images)

    def test_elastic_transform_moves_the_corners(self):
        # One bright pixel at a corner of the affine map's triangle turns up where the draw sent it.
        image = np.zeros((1, 30, 30, 1))
        image[0, 15 + 10, 15 + 10] = 1
        sent = 25 + np.random.default_rng(8).uniform(-3, 3, (3, 2))[0]
        moved = functions.elastic_transform(image, [np.random.default_rng(8)], 0, 0, 0.1)[0, ..., 0]
        assert np.abs(np.array(ndimage.center_of_mass(moved)) - sent).max() < 0.5


class TestRotate:
    images = pattern(2, 28, 28, 1)

    def test_rotate_is_exact_for_quarter_turns(self):
        for quarters in range(4):
            turned = np.rot90(self.images, quarters, axes=(1, 2))
            assert (shift.rotate(self.images, 90 * quarters) == turned).all()

    def test_rotate_there_and_back_is_the_identity(self):
        smooth = (128 + 100 * np.sin(np.indices((28, 28)).sum(0) / 6)).astype(np.uint8)
        back = shift.rotate(shift.rotate(smooth, 30), -30)
        assert np.abs(back.astype(int) - smooth)[10:18, 10:18].max() <= 4

    def test_rotate_fills_corners_with_black(self):
        turned = shift.rotate(np.full((32, 32, 3), 200, np.uint8), 45)
        assert turned[0, 0].tolist() == [0, 0, 0]
        assert turned[16, 16].tolist() == [200, 200, 200]


class TestNoiseByRatio:
    images = pattern(3, 28, 28, 1)

    @pytest.mark.parametrize("snr_db", [-6, 0, 20])
    def test_mix_noise_has_the_exact_power_ratio(self, snr_db):
        signal = self.images / 255
        noise = shift.noise_db(self.images, snr_db) - signal
        ratio = 10 * np.log10((signal**2).sum((1, 2, 3)) / (noise**2).sum((1, 2, 3)))
        assert ratio == pytest.approx(snr_db, abs=1e-3)

    def test_mix_noise_is_the_same_at_every_ratio(self):
        loud, quiet = (shift.noise_db(self.images, snr) - self.images / 255 for snr in (0, 20))
        assert loud == pytest.approx(10 * quiet, abs=1e-5)

    def test_mix_noise_depends_on_seed_and_position(self):
        whole = shift.noise_db(self.images, 0, seed=3)
        assert whole.dtype == np.float32
        assert (shift.noise_db(self.images[2:], 0, seed=3, first_index=2) == whole[2:]).all()
        assert not (shift.noise_db(self.images, 0, seed=4) == whole).all()

    def test_mix_noise_takes_real_numbers(self):
        assert shift.noise_db(self.images / 255, 5) == pytest.approx(shift.noise_db(self.images, 5))


class TestPublishedFiles:
    @staticmethod
    def write(folder: Path) -> None:
        images = np.repeat(np.arange(10, dtype=np.uint8), 32 * 32 * 3).reshape(10, 32, 32, 3)
        np.save(folder / "fog.npy", images)
        np.save(folder / "labels.npy", np.tile([3, 4], 5).astype(np.uint8))

    def test_published_corruptions_read_one_severity(self, tmp_path):
        self.write(tmp_path)
        images, labels = shift.read_cifar_c(tmp_path, "fog", 3)
        assert images[:, 0, 0, 0].tolist() == [4, 5]
        assert labels.tolist() == [3, 4]
        assert isinstance(images, np.memmap)

    def test_mistakes_are_named(self, tmp_path):
        with pytest.raises(UserError, match=r"no file .*fog\.npy"):
            shift.read_cifar_c(tmp_path, "fog", 1)
        self.write(tmp_path)
        np.save(tmp_path / "frost.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
        with pytest.raises(UserError, match=r"frost\.npy: not a plain"):
            shift.read_cifar_c(tmp_path, "frost", 1)
        np.save(tmp_path / "jpeg_compression.npy", np.uint8(3))
        with pytest.raises(UserError, match="not a CIFAR-C file"):
            shift.read_cifar_c(tmp_path, "jpeg_compression", 1)
        np.save(tmp_path / "snow.npy", np.zeros((9, 32, 32, 3), np.uint8))
        with pytest.raises(UserError, match="not a CIFAR-C file"):
            shift.read_cifar_c(tmp_path, "snow", 1)


def test_mistakes_are_named():
    image = pattern(1, 32, 32, 3)
    with pytest.raises(UserError, match="did you mean 'gaussian_blur'"):
        shift.corrupt(image, "gausian_blur", 1)
    with pytest.raises(UserError, match="severity must be one of"):
        shift.corrupt(image, "fog", 6)
    with pytest.raises(UserError, match="before any normalisation"):
        shift.corrupt(image / 255, "fog", 1)
    with pytest.raises(UserError, match=r"images\[\.\.\., None\]"):
        shift.corrupt(image[..., 0].repeat(4, 0), "fog", 1)


def test_corruptions_of_an_empty_batch_are_empty():
    assert shift.corrupt(np.empty((0, 32, 32, 3), np.uint8), "fog", 1).shape == (0, 32, 32, 3)


@pytest.mark.data
def test_corruptions_lower_the_accuracy_of_a_real_network(data_dir):
    """Each at severity 5 on 200 images, and the mean over all at each severity more than at the one before on 50."""
    import torch

    from pocketbayes import data, models
    from pocketbayes.data.shift import corrupted

    images = data.load("cifar10", "test", data_dir, mean="imagenet", subset=range(200))
    model = models.build("resnet20")
    models.load_weights(model, next((data_dir / "weights").glob("resnet20*.th")))
    model.eval()

    @torch.no_grad()
    def right(pictures) -> torch.Tensor:
        x, y = pictures.__getitems__(range(len(pictures)))
        return (model(x).argmax(1) == y).double()

    few = images.take(torch.arange(50))
    clean = right(images)
    assert clean.mean() > 0.9
    strongest = {name: right(corrupted(images, name, 5)) for name in shift.CORRUPTIONS}
    assert all(found.mean() < clean.mean() for found in strongest.values()), strongest
    means = [
        sum(float(right(corrupted(few, name, severity)).mean()) for name in shift.CORRUPTIONS) / 19
        for severity in shift.SEVERITIES[:4]
    ]
    means = [float(clean[:50].mean()), *means, sum(float(found[:50].mean()) for found in strongest.values()) / 19]
    assert (np.diff(means) < 0).all(), means

"""Splits are disjoint, complete, and depend only on the seed."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pocketbayes import data
from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.data.request import choose, hold_out, permutation

seeds = st.integers(0, 2**32)


@given(n=st.integers(0, 500), fraction=st.floats(0, 1), seed=seeds)
def test_hold_out_parts_are_disjoint_and_cover_everything(n: int, fraction: float, seed: int) -> None:
    kept, held = hold_out(n, fraction, seed)
    assert len(held) == round(fraction * n)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(n))
    again = hold_out(n, fraction, seed)
    assert torch.equal(kept, again[0])
    assert torch.equal(held, again[1])


@given(n=st.integers(100, 500), seed=seeds)
def test_hold_out_permutation_depends_on_the_seed(n: int, seed: int) -> None:
    assert not torch.equal(permutation(n, seed), permutation(n, seed + 1))
    assert sorted(permutation(n, seed).tolist()) == list(range(n))


def test_hold_out_permutation_is_pinned() -> None:
    # A change here would silently move training rows into the validation part of every stored run.
    assert permutation(10, 0).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]


@given(n=st.integers(1, 200), seed=seeds, portion=st.floats(0.01, 1))
def test_subset_is_a_prefix_of_a_larger_one(n: int, seed: int, portion: float) -> None:
    k = max(1, int(portion * n))
    rows = choose(n, k, seed)
    assert len(set(rows.tolist())) == k
    assert torch.equal(rows, choose(n, n, seed)[:k])


@given(seed=st.integers(0, 5), val_fraction=st.sampled_from([0.05, 0.1, 0.5]))
def test_digits_splits_are_disjoint_and_cover_everything(seed: int, val_fraction: float) -> None:
    parts = [data.load("digits", split, seed=seed, val_fraction=val_fraction) for split in ("train", "val", "test")]
    assert sum(len(part) for part in parts) == 1797
    images = torch.cat([part.images for part in parts])  # type: ignore[attr-defined]
    # The digits hold no two equal images, so distinct images are distinct rows.
    assert len(images.flatten(1).unique(dim=0)) == 1797


def test_hold_out_test_split_is_independent_of_the_seed() -> None:
    one, other = (data.load("digits", "test", seed=seed, val_fraction=seed / 10) for seed in (0, 5))
    assert torch.equal(one.images, other.images)  # type: ignore[attr-defined]


def test_hold_out_without_validation_keeps_all_for_training() -> None:
    assert len(data.load("digits", "train", val_fraction=0)) + len(data.load("digits", "test")) == 1797
    with pytest.raises(UserError, match="'val' split is empty"):
        data.load("digits", "val", val_fraction=0)


def test_subset_takes_a_count_or_rows() -> None:
    full = data.load("digits")
    assert len(data.load("digits", subset=7)) == 7
    assert len(data.load("digits", "val", subset=200)) == len(data.load("digits", "val")) < 200
    listed = data.load("digits", subset=[5, 2])
    assert torch.equal(listed[0][0], full[5][0])
    assert torch.equal(listed[1][0], full[2][0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "digit"}, "unknown data set 'digit': did you mean 'digits'"),
        ({"name": "digits", "split": "valid"}, "unknown split 'valid'"),
        ({"name": "digits", "colour": 1}, "unknown option of data set 'digits' 'colour'"),
        ({"name": "digits", "subset": 0}, "subset=0"),
        ({"name": "digits", "subset": 10**6}, "choose between 1 and 1294"),
        ({"name": "digits", "subset": [0, 5000]}, "row 5000 does not exist"),
        ({"name": "digits", "subset": [-1]}, "row -1 does not exist"),
        ({"name": "digits", "subset": []}, "'train' split is empty"),
        ({"name": "digits", "val_fraction": 1}, "val_fraction=1"),
        ({"name": "digits", "val_fraction": -0.1}, "val_fraction=-0.1"),
        ({"name": "digits", "seed": -1}, "seed=-1"),
        ({"name": "npz"}, "needs the option path="),
    ],
)
def test_split_names_mistakes(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        data.load(**arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_set_reports_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError):
        data.load("nothing")


def test_data_sets_have_names() -> None:
    assert data.names() == [
        "cifar10", "cifar10-c", "cifar100", "cifar100-c", "cityscapes", "digits", "fashion-mnist", "imagefolder",
        "imagenet", "masks", "mnist", "npz", "svhn", "toy-cubic", "uci",
    ]  # fmt: skip


def test_data_set_keeps_its_argument_names() -> None:
    assert list(inspect.signature(data.load).parameters) == [
        "name", "split", "data_dir", "augment", "subset", "val_fraction", "seed", "download", "options",
    ]  # fmt: skip


def test_data_set_slice_is_a_batch() -> None:
    digits = data.load("digits", "test")
    x, y = digits[:]
    assert len(x) == len(y) == len(digits)
    some, labels = digits[3:9:2]
    assert torch.equal(some, torch.stack([digits[index][0] for index in (3, 5, 7)]))
    assert torch.equal(labels, y[[3, 5, 7]])


@pytest.mark.parametrize("split", ["val", "test"])
def test_npz_split_is_independent_of_simulated_values(tmp_path: Path, split: str) -> None:
    x = np.random.default_rng(0).uniform(size=(1000, 1))  # the generator and seed with which most people simulate
    np.savez(tmp_path / "simulated.npz", x=x, y=x[:, 0])
    part = data.load("npz", split, path=str(tmp_path / "simulated.npz"), test_fraction=0.1, seed=0)
    assert 0.4 < float(part[:][0].mean()) < 0.6  # the smallest tenth would have a mean of 0.05

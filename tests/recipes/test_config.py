"""Recipes: YAML, dotted keys, and building of methods, models and data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pocketbayes as pb
from pocketbayes import recipes as config
from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.data.registry import LOADERS
from pocketbayes.recipes.files import parse_yaml

BASE = {"method": "bbb", "model": "mlp", "data": "digits"}


def checked(**changes: object) -> config.Recipe:
    return config.check({**BASE, **changes})


def write_npz(path: Path, n: int = 20, features: int = 3, targets: int | None = None) -> Path:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, n) if targets is None else random.normal(size=(n, targets))
    np.savez(path, x=random.normal(size=(n, features)).astype(np.float32), y=y)
    return path


# -- the recipes that ship ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", config.names())
def test_recipes_are_valid_and_describe_themselves(name: str) -> None:
    recipe = config.read(name)
    assert recipe.about
    assert recipe.method.make().name
    assert recipe.data.name in LOADERS


@pytest.mark.parametrize("name", [name for name in config.names() if name.startswith("digits-")])
def test_recipes_for_digits_fit_their_data(name: str) -> None:
    recipe = config.read(name)
    model = recipe.model.build(recipe.data.load("train"))
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("name", config.names())
def test_recipe_survives_being_written(name: str, tmp_path: Path) -> None:
    recipe = config.read(name)
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert config.read(tmp_path / "again.yaml") == recipe


@pytest.mark.data
def test_recipe_with_pretrained_weights_loads_them(data_dir: Path) -> None:
    recipe = config.read("cifar10-resnet20-bbb", ["data.subset=64"])
    test = recipe.data.load("test", data_dir)
    net = pb.bayesianize(recipe.model.build(test, None, data_dir), "map")
    assert pb.evaluate(net, test, samples=1)["accuracy"] > 0.8


@pytest.mark.slow
@pytest.mark.data
def test_recipe_lenet300_on_mnist_reaches_98_percent(data_dir: Path, tmp_path: Path) -> None:
    from pocketbayes.recipes.experiment import run

    recipe = config.read("mnist-lenet300-lrt")
    assert recipe.training["epochs"] <= 10
    assert run(recipe, tmp_path / "run", data_dir).measures["accuracy"] >= 0.98


# -- YAML and dotted keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", "+1e-3", "1.0e-3"])
def test_recipe_reads_numbers_without_a_point(text: str) -> None:
    tree = dict(BASE)
    config.override(tree, f"training.lr={text}")
    assert tree["training"] == {"lr": 0.001}


def test_overrides_reach_every_part() -> None:
    changes = [
        "method.prior_std=0.5",
        "model.hidden=[7, 8]",
        "data.val_fraction=0",
        "training.milestones=[3, 5]",
        "seed=4",
        "likelihood.name=categorical",
    ]
    tree = dict(BASE)
    for change in changes:
        config.override(tree, change)
    recipe = config.check(tree)
    method = recipe.method.make()
    assert isinstance(method, pb.MeanFieldVI)
    assert method.prior_std == 0.5
    assert recipe.model.settings == {"hidden": [7, 8]}
    assert recipe.data.settings == {"val_fraction": 0.0}
    assert recipe.training == {"milestones": (3, 5)}
    assert recipe.seed == 4
    assert recipe.likelihood is not None


def test_override_of_a_section_drops_its_old_settings() -> None:
    tree = {**BASE, "method": {"name": "bbb", "prior_std": 0.1}}
    config.override(tree, "method=map")
    assert config.check(tree).method.settings == {}


def test_recipe_keeps_only_chosen_training_settings() -> None:
    """Settings that a recipe omits are chosen by stages; written defaults would override them."""
    recipe = checked(training={"lr": "1e-2"})
    assert recipe.training == {"lr": 0.01}
    assert recipe.to_tree()["training"] == {"lr": 0.01}


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("method: bbb\n  model: mlp", "line 2"),
        ("[1, 2]", "mapping"),
        ("just words", "mapping"),
        ("", "mapping"),
        ("method: bbb\nmodel: mlp\ndata: digits\nsamples: 2020-99-99", "valid integer"),
        ("[" * 5000, "not YAML"),
        ("!!python/object:os.system {}", "not YAML"),
    ],
)
def test_recipe_refuses_other_files(text: str, fragment: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=fragment):
        config.read(path)


def test_recipe_refuses_a_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match="not a text file"):
        config.read(path)


@pytest.mark.parametrize("item", ["training.lr", "=3", "training..lr=3", ""])
def test_override_refuses_malformed_text(item: str) -> None:
    with pytest.raises(UserError, match="key=value"):
        config.override(dict(BASE), item)


def test_override_refuses_a_key_below_a_number() -> None:
    with pytest.raises(UserError, match="seed is 3, which has no settings"):
        config.override({**BASE, "seed": 3}, "seed.x=1")


# -- what is wrong, in one line -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"metod": "bbb"}, "unknown recipe key 'metod': did you mean 'method'"),
        ({"lr": 0.1}, "did you mean 'training.lr'"),
        ({"method": "bayes"}, "unknown method 'bayes'"),
        ({"method": {"name": "bbb", "prior_sd": 1}}, "unknown setting of method 'bbb' 'prior_sd': did you mean"),
        ({"method": {"name": "bbb", "prior_std": "wide"}}, "prior_std='wide'"),
        ({"method": {"name": "bbb", "prior_std": -1.0, "prior": "no"}}, "prior"),
        ({"method": {"name": "bbb", "propagation": "up"}}, "'sample', 'local' or 'flipout'"),
        ({"method": {"prior_std": 1}}, "no 'method.name'"),
        ({"method": 3}, "recipe: method"),
        ({"model": "resnet21"}, "unknown model 'resnet21': did you mean"),
        ({"data": "digit"}, "unknown data set 'digit': did you mean 'digits'"),
        ({"data": {"name": "digits", "colour": 1}}, "unknown setting of data set 'digits' 'colour'"),
        ({"data": {"name": "digits", "val_fraction": "some"}}, "val_fraction='some'"),
        ({"data": {"name": "digits", "data_dir": "/"}}, "'data_dir'"),
        ({"training": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"training": {"lr": 0}}, "lr must be positive"),
        ({"training": {"schedule": "sine"}}, "schedule='sine'"),
        ({"training": None}, "recipe: training"),
        ({"likelihood": "poisson"}, "unknown likelihood 'poisson'"),
        ({"likelihood": {"name": "gaussian", "noise": "loud"}}, "noise='loud'"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"samples": 0}, "samples"),
        ({"samples": 10**9}, "samples"),
        ({"samples": True}, "samples are whole numbers"),
        ({"training": {"lr": True}}, "lr=True"),
        ({"training": {"epochs": True}}, "epochs=True"),
        ({"training": {"stages": {"train": {"stages": {}}}}}, "unknown setting of training.stages.train 'stages'"),
        ({"method": {"name": "bbb", "beta": True}}, "beta=True"),
    ],
)
def test_recipe_names_mistakes(changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(UserError) as caught:
        checked(**changes)
    message = str(caught.value)
    assert fragment in message
    assert "\n" not in message


@pytest.mark.parametrize("part", ["method", "model", "data"])
def test_recipe_names_the_option_of_a_missing_section(part: str) -> None:
    with pytest.raises(UserError, match=f"--{part}"):
        config.check({key: value for key, value in BASE.items() if key != part})


def test_recipe_lists_the_known_recipes() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'digits-bbb'"):
        config.read("digits-bb")


# -- models that fit their data -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "expected"),
    [
        ("mlp", (5,), 3, {"in_features": 5, "out_features": 3}),
        ("lenet300", (1, 8, 8), 7, {"in_features": 64, "classes": 7}),
        ("resnet20", (1, 16, 16), 4, {"in_channels": 1, "classes": 4}),
        ("vit-ti", (3, 32, 32), 10, {"in_channels": 3, "classes": 10, "image_size": 32}),
        ("unet-small", (1, 16, 16), 2, {"in_channels": 1, "classes": 2}),
    ],
)
def test_recipe_model_takes_open_sizes_from_the_data(
    name: str, shape: tuple[int, ...], outputs: int, expected: dict[str, int]
) -> None:
    extra = {"depth": 1, "patch_size": 8} if name == "vit-ti" else {}
    spec = pb.models.spec_of(pb.models.build_for(name, shape, outputs, **extra))
    assert spec is not None
    assert spec.args == {**expected, **extra}


def test_recipe_keeps_given_and_writes_resolved_arguments() -> None:
    recipe = checked(model={"name": "mlp", "hidden": [4]})
    model = recipe.model.build(recipe.data.load("train"))
    assert recipe.resolved(model).model.settings == {"in_features": 64, "out_features": 10, "hidden": [4]}
    with pytest.raises(UserError, match="cannot take data set 'digits', inputs of shape"):
        checked(model={"name": "mlp", "in_features": 5}).model.build(recipe.data.load("train"))
    with pytest.raises(UserError, match=r"returns shape \(3,\) .* where classification needs \(10,\)"):
        checked(model={"name": "mlp", "out_features": 3}).model.build(recipe.data.load("train"))


@pytest.mark.parametrize(
    "arguments",
    [{"hidden": "wide"}, {"hidden": [-4]}, {"hidden": [True]}, {"depth": 3}, {"activation": "step"}, {"outputs": 3}],
)
def test_recipe_refuses_wrong_model_arguments(arguments: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"mlp|activation|hidden"):
        checked(model={"name": "mlp", **arguments}).model.build(pb.data.load("digits"))


def test_recipe_refuses_tables_for_image_models(tmp_path: Path) -> None:
    recipe = checked(model="lenet5", data=str(write_npz(tmp_path / "d.npz")))
    with pytest.raises(UserError, match="cannot take data set 'npz'"):
        recipe.model.build(recipe.data.load("train"))


@pytest.mark.parametrize(("likelihood", "outputs"), [(None, 2), ({"name": "gaussian", "noise": "predicted"}, 4)])
def test_recipe_sets_regression_outputs(likelihood: object, outputs: int, tmp_path: Path) -> None:
    recipe = checked(data=str(write_npz(tmp_path / "d.npz", targets=2)), likelihood=likelihood)
    train = recipe.data.load("train")
    model = recipe.model.build(train, recipe.likelihood and recipe.likelihood.make(train))
    assert model(torch.zeros(1, 3)).shape == (1, outputs)


def test_recipe_sets_class_weights() -> None:
    recipe = checked(likelihood={"name": "categorical", "class_weights": [1, 2.5]})
    assert recipe.likelihood is not None
    likelihood = recipe.likelihood.make(recipe.data.load("train"))
    assert torch.equal(likelihood.class_weights, torch.tensor([1.0, 2.5]))


def test_recipe_class_weights_come_from_the_training_data() -> None:
    recipe = checked(likelihood={"name": "categorical", "class_weights": "frequency"})
    assert recipe.likelihood is not None
    train = recipe.data.load("train")
    share = torch.bincount(train.__getitems__(range(len(train)))[1]) / len(train)
    torch.testing.assert_close(recipe.likelihood.make(train).class_weights, 1 / torch.log(1.02 + share))


def test_recipe_finds_weights_in_the_data_folder_or_anywhere(tmp_path: Path) -> None:
    source = pb.models.build("mlp", in_features=64, out_features=10)
    (tmp_path / "data").mkdir()
    torch.save(source.state_dict(), tmp_path / "data" / "w.pt")
    train = pb.data.load("digits")
    for weights in ("w.pt", str(tmp_path / "data" / "w.pt")):
        model = checked(model={"name": "mlp", "weights": weights}).model.build(train, None, tmp_path / "data")
        assert torch.equal(model.state_dict()["head.weight"], source.state_dict()["head.weight"])
    with pytest.raises(UserError, match=r"no checkpoint at .*none\.pt"):
        checked(model={"name": "mlp", "weights": "none.pt"}).model.build(train, None, tmp_path)


def test_recipe_takes_a_trained_network_for_a_model(tmp_path: Path) -> None:
    net = pb.bayesianize(pb.models.build("mlp", in_features=64, out_features=10), "bbb")
    pb.save(net, tmp_path / "a.pocket")
    model = checked(model=str(tmp_path / "a.pocket")).model.build(pb.data.load("digits"))
    assert isinstance(model, pb.Network)
    with pytest.raises(UserError, match="does not take hidden"):
        checked(model={"name": str(tmp_path / "a.pocket"), "hidden": [3]})


def test_recipe_refuses_a_model_without_weights() -> None:
    with pytest.raises(UserError, match="no weights to make Bayesian"):
        pb.fit("bbb", torch.nn.ReLU(), (torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)), epochs=1, progress=False)


def test_recipe_names_misspelt_keys_before_missing_ones() -> None:
    with pytest.raises(UserError, match="'methd'"):
        config.check({"methd": "bbb", "model": "mlp", "data": "digits"})


def test_other_data_are_normalised_like_the_networks_own(tmp_path: Path) -> None:
    """The same image, in a data set with statistics of its own, must reach the network as the same numbers."""
    own = pb.data.load("digits", "test", mean=[0.1], std=[0.7])
    np.savez(tmp_path / "same.npz", x=own.images.numpy(), y=own.labels.numpy())
    for other in (config.load_like(own, "digits"), config.load_like(own, str(tmp_path / "same.npz"))):
        assert (other.info.mean, other.info.std) == (own.info.mean, own.info.std)
        assert torch.equal(other[3][0], own[3][0])
    assert len(config.load_like(own, "digits", subset=5)) == 5


def test_other_data_distinguish_names_from_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    own = pb.data.load("digits", "test")
    assert len(config.load_like(own, "digits")) == len(own)


def test_other_tables_are_scaled_like_the_networks_own(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(100, 20, (50, 3)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(50) % 2)
    np.savez(tmp_path / "other.npz", x=x[:9])
    own = pb.data.load("npz", "test", path=tmp_path / "own.npz", standardise=True)
    other = config.load_like(own, str(tmp_path / "other.npz"))
    mean, std = (torch.tensor(values) for values in (own.info.mean, own.info.std))
    torch.testing.assert_close(other[:][0] * std + mean, torch.from_numpy(x[:9]))


def test_other_data_take_the_size_of_the_networks_own(tmp_path: Path) -> None:
    own = pb.data.load("digits", "test")
    images = np.random.default_rng(0).integers(0, 256, (6, 1, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "larger.npz", x=images)
    other = config.load_like(own, str(tmp_path / "larger.npz"))
    assert other.info.input_shape == own.info.input_shape == (1, 8, 8)
    x, y = other[:]
    assert x.shape == (6, 1, 8, 8)
    assert y.tolist() == [0] * 6, "other data need no labels"
    small = torch.nn.functional.interpolate(torch.tensor(images).float(), (8, 8), mode="bilinear", antialias=True)
    mean, std = own.info.mean or (0.0,), own.info.std or (1.0,)
    assert torch.allclose(x, (small.round() / 255 - mean[0]) / std[0], atol=1e-6)
    assert torch.equal(other.take(torch.tensor([4, 1]))[:][0], x[[4, 1]])
    np.savez(tmp_path / "colour.npz", x=images.repeat(3, axis=1), y=np.arange(6))
    with pytest.raises(UserError, match="data set 'npz' has 3 channels, but 'digits' has 1"):
        config.load_like(own, str(tmp_path / "colour.npz"))


@pytest.mark.parametrize("text", ["seed: 1\nseed: 2\n", "training: {lr: 1, lr: 2}\n", "a: {b: [{c: 1, c: 1}]}\n"])
def test_parse_yaml_refuses_a_duplicate_key(text: str) -> None:
    with pytest.raises(pb.UserError, match="appears twice"):
        parse_yaml(text, "recipe.yaml")

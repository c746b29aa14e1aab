"""Built-in models: sizes, shapes, state-dict names, specs, checkpoints, and errors."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes import models
from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.models.resnet import SubsampleAndPad

# One small instance of every name of ours: its arguments, and an input's shape.
SMALL: dict[str, tuple[dict[str, object], tuple[int, ...]]] = {
    "mlp": ({"in_features": 6, "hidden": [8, 7], "out_features": 3, "batch_norm": True, "dropout": 0.1}, (4, 6)),
    "lenet300": ({"classes": 3, "batch_norm": True}, (4, 1, 28, 28)),
    "lenet5": ({"classes": 3}, (4, 1, 28, 28)),
    "resnet20": ({"classes": 3, "in_channels": 1}, (4, 1, 16, 16)),
    "resnet32": ({"classes": 3}, (4, 3, 16, 16)),
    "resnet56": ({"classes": 3, "depth": 8}, (4, 3, 16, 16)),
    "resnet-small": ({"classes": 3}, (4, 3, 32, 32)),
    "resnet18": ({"classes": 3, "depths": [2, 1], "stem": "pbn", "dropout": 0.2}, (4, 3, 8, 8)),
    "resnet50": ({"classes": 3, "depths": [1, 2]}, (4, 3, 32, 32)),
    "resnet101": ({"classes": 3, "depths": [1, 1], "in_channels": 2, "stem": "cifar"}, (4, 2, 8, 8)),
    "wrn-28-10": ({"classes": 3, "depth": 10, "width": 1, "dropout": 0.1}, (4, 3, 16, 16)),
    "vit-ti": ({"classes": 3, "depth": 2, "patch_size": 4, "image_size": 16}, (4, 3, 16, 16)),
    "vit-s": ({"classes": 3, "depth": 1, "patch_size": 8, "image_size": 16, "in_channels": 1}, (4, 1, 16, 16)),
    "vit-b": ({"classes": 3, "depth": 1, "patch_size": 8, "image_size": 16}, (4, 3, 16, 16)),
    "unet": ({"classes": 3, "widths": [4, 8, 8, 8, 8]}, (2, 3, 32, 32)),
    "unet-small": ({"classes": 3, "in_channels": 1}, (2, 1, 16, 16)),
}


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_models_have_a_small_instance_for_every_name() -> None:
    assert set(SMALL) == set(models.names())


@pytest.mark.parametrize("name", SMALL)
def test_models_have_output_shape_gradients_and_spec(name: str) -> None:
    args, shape = SMALL[name]
    model = models.build(name, **args)
    out = model(torch.randn(shape))
    per_pixel = shape[2:] if name.startswith("unet") else ()
    assert out.shape == (shape[0], 3, *per_pixel)

    (out * torch.randn_like(out)).sum().backward()
    without = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []

    spec = models.spec_of(model)
    assert spec == models.ModelSpec(name, args)
    assert shapes(models.build(spec.name, **spec.args)) == shapes(model)


@pytest.mark.parametrize(
    ("name", "args", "millions"),
    [
        ("mlp", {"in_features": 13, "out_features": 1}, 0.000751),
        ("lenet300", {}, 0.266610),
        ("lenet5", {}, 0.061706),
        ("resnet20", {}, 0.269722),
        ("resnet32", {}, 0.464154),
        ("resnet56", {}, 0.853018),
        ("resnet-small", {}, 0.165914),
        ("resnet18", {"stem": "cifar", "classes": 10}, 11.173962),
        ("resnet50", {}, 25.557032),
        ("resnet101", {}, 44.549160),
        ("wrn-28-10", {}, 36.479194),
        ("vit-ti", {}, 5.717416),
        ("vit-s", {}, 22.050664),
        ("vit-b", {}, 86.567656),
        ("unet", {"classes": 19}, 31.386003),
    ],
)
def test_models_have_the_published_parameter_counts(name: str, args: dict[str, object], millions: float) -> None:
    with torch.device("meta"):
        assert count(models.build(name, **args)) == pytest.approx(millions * 1e6, abs=0.5)


@pytest.mark.parametrize("depth", [18, 50, 101])
def test_resnet_names_and_shapes_are_those_of_torchvision(depth: int) -> None:
    with torch.device("meta"):
        theirs = models.build(f"torchvision:resnet{depth}")
        assert list(shapes(models.build(f"resnet{depth}")).items()) == list(shapes(theirs).items())


@pytest.mark.parametrize(("name", "size"), [("ti", "tiny"), ("s", "small"), ("b", "base")])
def test_vit_names_and_shapes_are_those_of_timm(name: str, size: str) -> None:
    with torch.device("meta"):
        assert shapes(models.build(f"vit-{name}")) == shapes(models.build(f"timm:vit_{size}_patch16_224"))


@pytest.mark.parametrize(
    ("ours", "args", "theirs", "their_args"),
    [
        ("resnet18", {"classes": 5}, "torchvision:resnet18", {"classes": 5}),
        ("resnet50", {"classes": 5}, "torchvision:resnet50", {"classes": 5}),
        (
            "vit-ti",
            {"classes": 5, "depth": 2, "image_size": 32},
            "timm:vit_tiny_patch16_224",
            {"classes": 5, "depth": 2, "img_size": 32},
        ),
    ],
)
def test_models_answer_like_the_library_with_its_weights(
    ours: str, args: dict[str, object], theirs: str, their_args: dict[str, object]
) -> None:
    mine, reference = models.build(ours, **args).eval(), models.build(theirs, **their_args).eval()
    mine.load_state_dict(reference.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(mine(x), reference(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "args", "side"),
    [
        ("resnet18", {"stem": "imagenet", "depths": [1]}, 8),
        ("resnet18", {"stem": "cifar", "depths": [1]}, 32),
        ("resnet18", {"stem": "pbn", "depths": [1]}, 32),
        ("resnet-small", {}, 2),
    ],
)
def test_models_have_the_right_last_map_for_cifar(name: str, args: dict[str, object], side: int) -> None:
    model = models.build(name, **args)
    assert isinstance(model, nn.Sequential)
    before_pooling = model[: list(dict(model.named_children())).index("avgpool")]
    assert before_pooling(torch.randn(2, 3, 32, 32)).shape == (2, 64, side, side)


def test_resnet_option_a_shortcut_centres_the_old_channels() -> None:
    x = torch.randn(2, 4, 6, 6)
    out = SubsampleAndPad(4, 8, 2)(x)
    torch.testing.assert_close(out[:, 2:6], x[:, :, ::2, ::2])
    assert out[:, :2].abs().sum() == 0
    assert out[:, 6:].abs().sum() == 0


def test_lenet5_pads_28_to_the_same_answer_as_32() -> None:
    model = models.build("lenet5", in_channels=3, classes=4)
    x = torch.randn(2, 3, 28, 28)
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    torch.testing.assert_close(model(x), model(padded))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 4)


@pytest.mark.parametrize("size", [(1, 1), (7, 9), (17, 32), (45, 60)])
def test_unet_keeps_any_size(size: tuple[int, int]) -> None:
    model = models.build("unet", widths=[4, 4, 4, 4, 4], classes=3).eval()
    assert model(torch.randn(1, 3, *size)).shape == (1, 3, *size)


def test_unet_pads_odd_sizes_with_the_last_row_and_column() -> None:
    model = models.build("unet-small", widths=[4, 8], classes=2).eval()
    x = torch.randn(1, 3, 33, 33)
    even = torch.nn.functional.pad(x, (0, 1, 0, 1), mode="replicate")
    torch.testing.assert_close(model(x), model(even)[..., :33, :33])


def test_models_have_dropout_only_on_request() -> None:
    def rates(**args: float) -> list[float]:
        found: list[float] = []
        for name in ("resnet20", "resnet18", "resnet-small", "lenet300"):
            found += [m.p for m in models.build(name, **args).modules() if isinstance(m, nn.Dropout)]
        return found

    assert rates() == []
    assert rates(dropout=0.2) == [0.2] * 5


def test_mlp_takes_the_activation_by_name() -> None:
    model = models.build("mlp", in_features=3, out_features=1, hidden=[4, 4], activation="tanh")
    assert sum(isinstance(m, nn.Tanh) for m in model.modules()) == 2


def test_spec_survives_copies_and_holds_what_json_holds() -> None:
    model = models.build("mlp", in_features=3, hidden=(4, 5), out_features=2)
    expected = models.ModelSpec("mlp", {"in_features": 3, "hidden": [4, 5], "out_features": 2})
    assert models.spec_of(model) == expected
    assert models.spec_of(copy.deepcopy(model)) == expected
    assert models.spec_of(pickle.loads(pickle.dumps(model))) == expected
    assert models.spec_of(nn.Linear(2, 2)) is None
    assert not any("spec" in name for name in model.state_dict())


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("torchvision:squeezenet1_1", {"classes": 7}, (2, 3, 64, 64)),
        ("timm:resnet10t", {"classes": 7, "in_channels": 2}, (2, 2, 64, 64)),
    ],
)
def test_library_models_take_our_argument_names(name: str, args: dict[str, object], shape: tuple[int, ...]) -> None:
    model = models.build(name, **args).eval()
    assert model(torch.randn(shape)).shape == (2, 7)
    spec = models.spec_of(model)
    assert spec == models.ModelSpec(name, args)
    assert shapes(models.build(spec.name, **spec.args)) == shapes(model)


def test_models_download_nothing_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    name = "torchvision:deeplabv3_mobilenet_v3_large"

    def no_download(*args: object, **kwargs: object) -> dict[str, Tensor]:
        raise AssertionError("a download")

    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", no_download)
    trained = models.build(name, aux_loss=True)
    with pytest.raises(UserError, match="a download"):
        models.build(name, weights="DEFAULT")

    state = {key: torch.full_like(value, 0.5) for key, value in trained.state_dict().items()}
    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", lambda *args, **kwargs: state)
    model = models.build(name, weights="DEFAULT", aux_loss=True)
    assert models.spec_of(model) == models.ModelSpec(name, {"aux_loss": True})
    assert all((tensor == state[key]).all() for key, tensor in model.state_dict().items())
    # These weights enable an auxiliary head, which a spec without weights would not rebuild.
    with pytest.raises(UserError, match=r"structure, first at 'aux_classifier.*aux_loss="):
        models.build(name, weights="DEFAULT")


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        (
            "resnet-smal",
            {},
            "unknown model 'resnet-smal': did you mean 'resnet-small'.* known are lenet300, lenet5, mlp",
        ),
        ("vgg11", {}, "unknown model 'vgg11': .*known are timm:vgg11, torchvision:vgg11"),
        ("torchvison:vgg11", {}, "unknown model library 'torchvison': did you mean 'torchvision'"),
        ("torchvision:resnet19", {}, "unknown torchvision model 'resnet19': did you mean 'resnet18'"),
        ("timm:qqqqqq", {}, r"unknown timm model 'qqqqqq': known are those of timm's list_models\(\)"),
        ("timm:hf_hub:someone/something", {}, "unknown timm model"),
        ("mlp", {"in_features": 2, "out_features": 1, "activation": "rleu"}, "unknown activation 'rleu'.*'relu'"),
        ("resnet18", {"stem": "cifr"}, "unknown stem 'cifr': did you mean 'cifar'"),
    ],
)
def test_models_list_the_known_names(name: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        models.build(name, **args)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("resnet20", {"clases": 3}, "model 'resnet20': .*'clases'; its arguments are depth, in_channels, classes"),
        ("mlp", {"in_features": 3}, "model 'mlp': missing a required argument: 'out_features'"),
        ("mlp", {"in_features": 3, "out_features": nn.ReLU}, "model 'mlp': out_features is a type, which a file"),
        ("lenet300", {"dropout": float("nan")}, "dropout is a float, which a file cannot store"),
        ("resnet20", {"depth": 21}, r"depth 21 is not 6 n \+ 2"),
        ("wrn-28-10", {"depth": 27}, r"depth 27 is not 6 n \+ 4"),
        ("vit-ti", {"image_size": 30}, "patch_size 16 does not divide image_size 30"),
        ("vit-ti", {"heads": 5}, "5 heads do not divide dim 192"),
        ("torchvision:squeezenet1_1", {"in_channels": 1}, "torchvision:squeezenet1_1: TypeError: .*'in_channels'"),
        ("torchvision:squeezenet1_1", {"weights": "none-such"}, "torchvision:squeezenet1_1: KeyError: 'none-such'"),
        ("timm:resnet10t", {"classes": 3, "num_classes": 4}, "one argument under two names"),
    ],
)
def test_models_refuse_wrong_arguments_in_one_line(name: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        models.build(name, **args)
    assert "\n" not in str(caught.value)


def test_vit_refuses_images_of_another_size() -> None:
    model = models.build("vit-ti", depth=1, image_size=32)
    with pytest.raises(UserError, match="images are 28x32, but the model takes 32"):
        model(torch.randn(1, 3, 28, 32))


# Checkpoints


def lenet_state() -> dict[str, Tensor]:
    return models.build("lenet5").state_dict()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_load_weights_strips_wrappings(tmp_path: Path, nested: bool, prefix: str) -> None:
    state = lenet_state()
    content: dict[str, object] = {prefix + key: value for key, value in state.items()}
    torch.save({"epoch": 3, "state_dict": content} if nested else content, tmp_path / "net.pt")
    model = models.build("lenet5")
    models.load_weights(model, tmp_path / "net.pt")
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])


def test_load_weights_reads_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    state = lenet_state()
    save_file(state, tmp_path / "net.safetensors")
    model = models.build("lenet5")
    models.load_weights(model, str(tmp_path / "net.safetensors"))
    assert torch.equal(model.state_dict()["conv1.weight"], state["conv1.weight"])


def test_load_weights_works_without_batch_counters(tmp_path: Path) -> None:
    state = models.build("resnet-small").state_dict()
    torch.save({k: v for k, v in state.items() if "num_batches" not in k}, tmp_path / "old.pt")
    model = models.build("resnet-small")
    models.load_weights(model, tmp_path / "old.pt")
    assert torch.equal(model.state_dict()["fc.weight"], state["fc.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv2.bias": None, "fc1.weight": None}, "the file has no 'conv2.bias'"),
        ({"conv2.bias": torch.zeros(3)}, r"'conv2.bias' is \(3,\) in the file, \(16,\) in the model"),
        ({"extra.weight": torch.zeros(3)}, "the model has no 'extra.weight'"),
        ({"epoch": 3}, "a dictionary of tensors is expected"),
    ],
)
def test_load_weights_names_the_first_difference(tmp_path: Path, change: dict[str, object], message: str) -> None:
    content = {key: value for key, value in {**lenet_state(), **change}.items() if value is not None}
    torch.save(content, tmp_path / "net.pt")
    model = models.build("lenet5")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UserError, match=message):
        models.load_weights(model, tmp_path / "net.pt")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class Trap:
    """An object that runs code when unpickled."""

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (Path.touch, (Path("trap"),))


def test_load_weights_refuses_what_is_not_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = models.build("lenet5")
    with pytest.raises(UserError, match=r"no checkpoint at .*absent.pt"):
        models.load_weights(model, tmp_path / "absent.pt")
    torch.save({"state_dict": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(UserError, match=r"trap.pt is not a checkpoint that is safe to load"):
        models.load_weights(model, tmp_path / "trap.pt")
    assert not (tmp_path / "trap").exists()
    for name in ("text.pt", "text.safetensors", "empty.pt"):
        (tmp_path / name).write_text("" if name == "empty.pt" else "not a checkpoint")
        with pytest.raises(UserError, match=f"{name}(:| is) not a"):
            models.load_weights(model, tmp_path / name)


@pytest.fixture(scope="module")
def cifar(data_dir: Path) -> tuple[Tensor, Tensor]:
    """The first 1,000 test images, by ImageNet's mean and std as the checkpoints want them, and their labels."""
    from torchvision.datasets import CIFAR10

    images = CIFAR10(data_dir, train=False)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = (torch.from_numpy(images.data[:1000]) / 255 - mean) / std
    return x.permute(0, 3, 1, 2), torch.tensor(images.targets[:1000])


@pytest.mark.data
@pytest.mark.parametrize(("name", "right"), [("resnet20", 915), ("resnet56", 926)])
def test_published_cifar_weights_reach_their_accuracy(
    data_dir: Path, cifar: tuple[Tensor, Tensor], name: str, right: int
) -> None:
    """91.73 % and 93.39 % on all 10,000 test images, measured once; of the first 1,000, 915 and 926 are right."""
    x, y = cifar
    model = models.build(name).eval()
    (checkpoint,) = (data_dir / "weights").glob(f"{name}-*.th")
    models.load_weights(model, checkpoint)
    with torch.no_grad():
        guess = torch.cat([model(batch).argmax(dim=1) for batch in x.split(250)])
    assert int((guess == y).sum()) == pytest.approx(right, abs=1)


def test_pretrained_weights_that_cannot_be_fetched_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")

    def offline(name: str, **_: object) -> nn.Module:
        raise OSError("no network\nand more of it")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(UserError, match=r"timm:resnet10t: its pretrained weights could not be downloaded"):
        models.build("timm:resnet10t", pretrained=True)


def test_model_of_timm_is_recognised(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    x = torch.randn(2, 1, 32, 32)
    model = timm.create_model("resnet10t", num_classes=3, in_chans=1)
    net = pb.bayesianize(model, "map").eval()
    assert models.spec_of(model) is None, "the user's model stays as it is"
    pb.save(net, tmp_path / "net.pocket")
    torch.testing.assert_close(pb.load(tmp_path / "net.pocket")(x), net(x))
    trained = pb.fit(
        "bbb",
        timm.create_model("resnet10t", num_classes=2),
        (torch.randn(2, 3, 32, 32), torch.tensor([0, 1])),
        epochs=1,
        progress=False,
    )
    assert models.spec_of(trained.model) == models.ModelSpec("timm:resnet10t", {"classes": 2})
    changed = timm.create_model("resnet10t", num_classes=3)
    changed.act1 = nn.GELU()
    assert models.spec_of(pb.bayesianize(changed, "map").model) is None

"""Every architecture converts unchanged, runs, and passes gradients to all means and stds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")

from torchvision import models as tv  # noqa: E402
from torchvision.models.convnext import CNBlockConfig  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:The default weight initialization of:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Overwriting .* in registry:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.meshgrid:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:FutureWarning"),
]

TIMM = {
    # convolution
    "resnet": ("test_resnet", 32),
    "resnetv2 (weight-standardised)": ("resnetv2_18", 32),
    "resnet with selective kernels": ("skresnet18", 32),
    "byobnet": ("test_byobnet", 32),
    "nfnet (scaled standardised)": ("test_nfnet", 32),
    "regnet": ("regnetx_002", 32),
    "efficientnet": ("test_efficientnet", 32),
    "mixnet (mixed depthwise)": ("mixnet_s", 32),
    "mobilenetv3": ("mobilenetv3_small_050", 32),
    "mobilenetv4": ("mobilenetv4_conv_small_035", 32),
    "hardcorenas": ("hardcorenas_a", 32),
    "lcnet": ("lcnet_035", 32),
    "ghostnet": ("ghostnet_050", 32),
    "repghost": ("repghostnet_050", 32),
    "rexnet": ("rexnetr_100", 32),
    "cspnet": ("cs3darknet_s", 64),
    "vovnet": ("ese_vovnet19b_slim", 32),
    "dla": ("dla46x_c", 64),
    "convnext": ("test_convnext", 32),
    "inception-next": ("inception_next_atto", 32),
    "fasternet": ("fasternet_t0", 32),
    "starnet": ("starnet_s1", 32),
    "repvit": ("repvit_m0_9", 32),
    "mambaout": ("test_mambaout", 32),
    # attention
    "vit": ("test_vit", 64),
    "vit hybrid": ("vit_tiny_r_s16_p8_224", 64),
    "deit": ("deit_tiny_patch16_224", 64),
    "cait": ("cait_xxs24_224", 64),
    "pvt": ("pvt_v2_b0", 64),
    "xcit": ("xcit_nano_12_p16_224", 64),
    "convit": ("convit_tiny", 64),
    "visformer": ("visformer_tiny", 64),
    "edgenext": ("edgenext_xx_small", 64),
    "mobilevit": ("mobilevit_xxs", 64),
    "mobilevitv2": ("mobilevitv2_050", 64),
    "swiftformer": ("swiftformer_xs", 64),
    "shvit": ("shvit_s1", 64),
    "efficientvit": ("efficientvit_m0", 64),
    # mixing without attention
    "mixer": ("mixer_s32_224", 64),
    "resmlp": ("resmlp_12_224", 64),
}
"""A small model of each family, and its input size."""

SMALLER: dict[str, tuple[str, int, dict[str, object]]] = {
    "swin": ("swin_tiny_patch4_window7_224", 56, {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}),
    "swinv2": ("swinv2_tiny_window8_256", 64, {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}),
    "eva": ("eva02_tiny_patch14_224", 56, {"embed_dim": 48, "depth": 2}),
    "beit": ("beit_base_patch16_224", 64, {"embed_dim": 48, "depth": 2, "num_heads": 3}),
    "sequencer (LSTM)": ("sequencer2d_s", 64, {"embed_dims": (24, 24, 24, 24), "hidden_sizes": (6, 6, 6, 6)}),
}
"""timm models with reduced width."""

TORCHVISION: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet": (tv.resnet18, 32),
    "squeezenet": (tv.squeezenet1_1, 32),
    "shufflenet": (tv.shufflenet_v2_x0_5, 32),
    "mobilenet v2": (lambda: tv.mobilenet_v2(width_mult=0.35), 32),
    "mobilenet v3": (lambda: tv.mobilenet_v3_small(width_mult=0.5), 32),
    "mnasnet": (tv.mnasnet0_5, 32),
    "efficientnet": (tv.efficientnet_b0, 32),
    "regnet": (tv.regnet_y_400mf, 32),
    "densenet": (lambda: tv.DenseNet(8, (2, 2, 2, 2), 16), 32),
    "googlenet with its auxiliary heads": (lambda: tv.googlenet(weights=None, init_weights=False, aux_logits=True), 96),
    "convnext": (lambda: tv.ConvNeXt([CNBlockConfig(8, 16, 2), CNBlockConfig(16, None, 2)]), 32),
    "vit": (
        lambda: tv.VisionTransformer(
            image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64
        ),
        32,
    ),
    "swin": (lambda: tv.SwinTransformer([4, 4], 24, [2, 2], [3, 6], [4, 4]), 32),
    "maxvit": (
        lambda: tv.MaxVit(
            input_size=(64, 64),
            stem_channels=8,
            partition_size=4,
            block_channels=[8, 16],
            block_layers=[1, 1],
            head_dim=8,
            stochastic_depth_prob=0.0,
        ),
        64,
    ),
}  # fmt: skip


def timm_model(name: str, size: int, **settings: object) -> nn.Module:
    """Return the model for this input size, passed to models that need it at construction."""
    try:
        return timm.create_model(name, pretrained=False, num_classes=3, img_size=size, **settings)
    except TypeError:
        return timm.create_model(name, pretrained=False, num_classes=3, **settings)


def outputs_of(output: object) -> Iterator[Tensor]:
    """Return the tensors of an output; some models return a tuple of heads in training."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for item in output.values():
            yield from outputs_of(item)
    elif isinstance(output, (tuple, list)):
        for item in output:
            yield from outputs_of(item)


def prepare(model: nn.Module) -> nn.Module:
    """Set training mode without dropped branches, and replace zero parameters, which would block gradients."""
    for module in model.modules():
        if "Drop" in type(module).__name__ or type(module).__name__ == "StochasticDepth":
            for name in ("p", "drop_prob"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return model.train()


def backward(model: nn.Module, x: Tensor) -> None:
    torch.manual_seed(1)
    torch.cat([output.flatten() * torch.randn(output.numel()) for output in outputs_of(model(x))]).sum().backward()


def check(model: nn.Module, size: int) -> None:
    """Run the model and its two conversions; both reach the weights that the plain model reaches."""
    x = torch.randn(2, 3, size, size)
    backward(prepare(model), x)
    reached = {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    model.zero_grad()
    for propagation in ("sample", "local"):
        net = pb.bayesianize(model, pb.MeanFieldVI(propagation=propagation, std_init=1e-3)).train()
        backward(net, x)
        for parameter in net.posterior.parameters():
            assert bool(parameter.grad.isfinite().all()), propagation
            for slot, grad in zip(net.layout.slots, net.layout.views(parameter.grad)):
                assert bool(grad.any()) == (slot.name in reached), (propagation, slot.name)


@pytest.mark.parametrize("family", TIMM)
def test_timm_models_convert(family: str) -> None:
    name, size = TIMM[family]
    check(timm_model(name, size), size)


@pytest.mark.parametrize("family", SMALLER)
def test_timm_models_convert_at_reduced_width(family: str) -> None:
    name, size, settings = SMALLER[family]
    check(timm_model(name, size, **settings), size)


@pytest.mark.parametrize("family", TORCHVISION)
def test_torchvision_models_convert(family: str) -> None:
    make, size = TORCHVISION[family]
    check(make(), size)


# -- the whole zoo ----------------------------------------------------------------------------------------------------

SMALL_WORDS = (
    *("test", "atto", "femto", "pico", "nano", "xx_small", "xxtiny", "xxs", "_xs", "tiny", "mini", "_t0"),
    *("small", "lite", "_s", "035", "050", "_b0", "_m1", "18", "26", "38", "base"),
)
LARGEST = 150_000_000


def smallest(names: list[str]) -> str:
    """Return the name that suggests the smallest model."""

    def rank(name: str) -> tuple[int, int, str]:
        return next((i for i, word in enumerate(SMALL_WORDS) if word in name), 99), len(name), name

    return min(names, key=rank)


def families() -> list[str]:
    """Return one model of every timm module."""
    return [smallest(names) for module in timm.list_modules() if (names := timm.list_models(module=module))]


def runnable(makers: list[tuple[Callable[[], nn.Module], int]]) -> tuple[nn.Module, int]:
    """Return the model with the smallest input that the plain model accepts."""
    for make, size in makers:
        try:
            model = make()
            with torch.no_grad():
                model.eval()(torch.randn(2, 3, size, size))
                model.train()(torch.randn(2, 3, size, size))
        except (RuntimeError, AssertionError, ValueError, TypeError, IndexError, ZeroDivisionError):
            continue
        return model, size
    pytest.fail("the plain model runs at no size")


def check_any(makers: list[tuple[Callable[[], nn.Module], int]]) -> None:
    model, size = runnable(makers)
    if (count := sum(p.numel() for p in model.parameters())) > LARGEST:
        pytest.skip(f"{count / 1e6:.0f} million parameters")
    check(model, size)


@pytest.mark.slow
@pytest.mark.parametrize("name", families())
def test_timm_families_all_convert(name: str) -> None:
    sizes = (64, 96, 128, 224, 240, 256, 299, 384)
    told = [(lambda size=size: timm_model(name, size), size) for size in sizes]
    check_any(told + [(lambda: timm.create_model(name, pretrained=False, num_classes=3), size) for size in sizes])


@pytest.mark.slow
@pytest.mark.parametrize("name", tv.list_models(module=tv))
def test_torchvision_classifiers_all_convert(name: str) -> None:
    settings = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    make = lambda: tv.get_model(name, weights=None, num_classes=3, **settings)  # noqa: E731
    check_any([(make, size) for size in (64, 96, 128, 224, 299)])


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_build_explains_a_torchvision_that_does_not_match(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(pb.UserError, match="install torch and torchvision from the same index"):
        pb.models.build(name, classes=10)

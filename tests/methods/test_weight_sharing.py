"""2DGBNN as a method: stages, disabled steps, and edge cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.methods.weight_sharing import refresh, shared_posterior
from pocketbayes.posteriors import Shared
from pocketbayes.posteriors.priors import Normal

QUICK = {"epochs": 2, "batch_size": 16, "progress": False}
SMALL = {"k": 6, "n_min": 4, "tau_w": 0.3}


def shared(net: pb.network.Net) -> Shared:
    assert isinstance(net, pb.Network)
    assert isinstance(net.posterior, Shared)
    return net.posterior


def stages_of(folder: Path) -> list[str]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return list(dict.fromkeys(row["stage"] for row in rows))


def test_weight_sharing_runs_all_stages_from_a_plain_model(tmp_path: Path) -> None:
    net = pb.fit(pb.WeightSharing(**SMALL, pretrain_epochs=1), tiny_model(), tiny_data(), out=tmp_path, **QUICK)
    assert stages_of(tmp_path) == ["deterministic", "mean-field", "shared"]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    note = next(row for row in rows if "gaussians" in row)
    assert note["gaussians"] == shared(net).gaussians <= note["gaussians_before_merging"]
    causes = sum(note[f"outliers_by_{cause}"] for cause in ("value", "gradient", "small_cluster"))
    assert causes == shared(net).outliers
    assert note["ellipse_points"] == shared(net).blends


def test_weight_sharing_skips_stages_that_are_done(tmp_path: Path) -> None:
    method = pb.WeightSharing(**SMALL)
    trained = pb.fit("map", tiny_model(), tiny_data(), **QUICK)
    pb.fit(method, trained, tiny_data(), out=tmp_path / "a", **QUICK)
    assert stages_of(tmp_path / "a") == ["mean-field", "shared"]
    field = pb.fit(pb.MeanFieldVI(prior_std=0.1), trained, tiny_data(), **QUICK)
    pb.fit(method, field, tiny_data(), out=tmp_path / "b", **QUICK)
    assert stages_of(tmp_path / "b") == ["shared"]


def test_weight_sharing_answers_like_the_original_network(learning_seed: int) -> None:
    """With enough Gaussians, sharing changes the mean prediction little."""
    model, data = tiny_model(learning_seed), tiny_data(seed=learning_seed)
    trained = pb.fit("map", model, data, lr=1e-2, epochs=10, batch_size=16, progress=False, seed=learning_seed)
    method = pb.WeightSharing(k=40, n_min=1, tau_w=None, gradient_fraction=0.0, merge=None, ellipse=None)
    net = pb.bayesianize(trained, method)
    x = data[0]
    before, after = pb.predict(trained, x).mean, pb.predict(net, x, propagation="mean").mean
    assert float((before - after).abs().max()) < 0.1


def test_weight_sharing_keeps_outliers_exactly() -> None:
    model = tiny_model()
    start = pb.bayesianize(model, pb.MeanFieldVI(std_init=0.02))
    net = pb.bayesianize(start, pb.WeightSharing(**{**SMALL, "tau_w": 0.1}))
    mean, std = (m.detach() for m in start.posterior.moments())
    own_mean, own_std = (m.detach() for m in net.posterior.moments())
    large = mean.abs() > 0.1
    assert 0 < int(large.sum()) < len(mean)
    assert torch.equal(own_mean[large], mean[large])
    torch.testing.assert_close(own_std[large], std[large])


@pytest.mark.parametrize("off", [{"ellipse": None}, {"tau_w": None, "gradient_fraction": 0.0}, {"merge": None}])
def test_weight_sharing_steps_can_be_switched_off(off: dict[str, object]) -> None:
    net = pb.fit(
        pb.WeightSharing(**{**SMALL, **off}, pretrain_epochs=0, meanfield_epochs=0), tiny_model(), tiny_data(), **QUICK
    )
    posterior = shared(net)
    if "ellipse" in off:
        assert posterior.blends == 0
    if "tau_w" in off:
        few = pb.bayesianize(tiny_model(), pb.WeightSharing(**{**SMALL, **off, "n_min": 0}))
        assert shared(few).outliers == 0
    assert bool(torch.cat([p.flatten() for p in posterior.parameters()]).isfinite().all())


def test_weight_sharing_separates_layers_with_one_plane_each() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.head.weight.add_(0.25)
    net = pb.bayesianize(model, pb.WeightSharing(**{**SMALL, "tau_w": None, "n_min": 1}, scope="layer"))
    posterior = shared(net)
    conv, head = posterior.layout.slots
    first, second = (posterior.index[s.start : s.stop] for s in (conv, head))
    inside = [set(part[part < posterior.gaussians].tolist()) for part in (first, second)]
    assert not inside[0] & inside[1]


def test_weight_sharing_warns_when_all_weights_are_outliers() -> None:
    with pytest.warns(UserWarning, match="all weights are outliers"):
        net = pb.bayesianize(nn.Linear(10, 10), pb.WeightSharing(k=50, n_min=30))
    posterior = shared(net)
    assert posterior.outliers == 100
    assert posterior.gaussians == 0
    assert net(torch.randn(2, 10)).shape == (2, 10)
    net.posterior.kl(net.prior).backward()


def test_weight_sharing_without_gaussians_saves_and_resumes(tmp_path: Path) -> None:
    method = pb.WeightSharing(n_min=10_000, pretrain_epochs=1)
    settings = {"out": tmp_path, "progress": False, "batch_size": 16}
    with pytest.warns(UserWarning, match="all weights are outliers"):
        pb.fit(method, tiny_model(), tiny_data(), epochs=1, **settings)
    net = pb.fit(method, tiny_model(), tiny_data(), epochs=2, resume=True, **settings)
    assert shared(net).gaussians == 0
    x, y = tiny_data()
    assert pb.evaluate(pb.load(tmp_path / "model.pocket", tiny_model()), (x, y)) == pytest.approx(
        pb.evaluate(net, (x, y))
    )


def test_weight_sharing_trains_all_stages_at_the_rate_of_fit() -> None:
    stages = pb.WeightSharing().stages(tiny_model())
    assert [stage.name for stage in stages] == ["deterministic", "mean-field", "shared"]
    assert not any("lr" in stage.settings for stage in stages)


def test_weight_sharing_defaults_learn_the_digits(learning_seed: int) -> None:
    torch.manual_seed(learning_seed)
    train, test = (pb.data.load("digits", split) for split in ("train", "test"))
    model = pb.models.build("mlp", in_features=64, out_features=10)
    net = pb.fit("2dgbnn", model, train, epochs=8, lr=1e-2, progress=False, seed=learning_seed)
    assert 0 < shared(net).gaussians < 100
    assert shared(net).outliers < 0.1 * net.layout.size
    assert pb.evaluate(net, test, samples=5)["accuracy"] > 0.85


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_weight_sharing_defaults_suit_weights_of_any_scale(scale: float) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(60, 60, bias=False)
    layer.weight.data.mul_(scale)
    posterior = shared(pb.bayesianize(layer, pb.WeightSharing(std_init=0.01 * scale)))
    assert 20 <= posterior.gaussians <= 60
    assert posterior.outliers <= 0.05 * layer.weight.numel()


@pytest.mark.parametrize("k", [2, 16, 200])
@pytest.mark.parametrize("std", [1e-8, 1e-2])
def test_weight_sharing_is_finite_at_any_k_and_std(k: int, std: float) -> None:
    method = pb.WeightSharing(
        k=k, n_min=1, std_init=std, pretrain_epochs=0, meanfield_epochs=0, draw="independent", gradient_batches=1
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 30), nn.ReLU(), nn.Linear(30, 3))
    net = pb.fit(method, model, tiny_data(), **QUICK)
    posterior = shared(net)
    assert all(bool(p.isfinite().all()) for p in posterior.parameters())
    assert bool((torch.linalg.eigvalsh(posterior.covariances()) > 0).all())


def test_weight_sharing_chooses_k_by_bits_per_weight() -> None:
    torch.manual_seed(0)
    model = nn.Linear(200, 100, bias=False)
    sizes = []
    for bits in (2.0, 4.0):
        net = pb.bayesianize(model, pb.WeightSharing(bits_per_weight=bits, merge=None, ellipse=None, tau_w=None))
        assert shared(net).index_bits() < bits + 0.3
        sizes.append(shared(net).gaussians)
    assert sizes[0] < sizes[1]


def test_refresh_moves_weights_to_their_best_gaussian() -> None:
    torch.manual_seed(0)
    net = pb.bayesianize(
        nn.Linear(40, 30, bias=False), pb.WeightSharing(k=4, n_min=1, refresh_epochs=1, merge=None, tau_w=None)
    )
    posterior = shared(net)
    inside = posterior.index < posterior.gaussians
    before = posterior.index.clone()
    refresh(posterior, posterior.blend_index.shape[1])
    assert (posterior.index == before).float().mean() > 0.95, "nothing was trained: nearly all stay"
    order = torch.arange(posterior.gaussians).flip(0)
    with torch.no_grad():
        for parameter in (posterior.centre_mean, posterior.centre_std, posterior.raw_a, posterior.raw_c):
            parameter.copy_(parameter[order])
        posterior.off_diagonal.copy_(posterior.off_diagonal[order])
    refresh(posterior, posterior.blend_index.shape[1])
    moved = posterior.index[inside] == order[before[inside]]
    assert moved.float().mean() > 0.9, "the Gaussians changed places, and the weights follow"
    assert float(posterior.counts.sum()) == pytest.approx(1200 - posterior.outliers, abs=0.01)


def test_plane_posterior_places_every_weight() -> None:
    torch.manual_seed(0)
    start = pb.bayesianize(nn.Linear(50, 20, bias=False), pb.MeanFieldVI())
    mean = start.posterior.moments()[0].detach()
    std = 0.01 + 0.01 * torch.rand_like(mean)
    survey = pb.plane.survey(mean, std, None, pb.plane.PlaneSettings(k=8, n_min=5, tau_w=0.13))
    posterior = shared_posterior(start.layout, mean, std, [survey])
    got = posterior.moments()[0].detach()
    plain = torch.ones(1000, dtype=torch.bool)
    plain[survey.outliers] = False
    plain[survey.ellipses] = False
    torch.testing.assert_close(got[plain], survey.mixture.means[survey.index[plain], 0].float())
    assert torch.equal(got[survey.outliers], mean[survey.outliers])
    blended = (survey.blend_alpha * survey.mixture.means[survey.blend_index, 0]).sum(1)
    torch.testing.assert_close(got[survey.ellipses], blended.float())


def test_weight_sharing_names_wrong_settings() -> None:
    for settings, message in (
        ({"merge": "mean"}, "unknown merge rule 'mean'"),
        ({"k": 0}, "k=0"),
        ({"scope": "block"}, "unknown scope 'block'"),
    ):
        with pytest.raises(pb.UserError, match=message):
            pb.WeightSharing(**settings)
    with pytest.raises(pb.UserError, match="unknown draw 'all'"):
        pb.bayesianize(tiny_model(), pb.WeightSharing(**SMALL, draw="all"))


@pytest.mark.parametrize("settings", [{"refresh_epochs": 0}, {"refresh_epochs": 1, "scope": "layer"}])
def test_refresh_refuses_unsupported_networks(settings: dict[str, object]) -> None:
    with pytest.raises(pb.UserError, match="refresh_epochs"):
        pb.WeightSharing(**settings)


def test_weight_sharing_takes_stds_that_are_not_drawn() -> None:
    """A network with learned stds needs no mean-field stage."""
    net = pb.bayesianize(nn.Linear(4, 3), pb.VDP(std_init=0.1))
    assert [stage.name for stage in pb.WeightSharing(k=2, n_min=1).stages(net)] == ["shared"]


def test_weight_sharing_continues_from_an_empirical_prior() -> None:
    """The default mean-field prior is per layer, while Gaussians span layers."""
    start = pb.fit("lrt", tiny_model(), tiny_data(), epochs=1, batch_size=16, progress=False)
    method = pb.WeightSharing(k=4, n_min=2, tau_w=0.3)
    net = pb.fit(method, start, tiny_data(), epochs=1, batch_size=16, progress=False)
    assert isinstance(net.prior, Normal)
    assert bool(net.kl().isfinite())

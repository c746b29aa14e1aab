"""2DGBNN's figures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pocketbayes as pb
from paper_figures.weight_sharing import gaussians_curve, layer_density, plane_lines, view_survey
from pocketbayes.reporting import figures
from pocketbayes.reporting.figures.plane import PlaneView, plane

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def cloud() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 0.1 * torch.randn(4000, generator=generator), 0.01 * torch.rand(4000, generator=generator) + 0.001


def test_plane_figure_shows_gaussians_and_outliers(cloud: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    survey = pb.plane.survey(*cloud, settings=pb.plane.PlaneSettings(k=8, tau_w=0.2))
    view = view_survey(*cloud, survey)
    figure = plane({"before": view})
    weights, outliers, *_, first, second = figure.axes[0].collections
    assert len(weights.get_offsets()) == len(view.cloud)
    assert len(outliers.get_offsets()) == int((cloud[0].abs() > 0.2).sum()) + len(survey.small_outliers)
    for ellipses in (first, second):
        assert torch.equal(torch.as_tensor(ellipses.get_offsets()), survey.mixture.means)
    png = figures.save(figure, tmp_path / "plane.png")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_plane_figure_ellipse_has_the_gaussians_axes() -> None:
    cov = torch.tensor([[[4.0, 0.0], [0.0, 1.0]]])
    none = torch.empty(0, 2)
    figure = plane({"one": PlaneView(torch.zeros(1, 2), cov, none, none, none)})
    one, two = figure.axes[0].collections
    assert (one.get_widths()[0], one.get_heights()[0]) == pytest.approx((4, 2))  # one std each way
    assert (two.get_widths()[0], two.get_heights()[0]) == pytest.approx((8, 4))
    assert abs(float(one.get_angles()[0])) % 180 == pytest.approx(0)


def test_plane_figure_draws_a_trained_network() -> None:
    net = pb.bayesianize(torch.nn.Linear(30, 40), pb.WeightSharing(k=4, tau_w=0.15, n_min=5))
    view = PlaneView.of(net.posterior.plane())
    assert len(view.centres) == net.posterior.gaussians
    assert len(view.outliers) == net.posterior.outliers > 0
    assert bool((view.outliers[:, 0].abs() > 0.15).any())


def test_plane_figure_lines_are_quantiles_of_the_means(cloud: tuple[torch.Tensor, torch.Tensor]) -> None:
    low, high = (line.get_xdata()[0] for line in plane_lines(*cloud).axes[0].lines)
    below = [float((cloud[0] < at).float().mean()) for at in (low, high)]
    assert below == pytest.approx([0.01, 0.99], abs=1e-3)


def test_plane_figure_has_density_and_curve(cloud: tuple[torch.Tensor, torch.Tensor]) -> None:
    panel = layer_density(cloud[0], "conv1").axes[0]
    area = sum(bar.get_width() * bar.get_height() for bar in panel.patches)
    assert area == pytest.approx(1)
    rows = {str(k): {"k": k, "accuracy": 0.9, "nll": 1 / k, "index bits": 2.0} for k in (16, 4)}
    figure = gaussians_curve(rows, {"accuracy": 0.9, "nll": 0.4})
    assert list(figure.axes[1].lines[0].get_ydata()) == [1 / 4, 1 / 16]


def test_figures_refuse_an_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(pb.base.errors.UserError, match=r"\.png, \.svg, \.pdf"):
        figures.save(figures.canvas()[0], tmp_path / "plane.gif")
    assert list(tmp_path.iterdir()) == []

"""Recalibration of batch norm after a change of weights."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.network import Network

pytestmark = pytest.mark.filterwarnings("ignore:.*examples are few:UserWarning")


def test_recalibrate_averages_batches_at_the_mean() -> None:
    net = pb.bayesianize(tiny_model(), pb.MeanFieldVI(std_init=1.0))
    assert isinstance(net, Network)
    x, y = tiny_data()
    pb.recalibrate(net, DataLoader(TensorDataset(x, y), batch_size=16))
    features = net.to_module().conv(x).detach()
    batches = features.split(16)
    means = torch.stack([batch.mean((0, 2, 3)) for batch in batches]).mean(0)
    variances = torch.stack([batch.var((0, 2, 3)) for batch in batches]).mean(0)
    torch.testing.assert_close(net.model.norm.running_mean, means)
    torch.testing.assert_close(net.model.norm.running_var, variances)
    assert int(net.model.norm.num_batches_tracked) == 3


def test_recalibrate_takes_any_data_and_changes_nothing_else() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4, momentum=0.3), nn.Dropout(0.5), nn.Linear(4, 3)
    )
    net = pb.bayesianize(model, pb.Ensemble(members=2))
    net.train()
    next(iter(net)).model[3].eval()
    modes = [module.training for module in net.modules()]
    x, y = tiny_data()
    results = []
    for data in ((x, y), TensorDataset(x, y), DataLoader(TensorDataset(x, y), batch_size=48), iter([x])):
        pb.recalibrate(net, data)
        results.append(torch.stack([network.model[2].running_var for network in net]))
    for other in results[1:]:
        torch.testing.assert_close(results[0], other)
    assert not torch.equal(results[0][0], results[0][1])
    assert [module.training for module in net.modules()] == modes
    assert all(network.model[2].momentum == 0.3 for network in net)


def test_recalibrate_shuffles_sorted_data() -> None:
    """Within-batch variances of sorted data would miss the variance between classes."""
    x = torch.arange(4.0).repeat_interleave(64)[:, None] + 0.01 * torch.randn(256, 1)
    net = pb.bayesianize(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)), "map")
    pb.recalibrate(net, (x, torch.zeros(256, dtype=torch.long)), batch_size=64)
    assert float(net.model[0].running_var) == pytest.approx(1.25, rel=0.15)


def test_recalibrate_without_batch_norm_does_nothing() -> None:
    net = pb.bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), "map")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    pb.recalibrate(net, tiny_data())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def trained_with_batch_norm() -> tuple[Network, torch.Tensor]:
    """Return a network with running statistics of wider data than the returned sample."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    net = pb.bayesianize(model, "map")
    assert isinstance(net, Network)
    pb.recalibrate(net, (2 * torch.randn(2000, 8), torch.zeros(2000, dtype=torch.long)))
    return net, torch.randn(200, 8)


def test_relative_recalibration_keeps_unchanged_weights() -> None:
    net, x = trained_with_batch_norm()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    pb.recalibrate(net, iter([x]), relative_to=copy.deepcopy(net))
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_relative_recalibration_hides_a_scale_and_a_shift() -> None:
    """Batch norm is invariant to scale and shift of its inputs; stale statistics are not."""
    net, x = trained_with_batch_norm()
    changed = copy.deepcopy(net)
    with torch.no_grad():
        changed.posterior.mean[:48] *= 1.7
        changed.model[0].bias += 0.3
        expected, stale = net.eval()(x), changed.eval()(x)
        pb.recalibrate(changed, iter([x]), relative_to=net)
        assert (changed(x) - expected).abs().max() < 0.1 * (stale - expected).abs().max()


def test_relative_recalibration_refuses_another_architecture() -> None:
    net, x = trained_with_batch_norm()
    other = pb.bayesianize(nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), "map")
    with pytest.raises(pb.UserError, match="other batch-norm layers"):
        pb.recalibrate(net, iter([x]), relative_to=other)


@pytest.mark.parametrize(("count", "relative", "warns"), [(200, False, True), (200, True, False), (20, True, True)])
def test_recalibrate_warns_of_few_examples(count: int, relative: bool, warns: bool) -> None:
    net, x = trained_with_batch_norm()
    with pytest.warns(UserWarning, match="examples are few") if warns else warnings.catch_warnings():
        warnings.simplefilter("always" if warns else "error")
        pb.recalibrate(net, iter([x[:count]]), relative_to=copy.deepcopy(net) if relative else None)

"""Fixed draws as a mixture, each with its own batch-norm statistics."""

import pytest
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.methods.recalibration import batch_norm_statistics, batch_norms, replace_statistics


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def network(model: nn.Module, std: float = 0.2) -> pb.Network:
    net = pb.bayesianize(model, pb.MeanFieldVI(std_init=std))
    net.likelihood = pb.Categorical()
    return net.eval()


def some_data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(96, 6) * 2 + 1, torch.randint(3, (96,))


def test_fix_draws_gives_each_draw_its_own_statistics() -> None:
    net, data = network(normed()), some_data()
    replace_statistics(net, [data])
    mixture = pb.fix_draws(net, data, samples=3, batch_size=96)
    _, found = batch_norm_statistics(list(mixture), [data])
    for member, [(mean, var)] in zip(mixture, found):
        (norm,) = batch_norms(member)
        torch.testing.assert_close(norm.running_mean, mean, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(norm.running_var, var, rtol=1e-3, atol=1e-3)


def test_fix_draws_keeps_the_average_of_statistics_of_draws() -> None:
    net, data = network(normed()), some_data()
    mixture = pb.fix_draws(net, data, samples=4, statistics="draws")
    means = torch.stack([batch_norms(member)[0].running_mean for member in mixture])
    torch.testing.assert_close(means.mean(0), batch_norms(net)[0].running_mean, rtol=1e-4, atol=1e-4)
    assert float(means.std(0).max()) > 1e-3


def test_fix_draws_without_stds_is_the_network_itself() -> None:
    net, (x, y) = network(normed(), std=1e-7), some_data()
    fixed = pb.predict(pb.fix_draws(net, (x, y), samples=2), x).mean
    torch.testing.assert_close(fixed, pb.predict(net, x, propagation="mean").mean, rtol=1e-3, atol=1e-3)


def test_fix_draws_refuses_bad_input_in_one_line() -> None:
    net = network(normed())
    with pytest.raises(pb.UserError, match="give data="):
        pb.fix_draws(net)
    with pytest.raises(pb.UserError, match="at least 1"):
        pb.fix_draws(net, some_data(), samples=0)
    assert len(pb.fix_draws(network(nn.Linear(6, 3)), samples=2)) == 2

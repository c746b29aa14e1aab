"""The training loop: schedules, steps, records, and errors."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from cases import smooth, tiny_data, tiny_model
from pocketbayes.base.batch_norm import frozen_batch_norm
from pocketbayes.data.batches import batches
from pocketbayes.data.dataset import Arrays
from pocketbayes.training.checks import warn_of_odd_model
from pocketbayes.training.fitting import TrainingError
from pocketbayes.training.settings import Plateau

QUICK = {"batch_size": 16, "progress": False}


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_schedule_gives_the_rates() -> None:
    cosine = pb.Training(epochs=10, schedule="cosine", warmup_epochs=2)
    assert [cosine.rate_factor(e) for e in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    steps = pb.Training(epochs=10, schedule="milestones", milestones=(3, 6), gamma=0.1)
    assert [steps.rate_factor(e) for e in (2.9, 3, 6)] == pytest.approx([1, 0.1, 0.01])
    assert pb.Training().rate_factor(5) == 1
    plateau, training = Plateau(), pb.Training(schedule="plateau", patience=1, gamma=0.5)
    for loss in (3.0, 2.0, 2.5, 2.5, 2.5):
        plateau.after_epoch(loss, training)
    assert plateau.factor == 0.5
    assert plateau.best == 2.0


def test_fit_records_the_rate_in_use(tmp_path: Path) -> None:
    pb.fit(
        "map",
        tiny_model(),
        tiny_data(),
        epochs=4,
        lr=0.1,
        schedule="milestones",
        milestones=(2,),
        out=tmp_path,
        **QUICK,
    )
    assert [row["lr"] for row in rows(tmp_path)] == pytest.approx([0.1, 0.1, 0.01, 0.01])


def test_fit_gives_stds_their_own_rate_and_no_decay() -> None:
    net = pb.bayesianize(tiny_model(), "bbb")
    others, stds = pb.Training(lr=0.1, std_lr=0.5, weight_decay=0.3).make_optimizer(net).param_groups
    assert (others["lr"], others["weight_decay"], stds["lr"], stds["weight_decay"]) == (0.1, 0.3, 0.5, 0.0)
    assert stds["params"] == [net.posterior.rho]
    assert sum(p.numel() for g in (others, stds) for p in g["params"]) == sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_fused_steps_equal_plain_ones(optimizer: str) -> None:
    """Fused kernels take memory as it lies: a transposed parameter with a gradient in another order would go wrong."""
    training = pb.Training(optimizer=optimizer, lr=0.1, weight_decay=0.1)
    for transposed in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        if transposed:
            model[0].weight = nn.Parameter(model[0].weight.detach().t().contiguous().t())
        net = pb.bayesianize(model, pb.MeanFieldVI(select=r"1\.weight"))
        made = training.make_optimizer(net)
        assert made.defaults["fused"] is not transposed
        plain = copy.deepcopy(net)
        other = training.make_optimizer(plain)
        for group in other.param_groups:
            group["fused"] = None
        for network, steps in ((net, made), (plain, other)):
            torch.manual_seed(1)
            for parameter in network.parameters():
                parameter.grad = torch.randn(parameter.shape)
            for _ in range(3):
                steps.step()
        for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_fit_step_is_the_gradient_of_nll_plus_kl_over_n(tmp_path: Path) -> None:
    """A full-batch SGD step at lr 1 moves the mean by exactly minus the gradient of the stated objective."""
    x, y = tiny_data()
    method = pb.MeanFieldVI(std_init=1e-6, prior_std=0.5, beta=0.7)
    start = pb.bayesianize(tiny_model(), method).train()
    start.likelihood = pb.Categorical()
    with start.using("mean"):
        loss = start.likelihood.nll(start(x), y) + 0.7 * start.kl() / len(x)
    loss.backward()
    net = pb.fit(
        method, tiny_model(), (x, y), epochs=1, batch_size=48, optimizer="sgd", momentum=0.0, lr=1.0, progress=False
    )
    moved = start.posterior.mean.detach() - net.posterior.mean.detach()
    torch.testing.assert_close(moved, start.posterior.mean.grad, rtol=1e-3, atol=1e-5)


def test_fit_accumulation_does_not_change_the_step() -> None:
    whole = pb.fit("map", smooth(), tiny_data(), epochs=2, lr=0.1, optimizer="sgd", **QUICK)
    parts = pb.fit("map", smooth(), tiny_data(), epochs=2, lr=0.1, optimizer="sgd", accumulate=3, **QUICK)
    torch.testing.assert_close(whole.posterior.mean, parts.posterior.mean, rtol=1e-5, atol=1e-6)


def test_fit_clipping_bounds_the_step() -> None:
    start = pb.bayesianize(smooth(), "map").posterior.mean.detach()
    settings = {"epochs": 1, "batch_size": 48, "optimizer": "sgd", "momentum": 0.0, "lr": 1.0, "progress": False}
    net = pb.fit("map", smooth(), tiny_data(), clip_norm=1e-3, **settings)
    free = pb.fit("map", smooth(), tiny_data(), **settings)
    assert (net.posterior.mean - start).norm() <= 1.001e-3
    assert (free.posterior.mean - start).norm() > 1e-2


def test_antithetic_pairs_cancel_first_order_noise() -> None:
    """For a linear model under squared loss, the mean output of a pair is the mean's output exactly."""
    model = nn.Linear(4, 1, bias=False)
    net = pb.bayesianize(model, pb.MeanFieldVI(std_init=0.3))
    x, noise = torch.randn(5, 4), torch.randn(4)
    outputs = []
    for sign in (1, -1):
        with net.using(noise=sign * noise):
            outputs.append(net(x))
    with net.using("mean"):
        torch.testing.assert_close((outputs[0] + outputs[1]) / 2, net(x))
    with pytest.raises(pb.UserError, match="pairs"):
        pb.MeanFieldVI(antithetic=True, train_samples=3)
    pb.fit(pb.MeanFieldVI(antithetic=True, train_samples=2), tiny_model(), tiny_data(), epochs=1, **QUICK)


@pytest.mark.parametrize(("antithetic", "sizes"), [(None, [24, 24]), (False, [48])])
def test_bbb_gives_halves_of_a_batch_opposite_noise(antithetic: bool | None, sizes: list[int]) -> None:
    """A linear model without data noise shows each pass's weights."""
    model, seen, weights = nn.Linear(4, 2, bias=False), [], []
    model.register_forward_hook(lambda module, inputs, _: seen.append(len(inputs[0])))
    model.register_forward_hook(lambda module, inputs, _: weights.append(module.weight.detach().clone()))
    before = model.weight.detach().clone()
    x, y = torch.randn(48, 4), torch.arange(48) % 2
    method = pb.MeanFieldVI(std_init=0.3, antithetic=antithetic)
    pb.fit(method, model, (x, y), epochs=1, batch_size=48, lr=1e-9, std_lr=1e-9, progress=False)
    assert seen[: len(sizes)] == sizes
    if len(sizes) == 2:
        torch.testing.assert_close((weights[0] + weights[1]) / 2, before, atol=1e-5, rtol=1e-4)
        assert float((weights[0] - weights[1]).abs().max()) > 1e-3


def test_antithetic_none_follows_the_number_of_passes() -> None:
    assert pb.MeanFieldVI().antithetic
    assert pb.MeanFieldVI(train_samples=2).antithetic
    assert not pb.MeanFieldVI(train_samples=3).antithetic
    assert not pb.MeanFieldVI(propagation="local").antithetic


def test_batch_norm_updates_once_per_step() -> None:
    settings = {"epochs": 1, "batch_size": 48, "lr": 1e-9, "progress": False}
    one = pb.fit(pb.MeanFieldVI(std_init=1e-7), tiny_model(), tiny_data(), **settings)
    many = pb.fit(pb.MeanFieldVI(std_init=1e-7, train_samples=4), tiny_model(), tiny_data(), **settings)
    torch.testing.assert_close(one.model.norm.running_mean, many.model.norm.running_mean, rtol=1e-4, atol=1e-5)
    assert int(many.model.norm.num_batches_tracked) == 1


def test_frozen_batch_norm_restores_its_momentum() -> None:
    model = tiny_model().train()
    with frozen_batch_norm(model):
        model(tiny_data()[0])
    assert model.norm.momentum == 0.1
    assert int(model.norm.num_batches_tracked) == 0
    assert bool((model.norm.running_mean == 0).all())


def test_metrics_separate_nll_and_kl(tmp_path: Path) -> None:
    pb.fit(pb.MeanFieldVI(beta=0.5), tiny_model(), tiny_data(), val=tiny_data(12), epochs=2, out=tmp_path, **QUICK)
    for row in rows(tmp_path):
        assert row["loss"] == pytest.approx(row["nll"] + 0.5 * row["kl"] / 48, rel=1e-6)
        assert {"val_accuracy", "val_nll", "val_ece"} <= set(row)
    assert (tmp_path / "model.pocket").exists()


def test_annealing_reaches_the_loss(tmp_path: Path) -> None:
    method = pb.MeanFieldVI(beta=1.0, annealing="warm-up")
    pb.fit(method, tiny_model(), tiny_data(), epochs=4, out=tmp_path, **QUICK)
    betas = [(row["loss"] - row["nll"]) * 48 / row["kl"] for row in rows(tmp_path)]
    assert betas == pytest.approx([0, 0.5, 1, 1], abs=1e-5)


def test_keep_best_returns_the_best_epoch(tmp_path: Path, learning_seed: int) -> None:
    """Validation labels of which a third is wrong: growing confidence soon makes their NLL worse."""
    x, y = tiny_data(seed=learning_seed)
    doubtful = x, torch.where(torch.arange(48) % 9 < 3, (y + 1) % 3, y)
    settings = {"epochs": 8, "lr": 0.1, "seed": learning_seed, **QUICK}
    last = pb.fit("map", smooth(learning_seed), (x, y), val=doubtful, out=tmp_path, **settings)
    best = pb.fit("map", smooth(learning_seed), (x, y), val=doubtful, keep_best=True, **settings)
    lowest = min(row["val_nll"] for row in rows(tmp_path))
    assert pb.evaluate(best, doubtful)["nll"] == pytest.approx(lowest, rel=1e-4)
    assert pb.evaluate(last, doubtful)["nll"] > 1.1 * lowest


def test_fit_reads_a_users_loader_and_data_set(learning_seed: int) -> None:
    x, y = tiny_data(seed=learning_seed)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
    model = tiny_model(learning_seed)
    net = pb.fit("map", model, loader, epochs=6, lr=1e-2, progress=False, seed=learning_seed)
    assert pb.evaluate(net, loader)["accuracy"] > 0.5
    net = pb.fit("map", model, TensorDataset(x, y), epochs=6, lr=1e-2, seed=learning_seed, **QUICK)
    assert pb.evaluate(net, TensorDataset(x, y))["accuracy"] > 0.5


def test_fit_passes_precision_to_fabric() -> None:
    net = pb.fit("bbb", smooth(), tuple(t.double() if t.is_floating_point() else t for t in tiny_data()), epochs=1,
                 precision="64-true", **QUICK)  # fmt: skip
    assert net.posterior.mean.dtype == torch.float64


@pytest.mark.parametrize("channels", [1, 2])
def test_fit_uses_the_requested_memory_format(channels: int) -> None:
    class Looking(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append(x.stride(1) == 1)
            return super().forward(x)

    torch.manual_seed(0)
    data = torch.randn(16, channels, 6, 6), torch.arange(16) % 3
    model = Looking(nn.Conv2d(channels, 3, 3), nn.Flatten(), nn.Linear(48, 3))
    trained = {}
    for last in (False, True):
        seen: list[bool] = []
        net = pb.fit("bbb", model, data, epochs=1, channels_last=last, **QUICK)
        trained[last] = net.posterior.mean.detach()
        assert set(seen) == {last}
    assert torch.allclose(trained[True], trained[False], atol=1e-5)


def test_fit_writes_tensorboard_files(tmp_path: Path) -> None:
    pb.fit("map", smooth(), tiny_data(), epochs=1, out=tmp_path, tensorboard=True, **QUICK)
    assert list(tmp_path.glob("events.out.tfevents*"))


def test_batches_visit_everything_once_and_resume() -> None:
    x = torch.arange(10.0)[:, None]
    source = pb.data.batches.as_source((x, torch.arange(10)))
    assert isinstance(source, Arrays)
    whole = [y.tolist() for _, y in batches(source, 4, shuffle_seed=3)]
    assert sorted(y for batch in whole for y in batch) == list(range(10))
    assert [y.tolist() for _, y in batches(source, 4, shuffle_seed=3, start=1)] == whole[1:]
    ranks = [[y.tolist() for _, y in batches(source, 4, shuffle_seed=3, rank=r, world=2)] for r in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*ranks)] == [sorted(b) for b in whole]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x.index_fill(0, torch.tensor(3), math.nan), y), "nan"),
        (lambda x, y: (x, y.index_fill(0, torch.tensor(3), 7)), "labels do not fit the model's 3 outputs"),
        (lambda x, y: (x, y.index_fill(0, torch.tensor(3), -1)), "label -1"),
        (lambda x, y: (x[:0], y[:0]), "empty"),
        (lambda x, y: (x, y[:5]), "48 inputs but 5 targets"),
    ],
)
def test_fit_names_bad_data(change: object, message: str) -> None:
    with pytest.raises(pb.UserError, match=message):
        pb.fit("map", tiny_model(), change(*tiny_data()), epochs=1, **QUICK)  # type: ignore[operator]


def test_fit_stops_at_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"stage 'train', epoch \d+, step \d+"):
        pb.fit("map", smooth(), tiny_data(), epochs=50, lr=1e38, optimizer="sgd", out=tmp_path, **QUICK)
    assert not (tmp_path / "model.pocket").exists()


def test_fit_names_wrong_settings() -> None:
    with pytest.raises(pb.UserError, match="unknown training setting 'learning_rate'"):
        pb.fit("map", tiny_model(), tiny_data(), learning_rate=1)
    with pytest.raises(pb.UserError, match="unknown method 'bayes'"):
        pb.fit("bayes", tiny_model(), tiny_data())
    with pytest.raises(pb.UserError, match="batch_size must be at least 1"):
        pb.fit("map", tiny_model(), tiny_data(), batch_size=0)
    with pytest.raises(pb.UserError, match="resume=True needs out="):
        pb.fit("map", tiny_model(), tiny_data(), resume=True)


def test_frozen_batch_norm_ignores_the_batch() -> None:
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(36, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    )
    options = {"epochs": 1, "batch_size": 16, "lr": 1e-3, "progress": False}
    for frozen in (True, False):
        net = pb.fit("map", model, tiny_data(), freeze_batch_norm=frozen, **options)
        norm = next(m for m in net.modules() if isinstance(m, torch.nn.BatchNorm1d))
        assert torch.equal(norm.running_mean, torch.zeros(8)) is frozen
        assert int(norm.num_batches_tracked) == (0 if frozen else 3)
        assert not norm.training


def test_fit_names_data_without_a_length() -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter([(torch.zeros(2, 3), torch.zeros(2).long())])

    with pytest.raises(pb.UserError, match="a Stream has no length"):
        pb.fit(pb.MeanFieldVI(), nn.Linear(3, 2), torch.utils.data.DataLoader(Stream(), batch_size=None))


def test_fit_names_data_that_are_not_pairs() -> None:
    class Named(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"image": torch.zeros(4), "class": torch.tensor(0)}

    for data in (Named(), DataLoader(Named(), 2)):
        with pytest.raises(pb.UserError, match="no targets: name them 'labels'; it has image, class"):
            pb.fit("map", tiny_model(), data, epochs=1, **QUICK)
    with pytest.raises(pb.UserError, match=r"pb\.data\.load\('digits', 'train'\)"):
        pb.fit("map", tiny_model(), "digits", **QUICK)
    with pytest.raises(pb.UserError, match=r"beta is a setting of the method: give MeanFieldVI\(beta=\.\.\.\)"):
        pb.fit("bbb", tiny_model(), tiny_data(), beta=0.1, **QUICK)


@pytest.mark.parametrize("wrong", [{"beta": -1.0}, {"prior_std": 0.0}])
def test_fit_checks_kl_weights_and_priors_early(wrong: dict[str, float]) -> None:
    with pytest.raises(pb.UserError, match="beta must be finite and not negative"):
        pb.MeanFieldVI(**wrong)


@pytest.mark.parametrize("x", [torch.zeros(8, 5), torch.zeros(8, 4, dtype=torch.int64), torch.zeros(8, 4).byte()])
def test_fit_names_inputs_that_the_model_does_not_take(x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(pb.UserError, match=r"does not accept inputs \(\d, \d\) of type torch\."):
        pb.fit("bbb", model, (x, torch.arange(8) % 3), epochs=1, **QUICK)
    image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    with pytest.raises(pb.UserError, match=r"does not accept inputs \(8, 3, 4, 4\)"):
        pb.fit("map", image, (torch.zeros(8, 3, 4, 4), torch.arange(8) % 3), epochs=1, **QUICK)


def test_fit_warns_of_one_leftover_example_for_batch_norm() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    x, y = torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(pb.UserError, match=r"batch norm cannot train on the last batch of 1 example.*batch_size"):
        pb.fit("map", model, (x, y), epochs=1, batch_size=4, progress=False)


@pytest.mark.parametrize(("what", "x", "y"), [("features", 1000.0, 1.0), ("targets", 1.0, 1000.0)])
def test_fit_warns_of_units_that_train_badly(what: str, x: float, y: float) -> None:
    data = torch.full((4, 2), x), torch.full((4, 1), y)
    with pytest.warns(UserWarning, match=rf"{what} as large as 1e\+03 train badly.*standardise"):
        pb.fit("map", nn.Linear(2, 1), data, epochs=1, lr=1e-6, progress=False)


class Cut(nn.Module):
    """A model with a part that has no gradient."""

    def __init__(self, cut: bool = True, softmax: bool = False) -> None:
        super().__init__()
        self.body, self.unused, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)
        self.cut, self.softmax = cut, softmax

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x).relu()
        output = self.head(hidden.detach() if self.cut else hidden)
        return output.softmax(1) if self.softmax else output


def few() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 3)


def test_fit_warns_of_no_gradient_and_of_probabilities() -> None:
    with pytest.warns(UserWarning, match=r"depends on 'body\.weight' and 1 others but has no gradient.*select="):
        pb.fit("bbb", Cut(), few(), epochs=1, progress=False)
    with pytest.warns(UserWarning, match="outputs look like probabilities"):
        pb.fit("map", Cut(cut=False, softmax=True), few(), epochs=1, progress=False)
    pb.fit("bbb", Cut(cut=False), few(), epochs=1, progress=False)  # parameters that no output depends on are unchanged


def test_fit_model_check_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    net = pb.bayesianize(model).train()
    net.model[1].eval()
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    warn_of_odd_model(net, few()[0])
    assert [module.training for module in net.model] == [True, False, True, True]
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": "1e-3"}, "lr must be a number, not '1e-3'"),
        ({"epochs": 1.5}, r"epochs must be a whole number, not 1\.5"),
        ({"schedule": "milestones"}, "needs milestones="),
        ({"milestones": [1]}, "needs schedule='milestones'"),
        ({"keep_best": True}, "keep_best=True needs val="),
        ({"tensorboard": True}, "tensorboard=True needs out="),
        ({"likelihood": pb.Categorical}, "must be an instance.*not the class Categorical"),
        ({"likelihood": "categorical"}, "must be an instance.*not 'categorical'"),
        ({"likelihood": pb.Categorical([1.0, 2.0, 3.0])}, "3 class weights, but the model has 2 outputs"),
    ],
)
def test_fit_names_settings_that_fail_late_or_do_nothing(settings: dict[str, object], message: str) -> None:
    with pytest.raises(pb.UserError, match=message):
        pb.fit("map", Cut(cut=False), few(), progress=False, **{"epochs": 1, **settings})


def test_fit_takes_numpy_numbers_and_integer_class_weights() -> None:
    likelihood = pb.Categorical([1, 3])
    pb.fit("map", Cut(cut=False), few(), epochs=np.int64(1), lr=np.float32(0.1), likelihood=likelihood, progress=False)


def test_fit_warns_of_inputs_names_and_real_labels() -> None:
    x, y = few()
    for several in ((x, x), {"a": x, "b": x}):
        with pytest.raises(pb.UserError, match="the model's forward takes x, but the data have"):
            pb.fit("map", Cut(cut=False), (several, y), epochs=1, progress=False)
    with pytest.raises(pb.UserError, match=r"pb\.models\.build\('mlp'"):
        pb.fit("map", "mlp", (x, y), epochs=1, progress=False)
    real = y[:, None] + 0.5
    with pytest.raises(pb.UserError, match=r"needs classes: give integers"):
        pb.fit("map", Cut(cut=False), (x, real), likelihood=pb.Categorical(), epochs=1, progress=False)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.tensor([0.0, 1.0] * 30), "2 different whole numbers as floats.*y.long"),
        (10 * torch.arange(60), "60 different integers in 60 rows.*give floats"),
        (torch.tensor([1, 2] * 30), "labels start at 1"),
    ],
)
def test_fit_warns_of_targets_of_the_wrong_kind(y: Tensor, message: str) -> None:
    outputs = 1 if y.is_floating_point() else int(y.max()) + 1
    with pytest.warns(UserWarning, match=message):
        pb.fit("map", torch.nn.Linear(2, outputs), (torch.randn(60, 2), y), epochs=1, progress=False)

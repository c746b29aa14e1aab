"""Compare partial Bayesian networks with VI, MC dropout, ensembles and the deterministic network on real data.

python benchmarks/pbn.py --data-dir DATA [--only uci,mnist,cubic,cifar,camvid,weights,cost,speed] [--work FOLDER]

Each section writes results/pbn-SECTION.json with its settings after every row; finished rows are not run again, so the
script can be interrupted. Networks that several rows start from are stored in the work folder; `weights` analyses those
of `mnist`. Rows of one section differ only in what their name states. Times (`speed`) need an idle machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pbn_analysis
import pbn_images
import pocketbayes as pb
from measure import Rows
from pocketbayes.data.dataset import Images
from pocketbayes.data.shift import rotate
from pocketbayes.inference.metrics import ood_scores

KEPT = ("accuracy", "nll", "brier", "ece", "entropy")


class Bench:
    """The finished rows of a section, and its data."""

    def __init__(self, section: str, data_dir: Path, work: Path, settings: dict[str, Any]) -> None:
        self.data_dir, self.work = data_dir, work / section
        self.work.mkdir(parents=True, exist_ok=True)
        self.rows = Rows(f"pbn-{section}", {"settings": settings})

    def row(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        """Make and keep the row, unless it exists."""
        if name in self.rows:
            return
        start = time.process_time()
        row = make()
        self.rows.keep(name, {**row, "seconds of CPU": round(time.process_time() - start, 1)})

    def trained(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a network that several rows start from, cached in the work folder."""
        path = self.work / f"{name}.pocket"
        if not path.exists():
            pb.save(make(), path)
        return pb.load(path)

    def load(self, name: str, split: str, **options: Any) -> Any:
        return pb.data.load(name, split, self.data_dir, val_fraction=0.0, **options)  # type: ignore[arg-type]


# -- regression ---------------------------------------------------------------------------------------------------

UCI_SETS = (
    "yacht",
    "bostonHousing",
    "energy",
    "concrete",
    "wine-quality-red",
    "kin8nm",
    "power-plant",
    "naval-propulsion-plant",
    "protein-tertiary-structure",
)
UCI: dict[str, Any] = {
    "model": "mlp, one hidden layer of 50",
    "splits": 5,
    "steps": 1000,
    "rate": 0.1,
    "dropout": 0.05,
    "members": 5,
    "samples": 50,
    "start": "PBN starts from the first member of the ensemble and takes a third as many steps again; so does Laplace",
    "Laplace": "subnetwork of as many weights, full covariance, linearised prediction; sets of fewer than 2000 rows",
}
UCI_METHODS = ("deterministic", "ensemble", "PBN", "VI", "subnetwork Laplace", "MC dropout")


def uci(bench: Bench) -> None:
    """Measure RMSE and log-likelihood of six methods on the standard splits."""
    for split in range(UCI["splits"]):
        for name in UCI_SETS:
            _uci_split(bench, name, split)


def _uci_split(bench: Bench, name: str, split: int) -> None:
    if f"{name}, {UCI_METHODS[-1]}, split {split}" in bench.rows:
        return
    train = bench.load("uci", "train", set=name, index=split)
    test = bench.load("uci", "test", set=name, index=split)
    x, y = train.__getitems__(range(len(train)))
    batch = 32 if len(train) < 2000 else 128
    epochs = max(5, round(UCI["steps"] * batch / len(train)))
    torch.manual_seed(split)
    model = pb.models.build("mlp", in_features=x.shape[1], out_features=1, hidden=[50])
    settings = {"batch_size": batch, "lr": 1e-2, "schedule": "cosine", "seed": split, "progress": False}

    def fit(method: pb.Method, model: Any, epochs: int = epochs) -> Any:
        return pb.fit(method, model, (x, y), epochs=epochs, **settings)

    ensemble = fit(pb.Ensemble(members=UCI["members"]), model)
    start = ensemble.networks[0]
    partial = pb.PBN(rate=UCI["rate"], beta=1.0, annealing="constant", train_samples=2)
    nets: dict[str, Callable[[], Any]] = {
        "deterministic": lambda: start,
        "ensemble": lambda: ensemble,
        "PBN": lambda: fit(partial, start, max(epochs // 3, 2)),
        "VI": lambda: fit(pb.MeanFieldVI(propagation="local", prior_std=1.0), model),
        "MC dropout": lambda: fit(pb.MCDropout(rate=UCI["dropout"]), model),
    }
    if batch == 32:  # only where the Jacobian of every example fits in memory
        size = round(UCI["rate"] * start.layout.size)
        laplace = pb.Laplace(subset="subnetwork", subnetwork_size=size)
        nets["subnetwork Laplace"] = lambda: fit(laplace, start, 0)

    def measured(method: str) -> dict[str, Any]:
        how = "linear" if method == "subnetwork Laplace" else None
        found = pb.evaluate(nets[method](), test, samples=UCI["samples"], propagation=how)
        kept = ("rmse", "log_likelihood", "log_likelihood_samples", "coverage95")
        return {key: found[key] for key in kept} | {"epochs": epochs, "batch": batch}

    for method in UCI_METHODS:
        if method in nets:
            bench.row(f"{name}, {method}, split {split}", lambda method=method: measured(method))  # type: ignore[misc]


CUBIC: dict[str, Any] = {
    "points": 20,
    "model": "mlp, one hidden layer of 100",
    "noise": 3.0,
    "epochs": 1500,
    "rates": [0.05, 0.2, 0.5, 1.0],
    "samples": 100,
}


def cubic(bench: Bench) -> None:
    """Measure mean and std on [-6, 6] after training on [-4, 4]."""
    train = bench.load("toy-cubic", "train", n=CUBIC["points"])
    data = train.__getitems__(range(len(train)))
    torch.manual_seed(0)
    model = pb.models.build("mlp", in_features=1, out_features=1, hidden=[100])
    settings = {"batch_size": 20, "lr": 1e-2, "schedule": "cosine", "progress": False, "epochs": CUBIC["epochs"]}
    settings["likelihood"] = pb.GaussianNoise(CUBIC["noise"])
    start = bench.trained("deterministic", lambda: pb.fit("map", model, data, **settings))
    grid = torch.linspace(-6, 6, 121)[:, None]

    def curve(make: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
        def row() -> dict[str, Any]:
            found = pb.predict(make(), grid, CUBIC["samples"])
            inside = grid[:, 0].abs() <= 4
            spread = found.epistemic[:, 0]
            return {
                "epistemic inside": float(spread[inside].mean()),
                "epistemic outside": float(spread[~inside].mean()),
                "mean": _short(found.mean[:, 0]),
                "std": _short(found.std[:, 0]),
            }

        return row

    bench.row("data", lambda: {"x": _short(data[0][:, 0]), "y": _short(data[1][:, 0]), "grid": _short(grid[:, 0])})
    bench.row("deterministic", curve(lambda: start))
    vi = pb.MeanFieldVI(train_samples=5)
    bench.row("VI, random start", curve(lambda: pb.fit(vi, model, data, **settings)))
    for rate in CUBIC["rates"]:
        method = pb.PBN(rate=rate, beta=1.0, annealing="constant")
        bench.row(f"PBN {rate:.0%}", curve(lambda method=method: pb.fit(method, start, data, **settings)))  # type: ignore[misc]


# -- MNIST --------------------------------------------------------------------------------------------------------

RATES = (0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
MNIST: dict[str, Any] = {
    "model": "lenet300 with batch norm",
    "epochs": 4,
    "epochs of PBN after them": 4,
    "training": {"batch_size": 200, "optimizer": "sgd", "lr": 0.05, "weight_decay": 1e-5, "schedule": "cosine"},
    "pbn": {"train_samples": 1, "sensitivity_batches": 50},
    "members": 5,
    "dropout": 0.1,
    "samples": 10,
    "angles": list(range(0, 181, 15)),
    "rotated images": 1000,
    "images that settings were chosen on": 3000,
}


def mnist(bench: Bench) -> None:
    """Measure nine rates, deterministic, ensemble and MC dropout with three seeds."""
    train, shift = bench.load("mnist", "train"), _Shift(bench)
    for seed in range(3):
        _mnist_seed(bench, train, shift, seed)


def _mnist_seed(bench: Bench, train: Any, shift: _Shift, seed: int) -> None:
    torch.manual_seed(seed)
    model = pb.models.build("lenet300", batch_norm=True)
    epochs, more = MNIST["epochs"], MNIST["epochs of PBN after them"]

    def fit(method: pb.Method, model: Any, epochs: int) -> Any:
        return pb.fit(method, model, train, epochs=epochs, seed=seed, progress=False, **MNIST["training"])

    ensemble = bench.trained(f"ensemble-{seed}", lambda: fit(pb.Ensemble(members=MNIST["members"]), model, epochs))
    start = ensemble.networks[0]

    def partial(rate: float) -> Any:
        return fit(pb.PBN(rate=rate, **MNIST["pbn"]), start, more)

    makers: dict[str, Callable[[], Any]] = {
        "ensemble": lambda: ensemble,
        "deterministic": lambda: partial(0.0),
        **{f"PBN {rate:.0%}": lambda rate=rate: partial(rate) for rate in RATES},  # type: ignore[misc]
        "MC dropout": lambda: fit(pb.MCDropout(rate=MNIST["dropout"]), model, epochs + more),
        "VI, random start": lambda: fit(pb.PBN(rate=1.0, pretrain_epochs=0, **MNIST["pbn"]), model, epochs + more),
    }
    for name, make in makers.items():
        bench.row(f"{name}, seed {seed}", lambda make=make, name=name: shift.row(make(), name, seed))  # type: ignore[misc]


class _Shift:
    """Metrics on test images not used for choosing settings, rotated images and out-of-distribution images."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        test = bench.load("mnist", "test")
        self.test = test.take(torch.arange(MNIST["images that settings were chosen on"], len(test)))
        try:
            self.foreign = bench.load("fashion-mnist", "test", mean="mnist", std="mnist")
        except pb.UserError as missing:
            print("no out-of-distribution rows:", missing, flush=True)
            self.foreign = None
        some = self.test.take(torch.arange(MNIST["rotated images"]))
        pictures = some.images.permute(0, 2, 3, 1).numpy()
        self.turned = {angle: self._changed(some, rotate(pictures, angle)) for angle in MNIST["angles"]}

    @staticmethod
    def _changed(images: Images, pixels: Any) -> Images:
        moved = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return Images(moved, images.labels, images.info, images.normalise, None)

    def row(self, net: Any, name: str, seed: int) -> dict[str, Any]:
        row, inside = self._measures(net, self.test)
        row["rotated"] = {str(angle): self._measures(net, images)[0] for angle, images in self.turned.items()}
        if self.foreign is not None:
            outside = self._measures(net, self.foreign)[1]
            for score in inside:
                found = ood_scores(inside[score], outside[score])
                row |= {
                    f"{score} in": float(inside[score].mean()),
                    f"{score} out": float(outside[score].mean()),
                    f"auroc by {score}": found["auroc"],
                    f"fpr95 by {score}": found["fpr95"],
                }
        census = pb.census(net)
        row |= {"trainable": census.trainable, "values": census.values}
        if isinstance(net, pb.Network) and isinstance(net.posterior, pb.posteriors.Partial):
            row["fractions"] = net.posterior.fractions()
            row["mean std"] = float(net.posterior.moments()[1].sum()) / max(net.posterior.noise_size, 1)
            if seed == 0:
                pb.save(net, self.bench.work / f"{name.replace(' ', '-').replace('%', '')}.pocket")
        return row

    def _measures(self, net: Any, images: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return metrics and the scores of each image."""
        x, y = images.__getitems__(range(len(images)))
        found = pb.predict(net, x, MNIST["samples"], batch_size=1000)
        measures = pb.metrics.Classification(10)
        measures.update(found.mean, y)
        kept = {key: round(value, 6) for key, value in measures.compute().items() if key in KEPT}
        return kept, {"entropy": found.entropy, "epistemic": found.epistemic}


def _short(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


SECTIONS: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "uci": (uci, UCI),
    "mnist": (mnist, MNIST),
    "cubic": (cubic, CUBIC),
    "cifar": (pbn_images.cifar, pbn_images.CIFAR),
    "camvid": (pbn_images.camvid, pbn_images.CAMVID),
    "weights": (pbn_analysis.weights, pbn_analysis.WEIGHTS),
    "cost": (pbn_analysis.cost, pbn_analysis.COST),
    "speed": (pbn_analysis.speed, pbn_analysis.SPEED),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "pocketbayes-pbn")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for section in arguments.only.split(","):
        run, settings = SECTIONS[section]
        run(Bench(section, arguments.data_dir, arguments.work, settings))


if __name__ == "__main__":
    main()

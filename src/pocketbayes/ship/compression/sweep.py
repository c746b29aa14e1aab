"""The trade-off between file size and validation loss, measured once for all budgets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pocketbayes.base.errors import NotFiniteAnswersError
from pocketbayes.base.progress import Display
from pocketbayes.base.seeds import repeat_seed
from pocketbayes.data.batches import as_source, batches, size_of
from pocketbayes.files.network_file import Packed
from pocketbayes.files.packing import Precision
from pocketbayes.methods.recalibration import batch_norm_statistics, batch_norms, correct_statistics
from pocketbayes.network import Mixture, Net, members
from pocketbayes.ship.compression.coding import (
    CODED_PRECISION,
    Measured,
    Recipe,
    Result,
    code,
    codebook_of,
    estimate_bytes,
    round_points,
    weights_of,
)
from pocketbayes.ship.compression.feedback import error_shares
from pocketbayes.ship.compression.filling import CLOSE_FRACTION, COARSEST_LAMBDA, TARGET_FRACTION, fill, recipe_of_size
from pocketbayes.ship.compression.losses import Measurement, measure_examples, standard_error
from pocketbayes.ship.compression.measurements import calibration_batches, input_moments, layer_sensitivity
from pocketbayes.ship.compression.members import Agreement, Loss, look_like_training_data, measure_prefixes, prefix
from pocketbayes.ship.compression.retraining import retrain
from pocketbayes.ship.compression.trials import NLL_NOISE, Budget, Store, Trial, choose, fits_budget

LAMBDAS = (0.003, 0.01, 0.03, 0.07, 0.13, 0.23, 0.4)
LAMBDAS_LARGE = (0.01, 0.03, 0.1, 0.2)
FURTHER_FACTOR, FURTHER_FACTOR_LARGE = 1.6, 2.5
"""Factor between the lambdas of further points, as long as the budget requires or allows smaller files."""
LARGE_NETWORK = 2_000_000
"""Number of weights above which fewer points are measured, since each takes ten seconds or more."""
PROBE_LAMBDA = 0.1
"""Lambda at which the units of the codebook are compared, at equal bytes, if the budget is not a size."""
BYTES_PER_POINT = 0.8
"""Approximate bytes of a bias, or of a value of normalisation, in a file."""
REFINEMENTS, REFINEMENTS_LARGE = 3, 2
"""Largest numbers of further points between the last one that fits a budget and the next."""
MIN_LAMBDA_RATIO = 1.25
"""Ratio of two lambdas below which only one of them is measured."""
MAX_NLL_RISE = 1.0
"""Rise of the NLL in nats beyond which no coarser point is measured."""
MAX_TRAININGS = 3
"""Largest number of networks to train."""
TRAINED_MARGIN = 1.01
"""Factor of lambda that keeps a trained network within a size, since its codes differ a little."""
FINER_FACTOR, FINER_POINTS = 3.0, 3
"""Factor of lambda between points finer than the usual ones, and the largest number of them."""
COARSER_FACTOR = 1.4
"""Factor of lambda between two trained networks, as long as the loss allows it."""
CHECK_SAMPLES, CHECK_EXAMPLES = 30, 4
"""Draws and examples for which the chosen file's outputs must be finite, since wide stds may overflow occasionally."""


class Sweep:
    """A sweep of codings from many to few bits, with each file measured."""

    def __init__(
        self, net: Net, train: Any, val: Any, samples: int, seed: int, out: str | Path | None, bar: Display
    ) -> None:
        self.net, self.train, self.val = net, train, val
        self.samples, self.seed, self.bar = samples, seed, bar
        self.models = [network.to_module() for network in members(net)]
        self.weights = sum(network.layout.size for network in members(net))
        self.trials: list[Trial] = []
        self.calibration = calibration_batches(train, seed)
        self.measurements: list[Measured] = []
        self.statistics: list[tuple[Tensor, Tensor]] = []
        self.examples: Tensor | None = None  # the original network's NLL of each example
        self.recipe = Recipe(PROBE_LAMBDA)
        sizes = {"train": size_of(as_source(train)), "val": size_of(as_source(val))}
        origin = Packed.of(net) if out is not None else Packed({}, {})
        self.store = Store(out, origin, {"samples": samples, "seed": seed, **sizes})

    @property
    def is_large(self) -> bool:
        """Whether the network is so large that fewer points are measured."""
        return self.weights > LARGE_NETWORK

    @property
    def refinements(self) -> int:
        """Largest number of points measured next to the budget's choice."""
        return REFINEMENTS_LARGE if self.is_large else REFINEMENTS

    def keep_as(self, precision: str | Precision, name: str) -> None:
        """Measure the network in its own storage at a precision."""
        self.bar.begin(f"measure {name}", 1)
        self.measure(lambda: Packed.of(self.net, precision), {"kept": name})

    def measure(self, make: Callable[[], Packed], how: dict[str, Any]) -> Trial:
        """Measure the network as read back from its file, unless it was measured before.

        For coded mixtures, measure smaller mixtures of the first members too: fewer members may beat fewer bits.
        """
        trial = self.store.find(how)
        fewer = range(1, how.get("members", len(members(self.net)))) if "lam" in how else range(0)
        if trial is not None:
            known = (self.store.find({**how, "members": count}) for count in fewer)
            self.trials += [found for found in known if found is not None]
        else:
            packed = make()
            found = self.losses(packed)
            for count in fewer:
                own = {**how, "members": count}
                self.trials.append(self.trial(own, packed.first(count), found.losses[count - 1]))
                self.store.keep(self.trials[-1])
            trial = self.trial(how, packed, found.losses[-1])
            trial = replace(trial, disagreement=found.disagreement, nll_error=found.nll_error)
            self.store.keep(trial)
        self.trials.append(trial)
        self.bar.advance(1, bytes=trial.bytes, nll=trial.nll)
        return trial

    def trial(self, how: dict[str, Any], packed: Packed, loss: Loss) -> Trial:
        """Return a trial with its size; an NLL of NaN counts as infinite."""
        nll = math.inf if math.isnan(loss[0]) else loss[0]
        return Trial(how, packed.size, 8 * packed.size / self.weights, nll, loss[1], packed)

    def losses(self, packed: Packed) -> Measurement:
        """Measure a file; for a mixture also its first members and their disagreement."""
        net = packed.unpack(self.models[: packed.networks])
        if isinstance(net, Mixture):
            found = measure_prefixes(net, self.val, self.samples, self.seed)
            if not self.trials and not math.isfinite(found.losses[-1][0]):
                raise NotFiniteAnswersError("the outputs of the mixture are not finite")
            return Measurement(found.losses, found.disagreement)
        try:
            loss, examples = measure_examples(net, self.val, self.samples, self.seed)
        except NotFiniteAnswersError:
            if not self.trials:
                raise
            return Measurement([(math.inf, None)])
        if self.examples is None:
            own = not self.trials
            self.examples = examples if own else measure_examples(self.net, self.val, self.samples, self.seed)[1]
        return Measurement([loss], nll_error=standard_error(examples, self.examples))

    def coded(self, recipe: Recipe, count: int | None = None) -> Trial:
        """Code the network, or the first members of a mixture, correct batch norm and measure it."""
        return self.measure(lambda: self.pack(recipe, count), self.how(recipe, count))

    def how(self, recipe: Recipe, count: int | None) -> dict[str, Any]:
        """Return the key under which a trial is stored."""
        return asdict(recipe) | ({} if count in (None, len(members(self.net))) else {"members": count})

    def pack(self, recipe: Recipe, count: int | None) -> Packed:
        """Make the file of the coded network, or of the first members of a mixture."""
        return Packed.of(self.finish(self.code(recipe, count).net, recipe.point_bits), CODED_PRECISION)

    def code(self, recipe: Recipe, count: int | None = None) -> Result:
        """Code the network, or the first members of a mixture."""
        net = prefix(self.net, count) if count and isinstance(self.net, Mixture) else self.net
        return code(net, recipe, self.measured()[:count])

    def measured(self) -> list[Measured]:
        """Return the measurements of each member on the calibration data, made once."""
        if not self.measurements:
            examples = sum(map(len, self.calibration))
            for network in members(self.net):
                shares = error_shares(input_moments(network, self.calibration, examples))
                self.measurements.append(Measured(shares, layer_sensitivity(network, self.calibration)))
        return self.measurements

    def estimate(self, recipe: Recipe, count: int | None = None) -> float:
        """Estimate the bytes of the codes of the network, or of the first members of a mixture."""
        net = prefix(self.net, count) if count and isinstance(self.net, Mixture) else self.net
        return estimate_bytes(net, recipe, self.measured()[:count])

    def fill(self, limit: int, count: int | None) -> int | None:
        """Choose the units of the codebook by the first member, then fill a size with fewer and fewer members.

        Returns:
            The number of members to keep; None if the validation data decide.
        """
        agreement = self.agreement() if count is None else None
        most = len(members(self.net)) if agreement is None else agreement.count
        counts = [count] if count is not None else range(most, 0, -1)
        divergences: dict[int, float] = {}
        probes = self.probes(limit / counts[0])
        self.bar.begin("compress", len(probes) + len(counts))
        self.recipe = _preferred([(self.coded(recipe, 1), recipe) for recipe in probes])[1]

        def pack(recipe: Recipe, number: int) -> Packed:
            how = self.how(recipe, number)
            known = next((trial for trial in self.trials if trial.how == how), None) or self.store.find(how)
            return self.pack(recipe, number) if known is None or known.packed is None else known.packed

        def measure(packed: Packed, recipe: Recipe, number: int) -> float:
            nll = self.measure(lambda: packed, self.how(recipe, number)).nll
            if agreement is None:
                return nll
            return divergences.setdefault(number, agreement.divergence(packed.unpack(self.models[:number])))

        fill(self.recipe, limit, counts, self.estimate, pack, measure)
        return min(divergences, key=divergences.__getitem__, default=count)

    def agreement(self) -> Agreement | None:
        """Return the criterion for the number of members if they were probably trained on the validation data."""
        if not isinstance(self.net, Mixture) or not look_like_training_data(self.val, self.trials[0].accuracy):
            return None
        losses = measure_prefixes(self.net, self.val, self.samples, self.seed).losses
        return Agreement.of(self.net, losses, self.calibration, self.samples, self.seed)

    def finish(self, made: Net, point_bits: int) -> Net:
        """Correct batch norm relative to the original network, and round parameters outside the posterior."""
        if batch_norms(self.net):
            if not self.statistics:
                self.statistics = batch_norm_statistics([self.net], self.calibration)[1][0]
            own = batch_norm_statistics([made], self.calibration)[1][0]
            correct_statistics(made, own, self.net, self.statistics)
        round_points(made, point_bits)
        return made

    def retrained(self, recipe: Recipe, steps: int, count: int | None) -> Trial:
        """Code and train the network, or the first members of a mixture, and measure it."""
        how = {**self.how(recipe, count), "steps": steps}

        def make() -> Packed:
            weights = weights_of(self.net, recipe, self.measured())[:count]
            codebook = codebook_of(weights, recipe)
            trained = []
            for number, own in enumerate(weights):
                self.bar.begin(f"train at lambda {recipe.lam:.3g}", steps)
                trained.append(
                    retrain(
                        own, codebook, self.train, self.calibration, steps,
                        seed=self.seed, checkpoint=self.store.path(how, f".{number}.tuning"),
                        on_step=lambda loss: self.bar.advance(1, loss=loss),
                    )
                )  # fmt: skip
            made: Net = trained[0]
            if isinstance(self.net, Mixture):
                made = Mixture(trained, prefix(self.net, len(trained)).weights)
            round_points(made, recipe.point_bits)
            return Packed.of(made, CODED_PRECISION)

        return self.measure(make, how)

    def retrain(self, budget: Budget, steps: int) -> None:
        """Train coded networks near the budget: until one fits a size, or ever coarser ones while a loss allows it."""
        before = self.trials[0]
        limit = budget.limit(self.weights)
        chosen = choose(self.of_recipe(), budget, before, self.weights)
        lam = chosen.how.get("lam", self.recipe.lam) * (1 if limit is None else TRAINED_MARGIN)
        for _ in range(MAX_TRAININGS):
            trial = self.retrained(replace(self.recipe, lam=lam), steps, chosen.how.get("members"))
            fits = fits_budget(trial, budget, before, self.weights)
            if limit is not None:
                if fits:
                    return
                lam *= (trial.bytes / limit) ** 2
            elif not fits:
                return
            else:
                lam *= COARSER_FACTOR

    def trace(self, budget: Budget) -> None:
        """Measure coarser and coarser codes until no budget would choose them.

        For a budget in bytes, `fill` has already chosen the units of the codebook, and for large networks only smaller
        files are measured here. Otherwise the units are chosen first.
        """
        before, limit = self.trials[0], budget.limit(self.weights)
        lambdas: tuple[float, ...] = LAMBDAS_LARGE if self.is_large else LAMBDAS
        probes = self.probes() if limit is None else []
        self.bar.begin("compress", len(probes) + len(lambdas) + self.refinements)
        if probes:
            self.choose_units(probes, lambdas[0])
        elif self.is_large:
            lambdas = tuple(lam for lam in lambdas if lam > self.recipe.lam)
        known = self.of_recipe()
        lam = min(lambdas, default=COARSEST_LAMBDA)
        while lam < COARSEST_LAMBDA:
            near = (t for t in known if max(lam / t.how["lam"], t.how["lam"] / lam) <= MIN_LAMBDA_RATIO)
            trial = next(near, None) or self.coded(replace(self.recipe, lam=lam))
            is_last = lam >= lambdas[-1] and (limit or not fits_budget(trial, budget, before, self.weights))
            if is_last or trial.nll > before.nll + MAX_NLL_RISE:
                break
            factor = FURTHER_FACTOR_LARGE if self.is_large else FURTHER_FACTOR
            lam = next((each for each in lambdas if each > lam), lam * factor)
        if limit is None:
            self.trace_finer(budget, lambdas[0])

    def trace_finer(self, budget: Budget, lam: float) -> None:
        """Measure finer codes until one is within the loss, since the alternative is a file without codes."""
        for _ in range(FINER_POINTS):
            if any(fits_budget(t, budget, self.trials[0], self.weights) for t in self.trials if "lam" in t.how):
                return
            lam /= FINER_FACTOR
            self.coded(replace(self.recipe, lam=lam))

    def choose_units(self, probes: list[Recipe], finest: float) -> None:
        """Choose the units of the codebook, with finer codes if the first ones are too coarse to compare them."""
        for recipes in (probes, [replace(each, lam=finest) for each in probes]):
            best, self.recipe = _preferred([(self.coded(each), each) for each in recipes])
            if best.nll <= self.trials[0].nll + MAX_NLL_RISE:
                return

    def probes(self, size: float | None = None) -> list[Recipe]:
        """Return recipes of equal size: codebooks scaled by network, layer or filter, and stds per code.

        The first is preferred. Codes scaled by the whole network are too coarse for some layers of large networks.

        Args:
            size: Bytes of the first member's file; None for the size that `PROBE_LAMBDA` gives.
        """
        has_stds = any(network.has_stds for network in members(self.net))
        layer = Recipe(PROBE_LAMBDA, "layer", "layer" if has_stds else "none", balanced=True)
        recipes = [layer, replace(layer, units="filter")]
        if not self.is_large:
            recipes.insert(0, replace(layer, units="network", balanced=False))
        if has_stds:
            recipes.append(replace(recipes[0], std_units="code"))
        points = sum(tensor.numel() for tensor in members(self.net)[0].points().values())
        codes = self.estimate(recipes[0], 1) if size is None else TARGET_FRACTION * size - BYTES_PER_POINT * points
        return [recipe_of_size(self.estimate, recipe, 1, codes) for recipe in recipes]

    def of_recipe(self) -> list[Trial]:
        """Return the untrained trials that differ from the recipe only in lambda and members."""
        wanted = {**asdict(self.recipe), "lam": None, "members": None}
        return [
            trial
            for trial in self.trials
            if "lam" in trial.how and wanted == {**trial.how, "lam": None, "members": None}
        ]

    def refine(self, budget: Budget) -> None:
        """Measure points between the one that the budget would choose now and the next that does not fit."""
        before = self.trials[0]
        for _ in range(self.refinements):
            points = sorted(self.comparable(budget), key=lambda trial: trial.bytes)
            fits = [fits_budget(trial, budget, before, self.weights) for trial in points]
            if all(fits) or not any(fits):
                return
            is_size = budget.limit(self.weights) is not None
            # A size chooses the largest file that fits, a loss the smallest; its neighbour does not fit.
            place = (max if is_size else min)(number for number, fit in enumerate(fits) if fit)
            other = place + 1 if is_size else place - 1
            if not 0 <= other < len(points) or _is_close(points[place], budget.limit(self.weights)):
                return
            self.coded(replace(self.recipe, lam=self.between(points[place], points[other], budget)))

    def comparable(self, budget: Budget) -> list[Trial]:
        """Return the coded trials with the chosen units and the number of members that the budget would choose now."""
        coded = self.of_recipe()
        fitting = [trial for trial in coded if fits_budget(trial, budget, self.trials[0], self.weights)]
        count = choose(fitting, budget, self.trials[0], self.weights).how.get("members") if fitting else None
        return [trial for trial in coded if trial.how.get("members") == count]

    def between(self, fitting: Trial, other: Trial, budget: Budget) -> float:
        """Return the lambda expected to meet a size, or for a loss the middle of two."""
        one, two = (math.log(trial.how["lam"]) for trial in (fitting, other))
        limit = budget.limit(self.weights)
        share = 0.5
        if limit is not None:
            sizes = [math.log(trial.bytes) for trial in (fitting, other)]
            share = min(max((math.log(0.998 * limit) - sizes[0]) / (sizes[1] - sizes[0]), 0.02), 0.98)
        return math.exp(one + share * (two - one))

    def is_finite(self, net: Net) -> bool:
        """Return whether draws other than the measured ones give finite outputs."""
        if not any(network.has_stds for network in members(net)):
            return True
        try:
            x, y = next(iter(batches(as_source(self.val), CHECK_EXAMPLES, shuffle_seed=self.seed)))
            some = (x[:CHECK_EXAMPLES], y[:CHECK_EXAMPLES])
            measure_examples(net, some, CHECK_SAMPLES, repeat_seed(self.seed, 1))
        except NotFiniteAnswersError:
            return False
        return True


def _preferred(tried: list[tuple[Trial, Recipe]]) -> tuple[Trial, Recipe]:
    """Return the first, or the best if it is better by more than noise, since its file may be a little larger."""
    best = min(tried, key=lambda pair: pair[0].nll)
    return best if best[0].nll < tried[0][0].nll - NLL_NOISE else tried[0]


def _is_close(trial: Trial, limit: int | None) -> bool:
    return limit is not None and trial.bytes >= CLOSE_FRACTION * limit

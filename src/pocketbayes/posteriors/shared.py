"""2DGBNN's storage: K Gaussians in the plane of (mean, std), an index per weight, outliers and blends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.plane.codes import entropy_bits
from pocketbayes.posteriors.base import Census, Posterior, softplus_inverse
from pocketbayes.posteriors.coding import Coding, raw_std
from pocketbayes.posteriors.fused import in_eager_mode
from pocketbayes.posteriors.gaussian import safe_sqrt
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Normal, Prior
from pocketbayes.posteriors.shared_plane import SharedPlane, view_plane

Draw = Literal["shared", "shared-noise", "independent"]
Blend = Literal["convex", "mixture"]


class _Spread(torch.autograd.Function):
    """Table entries to weights; on a CPU its backward pass is twice as fast as that of index_select."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.entries = len(table)
        ctx.save_for_backward(index)
        return table.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return torch.bincount(index, grad, ctx.entries).to(grad.dtype), None


class Shared(Posterior):
    """Weights as entries of a table: draws of K Gaussians, then of the outliers, then of the blends.

    Gaussian k lies at (centre_mean, centre_std) with Cholesky factor [[a, 0], [b, c]]. A draw from it is (m, s) =
    (centre_mean + a e1, centre_std + b e1 + c e2), and by `draw` the weight is:

    - "shared": w = m, one draw for all weights of the Gaussian: K random numbers. Variance a^2; only centre_mean and a
      depend on the data, so only they are trained.
    - "shared-noise": w = m + s e3, one draw for all: 3 K random numbers.
    - "independent": w = m + s e3, each weight with its own (e1, e2, e3).

    The last two have variance a^2 + centre_std^2 + b^2 + c^2. A blended weight is a combination sum_k alpha_k w_k of
    draws from several Gaussians ("convex", variance sum alpha^2 v), or one of them chosen at random ("mixture", Eq. 7,
    for evaluation: the choice has no gradient). Outliers are drawn one by one.
    """

    name = "shared"
    tensors: ClassVar = {
        "centre_mean": Coding("mean", ("gaussians",)),
        "raw_a": raw_std("gaussians"),
        "centre_std": Coding("std", ("gaussians",)),
        "off_diagonal": Coding("std", ("gaussians",)),
        "raw_c": raw_std("gaussians"),
        "outlier_mean": Coding("mean", ("outliers",)),
        "outlier_rho": raw_std("outliers"),
        "index": Coding("entries", ("weights",), low=0, below=("gaussians", "outliers", "blends")),
        "blend_index": Coding("count", ("blends", "parts"), low=0, below=("gaussians",)),
        "blend_alpha": Coding("mean", ("blends", "parts"), low=0, high=1, trained=False),
        "points": Coding("mean", ("weights", "mean and std"), optional=True, trained=False),
    }

    def __init__(
        self,
        layout: Layout,
        *,
        centres: Tensor,
        factors: Tensor,
        index: Tensor,
        outlier_mean: Tensor,
        outlier_std: Tensor,
        blend_index: Tensor,
        blend_alpha: Tensor,
        points: Tensor | None = None,
        draw: Draw = "shared",
        blend: Blend = "convex",
    ) -> None:
        """Take the Gaussians and the assignment of weights to them.

        Args:
            layout: The weights.
            centres: (K, 2) means and stds.
            factors: (K, 3) Cholesky entries a, b, c with a, c > 0.
            index: (n,) table entry of each weight: 0..K-1 a Gaussian, then the outliers, then the blends.
            outlier_mean: (o,).
            outlier_std: (o,).
            blend_index: (p, k) Gaussians of each blended weight.
            blend_alpha: (p, k) their weights, each row summing to 1.
            points: (n, 2) mean and std of each weight before sharing, kept only while weights may change their
                Gaussian.
            draw: How weights are drawn from a Gaussian.
            blend: How blended weights are drawn.
        """
        super().__init__(layout)
        self.draw, self.blend = draw, blend
        self.centre_mean = nn.Parameter(centres[:, 0].detach().clone())
        self.raw_a = nn.Parameter(softplus_inverse(factors[:, 0].detach()))
        self.centre_std = nn.Parameter(centres[:, 1].detach().clone())
        self.off_diagonal = nn.Parameter(factors[:, 1].detach().clone())
        self.raw_c = nn.Parameter(softplus_inverse(factors[:, 2].detach()))
        self.outlier_mean = nn.Parameter(outlier_mean.detach().clone())
        self.outlier_rho = nn.Parameter(softplus_inverse(outlier_std.detach()))
        self.index: Tensor = nn.Buffer(index.detach())
        self.blend_index: Tensor = nn.Buffer(blend_index.detach())
        self.blend_alpha = nn.Buffer(blend_alpha.detach().clone())
        self.points: Tensor | None
        self.register_buffer("points", None if points is None else points.detach().clone())
        self.derive()

    def derive(self) -> None:
        """Check the kinds of draw and blend, and train only what draws depend on."""
        for kind, value, known in (("draw", self.draw, Draw), ("blend", self.blend, Blend)):
            check_choice(kind, value, get_args(known))
        for parameter in (self.centre_std, self.off_diagonal, self.raw_c):
            parameter.requires_grad_(self.draw != "shared")
        self.index = self.index.to(torch.int32)  # half the memory and a faster step
        self.blend_index = self.blend_index.to(torch.int64)
        self._forget()

    @property
    def gaussians(self) -> int:
        """The number of Gaussians, K."""
        return self.centre_mean.numel()

    @property
    def outliers(self) -> int:
        """The number of weights with their own mean and std."""
        return self.outlier_mean.numel()

    @property
    def blends(self) -> int:
        """The number of blended weights."""
        return self.blend_index.shape[0]

    def variances(self) -> Tensor:
        """Return the variance (K,) of a draw from each Gaussian."""
        var = F.softplus(self.raw_a).square()
        if self.draw == "shared":
            return var
        return var + self.centre_std.square() + self.off_diagonal.square() + F.softplus(self.raw_c).square()

    def stds(self) -> Tensor:
        """Return the std (K,) of a draw from each Gaussian."""
        return F.softplus(self.raw_a) if self.draw == "shared" else safe_sqrt(self.variances())

    def table_moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of every entry of the table."""
        mean, var = self.centre_mean, self.variances()
        alpha, members = self.blend_alpha, self.blend_index
        blend_mean = (alpha * mean[members]).sum(1)
        if self.blend == "convex":
            blend_var = (alpha.square() * var[members]).sum(1)
        else:
            blend_var = (alpha * (var + mean.square())[members]).sum(1) - blend_mean.square()
        outlier_std = F.softplus(self.outlier_rho)
        return torch.cat([mean, self.outlier_mean, blend_mean]), torch.cat([var, outlier_std.square(), blend_var])

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the marginal mean and std of each weight under the chosen draw."""
        mean, var = self.table_moments()
        return self._spread(mean), self._spread(safe_sqrt(var))

    @property
    def noise_size(self) -> int:
        """K or 3 K numbers (3 per weight if independent), one per outlier and, in a mixture, one per blend."""
        count = self.gaussians if self.draw != "independent" else self.inliers.numel() + self.blend_index.numel()
        choices = self.blends if self.blend == "mixture" else 0
        return count * (1 if self.draw == "shared" else 3) + self.outliers + choices

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return one draw of all weights."""
        noise = self._noise(noise, self.centre_mean)
        if self.draw != "independent":
            return self._spread(self._shared_draw(noise))
        gaussian, outlier, choice = self._cut(noise)
        each = self._draw(gaussian, torch.cat([self.index[self.inliers].long(), self.blend_index.flatten()]))
        parts = each[self.inliers.numel() :].view_as(self.blend_alpha)
        zeros = torch.zeros_like(self.centre_mean)
        rest = self._spread(torch.cat([zeros, self._own(outlier), self._blended(parts, choice)]))
        return rest.index_add(0, self.inliers, each[: self.inliers.numel()])

    @property
    def independent(self) -> bool:
        """True only for independent draws."""
        return self.draw == "independent"

    def ties(self) -> tuple[Tensor, int] | None:
        """Return every weight's table entry and the table's size; None for independent draws."""
        if self.draw == "independent":
            return None
        return self.index.long(), self.gaussians + self.outliers + self.blends

    def project_table(self, sums: Tensor) -> Tensor:
        """Convert gradients with respect to the table to gradients with respect to the noise."""
        return self._pull_back(self._shared_draw, sums)

    def kl(self, prior: Prior) -> Tensor:
        """Compute `sum_k count_k KL(N_k || prior) + KL(outliers || prior)`; a blend adds alpha_k to count_k (Eq. 10).

        This is a sum of marginal KLs, since with shared draws the joint distribution is singular with respect to the
        prior. For a blend it is a bound, by convexity.
        """
        std = self.stds()
        outlier_std = F.softplus(self.outlier_rho)
        if isinstance(prior, Normal) and prior.centre is not None:
            return self._kl_centred(prior, std, outlier_std)
        each = prior.kl(self.centre_mean, std)
        return torch.dot(self.counts, each) + prior.total_kl(self.outlier_mean, outlier_std)

    def covariances(self) -> Tensor:
        """Return (K, 2, 2) in float64; a floor of 1e-10 of the trace keeps them positive definite under rounding."""
        a, b, c = (t.double() for t in (F.softplus(self.raw_a), self.off_diagonal, F.softplus(self.raw_c)))
        factor = torch.stack([torch.stack([a, torch.zeros_like(a)], 1), torch.stack([b, c], 1)], 1)
        floor = 1e-10 * factor.square().sum((1, 2))
        return factor @ factor.mT + floor[:, None, None] * torch.eye(2, dtype=a.dtype, device=a.device)

    def plane(self) -> SharedPlane:
        """Return the Gaussians, outliers and blends."""
        return view_plane(self)

    def reassign(self, index: Tensor, blend_index: Tensor, blend_alpha: Tensor) -> None:
        """Assign weights and blends to other Gaussians; outliers and blends remain such."""
        self.index.copy_(index)
        self.blend_index.copy_(blend_index)
        self.blend_alpha.copy_(blend_alpha)
        self._forget()

    def index_bits(self) -> float:
        """Return the entropy in bits per weight of the indices, with one symbol each for outliers and blends."""
        symbols = torch.where(self.index < self.gaussians, self.index, self.gaussians)
        symbols = torch.where(self.index >= self.gaussians + self.outliers, self.gaussians + 1, symbols)
        return entropy_bits(torch.bincount(symbols))

    def stored(self) -> dict[str, int]:
        """Return the counts of values for Gaussians, outliers, indices and blends."""
        per_gaussian = 2 if self.draw == "shared" else 5
        return {
            "gaussians": per_gaussian * self.gaussians,
            "outliers": 2 * self.outliers,
            "indices": self.layout.size,
            "blend indices": self.blend_index.numel(),
            "blend alphas": self.blend_alpha.numel(),
        }

    def census(self) -> Census:
        """Count the stored values, with the paper's way of counting as a note."""
        counted = super().census()
        notes = (
            f"{self.gaussians} Gaussians, {self.outliers} outliers, {self.blends} ellipse points; "
            f"index entropy {self.index_bits():.3f} bits per weight",
            f"the paper's count, which omits the index: {self.stored()['gaussians'] + 2 * self.outliers} values",
        )
        return replace(counted, notes=notes)

    @classmethod
    def runs(cls, tensors: Mapping[str, Tensor]) -> list[tuple[int, int]]:
        """Return the outliers' entries, then the blends'."""
        gaussians, outliers = len(tensors["raw_a"]), len(tensors["outlier_mean"])
        return [(gaussians, outliers), (gaussians + outliers, len(tensors["blend_index"]))]

    def _spread(self, table: Tensor) -> Tensor:
        """Expand table entries to weights; on a CPU index_select is much faster than gather or table[index]."""
        if table.requires_grad and table.device.type == "cpu" and in_eager_mode():
            return _Spread.apply(table, self.index)  # type: ignore[no-any-return]
        return table.index_select(0, self.index)

    def _cut(self, noise: Tensor) -> Sequence[Tensor]:
        """Split noise into that of the Gaussians, the outliers and the choices of blends."""
        choices = self.blends if self.blend == "mixture" else 0
        return torch.split(noise, [noise.numel() - self.outliers - choices, self.outliers, choices])

    def _own(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.outlier_mean, F.softplus(self.outlier_rho), noise)

    def _shared_draw(self, noise: Tensor) -> Tensor:
        """Return one draw of the whole table."""
        gaussian, outlier, choice = self._cut(noise)
        each = self._draw(gaussian, None)
        parts = each.index_select(0, self.blend_index.flatten()).view_as(self.blend_alpha)
        return torch.cat([each, self._own(outlier), self._blended(parts, choice)])

    def _draw(self, noise: Tensor, members: Tensor | None) -> Tensor:
        """Draw from the Gaussians, each once, or once per member."""

        def of(values: Tensor) -> Tensor:
            return values if members is None else values.gather(0, members)

        if self.draw == "shared":
            return torch.addcmul(of(self.centre_mean), of(F.softplus(self.raw_a)), noise)
        one, two, three = noise.chunk(3)
        m = torch.addcmul(of(self.centre_mean), of(F.softplus(self.raw_a)), one)
        s = of(self.centre_std) + of(self.off_diagonal) * one + of(F.softplus(self.raw_c)) * two
        return torch.addcmul(m, s, three)

    def _blended(self, parts: Tensor, choice: Tensor) -> Tensor:
        """Return (p,) blends of their Gaussians' draws (p, k)."""
        if self.blend == "convex":
            return (self.blend_alpha * parts).sum(1)
        uniform = torch.special.ndtr(choice)
        chosen = (uniform[:, None] > self.blend_alpha.cumsum(1)).sum(1).clamp(max=max(parts.shape[1] - 1, 0))
        return parts.gather(1, chosen[:, None])[:, 0]

    def _kl_centred(self, prior: Normal, std: Tensor, outlier_std: Tensor) -> Tensor:
        """Sum the KL for individual prior means c_i; sums over weights are cached, so that a step costs O(K).

        `sum_i KL(N_k || N(c_i, s^2)) = count_k KL(N_k || N(c, s^2)) + sum_i (c_i - c)^2 / (2 s^2)`, c the mean of c_i.
        """
        assert prior.centre is not None
        inside, about, own = self._centred(prior)
        total = torch.dot(self.counts, inside.kl(self.centre_mean, std)) + about
        return total + own.total_kl(self.outlier_mean, outlier_std) if self.outliers else total

    # Values derived from the index are cached until the index changes or moves to another device.

    def _forget(self) -> None:
        self._inliers: Tensor | None = None
        self._counts: Tensor | None = None
        self._about: tuple[Tensor, tuple[Normal, Tensor, Normal]] | None = None

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._forget()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    @property
    def inliers(self) -> Tensor:
        """The weights that belong to one Gaussian."""
        if self._inliers is None:
            self._inliers = (self.index < self.gaussians).nonzero().flatten()
        return self._inliers

    @property
    def counts(self) -> Tensor:
        """(K,) weights per Gaussian, blended weights by their alphas."""
        if self._counts is None:
            self._counts = self._sums(torch.ones_like(self.index, dtype=torch.float64)).to(self.blend_alpha.dtype)
        return self._counts

    def _centred(self, prior: Normal) -> tuple[Normal, Tensor, Normal]:
        """Return the prior at each Gaussian's mean centre, the scatter of centres about it, and the outliers' prior."""
        centre = prior.centre
        assert centre is not None
        if self._about is None or self._about[0] is not centre:
            wide, counts = centre.double(), self.counts.double()
            mean = self._sums(wide) / counts.clamp(min=torch.finfo(wide.dtype).tiny)
            scatter = (self._sums(wide.square()) - counts * mean.square()).clamp(min=0).sum() / (2 * prior.std**2)
            lone = ((self.index >= self.gaussians) & (self.index < self.gaussians + self.outliers)).nonzero().flatten()
            entry = self.index[lone].long() - self.gaussians
            outliers = centre.new_zeros(self.outliers).index_copy(0, entry, centre[lone])
            inside, own = Normal(prior.std, mean.to(centre.dtype)), Normal(prior.std, outliers)
            self._about = centre, (inside, scatter.to(centre.dtype), own)
        return self._about[1]

    def _sums(self, values: Tensor) -> Tensor:
        """Sum values (n,) by Gaussian, (K,), those of blended weights by their alphas."""
        table = values.new_zeros(self.gaussians + self.outliers + self.blends).index_add(0, self.index, values)
        blended = self.blend_alpha.double() * table[self.gaussians + self.outliers :, None]
        return table[: self.gaussians].index_add(0, self.blend_index.flatten(), blended.flatten())

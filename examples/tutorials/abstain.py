# %% [markdown]
# # Abstain: choose a threshold for the risk
#
# Often a wrong prediction costs more than asking a person. A network with good uncertainty handles the easy cases and
# hands over the rest. This page chooses the threshold on validation data and reports on test data.
#
# The networks see only 300 digits in training, so that there are mistakes to avoid. A third of the remaining non-test
# digits is used to choose thresholds.

# %%
import torch
from torch import Tensor

import pocketbayes as pb
from pocketbayes.data.shift import noise_db
from pocketbayes.reporting import figures
from pocketbayes.reporting.figures import evaluation

options = {"val_fraction": 0.33}
train = pb.data.load("digits", "train", subset=300, **options)
val, test = (pb.data.load("digits", split, **options) for split in ("val", "test"))
torch.manual_seed(0)
model = pb.models.build("mlp", in_features=64, hidden=[100], out_features=10)
nets = {
    "deterministic": pb.fit(pb.Deterministic(), model, train, epochs=60, lr=1e-2, progress=False),
    "Bayesian": pb.fit(pb.MeanFieldVI(beta=0.1, std_init=0.1), model, train, epochs=60, lr=1e-2, progress=False),
}


def entropy_and_correct(net: pb.Network, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    answer = pb.predict(net, x)
    return answer.entropy, answer.probs.argmax(1) == y


on_val = {name: entropy_and_correct(net, *val[:]) for name, net in nets.items()}
on_test = {name: entropy_and_correct(net, *test[:]) for name, net in nets.items()}

# %% [markdown]
# ## Risk and coverage
#
# Keep only the most certain fraction of the predictions (the coverage) and measure the error rate among them (the
# risk). A lower curve means better uncertainty; its area summarises it in one number.

# %%
curves = {name: vars(pb.metrics.risk_coverage(-entropy, right)) for name, (entropy, right) in on_test.items()}
for name, curve in curves.items():
    print(f"{name:14} answers all: {curve['risk'][-1]:.3f} wrong; area under the curve {curve['area']:.4f}")
figures.save(evaluation.risk_coverage(curves), "risk-against-coverage.png")

# %% [markdown]
# ## A threshold for a given risk
#
# "At most 2 % of the predictions may be wrong." `abstention` finds the largest threshold that satisfies this on the
# validation data. On the test data the risk is close to the target, above or below it, because the threshold was
# chosen on few images.

# %%
for target in (0.05, 0.02, 0.01):
    for name in nets:
        rule = pb.metrics.abstention(*on_val[name], target_risk=target)
        entropy, right = on_test[name]
        given = entropy <= rule.threshold
        print(
            f"target {target:.0%}  {name:14} abstains above {rule.threshold:.3f} nats: "
            f"{given.float().mean():.0%} of the test images answered, {(~right[given]).float().mean():.1%} wrong"
        )

# %% [markdown]
# ## A threshold for given costs
#
# If a wrong prediction costs 20 and asking a person costs 1, you need no target risk. Take the threshold with the
# lowest cost on the validation data.

# %%
WRONG, QUESTION = 20.0, 1.0


def cost(entropy: Tensor, right: Tensor, threshold: float) -> float:
    given = entropy <= threshold
    return float(WRONG * (given & ~right).sum() + QUESTION * (~given).sum()) / len(right)


figure, axes = figures.canvas()
for name in nets:
    thresholds = on_val[name][0].sort().values
    best = min(thresholds.tolist(), key=lambda threshold: cost(*on_val[name], threshold))
    costs = [cost(*on_test[name], threshold) for threshold in thresholds.tolist()]
    axes[0, 0].plot(thresholds, costs, label=f"{name}, test data")
    axes[0, 0].axvline(best, color=axes[0, 0].lines[-1].get_color(), linestyle=":", label="chosen on validation data")
    always, chosen = cost(*on_test[name], float("inf")), cost(*on_test[name], best)
    print(
        f"{name:14} cost of an image: {always:.3f} if all are answered, {chosen:.3f} above {best:.3f} nats handed over"
    )
axes[0, 0].set(xlabel="threshold, nats", ylabel="cost of an image")
axes[0, 0].legend(fontsize=7)
figures.save(figure, "cost-against-threshold.png")

# %% [markdown]
# ## When the data get worse
#
# The threshold was chosen on clean images. With noisy images a good network abstains more often. The chosen risk is
# valid only for data like the validation data, so measure it.

# %%
labels = test[:][1]
for name, net in nets.items():
    rule = pb.metrics.abstention(*on_val[name], target_risk=0.02)
    for db in (12, 6, 3):
        noisy = noise_db(test.images.permute(0, 2, 3, 1).numpy(), db)
        x = test.normalise(255 * torch.from_numpy(noisy).permute(0, 3, 1, 2))
        entropy, right = entropy_and_correct(net, x, labels)
        given = entropy <= rule.threshold
        print(
            f"{name:14} {db:2} dB: {(~right).float().mean():.0%} would be wrong; "
            f"{given.float().mean():.0%} answered, {(~right[given]).float().mean():.1%} wrong"
        )

# %% [markdown]
# On the command line: `pocketbayes predict NET image.png --target-risk 0.02`, or `--abstain-above NATS` for your own
# threshold. `examples/watch` applies it to a folder of incoming images. More: [Check the uncertainty](../trust.md).

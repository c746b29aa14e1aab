# %% [markdown]
# # One pass instead of thirty
#
# Thirty passes cost thirty times as much as one. Two propagations need no sampling. `propagation="moments"` carries a
# mean and a variance through every layer. `propagation="linear"` computes the first-order effect of all weights at
# once (the delta method). Both work on any trained network with stds. This page measures when to trust them.

# %%
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.reporting import figures

train, test = pb.data.load("digits", "train"), pb.data.load("digits", "test")
x, _ = test[:]
WAYS = {"1 sample": {"samples": 1}, "5 samples": {"samples": 5}, "30 samples": {"samples": 30}}
WAYS |= {way: {"propagation": way} for way in ("moments", "linear")}


def trained(model: nn.Module) -> pb.Network:
    return pb.fit(pb.MeanFieldVI(beta=0.1, std_init=0.05), model, train, epochs=20, lr=1e-2, progress=False)


torch.manual_seed(0)
perceptron = trained(pb.models.build("mlp", in_features=64, hidden=[100], out_features=10))

# %% [markdown]
# ## What a pass is worth
#
# For each propagation: the NLL on the test images, and its arithmetic relative to one pass at the mean weights. A
# good NLL can hide a wrong uncertainty. So the epistemic part is compared with that of 500 weight samples, our best
# estimate of the truth: the ratio of the sums, and the correlation over images.


# %%
def compare(net: pb.Network, picture: str) -> None:
    truth = pb.predict(net, x, samples=500, seed=1).epistemic
    one = pb.metrics.flops(pb.predict, net, x, propagation="mean")
    figure, axes = figures.canvas(1, 3, size=(2.6, 2.6), sharex=True, sharey=True)
    panels = dict(zip(("30 samples", "moments", "linear"), axes[0]))
    for name, how in WAYS.items():
        found = pb.predict(net, x, **how).epistemic
        nll = pb.evaluate(net, test, **how)["nll"]
        cost = pb.metrics.flops(pb.predict, net, x, **how) / one
        line = f"{name:10}  NLL {nll:.3f}  {cost:4.1f} x the arithmetic"
        if name != "1 sample":  # one network cannot disagree with itself
            correlation = torch.corrcoef(torch.stack([found, truth]))[0, 1]
            line += f"  epistemic {found.sum() / truth.sum():.2f} of the truth, correlation {correlation:.2f}"
        print(line)
        if name in panels:
            panels[name].plot(truth, found, ".", markersize=4, alpha=0.5)
            panels[name].plot([0, truth.max()], [0, truth.max()], color="black", linewidth=0.8)
            panels[name].set(title=name, xlabel="nats by 500 samples")
    axes[0, 0].set_ylabel("epistemic, nats")
    figures.save(figure, picture)


compare(perceptron, "epistemic-of-a-perceptron.png")

# %% [markdown]
# ## A convolutional network
#
# A convolution uses one weight at many positions, so its outputs vary together. `moments` treats them as independent,
# and its uncertainty after pooling is too small. `linear` keeps every correlation.

# %%
torch.manual_seed(0)
convolutional = trained(
    nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
)
compare(convolutional, "epistemic-of-convolutions.png")

# %% [markdown]
# ## Which one to use
#
# - Thirty samples, if you can afford them: they assume nothing.
# - `linear`, if one pass must do: a first-order method, accurate while the stds are small.
# - `moments`, for networks that were trained with it ([`vdp`](../methods/vdp.md)) or that have no convolutions.
#
# If only the scale is wrong, `pb.fit_variance_scale` fits a factor on validation data.
#
# The arithmetic counts matrix products and convolutions. The time of a pass depends on the machine;
# `benchmarks/propagation.py` measures it.

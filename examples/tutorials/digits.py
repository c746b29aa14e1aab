# %% [markdown]
# # Digits in five minutes
#
# Train a Bayesian network on the embedded digits, ask for its uncertainty on familiar and unfamiliar images, and save
# it in a small file. Nothing is downloaded.

# %%
import torch

import pocketbayes as pb
from pocketbayes.data.shift import rotate
from pocketbayes.reporting import figures

train, val, test = (pb.data.load("digits", split) for split in ("train", "val", "test"))
print(len(train), "training,", len(val), "validation and", len(test), "test images, each", train.info.input_shape)

# %% [markdown]
# ## Train
#
# Any `nn.Module` works. `MeanFieldVI` gives each weight a mean and a std, here initially 0.1. `beta` is the weight of
# the KL to the prior. A deterministic network is trained for comparison.

# %%
torch.manual_seed(0)
model = pb.models.build("mlp", in_features=64, hidden=[100], out_features=10)
plain = pb.fit(pb.Deterministic(), model, train, epochs=20, lr=1e-2, progress=False)
net = pb.fit(pb.MeanFieldVI(beta=0.1, std_init=0.1), model, train, epochs=20, lr=1e-2, progress=False)

for name, each in {"deterministic": plain, "Bayesian": net}.items():
    found = pb.evaluate(each, test)
    print(f"{name:14}", "  ".join(f"{key} {found[key]:.3f}" for key in ("accuracy", "nll", "ece", "brier")))

# %% [markdown]
# On test digits from the same distribution the Bayesian network gains nothing, and its NLL is higher. The
# next sections show what it adds.
#
# ## Predict
#
# `predict` draws the weights 30 times and averages the predictions. `entropy` is the total uncertainty in nats. It is
# the sum of `epistemic` (the drawn networks disagree; more data would help) and `aleatoric` (each network is
# uncertain).

# %%
x, y = test[:]
answer = pb.predict(net, x)
right = answer.probs.argmax(1) == y
for name, which in {"right": right, "wrong": ~right}.items():
    means = {part: getattr(answer, part)[which].mean().item() for part in ("entropy", "epistemic", "aleatoric")}
    print(f"{int(which.sum()):3} {name} predictions: ", "  ".join(f"{part} {nats:.3f}" for part, nats in means.items()))

# %% [markdown]
# The least certain digits, with prediction and label:

# %%
worst = answer.entropy.argsort(descending=True)[:8]
figure, axes = figures.canvas(1, 8, size=(1.1, 1.4))
for panel, index in zip(axes[0], worst):
    panel.imshow(test.images[index, 0].numpy(), cmap="gray_r")
    panel.set_axis_off()
    panel.set_title(f"{answer.probs[index].argmax()}, is {y[index]}", fontsize=9)
figures.save(figure, "least-sure.png")

# %% [markdown]
# ## Predict on unfamiliar images
#
# The network was not trained on rotated digits. Its accuracy falls, and its uncertainty should rise.

# %%
for degrees in (0, 30, 60, 90):
    rotated = rotate(test.images.permute(0, 2, 3, 1).numpy(), degrees)
    pixels = test.normalise(torch.from_numpy(rotated).permute(0, 3, 1, 2))
    answers = [pb.predict(each, pixels) for each in (plain, net)]
    accuracy = [(each.probs.argmax(1) == y).float().mean().item() for each in answers]
    confidence = [each.probs.max(1).values.mean().item() for each in answers]
    print(
        f"{degrees:2} degrees: deterministic accuracy {accuracy[0]:.2f}, confidence {confidence[0]:.2f}; "
        f"Bayesian {accuracy[1]:.2f}, {confidence[1]:.2f}, epistemic {answers[1].epistemic.mean():.2f} nats"
    )

# %% [markdown]
# Both networks are overconfident on rotated digits. The Bayesian one is less so, and its epistemic uncertainty rises.
# Uncertainty helps but guarantees nothing. [Check the uncertainty](../trust.md) measures it on
# out-of-distribution data, on 19 corruptions and against ensembles.
#
# ## Save
#
# `save` writes one file without pickle and restores the same bits. `compress` finds the smallest file within a given
# increase of validation NLL, or the best file within a given size.

# %%
print("as it is:  ", pb.save(net, "digits.pocket"), "bytes")
again = pb.load("digits.pocket")
print("same bits: ", torch.equal(pb.predict(again, x).probs, answer.probs))

small = pb.compress(net, train, val, max_nll_loss=0.02)
print("compressed:", small.save("small.pocket"), "bytes")
found = pb.evaluate(pb.load("small.pocket"), test)
print("on test data:", "  ".join(f"{key} {found[key]:.3f}" for key in ("accuracy", "nll", "ece")))

# %% [markdown]
# Next: [one pass instead of thirty](one-pass.md), or [when to abstain](abstain.md).

# %% [markdown]
# # Uncertainty maps on street scenes
#
# Predict a class and its uncertainty for every pixel. This page uses CamVid's street scenes (a folder `camvid` with
# `{train,val,test}/{images,masks}` in the data folder, `POCKETBAYES_DATA`), a small U-Net, and PBN: the 5 % of the
# weights to which the loss is most sensitive become random. Images are small and training is short, so the page takes
# a minute; the point is the maps, not the accuracy.

# %%
import torch

import pocketbayes as pb
from pocketbayes.reporting import figures

train = pb.data.load("masks", "train", path="camvid", size=(48, 64), augment=True)
test = pb.data.load("masks", "test", path="camvid", size=(48, 64))
print(len(train), "scenes to train on,", len(test), "to test on,", train.info.classes, "classes")

# %% [markdown]
# ## Train
#
# Sky and road cover most pixels, poles only few. `class_weights` gives rare classes a larger weight. Pixels without a
# class (void) are ignored everywhere.

# %%
torch.manual_seed(0)
model = pb.models.build("unet-small", classes=train.info.classes)
weights = pb.data.class_weights(pb.data.load("masks", "train", path="camvid", size=(48, 64)))
likelihood = pb.Categorical(weights, ignore_index=train.info.ignore_index)
net = pb.fit(
    pb.PBN(rate=0.05, pretrain_epochs=35, train_samples=1),
    model,
    train,
    epochs=8,
    likelihood=likelihood,
    batch_size=8,
    lr=3e-3,
    schedule="cosine",
    progress=False,
)
found = pb.evaluate(net, test, samples=10, batch_size=20)
print(f"pixels right {found['accuracy']:.3f}, mean IoU {found['miou']:.3f}, NLL {found['nll']:.3f}")

# %% [markdown]
# ## Maps
#
# `predict` returns for each pixel the probabilities, the total uncertainty (`entropy`), and the part that more data
# could remove (`epistemic`). Borders and small objects have a high uncertainty, and so do wrong pixels.

# %%
x, y = test[:]
answer = pb.predict(net, x, samples=20, batch_size=20)
labels = answer.probs.argmax(1)
known = y != test.info.ignore_index
wrong = (labels != y) & known

shown = [0, 20, 40]
plain = pb.data.load("masks", "test", path="camvid", size=(48, 64), mean="none")  # pixels from 0 to 1
figure, axes = figures.canvas(len(shown), 6, size=(1.7, 1.35))
by_class = {"cmap": "tab20", "vmin": 0, "vmax": 19, "interpolation": "nearest"}
for row, scene in zip(axes, shown):
    row[0].imshow(plain[scene][0].permute(1, 2, 0).numpy())
    row[1].imshow(torch.where(known[scene], y[scene], torch.nan).numpy(), **by_class)
    row[2].imshow(labels[scene].numpy(), **by_class)
    row[3].imshow(wrong[scene].numpy(), cmap="gray_r")
    row[4].imshow(answer.entropy[scene].numpy(), cmap="magma", vmin=0)
    row[5].imshow(answer.epistemic[scene].numpy(), cmap="magma", vmin=0)
for panel, title in zip(axes[0], ("image", "truth", "answer", "wrong", "entropy", "epistemic")):
    panel.set_title(title, fontsize=9)
for panel in axes.flat:
    panel.set_axis_off()
figures.save(figure, "maps.png")

# %% [markdown]
# ## Do the maps find the mistakes?
#
# AUROC is the probability that a wrong pixel has a higher uncertainty than a correct one. The table also shows the
# accuracy that remains after the most uncertain pixels are removed.

# %%
for name, doubt in {"entropy": answer.entropy, "epistemic": answer.epistemic}.items():
    scores = pb.metrics.ood_scores(doubt[known & ~wrong], doubt[wrong])
    curve = pb.metrics.risk_coverage(-doubt[known], ~wrong[known])
    kept = {share: 1 - curve.risk[int(share * len(curve.risk)) - 1] for share in (1.0, 0.9, 0.75, 0.5)}
    print(f"{name:10} AUROC {scores['auroc']:.3f};", ", ".join(f"{s:.0%} kept: {r:.3f} right" for s, r in kept.items()))

# %% [markdown]
# ## By class
#
# Rare classes are learned worst, and the network is less certain about them.

# %%
names = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "person", "bicycle"]
for number, name in enumerate(names):
    here = y == number
    print(
        f"{name:9} {here.sum() / known.sum():6.1%} of the pixels  right {1 - wrong[here].float().mean():.2f}  "
        f"entropy {answer.entropy[here].mean():.2f}  epistemic {answer.epistemic[here].mean():.3f}"
    )

# %% [markdown]
# [PBN](../methods/pbn.md) compares CamVid with an ensemble and mean-field VI. For your own images:
# `pb.data.load("masks", path=..., classes=...)`.

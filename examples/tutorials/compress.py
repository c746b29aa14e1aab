# %% [markdown]
# # Compress a ResNet-20 to 150 kB and compare its answers
#
# A trained ResNet-20 for CIFAR-10 becomes a Bayesian network in a file of at most 150 kB, and is asked the same
# questions as the network that it came from. The data folder holds CIFAR-10 in torchvision's layout and the given
# weights as `weights/resnet20-12fca82f.th`; set `POCKETBAYES_DATA` to it. Its settings come from
# `benchmarks/pocket_curve.py` and were found by trials on some of the test images.

# %%
import pocketbayes as pb
from pocketbayes.files.packing import Precision
from pocketbayes.inference import statistics
from pocketbayes.reporting import figures
from pocketbayes.reporting.figures import calibration

BUDGET = 150_000
folder = pb.data.folder_of()
model = pb.models.build("resnet20")
pb.models.load_weights(model, folder / "weights" / "resnet20-12fca82f.th")
given = pb.bayesianize(model, pb.Deterministic())

options = {"mean": "imagenet", "val_fraction": 0.0}  # the given weights expect ImageNet's normalisation
train = pb.data.load("cifar10", "train", augment=True, subset=6400, **options)
test = pb.data.load("cifar10", "test", subset=1000, **options)
print(f"{given.layout.size:,} weights, {pb.save(given, 'given.pocket'):,} bytes as they are")

# %% [markdown]
# ## Two ways to make it small
#
# **Rounding** keeps one value a weight, in fewer bits, and stays deterministic. **Sharing** (stage 2 of
# [2DGBNN](../methods/2dgbnn.md)) lets all weights draw from few Gaussians and stores an index a weight. How many
# Gaussians the budget allows is seen without training, since training changes the Gaussians and not the indices.

# %%
rounding = Precision(means="int5", points="bfloat16")
sharing = Precision(means="int8", stds="int8", points="bfloat16")


def shared(k: int, epochs: int) -> pb.Network:
    method = pb.WeightSharing(
        k=k,
        iterations=0,
        tau_w=0.4,
        gradient_fraction=0.0,
        merge=None,
        ellipse=None,
        std_init=1e-3,
        meanfield_epochs=0,
        beta=0.01,
    )
    small_steps = {"lr": 1e-5, "std_lr": 5e-2, "freeze_batch_norm": True}  # a centre moves thousands of weights at once
    return pb.fit(method, given, train, epochs=epochs, progress=False, **small_steps)


print(f"rounded: {pb.save(given, 'rounded.pocket', precision=rounding):,} bytes")
sizes = {k: pb.save(shared(k, epochs=0), "size.pocket", precision=sharing) for k in (16, 20, 24, 28)}
print("shared:", ", ".join(f"{k} Gaussians {size:,} bytes" for k, size in sizes.items()))
k = max(k for k, size in sizes.items() if size <= BUDGET)

# %% [markdown]
# One epoch over 6400 images lets the Gaussians find their widths and repairs what sharing broke. The whole search,
# with its choice by validation data, is `pocketbayes compress NET --out small.pocket --max-bytes 150000`.

# %%
print(f"{k} Gaussians: {pb.save(shared(k, epochs=1), 'shared.pocket', precision=sharing):,} bytes")

# %% [markdown]
# ## Compare the answers
#
# Every network is read back from its file.

# %%
nets = {name: pb.load(f"{name}.pocket") for name in ("given", "rounded", "shared")}
x, y = test[:]
answers = {name: pb.predict(net, x, samples=10) for name, net in nets.items()}
right = {name: answer.probs.argmax(1) == y for name, answer in answers.items()}
nll = {name: -answer.probs[range(len(y)), y].log() for name, answer in answers.items()}
for name, answer in answers.items():
    same = (answer.probs.argmax(1) == answers["given"].probs.argmax(1)).float().mean()
    doubt = [answer.entropy[which].mean() for which in (right[name], ~right[name])]
    print(
        f"{name:8} accuracy {right[name].float().mean():.3f}  NLL {nll[name].mean():.3f}  "
        f"same answer as given {same:.3f}  nats of doubt when right {doubt[0]:.2f}, when wrong {doubt[1]:.2f}"
    )

# %% [markdown]
# Is a difference more than chance? The paired tests ask on the same images: McNemar's of accuracies, Student's of
# NLLs.

# %%
for name in ("rounded", "shared"):
    tests = (statistics.mcnemar(right[name], right["given"]), statistics.paired_t(nll[name], nll["given"]))
    for test_of, what in zip(tests, ("accuracy", "NLL")):
        print(
            f"{name:8} {what:8} {test_of.difference:+.3f} against the given network "
            f"(95 % interval {test_of.low:+.3f} to {test_of.high:+.3f}, p = {test_of.p:.2g})"
        )

# %% [markdown]
# Reliability: the orange part is confidence without right answers to go with it.

# %%
bins = {name: pb.metrics.reliability_bins(answers[name].probs.max(1).values, right[name]) for name in answers}
figures.save(calibration.reliability({name: vars(each) for name, each in bins.items()}), "reliability.png")

# %% [markdown]
# Rounding is the baseline to beat: it costs nothing and keeps the network's overconfidence. Sharing spends about the
# same bytes on a distribution, and is paid back in calibration. `pocketbayes inspect shared.pocket` shows where the
# bytes are; other sizes, on all test images, are on the page of the [file format](../format.md).

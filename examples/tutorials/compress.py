# %% [markdown]
# # Compress a ResNet-20 to 62 kB and compare its predictions
#
# A ResNet-20 trained on CIFAR-10 takes 915 kB. This page compresses it to at most 62 kB, less than two bits per
# weight, without any training, and compares the predictions of both files. The data folder (`POCKETBAYES_DATA`) must
# hold CIFAR-10 in torchvision's layout and the pretrained weights as `weights/resnet20-12fca82f.th`.

# %%
import pocketbayes as pb
from pocketbayes.files.packing import Precision
from pocketbayes.inference import statistics
from pocketbayes.reporting import figures
from pocketbayes.reporting.figures.tradeoff import rate_distortion

BUDGET = 62_000
folder = pb.data.folder_of()
model = pb.models.build("resnet20")
pb.models.load_weights(model, folder / "weights" / "resnet20-12fca82f.th")
given = pb.bayesianize(model, pb.Deterministic())

options = {"mean": "imagenet", "val_fraction": 0.0}  # the pretrained weights expect ImageNet's normalisation
train = pb.data.load("cifar10", "train", subset=2000, **options)
val = pb.data.load("cifar10", "train", subset=500, seed=1, **options)
test = pb.data.load("cifar10", "test", subset=1000, **options)
print(f"{given.layout.size:,} weights, {pb.save(given, 'given.pocket'):,} bytes as they are")

# %% [markdown]
# ## One sweep
#
# All weights are coded with one small codebook. The codes of a row are chosen together, for the best trade-off between
# distance and code length. The other weights of a row compensate the error of each weight, using the inputs of the
# layer. Batch norm is corrected relative to the original network. The sweep goes from fine codes to coarse ones and
# keeps the Pareto front of size and validation loss.

# %%
found = pb.compress(given, train, val, max_bytes=BUDGET, samples=1, progress=False)
for trial in found.front:
    print(f"{trial.bytes:>9,} bytes  {trial.bits:5.2f} bits per weight  validation NLL {trial.nll:.4f}")
print(f"chosen: {found.save('coded.pocket'):,} bytes, {len(found.net.posterior.centres)} entries in the codebook")
figures.save(rate_distortion(found.to_json()), "front.png")

# %% [markdown]
# Another budget needs no new sweep: `found.pick(bits=3)` or `found.pick(max_nll_loss=0.01)`. On the command line:
# `pocketbayes compress NET --out small.pocket --max-bytes 62000 --quick`.
#
# ## Compare the predictions
#
# Plain **rounding** to 2^4 levels per layer needs about half as many bytes again. Each network is read back from its
# file.

# %%
print(f"rounded: {pb.save(given, 'rounded.pocket', precision=Precision(means='int4', points='bfloat16')):,} bytes")
nets = {name: pb.load(f"{name}.pocket") for name in ("given", "rounded", "coded")}
x, y = test[:]
answers = {name: pb.predict(net, x, samples=1) for name, net in nets.items()}
right = {name: answer.probs.argmax(1) == y for name, answer in answers.items()}
nll = {name: -answer.probs[range(len(y)), y].log() for name, answer in answers.items()}
for name, answer in answers.items():
    same = (answer.probs.argmax(1) == answers["given"].probs.argmax(1)).float().mean()
    print(
        f"{name:8} accuracy {right[name].float().mean():.3f}  NLL {nll[name].mean():.3f}  "
        f"same answer as given {same:.3f}"
    )

# %% [markdown]
# Are the differences significant? The tests are paired, on the same images: McNemar's test for accuracy, the paired t
# test for NLL.

# %%
for name in ("rounded", "coded"):
    tests = (statistics.mcnemar(right[name], right["given"]), statistics.paired_t(nll[name], nll["given"]))
    for test_of, what in zip(tests, ("accuracy", "NLL")):
        print(
            f"{name:8} {what:8} {test_of.difference:+.3f} against the given network "
            f"(95 % interval {test_of.low:+.3f} to {test_of.high:+.3f}, p = {test_of.p:.2g})"
        )

# %% [markdown]
# `pocketbayes inspect coded.pocket` shows what the bytes are used for. The page on the [file format](../format.md)
# has other sizes, on all test images. A network with learned stds keeps them, one per layer or one per code. Several
# networks can be compressed as one mixture, which uses a given size better than one network does.

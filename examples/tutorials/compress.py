# %% [markdown]
# # Compress a ResNet-20 to 62 kB and compare its answers
#
# A trained ResNet-20 for CIFAR-10, 915 kB, becomes a file of at most 62 kB, less than two bits a weight, without any
# training, and is asked the same questions as the network that it came from. The data folder holds CIFAR-10 in
# torchvision's layout and the given weights as `weights/resnet20-12fca82f.th`; set `POCKETBAYES_DATA` to it.

# %%
import pocketbayes as pb
from pocketbayes.files.packing import Precision
from pocketbayes.inference import statistics
from pocketbayes.reporting import figures
from pocketbayes.reporting.figures.compression import rate_distortion

BUDGET = 62_000
folder = pb.data.folder_of()
model = pb.models.build("resnet20")
pb.models.load_weights(model, folder / "weights" / "resnet20-12fca82f.th")
given = pb.bayesianize(model, pb.Deterministic())

options = {"mean": "imagenet", "val_fraction": 0.0}  # the given weights expect ImageNet's normalisation
train = pb.data.load("cifar10", "train", subset=2000, **options)
val = pb.data.load("cifar10", "train", subset=500, seed=1, **options)
test = pb.data.load("cifar10", "test", subset=1000, **options)
print(f"{given.layout.size:,} weights, {pb.save(given, 'given.pocket'):,} bytes as they are")

# %% [markdown]
# ## One sweep
#
# Weights become entries of one small codebook. Each takes the entry that is best by distance *and* by the length of
# its code in the file; what one weight loses, the others of its row make good, as far as the layer's inputs allow;
# batch norm is corrected relative to the given network. The sweep goes from fine codes to coarse ones and keeps the
# front of size and validation loss.

# %%
found = pb.compress(given, train, val, max_bytes=BUDGET, samples=1, progress=False)
for trial in found.front:
    print(f"{trial.bytes:>9,} bytes  {trial.bits:5.2f} bits a weight  validation NLL {trial.nll:.4f}")
print(f"chosen: {found.save('coded.pocket'):,} bytes, {len(found.net.posterior.centres)} entries in the codebook")
figures.save(rate_distortion(found.to_json()), "front.png")

# %% [markdown]
# Another budget needs no other sweep: `found.pick(bits=3)` or `found.pick(max_nll_loss=0.01)`. On the command line all
# of this is `pocketbayes compress NET --out small.pocket --max-bytes 62000 --quick`.
#
# ## Compare the answers
#
# Plain **rounding** to 2^4 steps per layer takes half as many bytes again. Every network is read back from its file.

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
# Is a difference more than chance? The paired tests ask on the same images: McNemar's of accuracies, Student's of
# NLLs.

# %%
for name in ("rounded", "coded"):
    tests = (statistics.mcnemar(right[name], right["given"]), statistics.paired_t(nll[name], nll["given"]))
    for test_of, what in zip(tests, ("accuracy", "NLL")):
        print(
            f"{name:8} {what:8} {test_of.difference:+.3f} against the given network "
            f"(95 % interval {test_of.low:+.3f} to {test_of.high:+.3f}, p = {test_of.p:.2g})"
        )

# %% [markdown]
# `pocketbayes inspect coded.pocket` shows where the bytes are; other sizes, on all test images, are on the page of the
# [file format](../format.md). A network with learned stds keeps them, one per layer or with each code; several networks
# are compressed as one mixture, which spends a given size better than one network does.

"""What being Bayesian costs: a training step and a 30-sample prediction beside deterministic PyTorch and a peer.

python benchmarks/speed.py [--rounds 15] [--models lenet5,lenet300,resnet20] [--threads 1]

One thread by default: on a machine that others use too, two threads wait for each other and times mean little.
"""

from __future__ import annotations

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb
from measure import interleaved, ratios, write_result
from steps import EXAMPLES, Action, deterministic_step, our_step, peer_model, sgd, step_of, thirty_passes

SHAPES = {"lenet5": (1, 28, 28), "lenet300": (1, 28, 28), "resnet20": (3, 32, 32)}
BATCH = 128


def peer_step(model: nn.Module, x: Tensor, y: Tensor) -> Action:
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    return step_of(sgd(model.parameters()), lambda: F.cross_entropy(model(x), y) + get_kl_loss(model) / EXAMPLES)


def measure(name: str, rounds: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    model = pb.models.build(name)
    x, y = torch.randn(BATCH, *SHAPES[name]), torch.randint(0, 10, (BATCH,))
    plain = copy.deepcopy(model)
    propagations = ("sample", "local", "flipout")
    nets = {how: pb.bayesianize(model, pb.MeanFieldVI(propagation=how)).train() for how in propagations}
    peer = peer_model(model)
    steps = {"deterministic": deterministic_step(plain, x, y)}
    steps |= {f"pocketbayes {how}": our_step(net, x, y) for how, net in nets.items()}
    few = {"2DGBNN, shared draws": pb.WeightSharing(k=64, n_min=0), "PBN, 1 %": pb.PBN(rate=0.01)}
    steps |= {
        f"pocketbayes {what}": our_step(pb.bayesianize(model, method).train(), x, y) for what, method in few.items()
    }
    if peer is not None:
        steps["bayesian-torch"] = peer_step(peer.train(), x, y)
    training = interleaved(steps, rounds)
    net = nets["sample"].eval()
    predictions: dict[str, Action] = {
        "deterministic, one pass": lambda: plain.eval()(x),
        "pocketbayes": lambda: pb.predict(net, x, samples=30, propagation="sample"),
    }
    if peer is not None:
        predictions["bayesian-torch"] = thirty_passes(peer.eval(), x)
    predicting = interleaved(predictions, max(rounds // 3, 3))
    return {
        "training step over deterministic": ratios(training, "deterministic"),
        "30-sample prediction over one deterministic pass": ratios(predicting, "deterministic, one pass"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", default="lenet5,lenet300,resnet20")
    parser.add_argument("--name", default="speed", help="of the result file")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = {}
    for name in arguments.models.split(","):
        result[name] = measure(name, arguments.rounds)
        print(name, result[name])
    path = write_result(arguments.name, {"batch": BATCH, "rounds": arguments.rounds, "models": result})
    print(path)


if __name__ == "__main__":
    main()

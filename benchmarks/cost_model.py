"""What training should cost by the PBN paper's own arithmetic, to stand beside what is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pocketbayes.base.errors import UnknownNameError, UserError

Kind = Literal["deterministic", "ensemble", "vi", "pbn"]


@dataclass(frozen=True)
class Cost:
    """The cost of training in units of the deterministic network.

    Attributes:
        passes: Forward passes' worth of arithmetic per example and step, the backward pass counted as two.
        parameters: Values trained per weight.
        memory: Values kept per weight.
    """

    passes: float
    parameters: float
    memory: float


def cost_model(kind: Kind, *, samples: int = 1, rate: float = 0.0, members: int = 5) -> Cost:
    """Deterministic 3 f; an ensemble of M 3 M f; VI with N samples 2 (N + 2) f; PBN (1 + r) (N + 2) f.

    The formulas are the paper's. They let N samples share one backward pass, and charge the doubled parameters as
    doubled arithmetic: a step that draws weights and runs the network costs 3 N f, whatever the rate (`flops` measures
    it). The paper lists the memory of PBN as that of VI, 2; `Partial` keeps 1 + r.

    Args:
        kind: Which of the four.
        samples: N, weight samples per step.
        rate: r, the fraction of random weights.
        members: M, networks of the ensemble.
    """
    if kind not in get_args(Kind):
        raise UnknownNameError("cost model", kind, get_args(Kind))
    if samples < 1 or members < 1 or not 0 <= rate <= 1:
        raise UserError(f"samples={samples}, members={members}, rate={rate}: at least 1, at least 1, and within [0, 1]")
    return {
        "deterministic": Cost(3, 1, 1),
        "ensemble": Cost(3 * members, members, members),
        "vi": Cost(2 * (samples + 2), 2, 2),
        "pbn": Cost((1 + rate) * (samples + 2), 1 + rate, 2),
    }[kind]

"""The PBN paper's model of training cost, to compare with measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pocketbayes.base.errors import UnknownNameError, UserError

Kind = Literal["deterministic", "ensemble", "vi", "pbn"]


@dataclass(frozen=True)
class Cost:
    """The cost of training relative to the deterministic network.

    Attributes:
        passes: Arithmetic per example and step in forward passes; a backward pass counts as two.
        parameters: Trained values per weight.
        memory: Stored values per weight.
    """

    passes: float
    parameters: float
    memory: float


def cost_model(kind: Kind, *, samples: int = 1, rate: float = 0.0, members: int = 5) -> Cost:
    """Return deterministic 3 f, an ensemble of M 3 M f, VI with N samples 2 (N + 2) f, or PBN (1 + r) (N + 2) f.

    The formulas are the paper's. They assume that N samples share one backward pass, and count doubled parameters as
    doubled arithmetic. In fact a step that draws weights and runs the network costs 3 N f at any rate (`flops` measures
    it). The paper lists the memory of PBN as 2, like that of VI; `Partial` keeps 1 + r.

    Args:
        kind: One of the four.
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

"""Diagnostics of networks: whether training changed the stds, and whether members are independent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.posteriors.health import Health, measure_health

MIN_SHARED_COSINE = 0.5
"""Cosine of two members' weights above which they share an initialisation; independent ones are below 0.1."""


def health(net: Net) -> Health:
    """Return how much training changed a network's stds, as recorded by `fit` or from the known initial values.

    For a mixture, return means over its members; `learned` requires that all members have learned.
    """
    each = [network.health or measure_health(network.posterior, network.first_stds) for network in members(net)]
    return Health.average(each)


def cosines(networks: Sequence[Network]) -> dict[tuple[int, int], float]:
    """Compute the cosine between the mean weights of every two networks of the same layout."""
    with torch.no_grad():
        units = [nn.functional.normalize(network.posterior.moments()[0].flatten(), dim=0) for network in networks]
    return {
        (one, two): float(units[one] @ units[two].to(units[one]))
        for two in range(len(units))
        for one in range(two)
        if networks[one].layout.slots == networks[two].layout.slots
    }


def similarity(net: Net) -> float | None:
    """Compute the largest cosine between the mean weights of two members; None if no two share an architecture."""
    found = cosines(members(net))
    return max(found.values()) if found else None


def title(net: Net) -> str:
    """Return a network's name in tables: its method or posterior and, for a mixture, whether members share a start."""
    first = members(net)[0]
    if not isinstance(net, Mixture):
        return first.method or first.posterior.name
    shared = (similarity(net) or 0.0) > MIN_SHARED_COSINE
    return f"mixture of {first.posterior.name}" + (", shared start" if shared else "")

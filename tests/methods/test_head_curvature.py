"""The closed-form curvature of a softmax head equals laplace-torch's class by class."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pocketbayes.methods.head_curvature import softmax_curvature

laplace = pytest.importorskip("laplace")


class Head(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3, bias=bias)

    def forward(self, x):
        return self.linear(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hessian", ["kron", "diag"])
def test_softmax_curvature_is_that_of_laplace_torch(hessian: str, bias: bool) -> None:
    head = Head(bias).double()
    x, y = torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=5)
    found = []
    for settings in ({}, {"backend": softmax_curvature()}):
        fitted = laplace.Laplace(head, "classification", "all", hessian, **settings)
        fitted.fit(batches)
        precision = fitted.posterior_precision
        found.append(precision.to_matrix() if hessian == "kron" else precision)
        assert torch.isfinite(torch.as_tensor(fitted.loss))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-8)

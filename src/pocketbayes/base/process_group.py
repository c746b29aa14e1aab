"""Processes that train one network together."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pocketbayes.base.errors import UserError

SIGNS = ("gloo", "nccl", "connection", "timed out", "socket", "store")
"""Words that mark a RuntimeError as a failed collective operation."""
T = TypeVar("T")


class LostProcessError(UserError):
    """An error because another process of the group has ended."""


@dataclass(frozen=True)
class ProcessGroup:
    """The group of processes that this one belongs to; by default a group of one.

    Every process of the group must call the collective methods in the same order.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> ProcessGroup:
        """Return all processes of torch's default group, if there is one."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return cls()

    def part(self, length: int) -> slice:
        """Return this process's consecutive share of `length` items; the sizes of shares differ by at most one."""
        first, last = (rank * length // self.size for rank in (self.rank, self.rank + 1))
        return slice(first, last)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all processes in place; the result is bitwise equal on each."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in the order of their ranks; meant for small values."""
        if self.size == 1:
            return [value]
        everyone: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(everyone, value)
        return everyone

    def merge(self, own: T | None) -> T:
        """Merge the accumulators (objects with `merge`) of all processes in the order of their ranks.

        A process without data may pass None, but not all of them.
        """
        first, *others = [accumulator for accumulator in self.gather(own) if accumulator is not None]
        for other in others:
            first.merge(other)
        merged: T = first
        return merged

    def first(self, make: Callable[[], T]) -> T:
        """Return the first process's result on every process; a UserError is raised on all of them."""
        if self.size == 1:
            return make()
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = make()
            except UserError as error:
                outcome[1] = error
        torch.distributed.broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result

    @torch.no_grad()
    def align(self, module: nn.Module) -> None:
        """Copy the first process's parameters and buffers to all others."""
        if self.size > 1:
            for value in (*module.parameters(), *module.buffers()):
                torch.distributed.broadcast(value.detach(), 0)

    @torch.no_grad()
    def average_batch_norm(self, module: nn.Module) -> None:
        """Average the running statistics over all processes."""
        if self.size > 1:
            for norm in module.modules():
                if isinstance(norm, nn.modules.batchnorm._NormBase):
                    for statistic in (norm.running_mean, norm.running_var):
                        if statistic is not None:
                            self.sum(statistic).div_(self.size)

    @contextmanager
    def guarded(self, way_out: str) -> Iterator[None]:
        """Turn torch's communication errors into one line: another process is gone, and what to do."""
        try:
            yield
        except RuntimeError as error:
            text = str(error)
            known = isinstance(error, torch.distributed.DistError) or any(sign in text.lower() for sign in SIGNS)
            if self.size == 1 or not known:
                raise
            reason = re.sub(r"^\[[^\]]*\] *", "", text.strip().splitlines()[0]).split(". ")[0]  # without the C++ source
            raise LostProcessError(
                f"process {self.rank} of {self.size} stops: another process has ended or does not respond: {way_out} "
                f"({reason})"
            ) from error


ALONE = ProcessGroup()


@contextmanager
def joined() -> Iterator[ProcessGroup]:
    """Return the processes that torchrun started with this one, or the existing group."""
    known = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
    if not known or torch.distributed.is_initialized():
        yield ProcessGroup.current()
        return
    torch.distributed.init_process_group("gloo")
    yield ProcessGroup.current()
    torch.distributed.destroy_process_group()  # not after an error: the others may be gone


def is_first() -> bool:
    """Return whether this is the first process of the group, the one that writes files and prints."""
    return not int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0)))


class JointBatchNorm(TorchFunctionMode):
    """Batch norm over the examples of all processes, as if in one batch: `mean = sum_r sum_i x_ri / n`.

    It applies to plain activations; Gaussian ones (moment propagation) use the statistics of their own process.
    """

    def __init__(self, team: ProcessGroup, counted: bool = True) -> None:
        """Take the process group and whether this rank's examples count; a rank without data runs one extra batch."""
        super().__init__()
        self.team, self.counted = team, counted

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[Any], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace batch norm in training; leave all other functions."""
        kwargs = kwargs or {}
        if func is not F.batch_norm or type(args[0]) is not Tensor:
            return func(*args, **kwargs)
        return self._normalise(func, *args, **kwargs)

    def _normalise(
        self,
        plain: Callable[..., Tensor],
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return plain(x, running_mean, running_var, weight, bias, training, momentum, eps)
        narrow, x = x.dtype, x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        dims = [dim for dim in range(x.ndim) if dim != 1]
        shape = [-1 if dim == 1 else 1 for dim in range(x.ndim)]
        weight_of_rank = float(self.counted)
        count = self.team.sum(x.new_tensor([weight_of_rank * x.numel() / x.shape[1]]))
        mean = _joint_sum(weight_of_rank * x.sum(dims)) / count
        centred = x - mean.view(shape)
        var = _joint_sum(weight_of_rank * centred.square().sum(dims)) / count
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean, momentum)
                running_var.lerp_(var * count / (count - 1), momentum)
        normal = centred * (var + eps).rsqrt().view(shape)
        normal = normal if weight is None else normal * weight.view(shape)
        return (normal if bias is None else normal + bias.view(shape)).to(narrow)


class _JointSum(torch.autograd.Function):
    """The sum over processes; its gradient is the sum of all processes' gradients."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        total = value.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        torch.distributed.all_reduce(total)
        return total


def _joint_sum(value: Tensor) -> Tensor:
    total: Tensor = _JointSum.apply(value)
    return total

"""One fit over several processes: each takes its share of every batch's rows, and all take the same steps.

Started by `torchrun`, or with torch.distributed initialised by the caller, every rank calls `ns.fit` with the same
model and all of the data. The ranks start from rank 0's parameters and random states. With rows i of a batch B,

    gradient = sum over ranks of grad [ sum_{i in share} nll_i(w) + (|B| / n) KL / ranks ],

so the ranks together do what one process does: w is the same draw on every rank.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nodeslab.sources import Randomness, Source

__all__ = ["TIMEOUT", "Ranks", "alone", "join"]

#: How long a rank waits for the others when `join` starts the group: none of them takes longer for a step.
TIMEOUT = timedelta(minutes=5)

T = TypeVar("T")
Number = TypeVar("Number", int, float)
_alone: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Within the block a fit is this process's own, whatever torch.distributed is set up for."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def join(device: torch.device | None = None) -> Ranks:
    """The ranks that fit together; the group is made if `torchrun` started this process and nobody made it."""
    here = torch.device("cpu") if device is None else device
    if _alone.get() or not dist.is_available():
        return Ranks(0, 1, here)
    if not dist.is_initialized():
        if not dist.is_torchelastic_launched() or os.environ.get("WORLD_SIZE", "1") == "1":
            return Ranks(0, 1, here)
        dist.init_process_group("nccl" if here.type == "cuda" else "gloo", timeout=TIMEOUT)
    return Ranks(dist.get_rank(), dist.get_world_size(), here)


class Ranks:
    """What the ranks do together. With one of them nothing is sent and nothing changes."""

    def __init__(self, rank: int, count: int, device: torch.device) -> None:
        self.rank, self.count, self.device = rank, count, device
        self._drew = False  # this rank's forward took random numbers of its own

    @property
    def first(self) -> bool:
        """True on the rank that writes files and shows the bar."""
        return self.rank == 0

    # ---- the start -----------------------------------------------------------------------------------------

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` gives on rank 0, or raises there, on every rank."""
        if self.count == 1:
            return make()
        held: list[Any] = [None, None]
        if self.first:
            try:
                held[0] = make()
            except Exception as e:  # whatever it is, the others must hear of it
                held[1] = e
        with self._together():
            dist.broadcast_object_list(held, src=0, device=self.device)
        if held[1] is not None:
            raise held[1]
        value: T = held[0]
        return value

    def same(self, what: str, facts: object) -> None:
        """Refuse ranks that were given different things; facts: what must be equal, with a repr that says so."""
        if self.count == 1:
            return
        mine = hashlib.sha256(repr(facts).encode()).hexdigest()
        all_of_them: list[Any] = [None] * self.count
        with self._together():
            dist.all_gather_object(all_of_them, mine)
        other = next((r for r, theirs in enumerate(all_of_them) if theirs != all_of_them[0]), None)
        if other is not None:
            raise ValueError(
                f"Rank {other} of {self.count} was given another {what} than rank 0; give every rank the same model, "
                "the same arguments and all of the data, because fit splits each batch itself."
            )

    def same_parameters(self, model: nn.Module) -> None:
        """Rank 0's parameters and buffers, on every rank."""
        if self.count > 1:
            self._spread_out([*model.parameters(), *model.buffers()])

    def same_randomness(self, source: Source) -> None:
        """Rank 0's random states, of torch and of all that the data may draw from, on every rank."""
        if self.count > 1:
            self.from_first(lambda: Randomness.now(source)).put_back(source)

    def same_buffers(self, model: nn.Module) -> None:
        """Rank 0's running averages, on every rank: a rank has seen its own rows only."""
        if self.count > 1:
            self._spread_out(list(model.buffers()))

    def _spread_out(self, tensors: Sequence[Tensor]) -> None:
        with self._together(), torch.no_grad():
            for tensor in tensors:
                whole = tensor.detach().contiguous()
                dist.broadcast(whole, src=0)
                tensor.copy_(whole)

    # ---- a step --------------------------------------------------------------------------------------------

    def shares(self, rows: int) -> list[int]:
        """How many of so many rows each rank takes."""
        return [rows * (r + 1) // self.count - rows * r // self.count for r in range(self.count)]

    def share(self, inputs: tuple[Tensor, ...], y: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """This rank's rows of a batch."""
        if self.count == 1:
            return inputs, y
        mine = slice(len(y) * self.rank // self.count, len(y) * (self.rank + 1) // self.count)
        return tuple(x[mine] for x in inputs), y[mine]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What the forward draws by itself, such as dropout, is each rank's own, and leaves the ranks together.

        Two ranks may draw different amounts; then the next draw of the weights would not be the same on both.
        """
        if self.count == 1:
            yield
            return
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            digest = hashlib.sha256(_state(self.device).numpy().data).digest()
            torch.manual_seed(int.from_bytes(digest[:7], "little") + self.rank)
            before = _state(self.device)
            yield
            self._drew = self._drew or not torch.equal(before, _state(self.device))

    def total(self, nll: float, received: int | None) -> tuple[float, int | None]:
        """The sum over ranks of -log p of their rows, and a signal that any of them has received."""
        if self.count == 1:
            return nll, received
        mine = torch.tensor([nll, float(self._drew), float(received or 0)], dtype=torch.float64, device=self.device)
        table = [torch.empty_like(mine) for _ in range(self.count)]
        with self._together():
            dist.all_gather(table, mine)
        summed = torch.stack(table).cpu()
        if bool(summed[:, 1].any()):
            torch.rand((), device=self.device)  # the common stream moves on, or the same masks would come again
        self._drew = False
        return float(summed[:, 0].sum()), int(summed[:, 2].max()) or None

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Each parameter's gradient becomes the sum over ranks, in one message."""
        if self.count == 1:
            return
        exact = torch.float32
        for p in parameters:
            exact = torch.promote_types(exact, p.dtype)
        there = [p.grad is not None for p in parameters]
        parts = [torch.tensor(there, dtype=exact, device=self.device)]
        parts += [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).to(exact) for p in parameters]
        flat = torch.cat(parts)
        with self._together():
            dist.all_reduce(flat)
        at = len(there)
        for p, some in zip(parameters, flat[:at].tolist(), strict=True):
            if some:
                values = flat[at : at + p.numel()].view(p.shape)
                if p.grad is None:
                    p.grad = values.to(p.dtype)
                else:
                    p.grad.copy_(values)
            at += p.numel()

    # ---- an epoch, and the end -----------------------------------------------------------------------------

    def agree(self, *values: Number) -> list[Number]:
        """The greatest of each value over the ranks."""
        if self.count == 1:
            return list(values)
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        with self._together():
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        return [type(v)(m) for v, m in zip(values, mine.tolist(), strict=True)]

    def leave(self) -> None:
        """Take the group apart, when the work is done: a process that ends without it may be aborted by its peers."""
        if self.count > 1 and dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()

    def wait(self) -> None:
        """Until all ranks are here, such as after rank 0 has written."""
        self.agree(0.0)

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as e:  # torch.distributed has no narrower one for a lost connection
            words = str(e).strip().splitlines()[0].partition(". ")[0]
            raise ConnectionError(
                f"Rank {self.rank} of {self.count} has lost the others: one of them ended, failed, or was silent for "
                f"too long ({words}). Start the same job again: with checkpoint= it goes on from the last one."
            ) from e


def _state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()

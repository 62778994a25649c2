"""Passes over the rows of every client, each in a new order and cut into mini-batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfedhp.core.keys import ROLES, key, shuffle
from sfedhp.core.types import Batch, Clock
from sfedhp.nn.stages import Stage, of_clients, stages_of
from sfedhp.nn.task import Task


@dataclass(frozen=True)
class Epochs:
    """The mini-batches of some epochs of a task, as a `DataLoader` with `shuffle=True` would cut them.

    A client with n rows and batches of B makes ⌈n/B⌉ steps an epoch, the last with the rows that are left.
    Clients of a stack are independent: each begins its next epoch when its own rows are used up.
    """

    task: Task
    clock: Clock
    count: int  # epochs
    order: Tensor  # (..., epochs · rows): row numbers, epoch by epoch, the padding after the real rows
    batch_size: int  # B
    sizes: Tensor  # (...): real rows
    stream: Tensor  # (...): keys
    clients: Tensor | None = None  # (...): numbers in the task's stack; None: all of it

    @classmethod
    def of(cls, task: Task, clock: Clock, count: int, first: int = 0) -> Epochs:
        """The epochs of a task, in an order drawn by (seed, client id, clock, epoch) and nothing else."""
        epochs = torch.arange(first, first + count, device=task.labels.device)
        keys = key(task.stream.unsqueeze(-1), ROLES["epoch"], clock.cloud_round, clock.edge_round, epochs)
        order = shuffle(keys, task.sizes.unsqueeze(-1), task.rows)
        batch_size = min(task.batch_size or task.rows, task.rows)
        return cls(task, clock, count, order.flatten(-2), batch_size, task.sizes, task.stream)

    def of_clients(self, clients: Tensor) -> Epochs:
        """The same epochs of some clients of the stack only, by their numbers in it."""
        parts = (of_clients(part, clients, self.task.lead) for part in (self.order, self.sizes, self.stream))
        order, sizes, stream = parts
        return replace(self, order=order, sizes=sizes, stream=stream, clients=clients)

    def stages(self, runs: int = 0) -> list[Stage]:
        """Which clients take which steps, as `stages_of` has it."""
        batches = torch.div(self.sizes + self.batch_size - 1, self.batch_size, rounding_mode="floor")
        return stages_of(self.count * batches, runs)

    @property
    def steps(self) -> int:
        """The steps of the largest client; others make fewer."""
        sizes = self.sizes
        # Row counts are not read back from a GPU: that could not be recorded as a CUDA graph.
        largest = self.task.rows if sizes.is_cuda else int(sizes.max())
        return self.count * -(-largest // self.batch_size)

    @property
    def may_pad(self) -> bool:
        """Whether some mini-batch may have fewer rows than B: the last of an epoch, or one of a client that
        is done."""
        return self.task.rows_may_pad(self.task.rows) or self.task.rows % self.batch_size > 0

    def batch(self, step: int) -> Batch:
        """The mini-batch of each client's step of this number; without a real row where a client is done."""
        sizes, width = self.sizes.unsqueeze(-1), self.task.rows
        steps = torch.div(sizes + self.batch_size - 1, self.batch_size, rounding_mode="floor").clamp_min(1)
        epoch = torch.div(step, steps, rounding_mode="floor")
        place = step % steps * self.batch_size + torch.arange(self.batch_size, device=sizes.device)
        real = (place < sizes) & (epoch < self.count)
        rows = self.order.gather(-1, torch.where(real, epoch * width + place, 0))
        turn = self.clock.cloud_round, self.clock.edge_round
        keys = key(self.stream, ROLES["batch"], *turn, step)
        return self.task.take(rows, real, keys, clients=self.clients)

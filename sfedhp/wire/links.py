"""What happens to messages on a link: small weights are zeroed, and every byte is counted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfedhp.vectors import Factored, dense


@dataclass(frozen=True)
class Link:
    """One direction between two tiers. By default nothing is changed and dense sizes are counted."""

    threshold: float = 0.0  # weights smaller than it are zeroed before they are sent

    def carry(self, messages: Tensor | Factored, size: int) -> tuple[Tensor | Factored, Tensor]:
        """What arrives, and how many bytes each message took.

        Args:
            messages: (..., members, d + s). One message to all members has stride 0 on the members axis, and
                keeps it.
            size: d; the s statistics behind are sent as they are.

        Returns:
            The messages as the receivers hold them, and lengths (..., members).
        """
        if isinstance(messages, Factored):
            if not self.threshold:
                members = messages.layers[0].inputs.shape[:-2]
                length = messages.anchor.shape[-1] * messages.anchor.element_size()
                return messages, torch.full(members, length, device=messages.anchor.device)
            messages = dense(messages)
        same = messages.ndim > 1 and messages.stride(-2) == 0
        sent = messages[..., :1, :] if same else messages
        if self.threshold:
            small = sent.abs() < self.threshold
            small[..., size:] = False
            sent = sent.masked_fill(small, 0.0)
        arrived = sent.expand(messages.shape) if same else sent
        length = sent.shape[-1] * sent.element_size()
        return arrived, torch.full(messages.shape[:-1], length, device=messages.device)

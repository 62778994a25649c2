"""Differential privacy for uploads: changes are clipped, and noise is added to them or to their mean.

Learning Differentially Private Recurrent Language Models.
H. B. McMahan, D. Ramage, K. Talwar, L. Zhang. ICLR 2018, Algorithm 1. https://arxiv.org/abs/1710.06963
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfedhp.core.noise import Normals
from sfedhp.privacy.options import PrivacyOptions


def noisy_uploads(
    options: PrivacyOptions, uploads: Tensor, sent: Tensor, keys: Tensor, normals: Normals
) -> Tensor:
    """Uploads (..., d) with a clipped change and separate noise, if clients trust no server.

    Args:
        options: C and σ.
        uploads: (..., d).
        sent: (..., d), what the clients had received.
        keys: (...), of the noise.
        normals: its source.
    """
    noise = normals(keys, uploads.shape[-1], uploads.dtype)
    return sent + (_clipped(uploads - sent, options.clip) + options.clip * options.noise * noise)


def uploads_with_noisy_mean(
    options: PrivacyOptions, uploads: Tensor, weights: Tensor, sent: Tensor, keys: Tensor, normals: Normals
) -> Tensor:
    """Uploads (..., members, d) whose weighted mean may be published, as a trusted server computes it.

    Changes are clipped, so that replacing one member moves the mean by at most 2 C times its share. All get
    the same noise, so that the mean contains it once, however a method uses the mean afterwards.

    Args:
        options: C and σ.
        uploads: (..., members, d); of a member of weight zero nothing is read, not even NaN.
        weights: (..., members).
        sent: (..., members, d), what the members had received.
        keys: (...), of the noise.
        normals: its source.
    """
    share = weights.amax(-1) / weights.sum(-1).clamp_min(torch.finfo(weights.dtype).tiny)
    deviation = (options.clip * options.noise * share).unsqueeze(-1)
    noise = deviation * normals(keys, uploads.shape[-1], uploads.dtype)
    change = torch.where(weights.unsqueeze(-1) > 0, uploads - sent, 0.0)
    return sent + (_clipped(change, options.clip) + noise.unsqueeze(-2))


def _clipped(change: Tensor, clip: float) -> Tensor:
    """Changes (..., d) that are at most C long; zero where one is not finite."""
    length = torch.linalg.vector_norm(change, dim=-1, keepdim=True)
    factor = (clip / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp_max(1.0)
    return torch.where(length.isfinite(), change * factor, 0.0)

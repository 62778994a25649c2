"""Clipped uploads with noise: how long a change can be, and what noise the mean has."""

import math

import torch

from sfedhp.core.noise import KEYED
from sfedhp.core.vectors import weighted_mean
from sfedhp.privacy.mechanism import noisy_uploads, uploads_with_noisy_mean
from sfedhp.privacy.options import PrivacyOptions

WIDE, MEMBERS = 20_000, 5


def uploads(length):
    generator = torch.Generator().manual_seed(0)
    change = torch.randn(MEMBERS, WIDE, generator=generator, dtype=torch.float64)
    return length * change / change.norm(dim=-1, keepdim=True)


def noiseless(**options):
    return PrivacyOptions(unit="client", noise=1e-300, **options)


def test_a_client_adds_noise_of_its_own_to_a_clipped_change():
    options = PrivacyOptions(unit="client", clip=2.0, noise=0.7)
    sent, keys = torch.ones(MEMBERS, WIDE, dtype=torch.float64), torch.arange(MEMBERS)
    moved = uploads(9.0)
    received = noisy_uploads(options, sent + moved, sent, keys, KEYED)
    noise = received - sent - moved * 2 / 9
    assert abs(noise.std() - 1.4) < 1.4 * 4 / math.sqrt(2 * noise.numel())
    assert (torch.corrcoef(noise) - torch.eye(MEMBERS)).abs().max() < 4.5 / math.sqrt(WIDE)
    short = uploads(1.5)
    kept = noisy_uploads(noiseless(clip=2.0), sent + short, sent, keys, KEYED)
    torch.testing.assert_close(kept, sent + short)


def test_the_mean_has_noise_for_the_largest_share_once():
    options = PrivacyOptions(unit="client", tier="edge", clip=2.0, noise=3.0)
    sent, weights = torch.ones(MEMBERS, WIDE, dtype=torch.float64), torch.tensor([1.0, 2, 3, 4, 0])
    moved = uploads(9.0)
    given = sent + moved
    given[-1] = torch.nan  # who is absent is never read
    found = uploads_with_noisy_mean(options, given, weights, sent, torch.tensor(3), KEYED)
    noise = weighted_mean(found, weights) - weighted_mean(sent + moved * 2 / 9, weights)
    expected = 3.0 * 2.0 * 4 / 10
    assert abs(noise.std() - expected) < expected * 4.5 / math.sqrt(2 * WIDE)
    assert abs(noise.mean()) < expected * 4.5 / math.sqrt(WIDE)
    torch.testing.assert_close(found[0] - moved[0] * 2 / 9, found[3] - moved[3] * 2 / 9)


def test_one_member_moves_the_mean_by_at_most_twice_the_clip_times_its_share():
    options, weights = noiseless(tier="edge", clip=2.0), torch.tensor([1.0, 2, 3, 4, 0])
    sent = torch.zeros(MEMBERS, WIDE, dtype=torch.float64)
    given, other = sent + uploads(9.0), sent + uploads(9.0)
    other[3] = -1e6 * other[3]
    means = [
        weighted_mean(uploads_with_noisy_mean(options, each, weights, sent, torch.tensor(3), KEYED), weights)
        for each in (given, other)
    ]
    torch.testing.assert_close((means[0] - means[1]).norm(), torch.tensor(2 * 2.0 * 0.4, dtype=torch.float64))


def test_an_upload_that_is_not_finite_counts_as_no_change():
    sent, weights = torch.ones(3, 4), torch.ones(3)
    given = torch.tensor([[2.0, 1, 1, 1], [torch.nan, 1, 1, 1], [torch.inf, 1, 1, 1]])
    found = uploads_with_noisy_mean(noiseless(clip=5.0), given, weights, sent, torch.tensor(3), KEYED)
    torch.testing.assert_close(found, torch.tensor([[2.0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]))

"""Arithmetic of flat models: means, sparsity."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sfedhp.core.factored import dense
from sfedhp.core.scalars import PerRun
from sfedhp.core.trees import tree_map
from sfedhp.core.vectors import density, smooth_l1, smooth_l1_grad, soft_threshold, spread, weighted_mean
from tests.support.factored_models import LEADS, factored
from tests.support.tensors import normal


@pytest.mark.parametrize(("lead", "anchors"), LEADS[1:])
@pytest.mark.parametrize("zero", [False, True])
def test_the_mean_of_factored_models_is_that_of_the_built_ones(lead, anchors, zero):
    model, weights = factored(lead, anchors), torch.rand(lead, dtype=torch.float64) + 0.1
    if zero:
        weights[..., 0] = 0
    expected = (weights.unsqueeze(-1) * dense(model)).sum(-2) / weights.sum(-1, keepdim=True)
    assert_close(weighted_mean(model, weights), expected)
    assert_close(weighted_mean(dense(model), weights), expected)


@pytest.mark.parametrize("anchors", [(2, 1), (2, 3)])
def test_of_a_member_of_weight_zero_nothing_is_read(anchors):
    model, weights = factored((2, 3), anchors), torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]).double()
    expected = weighted_mean(model, weights)
    absent = weights == 0

    def spoil(tensor):
        if tensor.shape[1] == 1:
            return tensor
        return torch.where(absent.reshape(2, 3, *(1,) * (tensor.ndim - 2)), torch.nan, tensor)

    assert_close(weighted_mean(tree_map(spoil, model), weights), expected)
    assert_close(weighted_mean(spoil(dense(model)), weights), expected)


def test_without_weights_the_mean_is_finite():
    uploads = torch.full((2, 3), torch.nan)
    assert torch.equal(weighted_mean(uploads, torch.zeros(2)), torch.zeros(3))


def test_means_modify_nothing():
    model = factored((2, 3), (2, 1))
    before = tree_map(torch.clone, model)
    weighted_mean(model, torch.ones(2, 3, dtype=torch.float64))
    dense(model)
    tree_map(lambda new, old: assert_close(new, old, rtol=0, atol=0), model, before)


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=6).filter(lambda weights: sum(weights) > 1e-3),
    st.integers(0, 2**31),
)
def test_a_mean_is_between_its_members_and_ignores_the_scale_of_weights(weights, seed):
    uploads, shares = normal(len(weights), 4, seed=seed), torch.tensor(weights, dtype=torch.float64)
    mean = weighted_mean(uploads, shares)
    assert (mean <= uploads.amax(0) + 1e-9).all()
    assert (mean >= uploads.amin(0) - 1e-9).all()
    assert_close(weighted_mean(uploads, 7 * shares), mean)


def test_spreading_copies_nothing():
    models = spread(normal(2, 5), 3)
    assert models.shape == (2, 3, 5)
    assert models.stride(-2) == 0


@given(st.floats(-1e3, 1e3), st.sampled_from([1e-6, 6e-5, 1.0]))
def test_the_smooth_l1_stays_finite_and_between_its_bounds(value, smoothing):
    model = torch.tensor([value], dtype=torch.float64)
    penalty = smooth_l1(model, smoothing).item()
    # |x| − ρ log 2 ≤ φ_ρ(x) ≤ |x|
    assert math.isfinite(penalty)
    assert abs(value) - smoothing * math.log(2) - 1e-9 <= penalty <= abs(value) + 1e-9
    assert abs(smooth_l1_grad(model, smoothing).item()) <= 1


def test_the_gradient_is_that_of_the_smooth_l1():
    model = (1e-4 * normal(7)).requires_grad_()
    (grad,) = torch.autograd.grad(smooth_l1(model, 6e-5), model)
    assert_close(smooth_l1_grad(model.detach(), 6e-5), grad)
    assert_close(smooth_l1_grad(model.detach(), 6e-5), torch.tanh(model.detach() / 6e-5))


def test_smoothing_may_differ_between_runs():
    model = normal(2, 5)
    each = torch.stack([smooth_l1(model[0], 0.1), smooth_l1(model[1], 0.5)])
    assert_close(smooth_l1(model, PerRun([0.1, 0.5])), each)


def test_soft_thresholding_shrinks_and_leaves_zeros():
    model = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0])
    assert torch.equal(soft_threshold(model, 1.0), torch.tensor([-1.0, 0.0, 0.0, 0.0, 1.0]))


def test_density_counts_what_is_not_small():
    assert_close(density(torch.tensor([[0.0, 1e-4, 5e-4, 1.0]]), 5e-4), torch.tensor([0.5]))
    assert_close(density(torch.tensor([[0.0, 1e-4, -5e-4, 1.0]]), 0.0), torch.tensor([0.75]))

"""Flat models as vectors: means, changes that are never built, sparsity, trees."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sfedhp.core.factored import Factored, Layer, SliceWriter, add_change, dense
from sfedhp.core.scalars import PerRun
from sfedhp.core.trees import keep, tree_map
from sfedhp.core.vectors import density, smooth_l1, smooth_l1_grad, soft_threshold, spread, weighted_mean

SIZES = ((5, 4), (4, 3), (3, 2))  # (in, out) of three layers
D = sum(outputs * (inputs + 1) for inputs, outputs in SIZES)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def factored(lead, anchors, rows=2):
    """Models whose middle layer is a piece of its own."""
    layers = [
        Layer(normal(*lead, rows, inputs, seed=inputs), normal(*lead, rows, outputs, seed=outputs))
        for inputs, outputs in SIZES
    ]
    layers[1] = normal(*lead, SIZES[1][1] * (SIZES[1][0] + 1), seed=9)
    return Factored(normal(*anchors, D, seed=1), tuple(layers))


def written_out(model):
    """The same models by NumPy, one client at a time."""
    flat = np.broadcast_to(model.anchor.numpy(), model.shape).copy()
    for place in np.ndindex(*model.shape[:-1]):
        first = 0
        for (inputs, outputs), layer in zip(SIZES, model.layers, strict=True):
            size = outputs * (inputs + 1)
            if isinstance(layer, Layer):
                ahead, rows = layer.coefficients[place].numpy(), layer.inputs[place].numpy()
                change = np.concatenate([(ahead.T @ rows).ravel(), ahead.sum(0)])
                flat[place][first : first + size] += change
            else:
                flat[place][first : first + size] = layer[place].numpy()
            first += size
    return torch.from_numpy(flat)


LEADS = [((), ()), ((4,), (1,)), ((4,), (4,)), ((2, 3), (2, 1)), ((2, 3), (2, 3)), ((2, 2, 3), (2, 2, 1))]


@pytest.mark.parametrize(("lead", "anchors"), LEADS)
def test_a_factored_model_is_what_its_factors_say(lead, anchors):
    model = factored(lead, anchors)
    assert model.shape == (*lead, D)
    assert_close(dense(model), written_out(model))


def test_the_shape_is_known_whatever_the_first_layer_is():
    model = factored((2, 3), (2, 1))
    assert model._replace(layers=model.layers[1:]).shape == (2, 3, D)


def test_a_built_model_is_dense_as_it_is():
    model = normal(3, 5)
    assert dense(model) is model


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


def test_where_nobody_counts_the_mean_is_finite():
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
def test_a_mean_lies_between_and_ignores_the_scale_of_weights(weights, seed):
    uploads, shares = normal(len(weights), 4, seed=seed), torch.tensor(weights, dtype=torch.float64)
    mean = weighted_mean(uploads, shares)
    assert (mean <= uploads.amax(0) + 1e-9).all()
    assert (mean >= uploads.amin(0) - 1e-9).all()
    assert_close(weighted_mean(uploads, 7 * shares), mean)


def test_a_change_is_added_in_place():
    flat = normal(3, D)
    part, change = flat[:, : 4 * 6], Layer(normal(3, 2, 5), normal(3, 2, 4))
    expected = part.clone()
    expected[:, :20] += (change.coefficients.mT @ change.inputs).flatten(1)
    expected[:, 20:] += change.coefficients.sum(1)
    assert add_change(part, change) is part
    assert_close(flat[:, :24], expected)


def test_pieces_with_one_anchor_stay_factored_side_by_side():
    model = factored((2, 3), (2, 1))

    def piece(first, last):
        return model._replace(layers=tree_map(lambda tensor: tensor[:, first:last], model.layers))

    writer = SliceWriter(1, 3)
    writer.write(piece(0, 2), 0)
    writer.write(piece(2, 3), 2)
    whole = writer.value
    assert isinstance(whole, Factored)
    assert_close(dense(whole), dense(model))


def test_pieces_with_anchors_of_their_own_stay_factored_one_after_the_other():
    model = factored((3, 2), (3, 1))
    writer = SliceWriter(0, 3, shared_anchors=False)
    for first, last in ((0, 1), (1, 3)):
        writer.write(tree_map(lambda tensor, rows=slice(first, last): tensor[rows], model), first)
    whole = writer.value
    assert isinstance(whole, Factored)
    assert whole.anchor.shape == model.anchor.shape
    assert_close(dense(whole), dense(model))


@pytest.mark.parametrize("anchors", [(2, 1), (2, 3)])
def test_other_pieces_are_built_side_by_side(anchors):
    model = factored((2, 3), anchors)
    apart = model._replace(anchor=model.anchor.clone())
    for pieces in ([model, apart], [model, dense(model)], [dense(model), model]):
        writer = SliceWriter(1, 6)
        for index, part in enumerate(pieces):
            writer.write(part, 3 * index)
        assert torch.equal(writer.value, torch.cat([dense(model), dense(model)], 1))


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


def test_a_tree_keeps_its_form():
    tree = (torch.ones(2), Layer(torch.ones(1), torch.zeros(1)), ())
    doubled = tree_map(lambda first, second: first + second, tree, tree)
    assert isinstance(doubled[1], Layer)
    assert torch.equal(doubled[0], 2 * torch.ones(2))
    assert doubled[2] == ()


@pytest.mark.parametrize("took", [[True, True], [True, False], [False, False]])
def test_rows_where_nothing_happened_keep_what_they_had(took):
    new, old = (normal(2, 3, seed=1), normal(2, seed=2)), (normal(2, 3, seed=3), normal(2, seed=4))
    kept = keep(torch.tensor(took), new, old)
    for row, moved in enumerate(took):
        for part, fresh, before in zip(kept, new, old, strict=True):
            assert torch.equal(part[row], (fresh if moved else before)[row])


@pytest.mark.parametrize("both", [False, True])
def test_members_that_were_lost_keep_factored_models(both):
    new, old = factored((2, 3), (2, 1)), factored((2, 3), (2, 1))
    old = old._replace(anchor=normal(2, 1, D, seed=5))
    took = torch.tensor([[True, False, True], [False, True, True]])
    kept = keep(took, new, old if both else dense(old))
    assert_close(dense(kept), torch.where(took.unsqueeze(-1), dense(new), dense(old)))
    assert isinstance(kept, Factored) == both

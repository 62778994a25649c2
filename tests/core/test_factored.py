"""Factored models: what they are as flat vectors, and slices of them written into a whole."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sfedhp.core.factored import Factored, Layer, SliceWriter, add_change, dense
from sfedhp.core.trees import tree_map
from tests.support.factored_models import LEADS, SIZES, D, factored
from tests.support.tensors import normal


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


@pytest.mark.parametrize(("lead", "anchors"), LEADS)
def test_a_factored_model_is_what_its_factors_say(lead, anchors):
    model = factored(lead, anchors)
    assert model.shape == (*lead, D)
    assert_close(dense(model), written_out(model))


def test_the_shape_is_known_with_any_first_layer():
    model = factored((2, 3), (2, 1))
    assert model._replace(layers=model.layers[1:]).shape == (2, 3, D)


def test_a_built_model_is_dense_as_it_is():
    model = normal(3, 5)
    assert dense(model) is model


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

    writer: SliceWriter[Tensor | Factored] = SliceWriter(1, 3)
    writer.write(piece(0, 2), 0)
    writer.write(piece(2, 3), 2)
    whole = writer.value
    assert isinstance(whole, Factored)
    assert_close(dense(whole), dense(model))


def test_pieces_with_anchors_of_their_own_stay_factored_one_after_the_other():
    model = factored((3, 2), (3, 1))
    writer: SliceWriter[Tensor | Factored] = SliceWriter(0, 3, shared_anchors=False)
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
        writer: SliceWriter[Any] = SliceWriter(1, 6)
        for index, part in enumerate(pieces):
            writer.write(part, 3 * index)
        assert torch.equal(writer.value, torch.cat([dense(model), dense(model)], 1))

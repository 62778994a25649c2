"""Random crops and flips by keys, against plain loops over images."""

import pytest
import torch
from torch.nn.functional import pad
from torch.testing import assert_close

from sfedhp.core.errors import InputError
from sfedhp.core.keys import ROLES, key, uniform
from sfedhp.core.types import Clock
from sfedhp.nn.augmentation import augmented, check_augment
from sfedhp.nn.models import build
from sfedhp.nn.task import Task


def by_hand(image, keys, row, augment):
    """Pad by four, cut a piece at the drawn place, mirror: one image (channels, height, width)."""
    own = key(keys, ROLES["augment"], row)
    if "crop" in augment:
        height, width = image.shape[-2:]
        top, left = (int(uniform(key(own, part)) * 9) for part in (1, 2))
        image = pad(image, (4, 4, 4, 4))[..., top : top + height, left : left + width]
    return image.flip(-1) if "flip" in augment and uniform(key(own, 0)) < 0.5 else image


@pytest.mark.parametrize("augment", ["crop", "flip", "crop-flip"])
@pytest.mark.parametrize("shape", [(3, 9, 7), (8, 6)])
def test_each_image_is_cropped_and_flipped_on_its_own(augment, shape):
    images = torch.rand(2, 3, 20, *shape) + 1
    keys = key(5, torch.arange(6).view(2, 3))
    found = augmented(images, keys, augment)
    for place in ((0, 0), (1, 2)):
        for row in range(20):
            assert_close(found[place][row], by_hand(images[place][row], keys[place], row, augment))
        assert torch.equal(augmented(images[place], keys[place], augment), found[place])
        assert torch.equal(augmented(images[place][:5], keys[place], augment), found[place][:5])
    assert not torch.equal(found, images)
    assert len(found.flatten(3).unique(dim=2)[0, 0]) > 1


def test_nothing_is_done_by_default():
    images = torch.rand(2, 9, 7)
    assert augmented(images, key(3), "none") is images


def test_all_places_and_both_sides_are_drawn():
    images = torch.ones(2000, 9, 9)
    cropped = augmented(images, key(1), "crop")
    kept = {(int(image.any(1).sum()), int(image.any(0).sum())) for image in cropped}
    assert kept == {(rows, columns) for rows in range(5, 10) for columns in range(5, 10)}
    arrow = torch.arange(9.0).expand(2000, 9, 9)
    flipped = (augmented(arrow, key(1), "flip")[:, 0, 0] == 8).double().mean()
    assert 0.45 < flipped < 0.55


def test_mini_batches_are_augmented_and_evaluation_is_not():
    network = build("mlr", shape=(1, 8, 8), classes=2, seed=0, dtype=torch.float32)
    inputs = torch.rand(3, 5, 1, 8, 8)
    task = Task(network, inputs, torch.zeros(3, 5).long(), torch.full((3,), 5), key(torch.arange(3)), 0)
    plain = task.batch(Clock(2))
    assert plain.inputs is inputs
    task.augment = "crop-flip"
    for size in (0, 5):
        task.batch_size = size
        batch, later = task.batch(Clock(2)), task.batch(Clock(3))
        assert batch.keys is not None
        whole = task.batch(Clock(2), augment=False)
        assert torch.equal(batch.inputs, augmented(whole.inputs, batch.keys, "crop-flip"))
        assert not torch.equal(batch.inputs, later.inputs)
        assert torch.equal(task.batch(Clock(2)).inputs, batch.inputs)
    assert torch.equal(task.everything().inputs, inputs)


@pytest.mark.parametrize("shape", [(60,), (3, 4, 8, 8), (28, 4)])
def test_what_are_no_images_is_refused(shape):
    with pytest.raises(InputError, match=r"data\.augment = crop is for images, .* set data\.augment = none"):
        check_augment("crop", shape)
    check_augment("none", shape)

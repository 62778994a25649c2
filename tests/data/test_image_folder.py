from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, Federation, federate

RANDOM = np.random.default_rng(1)


def save(path: Path, shape: tuple[int, ...] = (6, 5), level: int = 100) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RANDOM.integers(level - 40, level + 40, shape).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def load(root: Path, **options: object) -> Federation:
    given = DataOptions(str(root), **options)  # type: ignore[arg-type]
    return federate(given, edges=1, clients_per_edge=2, seed=0)[0]


def fill(root: Path, clients: tuple[str, ...], shape: tuple[int, ...] = (6, 5), suffix: str = "png") -> None:
    for client in clients:
        for label, level in (("cat", 60), ("dog", 190)):
            for number in range(6):
                save(root / client / label / f"{number}.{suffix}", shape, level)


def test_folders_name_classes_and_clients(tmp_path: Path) -> None:
    fill(tmp_path / "pets", ("ward 2", "ward 10"))
    first = save(tmp_path / "pets" / "ward 10" / "cat" / "0.png")
    (tmp_path / "pets" / "notes.txt").write_text("not an image")
    save(tmp_path / "pets" / ".thumbnails" / "x.png")
    federation = load(tmp_path / "pets")
    assert federation.names.classes == ("cat", "dog")
    assert federation.names.clients == ("ward 10", "ward 2")
    assert federation.inputs.shape == (24, 1, 6, 5)
    assert federation.inputs.dtype == np.uint8
    np.testing.assert_array_equal(federation.inputs[0, 0], first)
    assert federation.labels.tolist() == ([0] * 6 + [1] * 6) * 2
    assert [len(rows) for rows in federation.train] == [9, 9]
    assert federation.scale == "unit"


def test_colored_images_have_three_channels_and_grey_ones_among_them_become_so(tmp_path: Path) -> None:
    fill(tmp_path, ("",), (6, 5, 3))
    grey = save(tmp_path / "cat" / "0.png")
    federation = load(tmp_path)
    assert federation.inputs.shape == (12, 3, 6, 5)
    np.testing.assert_array_equal(federation.inputs[0], np.stack([grey] * 3))
    assert not federation.names.clients


def test_sizes_must_agree_or_are_made_equal(tmp_path: Path) -> None:
    fill(tmp_path, ("",), suffix="jpg")
    save(tmp_path / "dog" / "big.jpg", (12, 12))
    with pytest.raises(
        InputError, match=r"big.jpg has 12 × 12 pixels and .*0.jpg 5 × 6: set data.image_size"
    ):
        load(tmp_path)
    assert load(tmp_path, image_size=8).inputs.shape == (13, 1, 8, 8)


def test_a_run_learns_from_a_folder_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "pets", ("a", "b"))
    monkeypatch.chdir(tmp_path)
    experiment = sfedhp.Experiment(rounds=12, edges=1, clients_per_edge=2, data=DataOptions("pets"))
    run = sfedhp.run(experiment, out=tmp_path / "run", stop=lambda: True)
    assert not run.finished
    monkeypatch.chdir("/")
    done = sfedhp.resume(tmp_path / "run")
    assert done.summary["gm_last"] == 100
    assert list(sfedhp.load(tmp_path / "run").client_models) == ["a", "b"]
    models = sfedhp.load(tmp_path / "run")
    assert models.class_names == ["cat", "dog"]
    assert models.global_model is not None
    dogs = models.global_model(models.prepare(tmp_path / "pets" / "a" / "dog"))
    assert dogs.argmax(-1).tolist() == [1] * 6
    assert models.prepare(tmp_path / "pets" / "b" / "cat" / "3.png").shape == (1, 1, 6, 5)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "holds no images"),
        (["cat/1.png"], "has one class, 'cat'"),
        (["1.png", "2.png"], "is not where an image is expected"),
        (["a/cat/1.png", "dog/1.png"], "a/cat/1.png is not where an image is expected"),
        (["a/cat/1.png", "a/dog/1.png", "z.png"], "z.png is not where an image is expected"),
        (["a/b/cat/1.png", "a/b/dog/1.png"], "is not where an image is expected"),
    ],
)
def test_other_layouts_are_refused(tmp_path: Path, paths: list[str], words: str) -> None:
    for path in paths:
        save(tmp_path / path)
    with pytest.raises(InputError, match=words):
        load(tmp_path)


def test_broken_and_deep_images_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, ("",))
    (tmp_path / "cat" / "0.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"/0.png is not an image: replace or remove it.$"):
        load(tmp_path)
    (tmp_path / "cat" / "0.png").unlink()
    (tmp_path / "cat" / "0.png").symlink_to("nowhere.png")
    with pytest.raises(
        InputError, match=r"/0.png is not an image that can be read \(No such file or directory\): replace"
    ):
        load(tmp_path)
    (tmp_path / "cat" / "0.png").unlink()
    Image.fromarray(np.ones((6, 5), np.uint16)).save(tmp_path / "cat" / "0.png")
    with pytest.raises(InputError, match="more than 8 bits a channel"):
        load(tmp_path)


def test_folders_without_images_are_named(tmp_path: Path) -> None:
    fill(tmp_path / "pets", ("",))
    for name in ("owl", ".git", "a.png"):
        (tmp_path / "pets" / name).mkdir()
    assert load(tmp_path / "pets").notes == ("pets has folders without images, ignored: a.png, owl.",)
    (tmp_path / "pets" / "a.png").rmdir()
    assert load(tmp_path / "pets").notes == ("pets has a folder without images, ignored: owl.",)
    assert load(tmp_path / "pets").names.classes == ("cat", "dog")

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, data_folder, embedded, federate, listing, verify
from sfedhp.data.registry import read_images


def test_the_folder_is_the_given_one_else_the_named_one_else_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SFEDHP_DATA", "/named")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == Path("/named")
    monkeypatch.delenv("SFEDHP_DATA")
    assert data_folder() == Path("/cache/sfedhp")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert data_folder() == Path("/somebody/.cache/sfedhp")


def test_idx_files_are_read_in_the_published_order(small_mnist, tmp_path):
    small_mnist.write(tmp_path / "mnist")
    pool = read_images(small_mnist.images, tmp_path)
    np.testing.assert_array_equal(pool.inputs, small_mnist.pixels)
    np.testing.assert_array_equal(pool.labels, small_mnist.labels)
    assert pool.labels.dtype == np.int64


@pytest.mark.parametrize("ending", [".bin", ".bin.gz"])
def test_cifar_batches_are_read_plain_or_zipped(small_cifar, tmp_path, ending):
    small_cifar.write(tmp_path / "cifar-10", [name for name in small_cifar.contents if name.endswith(ending)])
    pool = read_images(small_cifar.images, tmp_path)
    np.testing.assert_array_equal(pool.inputs, small_cifar.pixels)
    np.testing.assert_array_equal(pool.labels, small_cifar.labels)


def test_a_missing_file_says_how_to_get_it(small_mnist, tmp_path):
    with pytest.raises(InputError, match=r"`sfedhp data get mnist`.*`sfedhp data get mnist --from DIR`"):
        federate(DataOptions("mnist"), edges=1, clients_per_edge=1, seed=0, folder=tmp_path)


@pytest.mark.parametrize("damage", ["flip", "truncate", "append"])
def test_any_other_bytes_are_refused_on_reading(small_mnist, tmp_path, damage):
    small_mnist.write(tmp_path / "mnist")
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[100] ^= 1
    path.write_bytes(
        content[:-1] if damage == "truncate" else content + b"x" if damage == "append" else content
    )
    with pytest.raises(InputError, match=r"t10k-images.*checksum is wrong"):
        federate(DataOptions("mnist"), edges=1, clients_per_edge=1, seed=0, folder=tmp_path)
    states = {row.file: row.state for row in verify("mnist", tmp_path)}
    assert states.pop("t10k-images-idx3-ubyte.gz") == "wrong"
    assert set(states.values()) == {"ok"}


def test_a_file_that_cannot_be_read_is_an_input_error(small_mnist, tmp_path, monkeypatch):
    small_mnist.write(tmp_path / "mnist")

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        read_images(small_mnist.images, tmp_path)


def test_verify_tells_missing_files_and_the_form_that_is_there(small_cifar, tmp_path):
    small_cifar.write(tmp_path / "cifar-10", ["data_batch_1.bin.gz"])
    rows = verify("cifar10", tmp_path)
    assert rows[0] == ("data_batch_1.bin.gz", "ok", tmp_path / "cifar-10" / "data_batch_1.bin.gz")
    assert [row.state for row in rows[1:]] == ["missing"] * 5


def test_sources_without_downloads_verify_too(tmp_path):
    assert [row.state for row in verify("fmnist-mini", tmp_path)] == ["ok"]
    assert verify("synthetic") == []


def test_the_list_says_what_is_there(small_mnist, small_cifar, tmp_path):
    small_mnist.write(tmp_path / "mnist")
    small_cifar.write(tmp_path / "cifar-10", ["data_batch_1.bin"])
    rows = {row.name: row for row in listing(tmp_path)}
    assert list(rows) == ["fmnist-mini", "mnist", "fmnist", "cifar10", "synthetic"]
    assert {name for name, row in rows.items() if row.present} == {"fmnist-mini", "mnist", "synthetic"}
    assert rows["fmnist"].where == str(tmp_path / "fashion-mnist")
    assert (rows["fmnist-mini"].images, rows["fmnist"].images, rows["synthetic"].images) == (
        4_400,
        70_000,
        None,
    )


def test_an_unknown_source_is_named_with_the_nearest():
    with pytest.raises(InputError, match=r"no data source 'fmnits': did you mean fmnist\?"):
        federate(DataOptions("fmnits"), edges=1, clients_per_edge=1, seed=0)
    with pytest.raises(
        InputError, match=r"use fmnist-mini, mnist, fmnist, cifar10, synthetic, a file ending"
    ):
        verify("zebra")


def test_the_embedded_images_are_checked_too(monkeypatch, tmp_path):
    damaged = tmp_path / "fmnist-mini.npz"
    damaged.write_bytes(embedded.PATH.read_bytes()[:-1])
    monkeypatch.setattr(embedded, "PATH", damaged)
    with pytest.raises(InputError, match="install sfedhp again"):
        federate(DataOptions(), edges=4, clients_per_edge=5, seed=0)
    assert verify("fmnist-mini")[0].state == "wrong"
    damaged.unlink()
    with pytest.raises(InputError, match="missing or damaged"):
        federate(DataOptions(), edges=4, clients_per_edge=5, seed=0)

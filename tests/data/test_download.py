from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sfedhp.core.errors import InputError
from sfedhp.data import get, registry, verify

FIRST = "train-images-idx3-ubyte.gz"


class Publisher(ThreadingHTTPServer):
    """A web server for the files of a set, with the manners of good and bad ones."""

    daemon_threads = True

    def __init__(self, contents: dict[str, bytes], **manners: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.contents, self.manners = contents, manners
        self.asked: list[tuple[str, str | None]] = []  # (file, Range)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Answer(BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        name, span = self.path.strip("/"), self.headers["Range"]
        self.server.asked.append((name, span))
        content, manners = self.server.contents.get(name), self.server.manners
        if content is None:
            self.send_error(404)
            return
        start = int(span.removeprefix("bytes=").rstrip("-")) if span and manners.get("ranges", True) else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = manners.get("cut", len(content))
        with contextlib.suppress(ConnectionError):  # the client may have had enough
            self.wfile.write(content[start:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Publisher]]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers: list[Publisher] = []

    def start(contents: dict[str, bytes], **manners: Any) -> Publisher:
        servers.append(Publisher(contents, **manners))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a set be offered at these addresses."""

    def offer(name: str, *addresses: str) -> None:
        images = dataclasses.replace(registry.IMAGE_SETS[name], addresses=addresses)
        monkeypatch.setitem(registry.IMAGE_SETS, name, images)

    return offer


def states(name: str, folder: Path) -> set[str]:
    return {row.state for row in verify(name, folder)}


def leftovers(folder: Path) -> list[str]:
    return [path.name for pattern in ("*.part", ".*") for path in folder.rglob(pattern)]


def test_a_set_is_downloaded_whole_and_reported(small_mnist, publish, at, tmp_path):
    server = publish(small_mnist.contents)
    at("mnist", server.address)
    reports: list[tuple[str, int, int]] = []
    folder = get("mnist", tmp_path, progress=lambda *report: reports.append(report))
    assert folder == tmp_path / "mnist"
    assert states("mnist", tmp_path) == {"ok"}
    assert not leftovers(tmp_path)
    size = len(small_mnist.contents[FIRST])
    assert reports[0][0] == FIRST
    assert (FIRST, size, size) in reports
    assert all(0 < done <= total for _, done, total in reports)


def test_what_is_there_is_not_downloaded_again(small_mnist, publish, at, tmp_path):
    server = publish(small_mnist.contents)
    at("mnist", server.address)
    get("mnist", tmp_path)
    (tmp_path / "mnist" / FIRST).write_bytes(b"damaged")
    server.asked.clear()
    get("mnist", tmp_path)
    assert server.asked == [(FIRST, None)]
    assert states("mnist", tmp_path) == {"ok"}


def test_an_interrupted_download_continues_where_it_stopped(small_mnist, publish, at, tmp_path):
    broken = publish(small_mnist.contents, cut=1000)
    at("mnist", broken.address)
    with pytest.raises(InputError, match=r"run this again to continue where it stopped.*--from DIR"):
        get("mnist", tmp_path)
    part = tmp_path / "mnist" / f"{FIRST}.part"
    assert part.read_bytes() == small_mnist.contents[FIRST][:1000]
    assert not (tmp_path / "mnist" / FIRST).exists()

    sound = publish(small_mnist.contents)
    at("mnist", sound.address)
    get("mnist", tmp_path)
    assert sound.asked[0] == (FIRST, "bytes=1000-")
    assert states("mnist", tmp_path) == {"ok"}
    assert not leftovers(tmp_path)


def test_the_second_address_continues_after_the_first_broke_off(small_mnist, publish, at, tmp_path):
    broken, sound = publish(small_mnist.contents, cut=1000), publish(small_mnist.contents)
    at("mnist", broken.address, sound.address)
    get("mnist", tmp_path)
    assert sound.asked[0] == (FIRST, "bytes=1000-")
    assert states("mnist", tmp_path) == {"ok"}


def test_a_server_without_ranges_sends_everything_again(small_mnist, publish, at, tmp_path):
    part = tmp_path / "mnist" / f"{FIRST}.part"
    part.parent.mkdir()
    part.write_bytes(small_mnist.contents[FIRST][:1000])
    server = publish(small_mnist.contents, ranges=False)
    at("mnist", server.address)
    get("mnist", tmp_path)
    assert states("mnist", tmp_path) == {"ok"}
    assert [name for name, _ in server.asked].count(FIRST) == 1


@pytest.mark.parametrize("old", [b"x" * 1000, b"x" * 10**6])
def test_a_partial_file_of_other_bytes_is_thrown_away(small_mnist, publish, at, tmp_path, old):
    part = tmp_path / "mnist" / f"{FIRST}.part"
    part.parent.mkdir()
    part.write_bytes(old)
    at("mnist", publish(small_mnist.contents).address)
    get("mnist", tmp_path)
    assert states("mnist", tmp_path) == {"ok"}


def test_a_dead_first_address_is_passed_over(small_mnist, publish, at, tmp_path):
    dead, sound = publish({}), publish(small_mnist.contents)
    dead.shutdown()
    dead.server_close()
    at("mnist", dead.address, sound.address)
    get("mnist", tmp_path)
    assert states("mnist", tmp_path) == {"ok"}


def test_wrong_bytes_are_never_kept(small_mnist, publish, at, tmp_path):
    changed = {name: content[:-1] + b"?" for name, content in small_mnist.contents.items()}
    longer = {name: content + b"?" * 10**6 for name, content in small_mnist.contents.items()}
    at("mnist", publish(changed).address, publish(longer).address)
    with pytest.raises(InputError, match=r"checksum is wrong.*checksum is wrong"):
        get("mnist", tmp_path)
    assert states("mnist", tmp_path) == {"missing"}
    assert not leftovers(tmp_path)
    at("mnist", publish(changed).address, publish(small_mnist.contents).address)
    get("mnist", tmp_path)
    assert states("mnist", tmp_path) == {"ok"}


def test_bytes_beyond_the_size_are_not_read(small_mnist, publish, at, tmp_path):
    server = publish(dict.fromkeys(small_mnist.contents, b"?" * (1 << 26)))
    at("mnist", server.address)
    reports: list[int] = []
    with pytest.raises(InputError, match="checksum is wrong"):
        get("mnist", tmp_path, progress=lambda name, done, total: reports.append(done))
    assert len(reports) <= len(small_mnist.contents[FIRST]) // (1 << 16) + 2


def test_every_error_is_reported(small_mnist, publish, at, tmp_path):
    missing, dead = publish({}), publish({})
    dead.shutdown()
    dead.server_close()
    at("mnist", missing.address, dead.address)
    with pytest.raises(InputError, match=r"the server returned HTTP status 404;.*refused"):
        get("mnist", tmp_path)


def test_the_archive_is_unpacked_member_by_member(small_cifar, publish, at, tmp_path):
    server = publish(small_cifar.contents)
    at("cifar10", server.address)
    get("cifar10", tmp_path)
    assert server.asked == [("cifar-10-binary.tar.gz", None)]
    assert states("cifar10", tmp_path) == {"ok"}
    names = sorted(path.name for path in (tmp_path / "cifar-10").iterdir())
    assert names == sorted(forms[0].name for forms in small_cifar.images.parts)
    get("cifar10", tmp_path)
    assert len(server.asked) == 1


def test_an_archive_that_arrived_before_is_used(small_cifar, publish, at, tmp_path):
    small_cifar.write(tmp_path / "cifar-10", ["cifar-10-binary.tar.gz"])
    at("cifar10", "http://127.0.0.1:9/")
    get("cifar10", tmp_path)
    assert states("cifar10", tmp_path) == {"ok"}


@pytest.mark.parametrize("layout", [".", "mnist", "MNIST/raw"])
def test_files_are_imported_offline_from_any_layout(small_mnist, at, tmp_path, layout):
    at("mnist")
    small_mnist.write(tmp_path / "disk" / layout)
    reports: list[tuple[str, int, int]] = []
    get("mnist", tmp_path / "data", source_dir=tmp_path / "disk", progress=lambda *r: reports.append(r))
    assert states("mnist", tmp_path / "data") == {"ok"}
    assert {name for name, done, total in reports if done == total} == set(small_mnist.contents)


@pytest.mark.parametrize("layout", [".", "cifar-10", "cifar-10-batches-bin"])
@pytest.mark.parametrize("ending", [".bin", ".bin.gz", ".tar.gz"])
def test_every_form_of_cifar_is_imported(small_cifar, at, tmp_path, layout, ending):
    at("cifar10")
    chosen = [name for name in small_cifar.contents if name.endswith(ending)]
    small_cifar.write(tmp_path / "disk" / layout, chosen)
    # A damaged plain batch must not hide the zipped one that is imported.
    (tmp_path / "cifar-10").mkdir()
    (tmp_path / "cifar-10" / "data_batch_1.bin").write_bytes(b"damaged")
    get("cifar10", tmp_path, source_dir=tmp_path / "disk")
    assert states("cifar10", tmp_path) == {"ok"}
    assert len(list((tmp_path / "cifar-10").iterdir())) == 6


def test_an_import_says_what_is_missing_or_wrong(small_mnist, small_cifar, at, tmp_path):
    with pytest.raises(InputError, match=rf"{FIRST}.*not found in any of .*disk"):
        get("mnist", tmp_path, source_dir=tmp_path / "disk")
    small_mnist.write(tmp_path / "disk")
    (tmp_path / "disk" / FIRST).write_bytes(b"something else")
    with pytest.raises(InputError, match=rf"{FIRST} is not the published file"):
        get("mnist", tmp_path, source_dir=tmp_path / "disk")
    small_mnist.write(tmp_path / "disk" / "mnist", [FIRST])
    get("mnist", tmp_path, source_dir=tmp_path / "disk")
    assert states("mnist", tmp_path) == {"ok"}
    (tmp_path / "disk" / "cifar-10-binary.tar.gz").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"cifar-10-binary.tar.gz is not the published file"):
        get("cifar10", tmp_path, source_dir=tmp_path / "disk")


def test_a_folder_that_cannot_be_written_is_an_input_error(small_mnist, at, tmp_path):
    (tmp_path / "mnist").write_bytes(b"a file where a folder should be")
    with pytest.raises(InputError, match="cannot be stored in"):
        get("mnist", tmp_path)


def test_only_the_published_sets_can_be_got(tmp_path):
    with pytest.raises(InputError, match="part of the package"):
        get("fmnist-mini", tmp_path)
    with pytest.raises(InputError, match="did you mean cifar10"):
        get("cifar", tmp_path)

"""Getting an image set: from its publisher over the network, or from a folder that already has its files."""

from __future__ import annotations

import functools
import http.client
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from sfedhp.core.errors import InputError
from sfedhp.core.files import remove_temporary_files, write_atomically
from sfedhp.data.published_files import DataFile, chunks_of
from sfedhp.data.registry import data_folder, image_set, part_state
from sfedhp.data.sources import ImageSet

Progress = Callable[[str, int, int], None]  # the file's name, bytes so far, bytes in all
_CHUNK = 1 << 16
_TIMEOUT = 30  # seconds without a byte


def get(
    name: str,
    folder: Path | str | None = None,
    *,
    source_dir: Path | str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download an image set into the data folder, and return the set's folder. Files that are right stay.

    Args:
        name: of the image set.
        folder: the data folder; None: as `data_folder` says.
        source_dir: a folder with the files, which are then copied from there instead of downloaded.
        progress: called with the name of a file, its bytes so far, and its size.

    Raises:
        InputError: no such set, no address gave the right bytes, files missing or wrong, no room to write.
    """
    images, root, report = image_set(name), data_folder(folder), progress or _no_report
    wanted = [forms for forms in images.parts if part_state(images, forms, root).state != "ok"]
    target = root / images.folder
    try:
        target.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(target, shared=True)
        if source_dir is not None:
            _import(images, wanted, Path(source_dir), target, report)
        elif images.archive is None:
            for forms in wanted:
                _download(images, forms[0], target / forms[0].name, report)
        elif wanted:
            archive = target / images.archive.name
            if images.archive.state(archive) != "ok":
                _download(images, images.archive, archive, report)
            _unpack(archive, wanted, target, report)
            archive.unlink()
    except OSError as error:
        raise InputError(f"{name} cannot be stored in {target}: {error}.") from error
    return target


def _no_report(name: str, done: int, total: int) -> None:
    """Report nothing: the default of `get`."""


def _download(images: ImageSet, file: DataFile, path: Path, report: Progress) -> None:
    """Download a file from the first address that has the right bytes; a partial download is continued."""
    part, errors = path.with_name(path.name + ".part"), []
    for address in images.addresses:
        url = address + file.name
        resumed = part.is_file()
        error = _fetch(url, file, part, report)
        if error is not None and resumed and not part.is_file():
            error = _fetch(url, file, part, report)  # the older bytes were wrong: once more from the start
        if error is None:
            part.replace(path)
            return
        errors.append(f"{url}: {error}")
    raise InputError(
        f"{file.name} of {images.name} could not be downloaded ({'; '.join(errors)}): run this again "
        f"to continue where it stopped, or import the files with `sfedhp data get {images.name} --from DIR`."
    )


def _fetch(url: str, file: DataFile, part: Path, report: Progress) -> str | None:
    """Download what the partial file lacks; the error in words, or None once its checksum is right.

    A partial file with a wrong checksum is removed; one that is only incomplete is kept.
    """
    start = part.stat().st_size if part.is_file() else 0
    if start < file.size:
        headers = {"User-Agent": "sfedhp"} | ({"Range": f"bytes={start}-"} if start else {})
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
                # 206: the rest, as asked; 200: a server that sends everything from the start.
                _grow(response, part, start if response.status == 206 else 0, file, report)
        except (OSError, http.client.HTTPException) as error:
            return _words(error)
        if part.stat().st_size < file.size:
            return "the connection ended early"
    if file.state(part) != "ok":
        part.unlink()
        return "the checksum is wrong"
    return None


def _grow(response: IO[bytes], part: Path, start: int, file: DataFile, report: Progress) -> None:
    with part.open("r+b" if start else "wb") as out:
        out.seek(start)
        done = start
        # More bytes than the file has are not read: they are wrong, and might have no end.
        while done <= file.size and (chunk := response.read(_CHUNK)):
            out.write(chunk)
            done += len(chunk)
            report(file.name, min(done, file.size), file.size)
        out.flush()
        os.fsync(out.fileno())


def _words(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"the server returned HTTP status {error.code}"
    return str(getattr(error, "reason", "") or error) or type(error).__name__


def _import(
    images: ImageSet, wanted: list[tuple[DataFile, ...]], source: Path, target: Path, report: Progress
) -> None:
    """Copy files from a folder in which other programs keep them, in any of their layouts."""
    places = [source, *(source / below for below in (images.folder, *images.other_folders))]
    missing = []
    for forms in wanted:
        if found := _find(forms, places):
            file, path = found
            _store(file, forms, target, chunks_of(path), report)
        else:
            missing.append(forms)
    if missing and images.archive is not None and (found := _find((images.archive,), places)):
        _unpack(found[1], missing, target, report)
    elif missing:
        names = ", ".join(forms[0].name for forms in missing)
        looked = ", ".join(str(place) for place in places)
        raise InputError(f"{images.name} is not complete there: {names} not found in any of {looked}.")


def _find(forms: tuple[DataFile, ...], places: list[Path]) -> tuple[DataFile, Path] | None:
    """The first file with the right checksum; None if no folder has a file of that name."""
    wrong = []
    for place in places:
        for file in forms:
            state = file.state(place / file.name)
            if state == "ok":
                return file, place / file.name
            if state == "wrong":
                wrong.append(place / file.name)
    if wrong:
        raise InputError(
            f"{wrong[0]} is not the published file (its checksum is wrong): get the original one."
        )
    return None


def _unpack(archive: Path, wanted: list[tuple[DataFile, ...]], target: Path, report: Progress) -> None:
    """Extract the wanted members of a verified archive, without the folders in their names."""
    named = {forms[0].name: forms for forms in wanted}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            forms = named.get(PurePosixPath(member.name).name)
            content = tar.extractfile(member) if forms else None
            if forms and content:
                _store(forms[0], forms, target, iter(functools.partial(content.read, _CHUNK), b""), report)


def _store(
    file: DataFile, forms: tuple[DataFile, ...], target: Path, chunks: Iterable[bytes], report: Progress
) -> None:
    """Write a file, then remove its other forms, which are damaged and might be read first."""

    def write(beside: Path) -> None:
        with beside.open("wb") as out:
            out.writelines(_counted(chunks, file, report))

    write_atomically(target / file.name, write)
    for other in forms:
        if other != file:
            (target / other.name).unlink(missing_ok=True)


def _counted(chunks: Iterable[bytes], file: DataFile, report: Progress) -> Iterator[bytes]:
    """The same chunks; the progress is reported after each."""
    done = 0
    for chunk in chunks:
        done += len(chunk)
        report(file.name, done, file.size)
        yield chunk

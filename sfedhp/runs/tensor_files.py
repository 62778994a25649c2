"""Writes and reads tensors in safetensors files, and names the tensors of a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sfedhp.core.checksums import BLANK, CHECKSUM, DamagedError, check_sealed, seal
from sfedhp.core.factored import Factored, Layer
from sfedhp.core.files import write_atomically
from sfedhp.core.trees import part_names
from sfedhp.core.types import tuple_like


def write_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None, *, durable: bool = True
) -> None:
    """Write a safetensors file with a checksum, atomically.

    Args:
        path: the file.
        tensors: by name; no two may share memory.
        metadata: text to keep beside them.
        durable: wait until the file is on the disk, so that it also survives a power cut.

    Raises:
        OSError: the disk is full, or the path cannot be written.
    """

    def write(beside: Path) -> None:
        try:
            save_file(tensors, beside, {**(metadata or {}), CHECKSUM: BLANK})
        except SafetensorError as error:  # safetensors has an error of its own for a full disk
            raise OSError(str(error).removeprefix("Error while serializing: I/O error: ")) from None
        seal(beside)

    write_atomically(path, write, durable=durable)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file, and its metadata.

    The tensors are copies, because their alignment in the file's memory varies, and alignment changes the
    last bits of some products.

    Raises:
        OSError: the file is not there, or cannot be read.
        DamagedError: it is damaged, or of another format.
    """
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return tensors, _own(file.metadata())


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a file, without its tensors.

    Raises:
        OSError: the file is not there, or cannot be read.
        DamagedError: it is damaged, or of another format.
    """
    with _opened(path) as file:
        return _own(file.metadata())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file whose checksum is right, if it has one."""
    check_sealed(path)
    try:
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise DamagedError(f"{path} is damaged: it is not a whole safetensors file ({error}).") from None


def _own(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """The metadata without the checksum."""
    return {name: text for name, text in (metadata or {}).items() if name != CHECKSUM}


def named_tensors(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a tree with their names: field names, joined by dots."""
    if isinstance(tree, Tensor):
        yield path, tree
        return
    for name, part in zip(part_names(tree), tree, strict=True):
        yield from named_tensors(part, f"{path}.{name}".lstrip("."))


def flatten(trees: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of named trees by name, each a copy: a file refuses tensors that share memory."""
    return {
        path: tensor.detach().cpu().clone().contiguous()
        for name, tree in trees.items()
        for path, tensor in named_tensors(tree, name)
    }


def unflatten(template: Any, tensors: Mapping[str, Tensor], name: str) -> Any:
    """The tree of this name, shaped like the template. A `Factored` may be there instead of a tensor.

    Raises:
        KeyError: a tensor of the template is missing.
        ValueError: one has another size or type.
    """
    if f"{name}.anchor" in tensors:
        above = f"{name}.layers."
        count = len({path.removeprefix(above).split(".")[0] for path in tensors if path.startswith(above)})
        parts = tuple(_layer(tensors, f"{above}{index}") for index in range(count))
        return _checked(Factored(tensors[f"{name}.anchor"], parts), template, name)
    if isinstance(template, Tensor):
        return _checked(tensors[name], template, name)
    named = zip(part_names(template), template, strict=True)
    values = [unflatten(part, tensors, f"{name}.{own}") for own, part in named]
    return tuple_like(template, values)


def _checked(model: Tensor | Factored, template: Any, name: str) -> Tensor | Factored:
    """The model, if its vectors are as long as the template's, and of the same type."""
    if isinstance(template, Tensor) and model.shape[-1:] != template.shape[-1:]:
        raise ValueError(f"{name} has another size")
    kinds = {tensor.dtype for _, tensor in named_tensors(model)}
    if kinds != {tensor.dtype for _, tensor in named_tensors(template)}:
        raise ValueError(f"{name} has another type")
    return model


def _layer(tensors: Mapping[str, Tensor], name: str) -> Layer | Tensor:
    """A layer of a `Factored`: a change in factors or, where that would be larger, the layer itself."""
    if name in tensors:
        return tensors[name]
    return Layer(tensors[f"{name}.inputs"], tensors[f"{name}.coefficients"])

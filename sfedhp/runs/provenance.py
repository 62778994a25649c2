"""The provenance of a run: hashes of its data and its model, and differences of settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from sfedhp.data import Federation
from sfedhp.nn.network import Network

# Keys that a user may change in a run: they decide how long it runs and what computes it, not the numbers.
FREE: Final = ("rounds", "device", "checkpoint.every")
ENGINE: Final = "engine."  # all keys of this table too, but
PRECISION: Final = "engine.precision"  # which decides how products are rounded
METHOD: Final = "algorithm.name"
SOURCE: Final = "data.source"  # the same data may be in another place; its fingerprint decides


def data_fingerprint(federation: Federation) -> str:
    """Hash of rows, labels and assignment, independent of where the data is stored."""
    digest = hashlib.blake2b(f"{federation.classes} {federation.scale}".encode(), digest_size=16)
    held = (*federation.train, *federation.test, *federation.validation)
    for array in (federation.inputs, federation.labels, federation.seats, *held):
        digest.update(f" {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def model_fingerprint(network: Network) -> str:
    """Hash of the layers, the shapes and the values that do not train; weights that train do not count."""
    parts = [f"{name} {type(part).__qualname__}" for name, part in network.module.named_modules()]
    shapes = {**network.weights, **network.buffers}
    parts += [f"{name} {tuple(shape)}" for name, shape in shapes.items()]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=16)
    for name, value in sorted(network.fixed().items()):
        digest.update(f"\n{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def difference(file: Mapping[str, Any], run: Mapping[str, Any]) -> str | None:
    """The first relevant setting in which a config differs from that of its run, in words; None if none.

    Args:
        file: the config as it is now, in tables.
        run: the config that the run was computed with, in tables.
    """
    here, then = flat(file), flat(run)
    different = [key for key in here | then if here.get(key) != then.get(key) and not _is_free(key)]
    if not different:
        return None
    more = f" ({len(different) - 1} more differ)" if len(different) > 1 else ""
    return contrast(different[0], here.get(different[0]), then.get(different[0])) + more


def _is_free(key: str) -> bool:
    return key in (*FREE, SOURCE) or (key.startswith(ENGINE) and key != PRECISION)


def source_name(source: str) -> str:
    """A data source in a sentence: of a file its name, without the folders of the machine."""
    path = Path(source)
    return path.name if path.is_absolute() else str(source)


def contrast(key: str, here: Any, then: Any) -> str:
    """A sentence on one setting, with its value in a file and in the file's run."""
    now = f"no {key}" if here is None else f"{key} = {here!r}"
    return f"{now}, but the run was computed with {'none' if then is None else repr(then)}"


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config by their full keys, such as `algorithm.name`."""
    return dict(_flat(config, ""))


def _flat(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

"""What a checkpoint belongs to: the settings, the data and the model that its numbers come from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch

from sfedhp.data import Federation
from sfedhp.nn.network import Network

# They decide how long a run goes on and what computes it, not what is computed: a user may change them.
FREE: Final = ("rounds", "device", "checkpoint.every")
ENGINE: Final = "engine."  # all keys of this table too
METHOD: Final = "algorithm.name"
SOURCE: Final = "data.source"  # the same data may lie elsewhere; its fingerprint decides


def fingerprint(federation: Federation) -> str:
    """The same for the same rows, labels and holders, wherever the data lies; different else."""
    digest = hashlib.blake2b(f"{federation.classes} {federation.scale}".encode(), digest_size=16)
    held = (*federation.train, *federation.test, *federation.validation)
    for array in (federation.inputs, federation.labels, federation.seats, *held):
        digest.update(f" {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def anatomy(network: Network) -> str:
    """The same for the same kinds of layers, shapes, and values that do not train; of no weight that does."""
    parts = [f"{name} {type(part).__qualname__}" for name, part in network.module.named_modules()]
    shapes = {**network.weights, **network.buffers}
    parts += [f"{name} {tuple(shape)}" for name, shape in shapes.items()]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=16)
    for name, value in sorted(network.fixed().items()):
        digest.update(f"\n{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def difference(file: Mapping[str, Any], run: Mapping[str, Any]) -> str | None:
    """The first setting that a config file has and its run had not, in words; None where none matters.

    Args:
        file: the config as it stands now, in tables.
        run: the config that the run was computed with, in tables.
    """
    here, then = flat(file), flat(run)
    apart = [
        key
        for key in here | then
        if here.get(key) != then.get(key) and key not in (*FREE, SOURCE) and not key.startswith(ENGINE)
    ]
    if not apart:
        return None
    more = f" ({len(apart) - 1} more differ)" if len(apart) > 1 else ""
    return contrast(apart[0], here.get(apart[0]), then.get(apart[0])) + more


def contrast(key: str, here: Any, then: Any) -> str:
    """One setting as a file has it, and as its run had it."""
    now = f"no {key}" if here is None else f"{key} = {here!r}"
    return f"{now}, but the run was computed with {'none' if then is None else repr(then)}"


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config with their tables before them, as `algorithm.name`."""
    return dict(_flat(config, ""))


def _flat(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

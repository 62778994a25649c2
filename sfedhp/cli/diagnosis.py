"""Checks of the installation: versions, device, threads, data, write access, extras and ports."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import torch

from sfedhp.core.edge_sizes import DEFAULT_EDGES
from sfedhp.data import data_folder, listing
from sfedhp.deploy.federation_file import Address
from sfedhp.nn.kernels.available import unavailable_reason
from sfedhp.runs.environment import device_of, versions

# What each extra brings, by what is imported of it.
EXTRAS: Final = {
    "deploy": ("nvflare", "cryptography"),
    "huggingface": ("datasets", "PIL"),
    "images": ("PIL",),
    "mlflow": ("mlflow", "alembic", "sqlalchemy"),
    "monitor": ("prometheus_client",),
    "onnx": ("onnxruntime", "onnxscript"),
    "parquet": ("pyarrow",),
    "privacy": ("dp_accounting",),
    "ray": ("ray",),
    "report": ("matplotlib",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
}


class Finding(NamedTuple):
    """The result of one check."""

    what: str
    found: str
    state: str  # ok; missing, where only some commands need it; failed, where every run needs it
    remedy: str = ""


def diagnose() -> Iterator[Finding]:
    """Run all checks; changes nothing and does not use the network."""
    yield _python()
    known = versions(torch.device("cpu"))
    for name in ("sfedhp", "torch", "numpy"):
        yield Finding(name, known[name], "ok")
    yield from _device()
    yield Finding("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores", "ok")
    yield from _data()
    yield _write_access()
    for extra, modules in EXTRAS.items():
        yield _extra(extra, modules)
    yield _ports()


def _python() -> Finding:
    on_windows = sys.platform == "win32"
    remedy = "on Windows, use sfedhp inside WSL" if on_windows else ""
    found = f"{versions(torch.device('cpu'))['python']} on {sys.platform}"
    return Finding("python", found, "failed" if on_windows else "ok", remedy)


def _device() -> Iterator[Finding]:
    device = device_of("auto")
    if device.type == "cpu":
        yield Finding("GPU", "none that torch can use; runs use the CPU", "missing")
        return
    yield Finding("GPU", torch.cuda.get_device_name(device), "ok")
    reason = unavailable_reason(device)
    yield Finding("Triton", reason or "its kernels run", "missing" if reason else "ok")


def _data() -> Iterator[Finding]:
    there = [source.name for source in listing() if source.present]
    absent = [source.name for source in listing() if not source.present]
    yield Finding("data", ", ".join(there), "ok")
    if absent:
        remedy = f"sfedhp data get {absent[0]}"
        yield Finding("data", f"not in {data_folder()}: {', '.join(absent)}", "missing", remedy)


def _write_access() -> Finding:
    here = Path.cwd()
    try:
        with tempfile.TemporaryFile(dir=here):
            return Finding("write access", f"{here}", "ok")
    except OSError as error:
        return Finding("write access", f"{here}: {error.strerror}", "failed", "choose another folder")


def _extra(extra: str, modules: tuple[str, ...]) -> Finding:
    absent = [module for module in modules if find_spec(module) is None]
    if absent:
        return Finding(
            f"extra {extra}", f"no {', '.join(absent)}", "missing", f"pip install 'sfedhp[{extra}]'"
        )
    return Finding(f"extra {extra}", ", ".join(modules), "ok")


def _ports() -> Finding:
    """The ports that `sfedhp deploy` uses by default: the cloud's, and one for each edge."""
    first = Address("127.0.0.1").port
    ports = range(first, first + DEFAULT_EDGES + 1)
    taken = [port for port in ports if not _is_free(port)]
    if not taken:
        return Finding("ports", f"{ports[0]} to {ports[-1]} are free", "ok")
    remedy = "stop what uses them, or set others in the federation file"
    return Finding("ports", f"in use: {', '.join(map(str, taken))}", "missing", remedy)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

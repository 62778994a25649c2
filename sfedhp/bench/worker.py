"""A process that runs rounds of one side and times them: one line of JSON a request, one an answer.

It is run by its path and imports torch alone, so that it also works with the interpreter of a rival's own
environment, in which this package is not installed. A side is a function in some file: it gets the job and
returns what runs one round.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn

_STATUS = Path("/proc/self/status")


class Memory:
    """How much memory is taken beyond what was taken when this was made.

    On a GPU torch counts it. Elsewhere it is the resident memory's peak, which Linux can be asked to forget;
    where it cannot, it is counted from the peak so far.
    """

    def __init__(self, device: str):
        self._device = device
        if device.startswith("cuda"):  # pragma: no cover - needs a GPU
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._before = self._resident("VmRSS")

    def peak(self) -> int:
        """The largest number of bytes since then."""
        if self._device.startswith("cuda"):  # pragma: no cover - needs a GPU
            return torch.cuda.max_memory_allocated() - self._before
        return max(self._resident("VmHWM") - self._before, 0)

    @staticmethod
    def _resident(entry: str) -> int:
        if _STATUS.exists():
            for line in _STATUS.read_text(encoding="ascii").splitlines():
                if line.startswith(f"{entry}:"):
                    return 1024 * int(line.split()[1])
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def serve(requests: TextIO, answers: TextIO) -> None:
    """Build the side of the first line's job; then run a round for each further line."""
    job = json.loads(requests.readline())
    _stub_missing(job.get("unused", ()))
    make = _function(job["file"], job["function"])
    torch.set_num_threads(1)
    torch.ones(64, 64, device=job["device"]).mm(torch.ones(64, 64, device=job["device"]))
    memory = Memory(job["device"])
    step = make(job, *_problem(job)) if "data" in job else make(job)
    _answer(answers, ready=True)
    for line in requests:
        request = json.loads(line)
        if "count" in request:
            _answer(answers, **_counted(step))
        elif "accuracy" in request:
            scored: list[float] = []
            seconds = seconds_of(partial(_score, step, scored), job["device"])
            _answer(answers, accuracy=scored[0], seconds=seconds)
        else:
            torch.set_num_threads(request["threads"])
            _answer(answers, seconds=seconds_of(step, job["device"]), peak_bytes=memory.peak())


def _stub_missing(names: Iterable[str]) -> None:
    """Let modules that are not installed be imported as stubs; nothing that is measured uses them."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = MagicMock(__spec__=importlib.util.spec_from_loader(name, None))


def _function(file: str, name: str) -> Callable[..., Callable[[], object]]:
    """The function of this name in a Python file."""
    spec = importlib.util.spec_from_file_location("side", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Callable[[], object]] = getattr(module, name)
    return function


def _problem(job: dict[str, Any]) -> tuple[list[tuple[Tensor, Tensor]], nn.Module]:
    """The training rows of every client, and the network, that a rival gets."""
    with np.load(job["data"]) as file:
        train = ~file["test"] if "test" in file else slice(None)
        inputs, labels, client = (file[name][train] for name in ("inputs", "labels", "client"))
    pixels = torch.from_numpy(inputs.astype("float32") / 255)
    order, sizes = np.argsort(client, kind="stable"), np.bincount(client)
    rows = np.split(order, np.cumsum(sizes)[:-1])
    if "layers" in job:
        network = nn.Sequential(*(getattr(nn, kind)(*arguments) for kind, *arguments in job["layers"]))
        network.load_state_dict(torch.load(job["initial"], weights_only=True))
        network.to(job["device"])
        return [(pixels[held], torch.from_numpy(labels[held])) for held in rows], network
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(job["sizes"]):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    network = nn.Sequential(*layers[:-1]).to(job["device"])
    return [(pixels[held], torch.from_numpy(labels[held])) for held in rows], network


def _counted(step: Callable[[], object]) -> dict[str, int]:
    """Operations and bytes of a round, counted by formula."""
    from sfedhp.bench.meter import Meter

    meter = Meter()
    with meter:
        step()
    return {"operations": meter.operations, "bytes": meter.bytes}


def seconds_of(work: Callable[[], object], device: str) -> float:
    """How long a piece of work takes, to its end on the device."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else _nothing
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def _score(step: Any, scored: list[float]) -> None:
    """Append the accuracy of a side's model."""
    scored.append(step.accuracy())


def _nothing() -> None:
    """Nothing to wait for: a CPU computes before it returns."""


def _answer(answers: TextIO, **answer: Any) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def main() -> None:
    """Serve on stdin and stdout."""
    # What a side prints goes to stderr, not between the answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve(sys.stdin, answers)


if __name__ == "__main__":  # pragma: no cover - tests run it as a process
    sys.path.pop(0)  # this folder: its files are not top-level modules
    main()

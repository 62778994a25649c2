"""A process that runs and times rounds of one side; requests and replies are single lines of JSON.

It is run by its path and imports only torch, so that it also works in a rival's own environment, in which
this package is not installed. A side is a function in some file: it gets the job and returns a function that
runs one round.
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
_AT_ONCE = 500  # test rows


class Memory:
    """The memory in use beyond that at the creation of this object.

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
    tests = _test_rows(job) if "layers" in job else None
    clock = time.process_time if job.get("cpu_seconds") else time.perf_counter
    _answer(answers, ready=True)
    for line in requests:
        request = json.loads(line)
        if "count" in request:
            _answer(answers, **_counted(step))
        elif "accuracy" in request:
            scored: list[float] = []
            seconds = seconds_of(partial(_score, step, tests, scored), job["device"], clock)
            _answer(answers, accuracy=scored[0], seconds=seconds)
        else:
            torch.set_num_threads(request["threads"])
            _answer(answers, seconds=seconds_of(step, job["device"], clock), peak_bytes=memory.peak())


def _stub_missing(names: Iterable[str]) -> None:
    """Import missing modules as stubs; the measured code does not use them."""
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


def _test_rows(job: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The test rows of an arena, on the device."""
    with np.load(job["data"]) as file:
        inputs, labels = file["test_inputs"], file["test_labels"]
    pixels = torch.from_numpy(inputs.astype("float32") / 255)
    return pixels.to(job["device"]), torch.from_numpy(labels).to(job["device"])


def _counted(step: Callable[[], object]) -> dict[str, int]:
    """Operations and bytes of a round, counted by formula."""
    from sfedhp.bench.meter import Meter

    meter = Meter()
    with meter:
        step()
    return {"operations": meter.operations, "bytes": meter.bytes}


def seconds_of(
    work: Callable[[], object], device: str, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The time of a piece of work until the device has finished it, by a clock of `time`."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else _nothing
    wait()
    began = clock()
    work()
    wait()
    return clock() - began


@torch.no_grad()
def accuracy_of(module: nn.Module, rows: tuple[Tensor, Tensor]) -> float:
    """The accuracy of a module in evaluation mode, in percent."""
    pieces = zip(*(torch.split(part, _AT_ONCE) for part in rows), strict=True)
    right = sum(int((module(inputs).argmax(1) == labels).sum()) for inputs, labels in pieces)
    return 100 * right / len(rows[1])


def _score(step: Any, tests: tuple[Tensor, Tensor] | None, scored: list[float]) -> None:
    """Append the accuracy of a side's model; of a rival, that of the module that it trains, on these rows."""
    if tests is None:
        scored.append(step.accuracy())
        return
    module = step.module()
    scored.append(accuracy_of(module.eval(), tests))
    module.train()


def _nothing() -> None:
    """Does nothing: on a CPU, operations are finished when they return."""


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

"""A federation on NVIDIA FLARE: every role a process with its own certificate, on loopback."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

from sfedhp.deploy.federation_file import FederationFile, Limits
from sfedhp.deploy.local import LocalFederation, on_loopback
from sfedhp.deploy.provisioning import make_kits
from sfedhp.deploy.topology import lay_out
from tests.support.json_lines import json_lines

PATIENT = Limits(client_seconds=300.0, start_seconds=300.0, silent_seconds=60.0)  # of a busy machine too
LONGEST = 600.0  # s until something counts as hung


class Fleet(LocalFederation):
    """Made from an experiment; sites can be killed, frozen and looked at."""

    def __init__(self, folder: Path, experiment, limits: Limits = PATIENT, data=None, cloud=None, file=None):
        edges = experiment.edges if experiment.algorithm.tiers == 3 else 0
        file = on_loopback(replace(file or FederationFile(), limits=limits), edges)
        self.layout = lay_out(replace(file, cloud=cloud) if cloud else file, experiment)
        make_kits(self.layout, folder)
        super().__init__(folder, data)

    def models(self, name):
        kit, file = ("cloud", "global") if name == "global" else (name, name)
        return load_file(self.kits / kit / "run" / "models" / f"{file}.safetensors")

    def events(self, name, event):
        """Of a site's log; that of the uplink of an edge is edge-0/bridge."""
        site, _, half = name.partition("/")
        path = self.kits / site / "run" / half / "log.jsonl"
        lines = json_lines(path) if path.exists() else []
        return [line for line in lines if line["event"] == event]

    def exchanged(self, name):
        """Bytes by way and kind of message, as a site's process counted them at its transport."""
        (line,) = self.events(name, "exchanged")
        return {way: Counter(line[way]) for way in ("sent", "received")}

    def story(self):
        """The last words of every process, for when something went wrong."""
        ends = {name: process.folder / "output.txt" for name, process in self.processes.items()}
        texts = {name: path.read_text(errors="replace") for name, path in ends.items() if path.exists()}
        return "\n".join(f"--- {name}\n{text[-1500:]}" for name, text in texts.items())

    def pid(self, name):
        process = self.processes[name].process
        assert process is not None
        return process.pid

    def runs(self, name):
        """Whether the process of a site is running."""
        process = self.processes[name].process
        return process is not None and process.poll() is None

    def send(self, name, number=signal.SIGKILL):
        """A signal to the process of a site; an edge's other half notices by itself."""
        os.kill(self.pid(name), number)

    def until(self, condition, seconds=LONGEST):
        """Poll the sites until something is so."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            self.poll()
            time.sleep(0.05)

    def edge_round(self, edge):
        """How far an edge is: (cloud round, edge round)."""
        try:
            status = json.loads((self.kits / edge / "run" / "status.json").read_text())
        except (OSError, ValueError):
            return (-1, -1)
        return (status["round"] or 0, status["edge_round"] or 0)

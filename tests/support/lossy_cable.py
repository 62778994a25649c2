"""A cable between two network namespaces that loses and delays packets; it needs root, and ip (iproute2)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import struct
import subprocess
import threading
import time
from queue import SimpleQueue

TUN = "/dev/net/tun"
_SET_NAME = 0x400454CA  # TUNSETIFF
_PACKETS = 0x1001  # IFF_TUN | IFF_NO_PI: whole IP packets, with nothing before
_LARGEST = 2**16


class LossyCable:
    """Two network devices, one in each namespace; what one sends, the other receives.

    The kernel of many machines has no netem, so packets are passed on by threads of this process.
    """

    def __init__(self, *ends: tuple[str, str]) -> None:
        """Connect two namespaces, each with its address and the length of the network's prefix."""
        self.loss = 0.0  # share of packets, in both ways
        self.delay = 0.0  # s, each way
        self.passed = self.lost = 0
        self._draw = random.Random(0)
        files = [self._device(number, *end) for number, end in enumerate(ends)]
        for source, target in (files, reversed(files)):
            packets: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
            threading.Thread(target=self._read, args=(source, packets), daemon=True).start()
            threading.Thread(target=self._write, args=(target, packets), daemon=True).start()

    def _device(self, number: int, namespace: str, address: str) -> int:
        """A device in a namespace; the file that has its packets."""
        name = f"sfedhp{number}"
        file = os.open(TUN, os.O_RDWR)
        fcntl.ioctl(file, _SET_NAME, struct.pack("16sH", name.encode(), _PACKETS))
        for words in (
            ["link", "set", name, "netns", namespace],
            ["-n", namespace, "address", "add", address, "dev", name],
            ["-n", namespace, "link", "set", name, "up"],
        ):
            subprocess.run(["ip", *words], check=True, capture_output=True)
        return file

    def _read(self, source: int, packets: SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):  # its namespace was deleted
            while True:
                packet = os.read(source, _LARGEST)
                if self._draw.random() < self.loss:
                    self.lost += 1
                else:
                    self.passed += 1
                    packets.put((time.monotonic() + self.delay, packet))

    def _write(self, target: int, packets: SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, packet = packets.get()
                time.sleep(max(0.0, due - time.monotonic()))
                os.write(target, packet)

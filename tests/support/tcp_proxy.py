"""A TCP proxy on loopback that delays what it passes on, and can reset all connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from queue import SimpleQueue

_CHUNK = 2**16


class TcpProxy:
    """Passes bytes between clients and a server, each after `delay` seconds."""

    def __init__(self, port: int, delay: float):
        self.delay, self._port = delay, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> int:
        """Reset every connection, as a firewall that forgets them; how many there were."""
        found, self._open = self._open, []
        for each in found:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        return len(found) // 2

    def close(self) -> None:
        """Accept no more connections, and reset those that exist."""
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port), 5)
                except OSError:
                    client.close()
                    continue
                self.connections += 1
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    chunks: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                    threading.Thread(target=self._read, args=(source, chunks), daemon=True).start()
                    threading.Thread(target=self._write, args=(target, chunks), daemon=True).start()

    def _read(self, source: socket.socket, chunks: SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"."
        while data:
            try:
                data = source.recv(_CHUNK)
            except OSError:
                data = b""
            chunks.put((time.monotonic() + self.delay, data))

    def _write(self, target: socket.socket, chunks: SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = chunks.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)

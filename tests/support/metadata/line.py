"""A way to a server that can be held, or cut, as a network is."""

from __future__ import annotations

import contextlib
import socket
import threading


class Line:
    """A way to the server on which nothing, or no answer, passes while it is held."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = host, int(port)
        self._free, self._answered = threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connect = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self.let_go()
        self._threads[0].start()

    def hold(self) -> None:
        self._free.clear()
        self._answered.clear()

    def hold_answers(self) -> None:
        self._answered.clear()

    def let_go(self) -> None:
        self._free.set()
        self._answered.set()

    def cut(self) -> None:
        """Break the connections that there are; what was held is lost."""
        ends, self._ends = self._ends, []
        for one in ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.let_go()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads.pop(0).join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                self._ends += [near, far]
                for ends in ((near, far, self._free), (far, near, self._answered)):
                    self._threads.append(threading.Thread(target=self._pump, args=ends))
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket, free: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                free.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

"""A server on one loopback port, one thread a connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

from tonne.testing.registry_http import Connection


class Server:
    """Accepts connections on one loopback port and hands each to `serve`, in a thread of its own.

    `start` and `stop` are called by one thread, in turns; the port stays the same.  `stop` cuts what is open and
    returns when all threads have ended.
    """

    def __init__(
        self,
        serve: Callable[[Connection], None],
        *,
        name: str,
        port: int = 0,
        address: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._serve, self._name, self._tls = serve, name, tls
        self.address, self.port = address, port
        self._listener: socket.socket | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, Connection] = {}
        self._accepting: threading.Thread | None = None

    def start(self) -> None:
        self._stopping = threading.Event()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.address, self.port))
            listener.listen(256)
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._accepting = threading.Thread(target=self._accept, args=(listener,), name=f"{self._name}-accept")
        self._accepting.daemon = True
        self._accepting.start()

    def stop(self) -> None:
        listener, accepting = self._listener, self._accepting
        if listener is None or accepting is None:
            return
        self._listener = self._accepting = None
        self._stopping.set()
        # shutdown wakes accept(2) on Linux; close alone does not.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        with self._lock:
            running = dict(self._open)
        for connection in running.values():
            connection.abort()
        for thread in running:
            thread.join()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock, self._stopping)
            thread = threading.Thread(target=self._run, args=(connection, sock), name=self._name, daemon=True)
            with self._lock:
                self._open[thread] = connection
            thread.start()

    def _run(self, connection: Connection, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                with contextlib.suppress(OSError):
                    secured = self._tls.wrap_socket(sock, server_side=True)
                    wrapped = Connection(secured, self._stopping)
                    with self._lock:
                        self._open[threading.current_thread()] = wrapped
                    connection = wrapped
                    self._serve(connection)
            else:
                self._serve(connection)
        finally:
            connection.close()
            with self._lock:
                self._open.pop(threading.current_thread(), None)

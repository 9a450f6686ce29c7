"""Facts and commits for a lifecycle service on the broker's machine, over a Unix socket.

The socket is `control.sock` in the first data directory, for this user alone (0600): a process that
can write to it can replace segments. Messages are `lifecycle.owner.messages`. A client that sends
`AskConditions` instead of `Hello` gets the list of what is out of order, and does not count as a
service (`lapse explain`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from pathlib import Path

from lapse.base.errors import LapseError, StorageError
from lapse.broker.control.control import Control
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.messages import (
    AskConditions,
    Conditions,
    Refused,
    Request,
    Welcome,
)
from lapse.log.env import LogEnv

logger = logging.getLogger(__name__)

_OWNER_ONLY = 0o600


class ControlServer:
    """Listens at `control.sock` in `data_dir`, which this process has locked."""

    def __init__(self, control: Control, data_dir: Path) -> None:
        self.path = data_dir / messages.SOCKET
        self._control, self._thread = control, control.thread
        self._env = control.env
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Bind and accept; raises StorageError where the socket cannot be bound."""
        sock = await self._thread.run(bind, self.path, self._env)
        self._server = await asyncio.start_unix_server(self._connected, sock=sock)

    async def stop(self) -> None:
        """Let the commit under way finish, and answer no further requests."""
        if self._server is not None:
            self._server.close()
        tasks = tuple(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            with contextlib.suppress(StorageError):  # on a failed disk the socket stays
                await self._thread.run(self._env.fs.unlink, self.path)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except (LapseError, OSError, EOFError) as e:
            logger.warning("control connection ended: %s", e)
        except asyncio.CancelledError:
            pass  # by `stop`; Python 3.11 would log it as an error with a traceback
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await self._read(reader)
        if request is None:
            return
        if isinstance(request, AskConditions):  # from a client that only reads
            found = await asyncio.to_thread(self._control.conditions)
            writer.write(messages.encode(Conditions(tuple(found))))
            await writer.drain()
            return
        greeted = self._control.greeted(request)
        if isinstance(greeted, Refused):
            writer.write(messages.encode(greeted))
            await writer.drain()
            return
        try:
            await self._control.sweep()
            writer.write(messages.encode(Welcome(messages.VERSION, os.getpid())))
            await self._serve(reader, writer)
        finally:
            self._control.leave(greeted)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await self._read(reader)
            if request is None:
                return
            writer.write(await self._control.answer(request))
            await writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        """The next request; None if the other side has closed the connection."""
        where = "control socket"
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = await reader.readexactly(messages.LENGTH.size)
            body = await reader.readexactly(messages.body_size(head, where))
            return await self._thread.run(messages.decode_request, body, where)
        return None


def bind(path: Path, env: LogEnv) -> socket.socket:
    """A bound socket that only this user may connect to; a dead broker's socket is replaced.

    The socket does not listen yet when its mode is set, so no other user can have connected before.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
            raise StorageError(f"{path} is in the way: it is not a socket")
        env.fs.unlink(path)
        sock.bind(messages.short_path(path, directory))
        os.chmod(path, _OWNER_ONLY)
    except OSError as e:
        sock.close()
        raise StorageError(f"cannot listen at {path}: {e.strerror or e}") from e
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(directory)
    return sock

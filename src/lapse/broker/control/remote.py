"""Facts and commits for a lifecycle service on another machine, which sees the same files.

Its messages are those of the control socket, inside the Kafka API LifecycleControl. A lease says
which service they come from (`lease`). In each log directory lies a file for that service while it
holds, so that a service can tell this very directory from a copy, or from another one at the
same path, before it has anything done there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from pathlib import Path

from lapse.base.errors import ConfigError, CorruptData, StorageError
from lapse.broker.control.control import Control
from lapse.broker.control.lease import Holder
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.messages import (
    Commit,
    Hello,
    Leave,
    Noted,
    Refused,
    Renew,
    Request,
    Welcome,
)

_LOST = "another service may have come meanwhile: say Hello again"
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,255}")
_SMALL_BYTES = 4096  # decoded in the event loop; what is longer in a thread


class RemoteServices:
    """Answers the messages of services on other machines."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._holder: Holder | None = None  # the last remote one

    async def answer(self, lease: str, message: bytes, host: str) -> bytes:
        """The answer to a message that names this lease; `host` is where it came from."""
        try:
            request = await self._decoded(message)
        except CorruptData as e:
            return _body(Refused(str(e)))
        if isinstance(request, Hello):
            return _body(await self._greet(request, host))
        with self._control.lease.at_work(lease) as holds:
            if not holds:
                return _body(Refused(_LOST, taken=self._control.lease.holder is not None))
            if isinstance(request, Renew):
                return _body(Noted())
            if isinstance(request, Leave):
                await self._leave()
                return _body(Noted())
            if isinstance(request, Commit) and not _is_plain(request):
                return _body(Refused("a name that is no name, of a round, an attempt or a file"))
            return (await self._control.answer(request))[messages.LENGTH.size :]

    async def _decoded(self, message: bytes) -> Request:
        where = "LifecycleControl"
        if len(message) > _SMALL_BYTES:
            return await self._control.thread.run(messages.decode_request, message, where)
        return messages.decode_request(message, where)

    async def _greet(self, request: Hello, host: str) -> Welcome | Refused:
        dirs = [directory.path for directory in self._control.partitions.directories]
        first = self._control.partitions.data_dir  # where it is said how a service does
        if first not in dirs:
            return Refused(f"log.dirs={first}: it is offline, and has what rounds go by")
        relative = next((path for path in dirs if not path.is_absolute()), None)
        if relative is not None:
            allowed = "allowed is an absolute path, for a service on another machine"
            return Refused(str(ConfigError(f"log.dirs={relative}: {allowed}")))
        host = request.host if _HOST.fullmatch(request.host) else host
        greeted = self._control.greeted(request, host, is_remote=True)
        if isinstance(greeted, Refused):
            return greeted
        self._holder = greeted
        mark = f"{messages.MARK}{secrets.token_hex(8)}"  # everybody may see it, and not the lease
        try:
            with self._control.lease.at_work(greeted.lease):
                await self._control.sweep()
                await self._control.thread.run(self._mark, dirs, mark)
        except BaseException:
            self._control.leave(greeted)
            raise
        names = tuple(map(str, dirs))
        return Welcome(messages.VERSION, os.getpid(), greeted.lease, names, mark)

    async def _leave(self) -> None:
        holder = self._holder
        if holder is not None:
            await asyncio.shield(self._control.thread.run(self._unmark))
            self._control.leave(holder)

    async def start(self) -> None:
        """What a broker has left that was killed is taken away."""
        await self._control.thread.run(self._unmark)

    async def close(self) -> None:
        """No service is served any more; the files that say so go."""
        if self._holder is not None:
            await self._control.thread.run(self._unmark)

    def _mark(self, dirs: list[Path], mark: str) -> None:
        self._unmark()
        for path in dirs:
            self._control.env.fs.write_file(path / mark, b"")

    def _unmark(self) -> None:
        for directory in self._control.partitions.directories:
            for path in directory.path.glob(f"{messages.MARK}*"):
                with contextlib.suppress(StorageError):
                    self._control.env.fs.unlink(path)


def _is_plain(commit: Commit) -> bool:
    """Whether what becomes the names of folders and files can only be one."""
    names = [
        name
        for receipt in commit.receipts
        for name in (
            receipt.round_id,
            receipt.attempt_id,
            *(file.kind for group in receipt.groups for file in group.files),
        )
    ]
    return not any("/" in name or "\0" in name or name in {"", ".", ".."} for name in names)


def _body(answer: messages.Answer) -> bytes:
    return messages.encode(answer)[messages.LENGTH.size :]

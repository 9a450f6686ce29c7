"""Processes that `lapse up` starts: they end when it does, and are stopped in order."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from lapse.base.environment import variable_of, without_settings

logger = logging.getLogger(__name__)

USAGE = 2  # the exit code of a child whose settings are wrong


def stop_by_signal(stopping: asyncio.Event) -> None:
    """Have SIGTERM, SIGINT and SIGHUP set it."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)


async def start(
    command: Sequence[str],
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> asyncio.subprocess.Process:
    """A child that ends with this process; Ctrl-C is not for it, nor the environment's settings.

    They stand in what it is given, where a port that was to be a free one is the one it took.
    `settings`: its own, in its environment: everybody on the machine sees a command's words.
    """
    own = {variable_of(name): text for name, text in (settings or {}).items()}
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=_die_with(os.getpid()),
        env={**without_settings(os.environ), **own, "PYTHONUNBUFFERED": "1"},
    )


async def stop(name: str, process: asyncio.subprocess.Process, seconds_max: float) -> None:
    """SIGTERM, and SIGKILL for one that does not listen."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), seconds_max)
        except TimeoutError:
            logger.warning("%s (process %d) does not stop; killed", name, process.pid)
            process.kill()
            await process.wait()


def _die_with(parent_pid: int) -> Callable[[], None]:
    """For a child before its program starts: end when `up` does, whatever ended it (Linux)."""
    libc = ctypes.CDLL(None)
    set_death_signal = getattr(libc, "prctl", None)
    pr_set_pdeathsig = 1

    def prepare() -> None:
        if set_death_signal is not None:
            set_death_signal(pr_set_pdeathsig, signal.SIGTERM)
            if os.getppid() != parent_pid:
                os._exit(1)  # it died in between

    return prepare

"""What Java says on standard error, without the lines that every start of Spark prints.

Those come before any setting of logging counts: one from Java itself, three from Spark's shell. So
is the stack of a worker of PySpark's own daemon which says that it is done when Spark has hung up
already: Spark has that daemon plan reads, whatever ours is (`workers` does the same for those). The
end of Java may cut it short. All else passes, byte for byte and at once, a stack as a whole; who
sets Spark's logging gets all of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

STDERR = 2
_CHUNK_BYTES = 65536
NOISE = (
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"Setting default log level to ",
    b"To adjust logging level use sc.setLogLevel(newLevel).",
    b"Setting Spark log level to ",
)
_STACK = b"Traceback (most recent call last):"
_PLACE = b'  File "'
_HUNG_UP = (b"BrokenPipeError:", b"ConnectionResetError:")
STACK_BYTES_MAX = 64 << 10


_threads: list[threading.Thread] = []  # of this process's JVM: one, or none


@contextlib.contextmanager
def without_noise() -> Iterator[int]:
    """A file for a child's standard error; it may use it after this has ended, as long as we live.

    A thread passes on what comes, until nobody has the file open any more.
    """
    source, target = os.pipe()
    _threads[:] = [threading.Thread(target=_pass_on, args=(source,), name="java says", daemon=True)]
    _threads[0].start()
    try:
        yield target
    finally:
        os.close(target)


def wait_for_the_rest(seconds_max: float) -> None:
    """Until all is passed on that a child said which is gone."""
    for thread in _threads:
        thread.join(seconds_max)


def _pass_on(source: int) -> None:
    rest = b""
    while data := os.read(source, _CHUNK_BYTES):
        shown, rest = quiet(rest + data)
        _show(shown)
    _show(last_words(rest))
    os.close(source)


def quiet(data: bytes) -> tuple[bytes, bytes]:
    """What of it is to be shown now, and the beginning of what may yet turn out as noise."""
    *lines, last = data.split(b"\n")
    shown, n = b"", 0
    while n < len(lines):
        end = n + 1
        if lines[n] == _STACK:
            ends = (at for at in range(n + 1, len(lines)) if not lines[at].startswith(b" "))
            end = next(ends, 0) + 1
            rest = b"\n".join([*lines[n:], last])
            if end == 1 and len(rest) < STACK_BYTES_MAX:
                return shown, rest
            end = end if end > 1 else len(lines)
        some = lines[n:end]
        if not some[0].startswith(NOISE) and not _is_of_daemon(some):
            shown += b"".join(line + b"\n" for line in some)
        n = end
    if any(noise.startswith(last) or last.startswith(noise) for noise in (*NOISE, _STACK)):
        return shown, last
    return shown + last, b""


def last_words(rest: bytes) -> bytes:
    """What of that beginning is to be shown where no more comes: not such a stack cut short."""
    *lines, last = rest.split(b"\n")
    cut = lines[:1] == [_STACK] and _are_daemons([*lines, last])
    begun = any(said.startswith(last) for said in _HUNG_UP)
    return b"" if cut and (begun or last.startswith((b" ", *_HUNG_UP))) else rest


def _is_of_daemon(lines: list[bytes]) -> bool:
    """Whether it is the stack of a worker to which nobody listens any more."""
    if lines[0] != _STACK or not lines[-1].startswith(_HUNG_UP):
        return False
    return any(line.startswith(_PLACE) for line in lines) and _are_daemons(lines)


def _are_daemons(lines: list[bytes]) -> bool:
    places = (line for line in lines if line.startswith(_PLACE))
    return all(b'/pyspark/daemon.py", line ' in place for place in places)


def _show(data: bytes) -> None:
    """Where nobody reads it any more it is lost, as it would be without us: Java must not wait."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(STDERR, data) :]

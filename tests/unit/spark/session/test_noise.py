"""What every start of Spark prints is not shown, and all else is, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest

from lapse.spark.session.noise import NOISE, last_words, quiet

START = (
    b"WARNING: Using incubator modules: jdk.incubator.vector\n"
    b'Setting default log level to "WARN".\n'
    b"To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(new).\n"
    b'Setting Spark log level to "ERROR".\n'
)
DAEMONS = (
    b"Traceback (most recent call last):\n"
    b'  File "/x/pyspark.zip/pyspark/daemon.py", line 262, in manager\n'
    b"    code = worker(sock, authenticated)\n"
    b'  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker\n'
    b"BrokenPipeError: [Errno 32] Broken pipe\n"
)
STACK = (
    b"Traceback (most recent call last):\n"
    b'  File "/x/pyspark.zip/pyspark/daemon.py", line 262, in manager\n'
    b'  File "/x/ours.py", line 5, in ours\n'
    b"BrokenPipeError: [Errno 32] Broken pipe\n"
)
SAID = b"Error: it is \xff wrong\n\tat org.apache\n\nWARNING: sun.misc.Unsafe\nno end"


def shown(parts: Iterable[bytes]) -> bytes:
    found, rest = b"", b""
    for part in parts:
        now, rest = quiet(rest + part)
        found += now
    return found + last_words(rest)


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (START, b""),
        (SAID, SAID),
        (START + SAID, SAID),
        (SAID + b"\n" + START, SAID + b"\n"),
        (DAEMONS, b""),
        (START + DAEMONS + SAID, SAID),
        (STACK + DAEMONS + STACK, STACK + STACK),
        (DAEMONS.replace(b"BrokenPipe", b"Value"), DAEMONS.replace(b"BrokenPipe", b"Value")),
        (DAEMONS[:-1], b""),
        (DAEMONS[:-40], b""),  # Java ended in the middle of it
        (STACK[:35], b""),  # its first line, which says nothing
        (STACK[:-40], STACK[:-40]),
        (STACK[:35] + b"Value", STACK[:35] + b"Value"),
        (STACK[:-42], STACK[:-42]),
    ],
)
def test_in_parts_of_any_size(size: int, said: bytes, expected: bytes) -> None:
    assert shown(said[n : n + size] for n in range(0, len(said), size)) == expected


def test_a_stack_without_an_end_is_shown_all_the_same() -> None:
    endless = b"Traceback (most recent call last):\n" + b"  more\n" * 20_000
    now, rest = quiet(endless)
    assert now + rest == endless
    assert len(rest) < 100


def test_a_line_that_cannot_be_noise_is_shown_before_it_ends() -> None:
    for said in (b"Password: ", b"WARNING: Using a"):
        assert quiet(said) == (said, b"")
    assert quiet(NOISE[0][:20]) == (b"", NOISE[0][:20])


@pytest.mark.parametrize("harm", ["os.close(2)", "r, w = os.pipe(); os.dup2(w, 2); os.close(r)"])
def test_a_child_waits_for_nobody_where_its_words_go_nowhere(harm: str) -> None:
    """Its pipe is emptied all the same: it would stand still once that is full, with its JVM."""
    program = f"""
import os, subprocess, sys
from lapse.spark.session.noise import without_noise
{harm}
child = "import os; [os.write(2, b'x' * 4096) for _ in range(100)]"
with without_noise() as stderr:
    process = subprocess.Popen([sys.executable, "-c", child], stderr=stderr)
sys.exit(process.wait(60))
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0


def test_a_child_and_its_own_write_through_it() -> None:
    """Also after the start, and until the last one that has it open is gone."""
    program = """
import os, subprocess, sys
from lapse.spark.session.noise import wait_for_the_rest, without_noise
child = "import sys; sys.stdin.read(); print(sys.argv[1], file=sys.stderr)"
with without_noise() as stderr:
    children = [
        subprocess.Popen([sys.executable, "-c", child, text], stdin=subprocess.PIPE, stderr=stderr)
        for text in (
        "Setting default log level to WARN", "something is wrong",
        "Traceback (most recent call last):",
    )
    ]
for one in children:
    one.communicate()
wait_for_the_rest(60)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "something is wrong\n"

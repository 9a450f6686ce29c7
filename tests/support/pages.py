"""Pages of docs/ as they are followed: each command is run, and prints what the page says.

Commands stand behind `$ ` in blocks of ```console. In what they print `…` is anything, in a line;
on a line of its own, any lines.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lapse.base.clock import SystemClock

ROOT = Path(__file__).parents[2]
WAIT_SECONDS, POLL_SECONDS = 120.0, 0.5
SECONDS_OF_A_BLOCK = 5.0
# These only look: they are asked again until they say what the page says.
LOOKS = (
    "lapse record consume", "lapse explain", "lapse topic list", "lapse group", "lapse rounds show",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A command of a page, and what it prints."""

    command: str
    printed: str


@dataclass(frozen=True)
class Place:
    """Where a page is followed.

    Attributes:
        stands_for: what is here instead of what the page names: paths, addresses, slow options.
        codes: how commands end that do not end with 0, by how they begin.
        again: what is given again, by how it begins, until it says what the page says.
        shows_errors: the page shows what is said beside the output, too.
    """

    folder: Path
    bootstrap: str = "127.0.0.1:1"
    stands_for: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    shows_errors: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        """With this Lapse in the path, and nothing of the user's own."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LAPSE_BOOTSTRAP_SERVER": self.bootstrap,
            "HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / "config"),
        }  # fmt: skip

    def here(self, text: str) -> str:
        """A text of the page with what is here."""
        for theirs, ours in self.stands_for.items():
            text = text.replace(theirs, ours)
        return text


def steps(page: str) -> list[Step]:
    """Of a page by its path from the root, in order."""
    text, found = (ROOT / page).read_text(), []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = step.splitlines(keepends=True)
            until = next(n for n, line in enumerate(lines) if not line.endswith("\\\n"))
            found.append(
                Step("".join(lines[: until + 1]).rstrip("\n"), "".join(lines[until + 1 :]))
            )
    return found


def follow(page: str, place: Place, *, since: str = "", until: str = "") -> None:
    """Run a page's commands: all, or from or to the first that begins so (that one left out)."""
    found = [Step(place.here(one.command), place.here(one.printed)) for one in steps(page)]
    first = _index(found, place.here(since)) if since else 0
    last = _index(found, place.here(until)) if until else len(found)
    assert first < last, f"{page}: no command"
    for step in found[first:last]:
        _run(step, place)


def _index(found: list[Step], begins: str) -> int:
    return next(n for n, step in enumerate(found) if step.command.startswith(begins.rstrip()))


def _run(step: Step, place: Place) -> None:
    wanted = next((c for begin, c in place.codes.items() if step.command.startswith(begin)), 0)
    printed = ""

    def is_right() -> bool:
        nonlocal printed
        done = subprocess.run(
            ["bash", "-c", step.command], cwd=place.folder, env=place.environment, text=True,
            check=False, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if place.shows_errors else subprocess.PIPE,
        )  # fmt: skip
        assert done.returncode == wanted, (step.command, done.stdout, done.stderr)
        printed = done.stdout
        return matches(step.printed, printed)

    def wrong() -> str:
        return f"{step.command}\n{printed}\nis not\n{step.printed}"

    if step.command.startswith((*LOOKS, *place.again)):
        wait_until(is_right, wrong)
    else:
        assert is_right(), wrong()


def wait_until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait for it; `what` is said where it does not come."""
    clock = SystemClock()
    deadline = clock.monotonic() + WAIT_SECONDS
    while not holds():
        assert clock.monotonic() < deadline, what()
        clock.sleep(POLL_SECONDS)


def matches(wanted: str, printed: str) -> bool:
    """Whether a page may say so; columns may be wider."""
    lines = []
    for line in wanted.splitlines():
        if line == "…":
            lines.append(r"(?:.*\n)*?")
        else:
            columns = re.split("  +", re.sub(r"  +…  +", "…", line).rstrip())
            lines.append(" {2,}".join(map(_any_of, columns)) + r" *\n")
    return re.fullmatch("".join(lines), printed) is not None


def _any_of(cell: str) -> str:
    return re.escape(cell).replace("…", ".*")


def python_blocks(page: str) -> list[str]:
    """What a page has of Python, in order; `await` may stand outside of functions there."""
    return re.findall(
        r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    )


async def run_python(block: str, names: dict[str, object]) -> None:
    """Run a block as in a notebook, for `SECONDS_OF_A_BLOCK` where it goes on for ever.

    `names` is what the blocks before it have left.
    """
    code = compile(block, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_OF_A_BLOCK):
            done = eval(code, names)
            if done is not None:
                await done

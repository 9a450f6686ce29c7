"""`make quick`: what changed is linted and typed, and the tests that mirror it run.

What changed is what differs from `--since` (HEAD), files that git does not track yet included. A
module's tests are `test_<noun>.py` and `test_<noun>_<aspect>.py` of its mirrored folder; a test
file runs itself if it is a unit test or a property. The slower kinds are `make check`'s and `make
test`'s.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.prefix) / "bin"
RUN_THEMSELVES = ("tests/unit/", "tests/property/")


def mirrored(changed: Iterable[str], tests: Iterable[str]) -> list[str]:
    """The tests to run for changed files, of all that there are; paths from the root."""
    known = set(tests)
    chosen = {path for path in changed if path in known and path.startswith(RUN_THEMSELVES)}
    for path in changed:
        inside = path.removeprefix("src/lapse/")
        if not path.endswith(".py") or not path.startswith(("src/lapse/", "tools/")):
            continue
        module = PurePosixPath(inside)
        folder = PurePosixPath("tests/unit") / module.parent
        # A package is tested beside its folder: `round/split` by `round/test_split.py`.
        for noun, where in ((module.stem, folder), (module.parent.name, folder.parent)):
            if noun in {"", "__init__"}:
                continue
            own = f"{where}/test_{noun}"
            chosen |= {t for t in known if t == f"{own}.py" or t.startswith(f"{own}_")}
    return sorted(chosen)


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Lint, type and test what changed.")
    parser.add_argument("--since", default="HEAD", help="the commit to compare with")
    since = parser.parse_args(arguments).since
    untracked = _git("ls-files", "--others", "--exclude-standard")
    changed = sorted({*_git("diff", "--name-only", "--diff-filter=d", since), *untracked})
    python = [path for path in changed if path.endswith(".py")]
    tests = [*_git("ls-files", "tests"), *(p for p in untracked if p.startswith("tests/"))]
    chosen = mirrored(changed, tests)
    print(f"{len(changed)} changed, {len(chosen)} files of tests", flush=True)
    steps = []
    if python:
        steps += [
            ["ruff", "check", "--quiet", *python],
            ["ruff", "format", "--check", "--quiet", *python],
            ["mypy", "--no-error-summary"],
        ]
    if chosen:
        steps.append(["pytest", "-q", "--no-header", "-n", "2", *chosen])
    codes = [subprocess.run([BIN / step[0], *step[1:]], cwd=ROOT, check=False) for step in steps]
    return int(any(done.returncode for done in codes))


if __name__ == "__main__":
    sys.exit(main())

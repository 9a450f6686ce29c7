"""Each tidy rule fails on a small bad sample, and lets the good one beside it pass."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import tidy

REPOSITORY = Path(__file__).resolve().parents[3]


def sample(root: Path, files: dict[str, str]) -> tidy.Repository:
    """A repository of these files."""
    for name, text in {"pyproject.toml": "[project]\nname='x'\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tidy.Repository(root, tuple(sorted({"pyproject.toml", *files})))


def keys(rule: str, repository: tidy.Repository) -> list[str]:
    return [finding.key for finding in tidy.RULES[rule](repository)]


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.time()",
        "import time as t\nt.monotonic_ns()",
        "from time import perf_counter",
        "from time import time as wall",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.now()",
        "import time\ndef f(clock=time.time): ...",
    ],
)
def test_clocks(tmp_path: Path, code: str) -> None:
    bad = "src/lapse/log/segment.py"
    good = "import time\ntime.sleep(1)\nclock.time()\nresponse.time()"
    files = {bad: code, "src/lapse/base/clock.py": code, "src/lapse/log/other.py": good}
    assert set(keys("clocks", sample(tmp_path, files))) == {bad}


@pytest.mark.parametrize(
    "code",
    [
        "import time\ndef test_a():\n    time.sleep(0.1)",
        "import asyncio\nasync def test_a():\n    await asyncio.sleep(seconds)",
        "import time\ndef test_a():\n    while not done():\n        look()\n    time.sleep(1)",
        "import time\ndef test_a():\n    with it:\n        time.sleep(1)",
    ],
)
def test_fixed_sleeps(tmp_path: Path, code: str) -> None:
    bad = "tests/unit/log/test_a.py"
    good = """
import asyncio, time
async def test_b():
    await asyncio.sleep(0)
    clock.sleep(5)
    while not done():
        await asyncio.sleep(0.01)
    for _ in range(9):
        if done():
            break
        time.sleep(0.01)
"""
    files = {bad: code, "tests/unit/log/test_b.py": good, "src/lapse/log/a.py": code}
    assert keys("fixed-sleeps", sample(tmp_path, files)) == [f"{bad}::test_a"]


@pytest.mark.parametrize(
    "code",
    [
        "due = now_ms + config.delete_retention_ms",
        "due = lag_ms + now_ms",
        "due = horizon_ms + config.removal_lag_ms // 2",
        "due += self._delay_ms",
    ],
)
def test_sums_of_times(tmp_path: Path, code: str) -> None:
    bad = "src/lapse/log/segment.py"
    good = "due = after_ms(now_ms, lag_ms)\nage_ms = now_ms - lag_ms\nend_s = now_s + lag_ms / 1000"
    files = {bad: code, "src/lapse/base/times.py": code, "src/lapse/log/other.py": good}
    assert set(keys("sums-of-times", sample(tmp_path, files))) == {bad}


@pytest.mark.parametrize(
    "code",
    [
        "fs.write_file(path, secret.reveal().encode())",
        "text = password.reveal()\nself._fs.replace_file(path, text.encode())",
        "text = password.reveal()\nfile = env.fs.open_append(path)",
        "fs.replace_file(path, key.private_bytes(pem, pkcs8, none))",
        "fs.replace_file(path, secret.octets())",
    ],
)
def test_secrets_on_disk(tmp_path: Path, code: str) -> None:
    bad = "src/lapse/log/segment.py"
    good = "fs.write_file(path, Secret(key.private_bytes(pem, pkcs8, none).decode()))"
    other = "if password.reveal() == text: ..."
    files = {
        bad: code, "src/lapse/base/fs.py": code, "src/lapse/log/other.py": good,
        "src/lapse/log/third.py": other,
    }  # fmt: skip
    assert set(keys("secrets-on-disk", sample(tmp_path, files))) == {bad}


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.rename(a, b)",
        "from os import replace as r",
        "import os\nos.fsync(fd)",
        "import shutil\nshutil.rmtree(p)",
        "path.write_bytes(b'')",
        "path.unlink()",
        "self.directory.mkdir()",
        "open(p, 'wb')",
        "open(p, mode='a')",
        "path.open('r+b')",
        "import gzip\ngzip.open(p, 'wt')",
        "import os\nos.open(p, os.O_RDWR | os.O_CLOEXEC)",
        "import tempfile\ntempfile.mkdtemp()",
        "import tempfile\nfolder = tempfile.gettempdir()",
    ],
)
def test_writes(tmp_path: Path, code: str) -> None:
    bad = "src/lapse/log/segment.py"
    good = (
        "import os\nfs.unlink(p)\nself._fs.rename(a, b)\nself.fs.open_append(p)\nopen(p)\n"
        "open(p, 'rb')\npath.open()\n'a'.replace('a', 'b')\nos.open(p, os.O_RDONLY)\nos.sendfile()"
    )
    files = {bad: code, "src/lapse/base/fs.py": code, "src/lapse/log/other.py": good}
    assert set(keys("writes", sample(tmp_path, files))) == {bad}


def test_dead_modules(tmp_path: Path) -> None:
    src = "src/lapse/"
    files = {
        "pyproject.toml": "[project]\nname='x'\nscripts={lapse='lapse.cli.main:main'}\n",
        src + "cli/main.py": "from lapse.log import segment\nfrom ..base.ids import Id\n",
        src + "log/__init__.py": "",
        src + "log/segment.py": "",
        src
        + "base/ids.py": "'''Like lapse.log.forgotten.'''\nMODULE = 'lapse.spark.rounds.daemon'\n",
        src + "spark/rounds/daemon.py": "",
        src + "log/forgotten.py": "import lapse.log.forgotten\n",
        src + "log/only_tested.py": "",
        src + "testing/clock.py": "",
        src + "kernels/warm.py": "",
        src + "empty/__init__.py": "",
        "tests/unit/test_x.py": "import lapse.testing.clock\nfrom lapse.log import only_tested\n",
        "tools/run.py": "command = ['-m', 'lapse.kernels.warm']\n",
    }
    assert set(keys("dead-modules", sample(tmp_path, files))) == {
        src + "log/forgotten.py",
        src + "log/only_tested.py",
        src + "empty/__init__.py",
    }


def test_only_spark_knows_spark(tmp_path: Path) -> None:
    code = "from pyspark.sql import SparkSession\n"
    files = {"src/lapse/spark/rounds/engine.py": code, "src/lapse/broker/node.py": code}
    assert set(keys("spark-only-in-spark", sample(tmp_path, files))) == {"src/lapse/broker/node.py"}


@pytest.mark.parametrize(
    "text",
    [
        "see /wor" + "k/notes",
        "cd /hom" + "e/me",
        "/roo" + "t/.m2",
        "/Use" + "rs/me",
        "open('/tm" + "p/x')",
        "index https://pypi" + ".org/simple",
        "[x](../" + "../shared/design.md)",
    ],
)
def test_outside_paths(tmp_path: Path, text: str) -> None:
    files = {"docs/bad.md": text, "docs/good.md": "[up](../README.md), a/work/b, /proc/self"}
    assert keys("outside-paths", sample(tmp_path, files)) == ["docs/bad.md"]


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "raise Not" + "ImplementedError"])
def test_unfinished(tmp_path: Path, word: str) -> None:
    files = {"src/lapse/a.py": f"# x\n{word}", "src/lapse/b.py": "TODOS = 1"}
    assert keys("unfinished", sample(tmp_path, files)) == ["src/lapse/a.py"]


def test_long_files(tmp_path: Path) -> None:
    files = {"src/a.py": "#\n" * 601, "src/b.py": "#\n" * 600, "uv.lock": "#\n" * 900}
    assert keys("long-files", sample(tmp_path, files)) == ["src/a.py"]


def test_long_functions(tmp_path: Path) -> None:
    def function(lines: int) -> str:
        return "    async def f(self):\n" + "        x = 1\n" * (lines - 1)

    files = {
        "src/a.py": "class C:\n" + function(61),
        "tests/b.py": "class C:\n" + function(60),
    }
    assert keys("long-functions", sample(tmp_path, files)) == ["src/a.py::C.f"]


def test_undocumented_dependencies(tmp_path: Path) -> None:
    pyproject = (
        "[project]\nname='x'\ndependencies=['lz4>=4', 'kafka-python']\n"
        "[dependency-groups]\ndev=['pytest']\n"
    )
    prose = "`lz4` (BSD), pytest-asyncio, aiokafka-python"
    files = {"pyproject.toml": pyproject, "ARCHITECTURE.md": prose}
    found = keys("undocumented-dependencies", sample(tmp_path, files))
    assert found == ["kafka-python", "pytest"]


def test_a_missing_architecture_page_is_a_finding(tmp_path: Path) -> None:
    files = {"pyproject.toml": "[project]\nname='x'\ndependencies=['lz4']\n"}
    assert keys("undocumented-dependencies", sample(tmp_path, files)) == ["lz4"]


def test_kafkas_names(tmp_path: Path) -> None:
    table = "| UnifiedLog, LocalLog | `log/a` |\n| LogSegment | `log/b` |\n| Cleaner | `log/c` |\n"
    files = {
        "ARCHITECTURE.md": f"# A\n\n## Kafka's names\n\n{table}\n## Files\n\n| Else | `log/d` |\n",
        "src/lapse/log/a.py": '"""What Kafka calls UnifiedLog."""\n',
        "src/lapse/log/b.py": '"""What Kafka calls LogSegment."""\n',
    }
    found = keys("kafkas-names", sample(tmp_path, files))
    assert found == ["log/a: LocalLog", "log/c: Cleaner"]


def test_stray_tests(tmp_path: Path) -> None:
    files = dict.fromkeys(
        [
            "src/lapse/log/segment.py",
            "src/lapse/lifecycle/decide/bounds.py",
            "tools/deps.py",
            "tests/unit/log/test_segment.py",
            "tests/unit/log/test_segment_torn.py",
            "tests/unit/log/test_segments.py",
            "tests/unit/log/test_bounds.py",
            "tests/unit/lifecycle/decide/test_bounds.py",
            "tests/unit/lifecycle/test_decide.py",
            "tests/unit/tools/test_deps.py",
            "tests/unit/test_segment.py",
        ],
        "",
    )
    assert set(keys("stray-tests", sample(tmp_path, files))) == {
        "tests/unit/log/test_segments.py",
        "tests/unit/log/test_bounds.py",
        "tests/unit/test_segment.py",
    }


def test_borrowed_tests(tmp_path: Path) -> None:
    files = {
        "tests/unit/log/logs.py": "",
        "tests/unit/log/conftest.py": "from tests.support.log.logs import batch\n",
        "tests/unit/log/test_swap.py": "from tests.unit.log.test_start import NOW\n",
        "tests/crash/test_swap.py": "from tests.unit.log.test_start import NOW\n",
        "tests/support/log/logs.py": "from tests.crash.test_swap import NOW\n",
    }
    assert keys("borrowed-tests", sample(tmp_path, files)) == [
        "tests/crash/test_swap.py",
        "tests/support/log/logs.py",
        "tests/unit/log/logs.py",
    ]


def test_allowances_need_a_breach_and_a_reason() -> None:
    breach = tidy.Finding("clocks", "a.py", "line 1")
    assert tidy.judge("clocks", [breach], {}) == [breach]
    assert tidy.judge("clocks", [breach], {"clocks": {"a.py": "because"}}) == []
    assert tidy.judge("clocks", [breach], {"clocks": {"a.py": " "}})
    assert tidy.judge("clocks", [], {"clocks": {"a.py": "because"}})
    assert tidy.judge("clocks", [breach], {"writes": {"a.py": "because"}}) == [breach]


FORBIDDEN = (
    "broker>spark broker>web client>log client>broker lifecycle>spark lifecycle>broker "
    "records>wire kernels>base coordination>log metadata>replication base>records cli>testing"
)
WELCOME = "cli>spark cli>web broker>lifecycle broker>log lifecycle>log log>records testing>broker"


# package → imports that point down, and some that point up
ROOMS = {
    "broker": (
        "node>http http>net net>api api>request request>coordinators limits>logs",
        "logs>limits limits>access request>api api>net net>http control>node",
    ),
    "coordination": (
        "consumer>classic offsets>records",
        "records>offsets offsets>classic classic>transactions classic>consumer",
    ),
    "lifecycle": (
        "service>owner owner>status erase>round round>decide",
        "decide>round round>status status>owner erase>verify owner>service",
    ),
    "spark": (
        "export>source source>views views>scan rounds>session",
        "session>rounds scan>views rounds>scan views>source source>export",
    ),
}


def lint_imports(root: Path, contract: str, imports: str) -> subprocess.CompletedProcess[str]:
    """A contract of pyproject.toml, on a package with just these imports between its rooms."""
    pairs = [pair.split(">") for pair in imports.split()]
    for room in {"", *(room for pair in pairs for room in pair)}:
        package = root / "lapse" / room.replace(".", "/")
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("")
    for importer, imported in pairs:
        folder = root.joinpath("lapse", *importer.split("."))
        user = folder / f"uses_{imported.rpartition('.')[2]}.py"
        user.write_text(f"import lapse.{imported}\n")
    config = REPOSITORY / "pyproject.toml"
    tool = Path(sys.prefix) / "bin" / "lint-imports"
    return subprocess.run(
        [tool, "--config", config, "--no-cache", "--no-logo", "--contract", contract],
        cwd=root,
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_layers_break_on_every_forbidden_import(tmp_path: Path) -> None:
    done = lint_imports(tmp_path, "layers", FORBIDDEN)
    assert done.returncode == 1
    for pair in FORBIDDEN.split():
        importer, imported = pair.split(">")
        assert f"lapse.{importer}.uses_{imported} -> lapse.{imported}" in done.stdout


def test_layers_keep_what_points_down(tmp_path: Path) -> None:
    done = lint_imports(tmp_path, "layers", WELCOME)
    assert done.returncode == 0, done.stdout
    assert "1 kept, 0 broken" in done.stdout


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_of_a_package(tmp_path: Path, package: str) -> None:
    """None imports a room above it, and the package has no room that the contract does not know."""
    down, up = (
        " ".join(
            ">".join(f"{package}.{room}" for room in pair.split(">")) for pair in pairs.split()
        )
        for pairs in ROOMS[package]
    )
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (one for one in contracts["contracts"] if one["id"] == package)
    for room in (room for layer in contract["layers"] for room in layer.split(" | ")):
        (tmp_path / "lapse" / package / room).mkdir(parents=True)
        (tmp_path / "lapse" / package / room / "__init__.py").write_text("")
    (tmp_path / "lapse" / package / "__init__.py").write_text("")
    done = lint_imports(tmp_path, package, down)
    assert done.returncode == 0, done.stdout
    done = lint_imports(tmp_path, package, up)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())  # it breaks long lines
    for pair in up.split():
        importer, imported = pair.split(">")
        assert f"lapse.{importer}.uses_{imported.rpartition('.')[2]} -> lapse.{imported}" in said
    (tmp_path / "lapse" / package / "attic.py").write_text("")
    done = lint_imports(tmp_path, package, down)
    assert "attic" in done.stdout

"""The wheel: the same bytes from the same tree, everything in it, at work where nothing else is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from lapse.cli.main import COMMANDS
from tests.support.wheel import ROOT, Installed, build, copy_of_the_tree, install, uv
from tools.licences import locked

SECONDS_MAX = 60
SEGMENT_BYTES = 1 << 20  # Kafka takes no less
VALUES = [b"%d" % n * 30_000 for n in range(50)]  # of several segments
READY = re.compile(r"ready kafka=(\S+) http=(\S+)")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the tree by way of a source distribution."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install lapse`, without extras."""
    return install(wheel, tmp_path_factory.mktemp("bare") / "venv")


def test_built_again_elsewhere_and_later_it_is_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path / "tree")
    for path in tree.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    again = build(tree, tmp_path / "dist", "--wheel")
    assert again.name == wheel.name == f"lapse-{version('lapse')}-py3-none-any.whl"
    assert again.read_bytes() == wheel.read_bytes()


def test_it_has_every_file_and_none_that_was_compiled(wheel: Path) -> None:
    source = ROOT / "src"
    ours = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    assert {name for name in names if ".dist-info/" not in name} == ours
    assert "lapse/py.typed" in ours
    [sdist] = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        packed = {name.partition("/src/")[2] for name in tar.getnames() if "/src/" in name}
    assert ours <= packed


def test_what_it_says_of_itself(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        said = Parser().parsestr(archive.read(name).decode())
    assert said["License-Expression"] == "Apache-2.0"
    assert "forgets on time" in said["Summary"]
    extras = {"spark", "erase", "delta", "iceberg", "demo", "connect"}
    assert set(said.get_all("Provides-Extra", [])) == extras
    assert said["Description-Content-Type"] == "text/markdown"


def test_its_bill_of_materials_names_what_it_may_bring(tmp_path: Path) -> None:
    """With hashes, as docs/licences.md makes it; what only tests need is in none."""
    page = (ROOT / "docs" / "licences.md").read_text()
    [words] = re.findall(r"^uv (export .*) --output-file sbom.json$", page, re.MULTILINE)
    uv(*words.split(), "--output-file", tmp_path / "sbom.json")
    bill = json.loads((tmp_path / "sbom.json").read_bytes())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "lapse")
    found = {one["name"]: one for one in bill["components"] if one["name"] != "lapse"}
    brought = {one.name for one in locked() if one.parts}
    assert brought <= found.keys()
    assert found.keys() <= brought | {"colorama"}, "which click brings on Windows"
    for one in found.values():
        files = [link for link in one["externalReferences"] if link["type"] == "distribution"]
        assert files, one["name"]
        assert all(file["hashes"][0]["alg"] == "SHA-256" for file in files), one["name"]


def test_alone_it_lists_its_commands_and_says_what_is_missing(
    bare: Installed, tmp_path: Path
) -> None:
    assert bare.run("--version", cwd=tmp_path).stdout == f"lapse {version('lapse')}\n"
    said = bare.run("--help", cwd=tmp_path).stdout
    assert all(command in said for command in COMMANDS)
    for command, extra in (("demo", "demo"), ("erase", "erase")):
        told = bare.run(command, cwd=tmp_path)
        assert told.returncode != 0
        assert f"pip install 'lapse[{extra}]'" in told.stderr + told.stdout, command


@pytest.fixture
def broker(bare: Installed, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """`lapse broker` of the bare environment: its addresses for clients and for browsers."""
    settings = ("listeners=PLAINTEXT://127.0.0.1:0", "lapse.http.port=0", f"log.dirs={tmp_path}/d")
    (tmp_path / "server.properties").write_text("\n".join(settings))
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [bare.lapse, "broker", "server.properties"], cwd=tmp_path, env=bare.environment,
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = READY.match(process.stdout.readline())
        assert ready is not None, (tmp_path / "log").read_text()
        yield ready[1], ready[2]
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0


def test_alone_it_serves_a_stock_client_and_a_browser_and_cleans(
    bare: Installed, broker: tuple[str, str], tmp_path: Path
) -> None:
    kafka, http = broker
    at = ("--bootstrap-server", kafka)
    made = bare.run("topic", "create", "t", "-c", "cleanup.policy=compact",
                    "-c", f"segment.bytes={SEGMENT_BYTES}", *at, cwd=tmp_path)  # fmt: skip
    assert made.returncode == 0, made.stderr
    producer = Producer({"bootstrap.servers": kafka, "log_level": 0})
    for n, value in enumerate(VALUES):
        producer.produce("t", value, b"k%d" % (n % 5))
        if n % 10 == 9:
            assert producer.flush(SECONDS_MAX) == 0
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    found, until = [], time.monotonic() + SECONDS_MAX
    while len(found) < len(VALUES) and time.monotonic() < until:
        found += consumer.consume(50, 1.0)
    consumer.close()
    assert [m.value() for m in found] == VALUES
    with urllib.request.urlopen(f"http://{http}/ui/topics/t", timeout=SECONDS_MAX) as page:
        assert b"compact" in page.read()
    copied = tmp_path / "copied"
    done = bare.run("clean", tmp_path / "d", "--to", copied, "--engine", "inline", "--json",
                    cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    [round_] = [json.loads(line) for line in done.stdout.splitlines() if '"t-0"' in line]
    assert round_["outcome"] == "cleaned", round_

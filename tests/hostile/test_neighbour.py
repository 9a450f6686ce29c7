"""`lapse up` with everything, beside another user of the machine: what he reads, writes, reaches.

It is started by somebody whose umask is 0 and whose temporary directory is everybody's.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lapse.cli.up_settings import RUNNING, SETTINGS
from lapse.client.admin import Admin
from lapse.client.login import login
from lapse.metadata.sqlite import STORE
from lapse.testing.broker_process import BrokerFailed, BrokerProcess
from tests.hostile.neighbour import as_neighbour, needs_root, why_not
from tests.support.up import Up, up

pytestmark = needs_root

PASSWORD = "s3cret-of-alice"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_admin="{PASSWORD}" user_alice="{PASSWORD}";'
)
SECRET_FILES = (SETTINGS, RUNNING, STORE)
LISTEN = "0A"  # of /proc/net/tcp


@contextmanager
def everybodys_folder() -> Iterator[Path]:
    """A folder that every user may walk into; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(prefix="lapse-neighbour-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def careless(temporary: Path) -> Iterator[None]:
    """Somebody whose files anybody may write to, and whose temporary folder is everybody's."""
    temporary.mkdir()
    temporary.chmod(0o1777)
    before, had = os.umask(0), os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(temporary)
    try:
        yield
    finally:
        os.umask(before)
        if had is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = had


@pytest.fixture(scope="module")
def house() -> Iterator[tuple[Up, Path]]:
    """Broker, service and Spark, over a directory with passwords in it."""
    with everybodys_folder() as folder, careless(folder / "tmp"):
        data = folder / "data"
        data.mkdir()
        settings = {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "lapse.http.port": "0",
            "log.dirs": str(data),
        }
        lines = "".join(f"{name}={text}\n" for name, text in settings.items())
        (data / SETTINGS).write_text(lines)
        (data / SETTINGS).chmod(0o600)  # the user's own file, whose mode is his
        data.chmod(0o755)
        with up(data) as running:
            assert running.ready.startswith("ready "), running.errors()
            asyncio.run(with_a_topic(running.ready.split("kafka=")[1].split()[0]))
            yield running, data


async def with_a_topic(address: str) -> None:
    """So that there are logs."""
    client = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="alice" password="{PASSWORD}";'
        ),
    }  # fmt: skip
    async with await Admin.open(address, login=login(client)) as admin:
        await admin.create_topic("t", partitions=2, configs={"cleanup.policy": "compact"})


def processes(parent: int) -> list[int]:
    """It and all that came of it."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *(pid for child in children for pid in processes(int(child)))]


# --- files ---------------------------------------------------------------------------------------


def written_by(folder: Path) -> list[str]:
    """Paths below that the caller may write to, or make something in."""
    found = []
    for path in [folder, *folder.rglob("*")]:
        if path.is_symlink() or path.is_socket():
            continue
        if path.is_dir():
            if os.access(path, os.W_OK, effective_ids=True):
                found.append(str(path))
        elif not why_not(lambda path=path: os.close(os.open(path, os.O_WRONLY))):  # type: ignore[misc]
            found.append(str(path))
    return found


def test_he_writes_nothing_whatever_the_umask(house: tuple[Up, Path]) -> None:
    _, data = house
    assert as_neighbour(lambda: written_by(data)) == []
    assert written_by(data)  # we do


def test_he_reads_no_secret(house: tuple[Up, Path]) -> None:
    """Users in files, SCRAM's keys in the store, what is in force now."""
    _, data = house
    found = [path for name in SECRET_FILES for path in data.glob(f"{name}*")]  # and SQLite's own
    assert len(found) >= len(SECRET_FILES), found

    def open_all() -> dict[str, str]:
        return {p.name: why_not(lambda p=p: p.read_bytes()) for p in found}  # type: ignore[misc]

    assert set(as_neighbour(open_all).values()) == {"PermissionError"}
    for path in (p for p in data.rglob("*") if p.is_file()):
        if PASSWORD.encode() in path.read_bytes():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_he_does_not_come_by_the_control_socket(house: tuple[Up, Path]) -> None:
    _, data = house
    sockets = [str(path) for path in data.rglob("*") if path.is_socket()]
    assert [Path(path).name for path in sockets] == ["control.sock"]

    def reach() -> list[str]:
        with socket.socket(socket.AF_UNIX) as peer:
            return [why_not(lambda path=path: peer.connect(path)) for path in sockets]  # type: ignore[misc]

    assert as_neighbour(reach) == ["PermissionError"]


def test_temporary_files_are_not_his(house: tuple[Up, Path]) -> None:
    _, data = house
    temporary = data.parent / "tmp"

    def look() -> list[str]:
        return [
            str(path) for path in temporary.iterdir()
            if os.access(path, os.R_OK, effective_ids=True)
            or os.access(path, os.W_OK, effective_ids=True)
        ]  # fmt: skip

    assert as_neighbour(look) == []


# --- processes and ports -------------------------------------------------------------------------


def listening(pid: int) -> list[tuple[str, int]]:
    """Addresses that a process listens at; IPv4-mapped ones as IPv4."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd)) if fd.is_symlink() else None
        if found:
            inodes.add(found[1])
    rows = []
    for table, family, size in (("tcp", socket.AF_INET, 4), ("tcp6", socket.AF_INET6, 16)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in inodes:
                address, port = fields[1].split(":")
                words = bytes.fromhex(address)
                raw = b"".join(words[n : n + 4][::-1] for n in range(0, size, 4))
                rows.append((socket.inet_ntop(family, raw).removeprefix("::ffff:"), int(port, 16)))
    return rows


def test_who_listens_and_where(house: tuple[Up, Path]) -> None:
    """The broker at its two ports, the supervisor and the service nowhere; all on this machine."""
    running, _ = house
    told = [int(port) for port in re.findall(r"=\S+?:(\d+)", running.ready)]
    found = {pid: listening(pid) for pid in processes(running.process.pid)}
    assert {host for rows in found.values() for host, _ in rows} == {"127.0.0.1"}
    by_name = running.children()
    assert sorted(port for _, port in found[by_name["broker"]]) == sorted(set(told))
    assert found[by_name["lifecycle"]] == []
    assert found[running.process.pid] == []


def test_nobody_listens_by_a_name_that_has_no_file(house: tuple[Up, Path]) -> None:
    """Abstract sockets have no mode: whoever knows the name comes in."""
    running, _ = house
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    abstract = {row[6] for row in rows if len(row) > 7 and row[7].startswith("@")}
    for pid in processes(running.process.pid):
        ours = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
        assert not {f"socket:[{inode}]" for inode in abstract} & ours


def test_he_sees_no_secret_of_the_processes(house: tuple[Up, Path]) -> None:
    """Everybody reads command lines; environments are for their owner."""
    running, _ = house
    pids = processes(running.process.pid)
    lines = b" ".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    assert b"lapse.cli.main" in lines
    assert PASSWORD.encode() not in lines
    assert not re.search(rb"(?i)(secret|password|token)\S*=\S", lines), lines

    def environments() -> list[str]:
        return [why_not(Path(f"/proc/{pid}/environ").read_bytes) for pid in pids]

    assert set(as_neighbour(environments)) == {"PermissionError"}


def test_the_brokers_hashing_is_seeded(house: tuple[Up, Path]) -> None:
    """By each process for itself: names that clients choose are keys of its tables."""
    running, _ = house
    pid = running.children()["broker"]
    assert b"PYTHONHASHSEED" not in Path(f"/proc/{pid}/environ").read_bytes()


def bind_at(port: int, host: str) -> None:
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        rival.bind((host, port))
        rival.listen()


@pytest.mark.parametrize("listens_at", ["127.0.0.1", "0.0.0.0"])
def test_he_does_not_take_clients_away(listens_at: str) -> None:
    """Not beside us on the port, nor on a narrower address than ours."""
    with everybodys_folder() as folder:
        settings = {"listeners": f"PLAINTEXT://{listens_at}:0"}
        with BrokerProcess(folder / "data", settings) as broker:
            port = int(broker.bootstrap.rpartition(":")[2])
            for host in ("127.0.0.1", "0.0.0.0"):
                tried = as_neighbour(lambda host=host: why_not(lambda: bind_at(port, host)))  # type: ignore[misc]
                assert tried == "OSError", host


def test_a_port_that_he_has_is_not_waited_for(tmp_path: Path) -> None:
    """The start says which setting it is, instead of serving elsewhere."""
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", 0))
        rival.listen()
        port = rival.getsockname()[1]
        settings = {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
        with pytest.raises(BrokerFailed, match="listeners"):
            BrokerProcess(tmp_path / "data", settings).start()


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_data_directory_that_he_may_change_is_warned_of(mode: int) -> None:
    """A volume that everybody may write to, say; the logs in it are what he makes of them."""
    with everybodys_folder() as folder:
        data = folder / "data"
        data.mkdir()
        data.chmod(mode)

        def plant() -> str:
            return why_not((data / "t-0").mkdir)

        assert as_neighbour(plant) == ("" if mode & stat.S_IWOTH else "PermissionError")
        if mode & stat.S_IWOTH:
            (data / "t-0").rmdir()
        with BrokerProcess(data) as broker:
            warned = f"log.dirs={data}: others may write to {data}" in broker.log()
        assert warned == bool(mode & stat.S_IWOTH)


def test_what_is_planted_is_not_removed(tmp_path: Path) -> None:
    """`control.sock`: what lies in its place and is no socket is not removed."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "control.sock").write_text("planted")
    with pytest.raises(BrokerFailed, match="not a socket"):
        BrokerProcess(tmp_path / "data").start()
    assert (tmp_path / "data" / "control.sock").read_text() == "planted"

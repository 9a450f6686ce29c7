"""An object store that speaks S3, as a process of its own: moto's server, and a bucket in it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from pyarrow import fs as arrow_fs

from lapse.base.clock import SystemClock
from lapse.testing.ports import own_port

START_SECONDS_MAX = 60
LOGIN = {"AWS_ACCESS_KEY_ID": "lapse", "AWS_SECRET_ACCESS_KEY": "s3cret"}
BUCKET = "lake"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """One that runs.

    Attributes:
        environment: of who is to be let in.
    """

    port: int
    process: subprocess.Popen[bytes]
    environment: Mapping[str, str]

    def place(self) -> str:
        """A prefix that nobody has used yet."""
        return f"s3://{BUCKET}/tables/{next(_numbers)}"

    def files(self) -> arrow_fs.S3FileSystem:
        return arrow_fs.S3FileSystem(
            access_key=LOGIN["AWS_ACCESS_KEY_ID"], secret_key=LOGIN["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=f"127.0.0.1:{self.port}", scheme="http", region="us-east-1",
            allow_bucket_creation=True,
        )  # fmt: skip


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """With an empty bucket; `folder` is for what it logs."""
    port = own_port()
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    environment = {
        **LOGIN, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    store = ObjectStore(port, process, environment)
    try:
        _wait_for(port)
        store.files().create_dir(BUCKET)
        yield store
    finally:
        process.kill()
        process.wait()


@contextmanager
def let_in(store: ObjectStore) -> Iterator[None]:
    """Have this process find the store, as the environment says."""
    before = {name: os.environ.get(name) for name in store.environment}
    os.environ.update(store.environment)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


def _wait_for(port: int) -> None:
    clock = SystemClock()
    until = clock.monotonic() + START_SECONDS_MAX
    while True:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        with suppress(OSError):
            connection.request("GET", "/moto-api/")
            connection.getresponse().read()
            return
        connection.close()
        assert clock.monotonic() < until, "the object store does not answer"
        clock.sleep(0.05)

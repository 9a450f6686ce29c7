"""What a ZooKeeper of ours has in its directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.cli.zookeeper_server import LOGIN, own_login


def test_a_login_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    made = own_login(tmp_path, RealFs())
    assert own_login(tmp_path, RealFs()) == made
    user, _, password = made.reveal().partition(":")
    assert (user, len(password) > 30) == ("lapse", True)
    assert (tmp_path / LOGIN).stat().st_mode & 0o777 == 0o600
    (tmp_path / LOGIN).unlink()
    assert own_login(tmp_path, RealFs()) != made
    (tmp_path / LOGIN).write_bytes(b"\xff")
    with pytest.raises(StorageError, match=LOGIN):
        own_login(tmp_path, RealFs())

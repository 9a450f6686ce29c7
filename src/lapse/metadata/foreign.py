"""Directories that a real Kafka keeps its logs in: a broker of ours must not start over them.

What a broker serves is what its metadata says. Over logs that the metadata knows nothing of it
would serve nothing, take names that are taken, and leave an empty store beside Kafka's metadata.
Checked before anything is opened or written; only reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lapse.base.errors import ConfigError, StorageError
from lapse.log.folders import list_partitions
from lapse.metadata.image import METADATA_FOLDER
from lapse.metadata.sqlite import STORE, look_at_settings

_NAMED_MAX = 3
_OR_OF_LAPSE = ", or of a Lapse whose log.dirs begins with another directory"


def refuse_foreign(log_dirs: Sequence[Path], zookeeper_connect: str = "") -> None:
    """Raise ConfigError where logs lie in these directories and the first one has no metadata.

    With ZooKeeper it must have none, and no Kafka's either; that the logs are those of the cluster
    is then said by their `meta.properties`.

    A store of ours without a topic counts as none beside Kafka's metadata log. A directory that
    cannot be listed is passed over: opening it raises the error.
    """
    topics = _known_topics(log_dirs[0] / STORE)
    if zookeeper_connect:
        if topics:
            raise ConfigError(
                f"zookeeper.connect={zookeeper_connect}: {log_dirs[0]} has its metadata in {STORE} "
                f"({topics} topics). Allowed is a directory without, or no zookeeper.connect"
            )
        if not any(METADATA_FOLDER in _logs_in(path) for path in log_dirs):
            return
    if topics:
        return
    for path in log_dirs:
        found = _logs_in(path)
        if topics is not None and METADATA_FOLDER not in found:
            continue  # all topics of it are deleted, and something is left
        if found:
            names = ", ".join(found[:_NAMED_MAX]) + (" …" if len(found) > _NAMED_MAX else "")
            others = "" if METADATA_FOLDER in found else _OR_OF_LAPSE
            raise ConfigError(
                f"log.dirs={path}: it holds logs ({names}) and {log_dirs[0]} has no metadata of "
                f"Lapse that knows them: those of a real Kafka{others}. Nothing was written. "
                "`lapse plan`, `explain`, `clean` and `verify` work on them as they are; to have "
                "Lapse serve them, stop Kafka and let `lapse adopt` take them over, or start Lapse "
                "on an empty directory and write them there, with `lapse copy` for one"
            )


def _known_topics(store: Path) -> int | None:
    """How many topics a broker of ours keeps there; None without a store."""
    try:
        if store.parent.exists() and not store.parent.is_dir():
            return 1
        return len(look_at_settings(store).topics) if store.exists() else None
    except (OSError, StorageError):
        return 1  # opening it raises the error


def _logs_in(path: Path) -> list[str]:
    try:
        found = [str(partition) for partition in list_partitions(path)]
    except StorageError:
        return []
    return sorted(found, key=lambda name: name != METADATA_FOLDER)  # the clearest sign first

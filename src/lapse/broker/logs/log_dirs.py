"""The directories of `log.dirs`, each owned by us or offline with its reason.

A directory that cannot be opened, or whose disk fails later, takes only its own logs offline; the
others go on, and a restart takes it back. What is no disk's fault refuses the start instead: a
lock that another process holds, a `meta.properties` of another cluster or node (as in Kafka). The
first directory also has the metadata store and the control socket: without it there is no start.

Used by `partitions`, and through it by whatever works directory by directory. `online` may be read
from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from lapse.base.config import BrokerConfig
from lapse.base.errors import (
    ConfigError,
    CorruptData,
    LapseError,
    LockHeld,
    StorageError,
    is_lack,
)
from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition, random_id
from lapse.base.own import why_not_own
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.relocation import drop_strange_copies
from lapse.metadata.foreign import refuse_foreign
from lapse.metadata.image import METADATA_LOG, Topic

logger = logging.getLogger(__name__)

_META_VERSION = "1"
_DIRECTORY_ID = "directory.id"


WhenFailed = Callable[[LogDirectory, Exception], bool]


class NotUsable(StorageError):
    """A partition's directory is not what it should be; nothing is wrong with the disk."""


class PerhapsElsewhere(StorageError):
    """A partition has no directory, but there are log directories that are not looked into."""


class LogDirectories:
    """One broker's directories.

    Attributes:
        online: those that are owned and in order; a new tuple after each change.
        offline: why each of the others is not.
        offline_since_ms: and since when.
    """

    def __init__(self, paths: Sequence[Path], config: BrokerConfig, env: LogEnv) -> None:
        self.online: tuple[LogDirectory, ...] = ()
        self.offline: dict[Path, str] = {}
        self.offline_since_ms: dict[Path, int] = {}
        self._paths = tuple(paths)
        self._config, self._env = config, env
        self._failed: list[LogDirectory] = []
        self._unlisted: set[LogDirectory] = set()  # their roster lacks what was opened
        self._changing = threading.Lock()

    # --- starting -------------------------------------------------------------------------------

    def lock(self) -> None:
        """Own what can be owned.

        Raises LockHeld naming the holder, StorageError where no directory, or not the first one,
        can be used, and ConfigError where a real Kafka's logs lie there; nothing is written then.
        """
        refuse_foreign(self._paths, self._config.zookeeper_connect)
        for path in self._paths:
            try:
                self.online += (LogDirectory.open(path, self._env),)
            except LockHeld:
                raise
            except LapseError as e:
                self._note_offline(path, e)
        for directory in self.online:
            if why := why_not_own(directory.path):
                logger.warning(
                    "log.dirs=%s: %s: who changes files there decides what is read and cleaned; "
                    "give it to the broker's user, with mode 755 or 700", directory.path, why
                )  # fmt: skip
            try:
                checkpoints.read_meta(directory.path)
            except (StorageError, CorruptData) as e:
                self.fail(directory, e)
        if not self.online:
            reasons = "; ".join(self.offline.values())
            raise StorageError(f"log.dirs={self._config.log_dirs}: none can be used: {reasons}")
        first = self._paths[0]
        if first in self.offline:
            raise StorageError(
                f"log.dirs={self._config.log_dirs}: the first one holds the metadata and cannot "
                f"be used: {self.offline[first]}"
            )

    def cluster_id(self) -> str:
        """The id the directories were written under, or a new one."""
        known = {meta["cluster.id"] for meta in map(_meta, self.online) if meta}
        if len(known) > 1:
            raise ConfigError(
                f"log.dirs={self._config.log_dirs}: allowed are directories of one cluster; "
                f"these are of {', '.join(sorted(known))}"
            )
        return known.pop() if known else random_id()

    def stamp(self, cluster_id: str) -> None:
        """Write the broker's ids to the directories; raises ConfigError if they are another's."""
        self._check_ids(cluster_id)
        wanted = {"cluster.id": cluster_id, "node.id": str(self._config.node_id)}
        for directory in self.online:
            if not _meta(directory):
                meta = {"version": _META_VERSION, **wanted, _DIRECTORY_ID: random_id()}
            else:
                meta = checkpoints.read_meta(directory.path)
                if _DIRECTORY_ID in meta:
                    continue
                meta[_DIRECTORY_ID] = random_id()  # Kafka before 3.7 gave none
            checkpoints.write_meta(self._env.fs, directory.path, meta)

    def ids(self) -> frozenset[str]:
        """The directories' own ids; one that was never written to has none."""
        found = (_meta(directory).get(_DIRECTORY_ID) for directory in self.online)
        return frozenset(one for one in found if one is not None)

    def _check_ids(self, cluster_id: str) -> None:
        wanted = {"cluster.id": cluster_id, "node.id": str(self._config.node_id)}
        metas = {directory.path: _meta(directory) for directory in self.online}
        for path, meta in metas.items():
            for name, value in wanted.items():
                if meta.get(name, value) != value:
                    raise ConfigError(
                        f"log.dirs={path}: its meta.properties has {name}={meta[name]}; "
                        f"allowed is {value}"
                    )
        ids = Counter(meta[_DIRECTORY_ID] for meta in metas.values() if _DIRECTORY_ID in meta)
        for directory_id, times in ids.items():
            if times > 1:
                raise ConfigError(
                    f"log.dirs={self._config.log_dirs}: allowed are directories of which none is "
                    f"a copy; {times} have {_DIRECTORY_ID}={directory_id}"
                )

    # --- asking ---------------------------------------------------------------------------------

    def by_fewest_logs(self) -> list[LogDirectory]:
        """Where a new partition goes: Kafka's rule."""
        return sorted(self.online, key=lambda directory: len(directory.logs))

    def with_log(self, partition: TopicPartition) -> LogDirectory | None:
        """The online directory that has a partition's log open."""
        return next((d for d in self.online if partition in d.logs), None)

    def require_nowhere(
        self, partition: TopicPartition, topic_id: uuid.UUID, missing: Collection[str]
    ) -> None:
        """Check that a partition without a folder may be made: none that is here is missed.

        An empty log in its place would be taken for the partition's own. `missing`: directories
        that are not there any more, which may have it: it is missed from now on.

        Raises PerhapsElsewhere where it may be in one that is offline, and MissingData.
        """
        for one in self.online:
            one.require_not_lost(partition, topic_id)
        if self.offline:
            places = ", ".join(map(str, self.offline))
            raise PerhapsElsewhere(f"not found; log directories that are offline: {places}")
        if missing:
            self.online[0].miss(partition, topic_id)
            self.online[0].require_not_lost(partition, topic_id)

    # --- what they have -------------------------------------------------------------------------

    def remember(self, failed: WhenFailed) -> None:
        """Have every directory remember what it has: what is gone later is missed."""
        self.on_each(LogDirectory.remember, failed)

    def remember_soon(self, failed: WhenFailed) -> None:
        """The same; one that lacks what it takes for that owes it, and stops nobody."""

        def remember(directory: LogDirectory) -> None:
            try:
                directory.remember()
            except (LapseError, OSError) as e:
                if not is_lack(e):
                    raise
                self._unlisted.add(directory)
                logger.warning("%s: what it has is noted later: %s", directory.path, e)

        self.on_each(remember, failed)

    def remember_owed(self, failed: WhenFailed) -> None:
        """Note what could not be noted; called again and again."""
        owing = frozenset(self._unlisted)

        def remember(directory: LogDirectory) -> None:
            if directory in owing:
                self._unlisted.discard(directory)
                try:
                    directory.remember()
                except (LapseError, OSError):
                    self._unlisted.add(directory)
                    raise

        self.on_each(remember, failed)

    # --- failing, and the end -------------------------------------------------------------------

    def fail(self, directory: LogDirectory, error: Exception) -> bool:
        """Take a directory offline; False if it is already. Its lock is kept until the end."""
        with self._changing:
            if directory not in self.online:
                return False
            self.online = tuple(d for d in self.online if d is not directory)
            self._failed.append(directory)
            self._note_offline(directory.path, error)
            return True

    def _note_offline(self, path: Path, error: Exception) -> None:
        self.offline[path] = str(error)
        self.offline_since_ms[path] = self._env.clock.now_ms()
        logger.error("log directory %s is offline: %s", path, error)

    def on_each(
        self,
        do: Callable[[LogDirectory], object],
        failed: WhenFailed,
    ) -> None:
        """Do something with every online directory, even if it fails for another one.

        Raises the first error that `failed`, which may take a directory offline, did not deal with.
        """
        errors = []
        for directory in self.online:
            try:
                do(directory)
            except (LapseError, OSError) as e:
                if not failed(directory, e):
                    errors.append(e)
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Give all back; a clean-shutdown marker stays only where every log was closed in order.

        Raises the first error of an online one, after all are closed.
        """
        online, self.online = self.online, ()
        failed, self._failed = self._failed, []
        for directory in failed:
            with contextlib.suppress(LapseError, OSError):  # logged when it went offline
                directory.close(clean=False)
        errors = []
        for directory in online:
            try:
                directory.close()
            except LapseError as e:
                logger.error("log directory %s was not closed cleanly: %s", directory.path, e)  # noqa: TRY400  (for people)
                errors.append(e)
        if errors:
            raise errors[0]


def _meta(directory: LogDirectory) -> dict[str, str]:
    """The ids of a directory's broker; empty if it has none yet."""
    meta = checkpoints.read_meta(directory.path)
    if "broker.id" in meta:  # version 0
        meta.setdefault("node.id", meta["broker.id"])
    return meta if "cluster.id" in meta else {}


def look_for_strangers(
    directory: LogDirectory, known: Mapping[TopicPartition, Topic], fs: Fs, *, all_there: bool
) -> None:
    """Say which partitions of a directory the metadata does not have; of those no copy is begun.

    `all_there`: no directory is offline. Raises StorageError.
    """
    for partition in directory.partitions():
        if partition not in known and partition.topic != METADATA_LOG:
            path = directory.path / str(partition)
            logger.warning("%s: no such partition in the metadata; left alone", path)
    if all_there:
        drop_strange_copies(directory, {topic.topic_id for topic in known.values()}, fs)

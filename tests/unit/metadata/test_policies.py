"""Where the settings of logs that nobody serves come from."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from lapse.base.ids import TopicPartition
from lapse.metadata.policies import find_policies
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.metadata.store import ALL_BROKERS, TopicRecord

LOG = TopicPartition("t", 0)


def keep(log_dir: Path, **brokers: dict[str, str]) -> None:
    store = SqliteStore(log_dir / STORE, str)
    store.create_topics([TopicRecord("t", uuid4(), 1, {"retention.bytes": "7"})])
    for broker, settings in brokers.items():
        store.set_broker_settings(ALL_BROKERS if broker == "all" else broker[1:], settings)
    store.close()


def test_what_was_set_for_brokers_counts_and_what_is_said_wins(tmp_path: Path) -> None:
    keep(tmp_path, all={"log.retention.ms": "1", "log.segment.bytes": "2000000"},
         _0={"log.retention.ms": "2"})  # fmt: skip
    config = find_policies(tmp_path, {}, {}).config_of(LOG)
    assert config is not None
    assert (config.retention_ms, config.segment_bytes, config.retention_bytes) == (2, 2_000_000, 7)
    said = find_policies(tmp_path, {}, {"log.retention.hours": "1"}).config_of(LOG)
    assert said is not None
    assert said.retention_ms == 3_600_000


def test_a_log_that_nobody_knows_has_no_policy(tmp_path: Path) -> None:
    keep(tmp_path)
    policies = find_policies(tmp_path, {}, {})
    assert policies.config_of(TopicPartition("stranger", 0)) is None
    assert set(policies.configs([LOG, TopicPartition("stranger", 0)])) == {LOG}

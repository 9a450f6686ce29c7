"""The clean-shutdown directory lists groups and transactions as Kafka's decoded dumps have them.

What is expected is folded here from Kafka's text: the last payload of each key, a transaction's at
its commit.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lapse.cli.main import main
from lapse.coordination.records import transactions
from lapse.coordination.records.transactions import TransactionStatus
from tests.reference.kafka_dump import decoded, read_kafka_dump

TRANSACTION_TYPE = "0"
OFFSET, CLASSIC, GROUP, MEMBER = "1", "2", "3", "5"

Line = dict[str, Any]


def folded(dump: Path) -> dict[str, dict[str, Any]]:
    """Type -> JSON of the key -> the last value's data, by what Kafka printed."""
    latest: dict[str, dict[str, Any]] = {}
    pending: dict[int, list[tuple[Any, Any]]] = {}
    batch: Line = {}
    for line in read_kafka_dump(dump).lines:
        if line["type"] == "batch":
            batch = line
            continue
        if batch["control"]:
            assert line["control_type"] == "COMMIT"
            written = pending.pop(batch["pid"])
        elif batch["txn"]:
            pending.setdefault(batch["pid"], []).append(decoded(line["text"]))
            continue
        else:
            written = [decoded(line["text"])]
        for key, value in written:
            table = latest.setdefault(key["type"], {})
            table.pop(json.dumps(key["data"]), None)
            if value is not None:
                table[json.dumps(key["data"])] = value["data"]
    assert not pending
    return latest


def listed(path: Path, capsys: pytest.CaptureFixture[str]) -> list[Line]:
    assert main(["dump", "--json", "--state", str(path)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("n", range(4))
def test_transactions(n: int, goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"__transaction_state-{n}"
    clean = goldens / "golden-clean-shutdown"
    expected = {
        json.loads(key)["transactionalId"]: value
        for key, value in folded(clean / f"{name}.dump.log.txt")[TRANSACTION_TYPE].items()
    }
    ours = listed(clean / name, capsys)
    assert ours == [
        {
            "type": "transaction",
            "partition": name,
            "transactional_id": transactional_id,
            "state": TransactionStatus(value["transactionStatus"]).label,
            "pid": value["producerId"],
            "epoch": value["producerEpoch"],
            "previous_pid": value.get("previousProducerId", -1),
            "next_pid": value.get("nextProducerId", -1),
            "next_epoch": value.get("nextProducerEpoch", -1),
            "timeout_ms": value["transactionTimeoutMs"],
            "partitions": [
                f"{item['topic']}-{n}"
                for item in value["transactionPartitions"] or ()
                for n in item["partitionIds"]
            ],
            "last_update": value["transactionLastUpdateTimestampMs"],
            "start": value["transactionStartTimestampMs"],
            "client_version": value.get("clientTransactionVersion", 0),
        }
        for transactional_id, value in sorted(expected.items())
    ]
    assert ours


@pytest.mark.parametrize("n", range(4))
def test_groups(n: int, goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"__consumer_offsets-{n}"
    clean = goldens / "golden-clean-shutdown"
    expected = folded(clean / f"{name}.dump.log.txt")
    ours = listed(clean / name, capsys)
    groups = {line["group"]: line for line in ours if line["type"] == "group"}

    classic = {json.loads(k)["group"]: v for k, v in expected.get(CLASSIC, {}).items()}
    modern = {json.loads(k)["groupId"]: v for k, v in expected.get(GROUP, {}).items()}
    committed = [json.loads(key) | value for key, value in expected.get(OFFSET, {}).items()]
    assert set(groups) == set(classic) | set(modern) | {item["group"] for item in committed}
    for group_id, value in classic.items():
        line = groups[group_id]
        assert (line["kind"], line["epoch"]) == ("classic", value["generation"])
        assert line["state"] == ("Stable" if value["members"] else "Empty")
        assert (line["protocol_type"], line["protocol"]) == (
            value["protocolType"], value["protocol"],
        )  # fmt: skip
        assert line["members"] == len(value["members"])
    for group_id, value in modern.items():
        line = groups[group_id]
        assert (line["kind"], line["epoch"]) == ("consumer", value["epoch"])
        members = [k for k in expected.get(MEMBER, {}) if json.loads(k)["groupId"] == group_id]
        assert line["members"] == len(members)
        assert line["state"] == "Empty"  # none had members when Kafka stopped

    offsets = [line for line in ours if line["type"] == "offset"]
    assert sorted(
        (o["group"], o["topic"], o["partition"], o["offset"], o["leader_epoch"], o["metadata"],
         o["commit_timestamp"], o["pending"])
        for o in offsets
    ) == sorted(
        (o["group"], o["topic"], o["partition"], o["offset"], o["leaderEpoch"], o["metadata"],
         o["commitTimestamp"], False)
        for o in committed
    )  # fmt: skip


def test_the_whole_directory_at_once(goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(goldens / "golden-clean-shutdown", capsys)
    groups = {line["group"]: line["state"] for line in lines if line["type"] == "group"}
    assert groups == {"g-classic": "Empty", "g-consumer": "Empty", "g-txn": "Empty",
                      "gkp": "Empty", "gck848": "Empty"}  # fmt: skip
    ids = [line["transactional_id"] for line in lines if line["type"] == "transaction"]
    assert len(ids) == len(set(ids)) > 15
    ongoing = [line for line in lines if line.get("state") == "Ongoing"]
    assert {tp for line in ongoing for tp in line["partitions"]} == {
        "txn-delete-none-0", "txn-delete-lz4-0",
    }  # fmt: skip
    assert {line["partition"] for line in lines if line["type"] == "transaction"} == {
        f"{transactions.TOPIC}-{n}" for n in range(4)
    }


def test_members_while_they_were_there(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same log cut where groups still had members: after offset 2, and after offset 8."""
    source = goldens / "golden-clean-shutdown" / "__consumer_offsets-0"
    dump = read_kafka_dump(source.parent / f"{source.name}.dump.log.txt")
    cut = {line["base_offset"]: line["pos"] for line in dump.lines if line["type"] == "batch"}
    path = tmp_path / source.name
    shutil.copytree(source, path)
    log = path / f"{0:020d}.log"
    whole = log.read_bytes()

    log.write_bytes(whole[: cut[3]])
    group, member, offset = listed(path, capsys)
    assert (group["state"], group["protocol"], group["epoch"]) == ("Stable", "range", 1)
    assert group["leader"] == member["member"]
    assert member["member"].startswith("consumer-g-classic-1-")
    assert (member["topics"], member["assigned"]) == (["consumed"], {"consumed": [0]})
    assert (member["client"], member["host"]) == ("consumer-g-classic-1", "/127.0.0.1")
    assert (offset["topic"], offset["offset"]) == ("consumed", 41)

    log.write_bytes(whole[: cut[9]])
    lines = listed(path, capsys)
    at = next(n for n, line in enumerate(lines) if line.get("group") == "g-consumer")
    group, member = lines[at : at + 2]
    assert (group["kind"], group["state"], group["epoch"]) == ("consumer", "Stable", 2)
    assert (member["member"], member["epoch"]) == ("Y4mJ8hD6RlOHLJNumyoaNw", 2)
    assert member["topics"] == ["consumed"]
    assert member["assigned"] == {"e-6_nbEXQsqcOzITxT8rwg": [0]}

    log.write_bytes(whole[: cut[15]])  # a transaction has committed offsets but not itself
    lines = listed(path, capsys)
    at = next(n for n, line in enumerate(lines) if line.get("group") == "g-txn")
    group, offset = lines[at : at + 2]
    assert (group["offsets"], group["pending_offsets"]) == (0, 1)
    assert (offset["offset"], offset["metadata"], offset["pending"]) == (7, "meta", True)

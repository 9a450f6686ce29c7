"""Alerts fire where they should, and nowhere else: by Prometheus' own tool (`make deps` takes it).

That each asks for a metric which a broker serves is in unit/tools/test_metrics_doc.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.deps import BIN

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
ALERTS = PROMETHEUS / "lapse-alerts.yml"
AT = 'job="lapse",instance="a"'
LOG = f'{AT},topic="t",partition="0"'
CLEANER, REPLICAS = "kafka_log_logcleaner", "kafka_server_replicamanager"
CONTROLLER = "kafka_controller_kafkacontroller"
GIB = 1 << 30

# A series and its values every five minutes: when all is well, and when it is not.
FIRES = {
    "LapseDeadlineMissed": (f'lapse_overdue_seconds{{{LOG},kind="values"}}', "0x400", "1x400"),
    "LapseErasureLate": (f"lapse_erasure_overdue_seconds{{{AT}}}", "0x400", "1x400"),
    "LapseErasureUnreadable": (
        f'lapse_erasure_orders{{{AT},state="unreadable"}}', "0x400", "1x400",
    ),
    "LapseClockHeld": (f"lapse_lifecycle_clock_ahead_seconds{{{AT}}}", "0x400", "7200x400"),
    "LapseRoundsStopped": (f"{CLEANER}_deadthreadcount{{{AT}}}", "0x400", "1x400"),
    "LapseEngineFails": (f"lapse_lifecycle_engine_failures{{{AT}}}", "2x400", "3x400"),
    "LapseRoundsFail": (f"lapse_round_failures{{{LOG}}}", "2x400", "3x400"),
    "LapseUncleanable": (
        f'{CLEANER}manager_uncleanable_partitions_count{{{AT},logDirectory="/d"}}',
        "0x400",
        "1x400",
    ),
    "LapsePausedForLong": (
        f"lapse_lifecycle_paused{{{AT}}}",
        "1x120 0x280",  # ended after ten hours
        "1x400",
    ),
    "LapseDown": (f"up{{{AT}}}", "1x400", "0x400"),
    "LapseDegraded": (f'lapse_degraded{{{AT},reason="log_offline"}}', "0x400", "1x400"),
    "LapseRefusesWrites": (
        f'lapse_logs_refusing_writes{{{AT},reason="disk_full"}}', "0x400", "1x400",
    ),
    "LapsePartitionsOffline": (f"lapse_broker_partitions_offline{{{AT}}}", "0x400", "1x400"),
    "LapseDiskFills": (
        f'lapse_log_directory_free_bytes{{{AT},logDirectory="/d"}}',
        f"{5000 * GIB}-{5 * GIB}x400",
        f"{2500 * GIB}-{5 * GIB}x400",
    ),
    "LapseNoController": (f"{CONTROLLER}_activecontrollercount{{{AT}}}", "1x400", "0x400"),
    "LapseNobodyLeads": (f"{CONTROLLER}_offlinepartitionscount{{{AT}}}", "0x400", "1x400"),
    "LapseUnderReplicated": (f"{REPLICAS}_underreplicatedpartitions{{{AT}}}", "0x400", "1x400"),
    "LapseUnderMinIsr": (f"{REPLICAS}_underminisrpartitioncount{{{AT}}}", "0x400", "1x400"),
}  # fmt: skip
MORE = {
    "LapseDown": ('up{job="other",instance="a"}', "", "1x400"),  # nobody looks at a broker
    "LapseErasureUnreadable": (f'lapse_erasure_orders{{{AT},state="open"}}', "1x400", ""),
    "LapsePausedForLong": (f"lapse_lifecycle_paused_logs{{{AT}}}", "1x120 0x280", "1x400"),
    "LapseNoController": (f"{CONTROLLER}_activecontrollercount{{{AT}}}", "1x400", "2x400"),
    "LapseRefusesWrites": (
        f'lapse_logs_refusing_writes{{{AT},reason="not_enough_replicas"}}', "1x400", "",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool") or shutil.which("promtool", path=str(BIN))
    if found is None:
        pytest.skip("no promtool here; make deps takes it out of Debian's prometheus")
    return found


def run(promtool: str, *words: object) -> None:
    done = subprocess.run(
        [promtool, *map(str, words)], capture_output=True, text=True, check=False, cwd=PROMETHEUS
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_them(promtool: str) -> None:
    run(promtool, "check", "rules", ALERTS.name)
    run(promtool, "check", "config", "prometheus.yml")


def test_all_are_tried() -> None:
    text = ALERTS.read_text()
    assert all(f"- alert: {name}\n" in text for name in FIRES)
    assert text.count("- alert:") == len(FIRES)


def test_each_fires_where_it_should_and_nowhere_else(promtool: str, tmp_path: Path) -> None:
    tests = [
        {
            "name": f"{name}: {values}",
            "interval": "5m",
            "input_series": [{"series": series, "values": _from_the_first(values)}],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                    "eval_time": "25h",
                    "exp_samples": expected,
                }
            ],
        }
        for table in (FIRES, MORE)
        for name, (series, well, badly) in table.items()
        for values, expected in ((well, []), (badly, [{"labels": "{}", "value": 1}]))
        if values
    ]
    file = tmp_path / "test.yml"  # JSON is YAML
    file.write_text(
        json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "5m", "tests": tests})
    )
    run(promtool, "test", "rules", file)


def _from_the_first(values: str) -> str:
    """`1x3` is 1 four times; promtool wants the steps said."""
    parts = []
    for part in values.split():
        value, times = part.split("x")
        parts.append(part if "-" in value else f"{value}+0x{times}")
    return " ".join(parts)

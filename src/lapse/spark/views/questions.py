"""Three questions about a whole fleet of logs, as SQL; docs/data-source.md has them too.

The tables are the views, registered under the names of `TABLES`.
"""

from __future__ import annotations

from collections.abc import Mapping

from lapse.spark.views.spec import KEYS, LEDGER, PLAN, SEGMENTS

TABLES: Mapping[str, str] = {
    SEGMENTS: "lapse_segments",
    PLAN: "lapse_plan",
    LEDGER: "lapse_ledger",
    KEYS: "lapse_keys",
}

MISSED_DEADLINES = """\
SELECT topic,
       max(missed_by_ms) AS most_ms,
       count_if(missed_by_ms > 0) AS logs_late,
       count_if(missed_by_ms = 0) AS logs_to_come,
       min(deadline) AS first_deadline,
       max_by(deadline_for, missed_by_ms) AS latest_for
FROM lapse_plan
WHERE deadline < date_trunc('WEEK', as_of) + INTERVAL 7 DAYS
GROUP BY topic
HAVING max(missed_by_ms) > 0
ORDER BY most_ms DESC, first_deadline
"""

FREED_NEXT_DAY = """\
SELECT topic,
       sum(horizon_bytes) AS bytes_at_most,
       count(*) AS segments,
       min(horizon_earliest) AS first_horizon
FROM lapse_segments
WHERE sealed AND horizon_earliest < as_of + INTERVAL 1 DAY
GROUP BY topic
ORDER BY bytes_at_most DESC
"""

LARGEST_KEYS = """\
SELECT topic,
       key,
       sum(record_bytes) AS all_bytes,
       sum(records) AS all_records,
       max(timestamp) AS last_written
FROM lapse_keys
GROUP BY topic, key
ORDER BY all_bytes DESC
LIMIT 20
"""

QUESTIONS: Mapping[str, str] = {
    "which topics miss their deadline this week, and by how much": MISSED_DEADLINES,
    "how many bytes horizons free within a day, by topic": FREED_NEXT_DAY,
    "which keys take the most": LARGEST_KEYS,
}

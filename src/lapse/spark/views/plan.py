"""The view of the plan: one row per log, with the facts of `lapse plan` and deadlines.

Settings are those of `ViewOptions.settings`, else what the directory's metadata says. A log whose
settings are unknown has a row that says so, and so has one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.config import TopicConfig, split_settings
from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.select import Decision, decide
from lapse.lifecycle.outlook.rows import Row, plan_row, unjudged
from lapse.lifecycle.round.stamps import info_of
from lapse.log.reader import DirectoryView
from lapse.metadata.policies import UNKNOWN, Policies, find_policies
from lapse.spark.views.logs import of_log, partitions_of, unless_gone
from lapse.spark.views.spec import ViewOptions, ViewUnit


def plan_rows(unit: ViewUnit, clock: Clock) -> Iterator[Row]:
    """Rows of the unit's logs. Raises ConfigError on what the user says."""
    view = DirectoryView(Path(unit.log_dir), clock)
    policies = policies_of(view.path, unit.options)
    for partition in partitions_of(unit):

        def read(partition: TopicPartition = partition) -> Row:
            config = policies.config_of(partition)
            if config is None:
                return unjudged("policy", UNKNOWN)
            row = plan_row(decision_of(view, partition, config, unit.options.now_ms))
            against = policies.contradictions_of(partition)
            also = {"explanation": f"{row['explanation']}; {against}"} if against else {}
            return {**row, **also}

        try:
            found = unless_gone(view.path / str(partition), read)
        except LapseError as e:
            found = unjudged("unreadable", str(e))
        if found is not None:
            yield {**of_log(unit, partition), **found}


def policies_of(log_dir: Path, options: ViewOptions) -> Policies:
    """Settings of the logs of a directory."""
    said, given_defaults = split_settings(dict(options.settings))
    return find_policies(log_dir, said, given_defaults)


def decision_of(
    view: DirectoryView, partition: TopicPartition, config: TopicConfig, now_ms: int
) -> Decision:
    """What is decided of a log that is only looked at."""
    return decide(info_of(view.facts(partition), config, now_ms), now_ms)

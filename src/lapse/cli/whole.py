"""Which logs of a data directory have all they should have, for who copies or rewrites them."""

from __future__ import annotations

import argparse

from lapse.base.errors import LapseError, StorageError
from lapse.base.ids import TopicPartition
from lapse.cli import options
from lapse.log.incomplete import refuse_incomplete
from lapse.log.missing import Remembered


def whole_partitions(
    args: argparse.Namespace,
) -> tuple[list[TopicPartition], dict[TopicPartition, str]]:
    """Those of `chosen_partitions` that have all they should have, and what the others lack.

    A broker keeps those offline until somebody decides (`lapse repair`): a copy, or what is made of
    them, would be without what is missing, and no longer know of it.
    """
    options.partitions_in(args.logdir)  # refuses what is no directory
    refuse_incomplete(args.logdir)
    remembered = Remembered.of(args.logdir)
    if remembered.trouble:
        raise StorageError(remembered.trouble)
    wrong: dict[TopicPartition, str] = {}
    partitions = options.chosen_partitions(args, also=remembered.missing_partitions())
    for one in partitions:
        try:
            remembered.require_whole(one)
        except (LapseError, OSError) as e:  # nobody knows of one whose list cannot be read
            wrong[one] = str(e)
    return [one for one in partitions if one not in wrong], wrong

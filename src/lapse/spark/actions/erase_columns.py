"""The columns of `erase`, whose command cannot be imported without the extra `erase`."""

from __future__ import annotations

from lapse.cli.erase import Intent, Row
from lapse.spark.actions.columns import struct_of

ERASE, ERASE_DRY_RUN = struct_of(Row), struct_of(Intent)

"""By this Spark finds `format("lapse")`: it looks through packages named `pyspark_…` for a source.

Spark does so in a Python process of its own, before a server's first Python source is used, whoever
made that: where ours cannot be imported, others must go on. Nothing else belongs here.
"""

import logging

try:
    from lapse.spark.source.format import LapseSource as DefaultSource
except ImportError as e:
    logging.getLogger(__name__).warning(
        "format('lapse') is not there, it needs the extra lapse[spark]: %s", e
    )
else:
    __all__ = ["DefaultSource"]

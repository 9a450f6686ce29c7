"""By this Spark finds `format("lapse")`: it looks through packages named `pyspark_…` for a source.

Spark does so in a Python process of its own, before a server's first Python source is used. Nothing
else belongs here.
"""

from lapse.spark.source.format import LapseSource as DefaultSource

__all__ = ["DefaultSource"]

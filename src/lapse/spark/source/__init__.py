"""`format("lapse")`: logs and topics as a data source of Spark's, to read, to stream and to write.

from lapse.spark import source

source.register(spark)  # once a session
spark.read.format("lapse").option("path", "/data").load()
"""

from lapse.spark.source.format import SETTINGS, LapseSource, register

__all__ = ["SETTINGS", "LapseSource", "register"]

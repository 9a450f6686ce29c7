"""Rounds on Spark, through PySpark's RDD API: the only package that knows Spark (ADR-9)."""

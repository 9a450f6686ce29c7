"""Rounds on Spark, through PySpark's RDD API: the only package that knows Spark (DESIGN §2)."""

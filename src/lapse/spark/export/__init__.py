"""`lapse export`: a topic as a table of Parquet, Delta or Iceberg that forgets as the log does."""

"""`lapse export`: a topic as a table of Parquet or Delta files that forgets as the log does."""

"""The bottom of the house: errors, ids, clock, file system, configuration."""

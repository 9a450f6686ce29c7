"""Committed offsets of one partition of the offsets topic, and when they expire."""

"""Shipped doubles for the seams (clock, file system), and the judge of what clients saw."""

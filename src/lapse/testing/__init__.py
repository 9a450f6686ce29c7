"""Shipped doubles for the seams (clock, file system), so that users can test with them too."""

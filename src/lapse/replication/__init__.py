"""Copies of a partition on several brokers: what a leader knows of them, what a follower does."""

"""Copies of this broker's partitions on others: leading them, following their leaders."""

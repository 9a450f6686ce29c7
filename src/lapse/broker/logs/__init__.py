"""The logs of this broker: partitions, topics, disks, housekeeping, and fetching from them."""

"""Groups and transactions of this broker: their logs, their partitions, their timers."""

"""The end of a record's life: what must go (decide), how (round), and when (service)."""

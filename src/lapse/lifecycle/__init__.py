"""The end of a record's life: what must go (decide), how it goes (round), who asks (service)."""

"""What a handler is given: who asks, what may be asked of whom, and the rest of the broker."""

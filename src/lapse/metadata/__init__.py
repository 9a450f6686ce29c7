"""Which topics exist and how they are set: the durable store, and the snapshot that is read."""

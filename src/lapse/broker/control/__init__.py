"""The owner's side of rounds: which service may make them, and what a broker does for it."""

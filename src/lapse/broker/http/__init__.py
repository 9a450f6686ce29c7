"""The HTTP port: health, rounds and metrics."""

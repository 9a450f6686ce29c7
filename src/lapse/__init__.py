"""Lapse: a Kafka-compatible log that forgets on time, never early, and can prove it."""

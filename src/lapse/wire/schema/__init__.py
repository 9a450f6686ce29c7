"""Kafka's messages, one file per API; each declaration is the documentation of its message.

Field names are Kafka's in snake_case. A docstring says what a field's name does not; version
notes name the KIP. Ranges, nullability, defaults and tags are checked in tests against a table of
Kafka 4.3.1's own message descriptors and, byte for byte, against an independent codec.
"""

"""Numba kernels: arrays and ints in, arrays and ints out; no objects, no files, no clock.

Rules of the house (ADR-1): every offset is checked against the end of its batch, because a
kernel on raw bytes has no other net; each kernel has a slow, obvious twin in `tests/reference`.
"""

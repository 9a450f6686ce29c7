"""The fast path: requests that are as nearly all are, answered in few steps (ARCHITECTURE.md)."""

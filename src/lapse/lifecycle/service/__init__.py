"""The process that makes rounds: what is due, what runs, and what becomes of it."""

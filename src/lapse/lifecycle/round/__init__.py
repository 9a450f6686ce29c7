"""One pass over one log: plan → map → rewrite → commit → ledger (docs/internals/round.md)."""

"""One pass over one log: plan → map → rewrite → commit → ledger (DESIGN §3)."""

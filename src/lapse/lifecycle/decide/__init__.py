"""Pure functions `(facts, config, now) -> decision`: all rules on what is removed are here."""

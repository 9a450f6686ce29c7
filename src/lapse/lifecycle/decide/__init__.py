"""Pure functions `(facts, config, now) -> decision`: the one place that says what must go."""

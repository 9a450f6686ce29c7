"""Which ranges of which logs a query reads, and reading them: from files or from a broker."""

"""One module a page: what it asks brokers, and what its template is given."""

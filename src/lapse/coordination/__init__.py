"""Groups and transactions: what Kafka keeps of them in its internal topics; pure, no I/O."""

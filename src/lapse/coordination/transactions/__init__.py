"""Who owns a transactional id and how its transactions end: Kafka's TransactionCoordinator."""

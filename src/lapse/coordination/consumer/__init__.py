"""Groups of the consumer protocol (KIP-848): Kafka's ConsumerGroup and its assignors."""

"""What Kafka keeps of groups and transactions in its internal topics, and what that amounts to."""

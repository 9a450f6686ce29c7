"""The broker beside real Kafka."""

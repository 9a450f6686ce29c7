"""What is known of rounds outside the service: reports, pauses, waits, conditions."""

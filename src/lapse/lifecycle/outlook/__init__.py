"""What would be cleaned, what holds the rest, and until when: answers of those that only look."""

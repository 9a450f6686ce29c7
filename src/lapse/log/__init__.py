"""One partition's files in Kafka's format: append, read, recover, replace; knows no socket."""

"""Groups of the classic protocol (JoinGroup, SyncGroup, Heartbeat): Kafka's ClassicGroup."""

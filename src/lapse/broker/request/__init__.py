"""What a handler gets: the client, what it may do, and the services of the broker."""

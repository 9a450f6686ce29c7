"""What one client, address or user may take: quotas, connections, memory."""

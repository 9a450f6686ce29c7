"""The node that clients talk to: asyncio at the edge, one file per API, disks in worker threads."""

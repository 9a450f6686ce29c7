"""Talking to a broker: thin, asyncio, for what stock clients cannot say and for our own tools."""

"""Ending asyncio's servers in tests."""

from __future__ import annotations

import asyncio


async def stop_serving(server: asyncio.Server) -> None:
    """Close a server, and leave no connection half accepted.

    asyncio drops a connection unclosed whose server is closed between its accept and the loop's
    next turn (the transport cannot attach to it); a later test fails for it, once garbage is
    collected.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await asyncio.sleep(0)  # what was accepted attaches
    await asyncio.sleep(0)  # and is handed to whom serves it
    server.close()

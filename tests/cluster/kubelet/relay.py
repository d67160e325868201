"""Connections to a listening socket of the pods' network, passed on to an address of the host."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress


async def serve(listening: socket.socket, host: str, port: int) -> None:
    """From now on, while the loop runs."""
    listening.setblocking(False)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()  # as a service without endpoints refuses
            return
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))

    await asyncio.start_server(pass_on, sock=listening)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()

"""A process that ends the TLS of connections, and hands on what they say: PORT CERTIFICATE KEY [AUTHORITY OF CLIENTS]."""

from __future__ import annotations

import asyncio
import ssl
import sys
from contextlib import suppress

HERE = "127.0.0.1"
CHUNK = 65_536


async def main(target: str, certificate: str, key: str, authority: str | None = None) -> None:
    """Print the port, then serve until killed."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    if authority:
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            other_reader, other_writer = await asyncio.open_connection(HERE, int(target))
            await asyncio.gather(pump(reader, other_writer), pump(other_reader, writer))

    server = await asyncio.start_server(serve, HERE, 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201  # its starter reads it
    await server.serve_forever()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hand on until one end is closed."""
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

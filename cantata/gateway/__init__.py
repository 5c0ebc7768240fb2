"""The gateway: turns, chains, sessions and memory over HTTP and WebSockets. The only package that knows the web framework.

    client ──HTTP, WebSocket──▶ access ▶ pace ▶ size ▶ routes, chat ──▶ service ──threads──▶ Client ──▶ Redis
                                                                         └── streams: one task that reads the events of all followed runs

It holds nothing that matters: runs go on without it, and whoever was connected goes on at the same offset with another gateway.
"""

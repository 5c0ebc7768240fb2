"""The gateway: turns, chains, sessions and memory over HTTP and WebSockets. The only package that uses the web framework.

    client ──HTTP, WebSocket──▶ access ▶ rate ▶ size ▶ routes, chat ──▶ granted_client ──threads──▶ Client ──▶ Redis
                                                                         └── streams: one task that reads the events of all followed runs

It has no durable state: runs continue without it, and its clients continue with another gateway at the same offset.
"""

"""The gateway over real HTTP and WebSockets."""

"""Routes of the gateway, with their request and response bodies."""

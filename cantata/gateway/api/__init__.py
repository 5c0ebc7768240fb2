"""The routes of the gateway, and what they take and answer."""

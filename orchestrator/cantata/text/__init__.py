"""Words for people, and patterns in texts of others."""

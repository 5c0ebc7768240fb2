"""Features of runs, a folder each. They do not import each other, but for webhooks."""

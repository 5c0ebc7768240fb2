"""A run as data, pure: definitions, requests, the graph, events, and what makes graphs of requests."""

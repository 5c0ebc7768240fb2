"""Memory namespaces, and cached replies of models."""

"""Expressions, templates and JSON of models: parsed and evaluated within bounds."""

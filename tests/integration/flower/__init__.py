"""Flower beside a stack."""

"""Surfaces show runs and take requests: command line, gateway, pages, Flower, chat."""

"""The run pages, and Flower with the run pages in it."""

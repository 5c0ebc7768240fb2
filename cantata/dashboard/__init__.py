"""The run pages, and Flower with them."""

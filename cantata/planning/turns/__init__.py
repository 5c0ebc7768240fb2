"""One module a way of working, each a pure builder of graphs."""

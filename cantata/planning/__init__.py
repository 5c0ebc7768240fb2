"""Pure: from definitions to graphs and canvases."""

"""Commands that start processes: workers, stacks, the gateway, Flower."""

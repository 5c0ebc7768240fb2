"""Chain requests (A2E): checked where they are submitted, planned as graphs of steps in a worker, and expanded as they run."""

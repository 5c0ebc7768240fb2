"""What must hold: unit, integration, acceptance and fault tests, and the benchmarks."""

"""Static checks of chains, which find all faults before a chain runs."""

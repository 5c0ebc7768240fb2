"""State that outlives runs: conversations, turns of teams, chain builders."""

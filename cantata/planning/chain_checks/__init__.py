"""Everything that is wrong with a chain, found before anything of it runs."""

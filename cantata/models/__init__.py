"""Values: frozen, without behaviour beyond checking themselves."""

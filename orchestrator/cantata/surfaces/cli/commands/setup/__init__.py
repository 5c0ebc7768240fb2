"""Commands that prepare a project, a machine or a shell."""

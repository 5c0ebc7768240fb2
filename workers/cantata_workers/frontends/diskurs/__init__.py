"""The steps of Diskurs folders: they run the folder's code, call the agents' models, and read the replies."""

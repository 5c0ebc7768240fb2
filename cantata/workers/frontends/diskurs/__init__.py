"""Does the steps of Diskurs folders: their code is run here, their agents' models are asked, their replies are read."""

"""The run pages: what they show and do, and the files they are made of; without HTTP, so that the gateway and Flower serve the same.

gateway, Flower ──▶ runs.Pages ──▶ state (what is recorded)
                        └── views ◀── graphs, folding, attempts, transcripts (pure)
                    assets: the document, its scripts and styles
"""

"""The run pages: their data, actions and files; without HTTP, so that the gateway and Flower serve the same.

gateway, Flower ──▶ run_pages.RunPages ──▶ state
                        └── page_views ◀── graph_view, map_folding, attempts, transcripts (pure)
                    assets: the document, its scripts and styles
"""

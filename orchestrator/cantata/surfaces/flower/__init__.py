"""Flower with the run pages in it: `submit flower`. The only package that knows Flower and Tornado.

    browser ──▶ Flower's own pages and API, unchanged
            └─▶ /runs/… ──▶ handlers ──threads──▶ RunPages ──▶ Redis
                               ├── events: server-sent; one connection reads those of all followed runs
                               └── tasks: those of a run, from Flower's memory

It adds a tab and a link to two of Flower's templates. If a template has changed so that they do not fit, it is served unchanged.
"""

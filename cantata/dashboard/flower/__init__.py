"""Flower with the run pages in it: `submit flower`. The only package that knows Flower and Tornado.

    browser ──▶ Flower's own pages and API, untouched
            └─▶ /runs/… ──▶ handlers ──threads──▶ pages.Pages ──▶ Redis
                               ├── events: server-sent, of all followed runs on one connection
                               └── tasks: those of a run, in Flower's memory

It adds a tab and a link to two of Flower's templates. Where they have changed so that this cannot be done, Flower is as it was.
"""

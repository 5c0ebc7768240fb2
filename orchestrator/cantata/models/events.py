"""The events of a run, for programs."""

from cantata.flows.events import *  # noqa: F403

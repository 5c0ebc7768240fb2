"""LangSwarm's files: agents, tools and workflows in YAML, compiled into agents, tools and chains.

files       which files there are, and what sections they hold
crew        agents and tools             → the book of what may be named
workflow    one workflow                 → a chain: the spine of the rest
  steps       what each step does, and which of its keys count
  references  `${...}`                   → expressions
  conditions  `... == 'high' && ...`     → expressions
  routes      `output.to`                → ways on
  order       list order, depends_on, fans
  calls       whom a step calls, with what
  inputs      what a workflow is given
  drawing     all of it                  → nodes
"""

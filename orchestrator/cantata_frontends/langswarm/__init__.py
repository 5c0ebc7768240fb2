"""LangSwarm's files: agents, tools and workflows in YAML, compiled into agents, tools and chains.

files         the files of a configuration, and their sections
agent_reader  agents and tools              → the symbol table
filesystem    the tool for files: its paths, and the functions that workers run
chains        an entry of `workflows:`    → a chain, by means of:
  steps         what each step does, and its effective keys
  reference_expressions  `${...}`           → expressions
  conditions    `... == 'high' && ...`      → expressions
  output_routes `output.to`                 → routes
  order         list order, depends_on, fans
  step_calls    what a step calls, and its arguments
  inputs        declared inputs of a chain
  node_emitter  all of it                   → nodes
"""

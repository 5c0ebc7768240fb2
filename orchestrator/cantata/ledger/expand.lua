-- Between lib.lua and commit.lua: expands a step, that is, adds a fragment behind it. The step is the parent of the steps it adds.
-- A fragment: {steps: [[id, spec, given?], ...], edges: [[source, target, label, wakes, alone?], ...], items?: {like, prefix, given: [...], window},
--              exit?, names: {}, scoped, terminals: [...], stops?: [name, ...]}. Specs and given values are JSON texts inside it; only specs are opened.

local older = {infos = {}, joins = {}, names = {}} -- of older steps, by id, as a call read them for the edges that it adds

-- Reads what add_edges needs of older steps.
local function read_older(parent, fragment, added)
  local seen, ids = {[parent] = true}, {}
  if fragment.items then seen[fragment.items.like] = true end
  for _, edge in ipairs(fragment.edges) do
    for i = 1, 2 do
      local id = edge[i]
      if not added[id] and not seen[id] then ids[#ids + 1], seen[id] = id, true end
    end
  end
  for i, name in ipairs(answering_all(ids)) do
    older.names[ids[i]] = name
    if name ~= ids[i] then ids[#ids + 1] = name end
  end
  for i, packed in ipairs(hmget_all(R .. ':state', ids)) do
    if states[ids[i]] == nil then states[ids[i]] = packed end
  end
  for _, part in ipairs({'joins', 'infos'}) do
    for i, text in ipairs(hmget_all(R .. (part == 'joins' and ':joins' or ':info'), ids)) do older[part][ids[i]] = text end
  end
end

-- The labels that a step which is over took.
local function takes_of(s)
  if s.state == 'skipped' then return {} end
  local info = cjson.decode(older.infos[s.id] or '{}')
  if s.state == 'failed' then
    local spec = spec_of(s.id)
    if spec.on_error == 'skip' or info.error.code == 'missed_deadline' then return {done = true} end
    return spec.on_error == 'jump' and {failed = true} or {}
  end
  local takes = {}
  for _, label in ipairs(info.takes or {'done'}) do takes[label] = true end
  return takes
end

-- The new steps, waiting, by id and in order; the common spec of items is stored but is no step.
local function new_steps(fragment, is_of_workflow)
  local rows, given, due, added, order = {}, {}, {}, {}, {}
  for _, row in ipairs(fragment.steps) do
    local id, text = row[1], row[2]
    rows[#rows + 1] = id; rows[#rows + 1] = text
    if row[3] then given[#given + 1] = id; given[#given + 1] = row[3] end
    if not (fragment.items and id == fragment.items.like) then
      local spec = specs[text] or cjson.decode(text)
      specs[text] = spec
      if spec.kind == 'workflow.advance' and not is_of_workflow then redis.call('HSET', R, 'has_workflow', 1) end
      read_specs[id] = {spec, text, id}
      local step = {id = id, new = true, state = 'waiting', attempt = 0, pending = 0, taken = 0, failures = 0, crashes = 0, quorum = spec.quorum or 0, owner = '-'}
      if spec.quorum or spec.deadline_s then step.sources = {} end
      if spec.deadline_s then due[#due + 1] = now + spec.deadline_s * 1000; due[#due + 1] = 'join|' .. run .. '|' .. id end
      added[id] = step
      order[#order + 1] = step
    end
  end
  store(':steps', rows)
  store(':given', given)
  for i = 1, #due, 1000 do redis.call('ZADD', S .. ':due', unpack(due, i, math.min(i + 999, #due))) end
  return added, order
end

-- Whether new in-edges of a step still count: it has never been ready.
local function is_open(s) return s.state == 'waiting' and s.attempt == 0 end

-- An older step that is the target of a new edge.
local function older_target(id)
  local s = get(id)
  local sources = older.joins[id]
  if sources then s.sources = cjson.decode(sources) end
  return s
end

-- An in-edge whose source is over.
local function count_over(source, target, edge)
  if takes_of(source)[edge[3]] and edge[4] then target.taken = target.taken + 1 end
  if target.quorum > 0 and source.state == 'done' then
    target.quorum = target.quorum - 1
    target.enough = target.quorum == 0
  end
  target.waits_no_more = target.waits_no_more or edge[5]
end

local EDGE_BYTES = 40 -- of an edge beside its target

-- Adds the edges and counts them on their targets; an edge whose source is over is resolved at once. A new step that no edge wakes is woken by the parent.
-- Adds to `order` the older steps that got new in-edges. An edge from an older step comes from what answers for it now.
-- Replies the edges whose source is over, which are not kept as edges.
local function add_edges(parent, fragment, added, order)
  read_older(parent, fragment, added)
  local counted = {}
  local out, sources, targets = {}, {}, {}
  local items = fragment.items
  for _, edge in ipairs(fragment.edges) do
    local source, target = edge[1], added[edge[2]] or targets[edge[2]]
    if not target then
      target = older_target(edge[2])
      targets[edge[2]] = target
      order[#order + 1] = target
    end
    local from_items = items and source == items.like
    local weight = from_items and #items.given or 1
    if is_open(target) and weight > 0 then
      if edge[4] then target.asked = true end
      increase('bytes', EDGE_BYTES + #edge[2])
      local known = nil
      if not from_items and not added[source] then
        source = older.names[source] or source
        known = get(source)
      end
      if target.sources then
        table.insert(target.sources, from_items and {map = parent, prefix = items.prefix, count = weight} or source)
      end
      if known and OVER[known.state] then
        count_over(known, target, edge)
        counted[#counted + 1] = {source, edge[2], edge[3], edge[4], edge[5]}
      else
        if not out[source] then
          out[source] = known and cjson.decode(cjson.encode(edges_of(source))) or {} -- a copy: items share theirs
          sources[#sources + 1] = source
        end
        table.insert(out[source], {edge[2], edge[3], edge[4], edge[5]})
        target.pending = target.pending + weight
      end
    end
  end
  local rows = {}
  for id in pairs(added) do new_edges[id] = '[]' end
  for _, source in ipairs(sources) do
    local text = cjson.encode(out[source])
    rows[#rows + 1] = source; rows[#rows + 1] = text
    if added[source] then new_edges[source] = text end
  end
  hset_all(R .. ':edges', rows)
  for _, step in ipairs(order) do
    if step.new and not step.asked then step.taken = 1 end
    if step.waits_no_more then step.pending = 0 end
  end
  return counted
end

-- The exit replaces the parent: it takes over its out-edges and its name.
local function hand_over(parent, exit)
  local mine, moved = edges_of(exit), edges_of(parent)
  for _, edge in ipairs(moved) do table.insert(mine, edge) end
  if #moved > 0 then
    new_edges[exit] = cjson.encode(mine)
    redis.call('HSET', R .. ':edges', exit, new_edges[exit])
    new_edges[parent] = '[]'
    redis.call('HSET', R .. ':edges', parent, '[]')
  end
  redis.call('HSET', R .. ':names', parent, exit)
end

-- Records what a parent adds and moves, before it is moved. The plan itself is never stopped as a scope, nor undone by a fork.
local function record_expansion(parent, fragment, counted)
  if parent == '@start' then return end
  local items, own, names = fragment.items, {}, {}
  local ids = {}
  for _, row in ipairs(fragment.steps) do ids[#ids + 1] = row[1] end
  for _, edge in ipairs(fragment.edges) do
    if edge[1] == fragment.exit then own[#own + 1] = {edge[2], edge[3], edge[4]} end
  end
  local moved = {}
  for name in pairs(fragment.names) do moved[#moved + 1] = name end
  for i, before in ipairs(hmget_all(R .. ':names', moved)) do names[moved[i]] = before or nil end
  local function unless_empty(list) return next(list) and list or nil end
  local expansion = {ids = ids, exit = fragment.exit, scoped = fragment.scoped or nil, own = unless_empty(own), counted = unless_empty(counted),
    names = unless_empty(names),
    items = items and {like = items.like, prefix = items.prefix, count = #items.given, window = items.window},
    terminals = #fragment.terminals > 0 and meta('terminals') or nil}
  store(':expansions', {parent, cjson.encode(expansion)})
end

-- Adds the items of a map, which share one spec: the first go into the window, the rest into the backlog.
local function add_items(parent, items)
  local rows, given, backlog = {}, {}, {}
  local first = math.min(items.window, #items.given)
  for i, value in ipairs(items.given) do
    local id = items.prefix .. '/' .. (i - 1)
    rows[#rows + 1] = id; rows[#rows + 1] = '=' .. items.like
    given[#given + 1] = id; given[#given + 1] = value
    set_state(id, (i <= first and 'waiting' or 'ready') .. ' 0 0 1 0 0 0 -')
    if i > first then backlog[#backlog + 1] = id end
  end
  store(':steps', rows)
  store(':given', given)
  push_all(R .. ':backlog:' .. parent, backlog)
  redis.call('HSET', R .. ':window', parent, items.window .. ' ' .. first)
  local spec, text, like = spec_of(items.like)
  for i = first - 1, 0, -1 do
    local id = items.prefix .. '/' .. i
    read_specs[id] = {spec, text, like}
    table.insert(lists.to_settle, id)
  end
end

-- A step of the fragment whose name is taken.
local function taken_name(fragment)
  local ids = {}
  for i, row in ipairs(fragment.steps) do ids[i] = row[1] end
  for i, known in ipairs(hmget_all(R .. ':steps', ids)) do
    if known then return ids[i] end
  end
end

local function expand(s, output, takes, fragment)
  local taken = taken_name(fragment)
  if taken then
    return fail(s, 'failed', cjson.encode({error = {code = 'name_taken', step = s.id,
      message = 'step ' .. s.id .. ' would add a step ' .. taken .. ', and there is one of that name; name one of the two differently'}}))
  end
  local items = fragment.items
  local count = #fragment.steps + (items and #items.given - 1 or 0)
  local max_steps = tonumber(meta('max_steps'))
  if counts.count + count > max_steps then
    return fail(s, 'failed', cjson.encode({error = {code = 'too_many_steps', step = s.id,
      message = 'step ' .. s.id .. ' would expand the run past ' .. max_steps .. ' steps; raise limits.max_steps or split the work'}}))
  end
  increase('count', count)
  increase('bytes', STEP_BYTES * count)
  increase('left', fragment.exit and count - 1 or count) -- the exit replaces the parent
  local spec = spec_of(s.id)
  local added, order = new_steps(fragment, spec.kind == 'workflow.advance' and not spec.window) -- new_steps passes over items
  record_expansion(s.id, fragment, add_edges(s.id, fragment, added, order))
  if fragment.exit then hand_over(s.id, fragment.exit) end
  local names = {}
  for name, id in pairs(fragment.names) do
    names[#names + 1] = name; names[#names + 1] = id
    increase('bytes', EDGE_BYTES + #name + #id)
  end
  hset_all(R .. ':names', names)
  if #fragment.terminals > 0 then redis.call('HSET', R, 'terminals', cjson.encode(fragment.terminals)) end

  finish(s, 'done', output)
  event('expanded', s.id, s.attempt, nil, '{"steps":' .. count .. '}')
  local joins = {}
  for _, step in ipairs(order) do
    if is_open(step) then
      set_state(step.id, pack(step))
      if step.sources then joins[#joins + 1] = step.id; joins[#joins + 1] = cjson.encode(step.sources) end
    end
  end
  for i = #order, 1, -1 do
    local step = order[i]
    if is_open(step) and (step.pending == 0 or step.enough) then table.insert(lists.to_settle, step.id) end
  end
  hset_all(R .. ':joins', joins)
  follow('settle_all')
  for _, name in ipairs(fragment.stops or {}) do follow('give_up', name) end -- before that: new ones among them are not begun
  if items then add_items(s.id, items) end
  if not fragment.exit then propagate(s, 'done', takes) end
end
